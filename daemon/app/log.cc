#include "daemon/app/log.h"

#include <memory>

#include "spdlog/sinks/stdout_sinks.h"

namespace neuraldbg {

void SetUpLogging(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("neuraldbgd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

bool LogLimiter::Allow(const std::string& key, std::chrono::steady_clock::time_point now) {
  if (windows_.size() >= kKeysMax && !windows_.contains(key)) windows_.clear();
  Window& window = windows_[key];
  if (window.count == 0 || now - window.start >= kWindow) window = {.start = now, .count = 0};
  return window.count++ < kBurst;
}

}  // namespace neuraldbg
