// Logging of the daemon: one logger to stderr, and a limit per message so that a broken producer cannot fill a disk.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "spdlog/spdlog.h"

namespace neuraldbg {

// `level`: one of Config::log_level.
void SetUpLogging(const std::string& level);

// Lets a message through at most `kBurst` times in `kWindow` per key. Not thread-safe; each thread has its own.
class LogLimiter {
 public:
  static constexpr std::uint32_t kBurst = 5;
  static constexpr std::chrono::minutes kWindow{1};
  static constexpr std::size_t kKeysMax = 1024;

  bool Allow(const std::string& key, std::chrono::steady_clock::time_point now = std::chrono::steady_clock::now());

 private:
  struct Window {
    std::chrono::steady_clock::time_point start;
    std::uint32_t count = 0;
  };
  std::map<std::string, Window> windows_;
};

}  // namespace neuraldbg
