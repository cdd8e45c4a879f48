#include "daemon/app/log.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "spdlog/sinks/stdout_sinks.h"

namespace neuraldbg {

void SetUpLogging(const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("neuraldbgd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %l %v");
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

bool LogLimiter::Allow(std::string_view kind, std::uint32_t most, Clock::time_point now) {
  Window& window = windows_[kind];
  if (window.count == 0 || now - window.start >= kWindow) {
    window.start = now;
    window.count = 0;
  }
  if (window.count < most) {
    ++window.count;
    return true;
  }
  ++window.left_out;
  return false;
}

std::vector<std::string> LogLimiter::TakeLeftOut(Clock::time_point now) {
  std::vector<std::string> said;
  for (auto& [kind, window] : windows_) {
    if (window.left_out == 0 || now - window.start < kWindow) continue;
    said.push_back(
        absl::StrCat(std::exchange(window.left_out, 0), " more such lines were left out: ", std::string(kind)));
  }
  return said;
}

}  // namespace neuraldbg
