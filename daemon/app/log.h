// Logging of the daemon: one logger to stderr, and a limit per message so that a broken producer cannot fill a disk.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "spdlog/spdlog.h"

namespace neuraldbg {

// `level`: one of Config::log_level.
void SetUpLogging(const std::string& level);

// Lets `most` lines of one kind through in a window that starts with its first line, and counts the others. Whoever
// asks Allow also says TakeLeftOut's sentences, so that no line is missing unsaid. Not thread-safe; each thread has its
// own.
class LogLimiter {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::minutes kWindow{1};

  // `kind` is text of the source, never of a file: each takes memory.
  bool Allow(std::string_view kind, std::uint32_t most, Clock::time_point now);
  // A sentence for each kind of which lines were left out and whose window is over; each line is counted once.
  std::vector<std::string> TakeLeftOut(Clock::time_point now);
  // The same of windows that go on.
  std::vector<std::string> TakeAllLeftOut() { return TakeLeftOut(Clock::time_point::max()); }

 private:
  struct Window {
    Clock::time_point start;
    std::uint32_t count = 0;
    std::uint64_t left_out = 0;  // since they were last told, older windows included
  };
  std::map<std::string_view, Window> windows_;
};

}  // namespace neuraldbg
