// Prometheus's text exposition format, version 0.0.4. Pure. Why this and not prometheus-cpp:
// docs/decisions/0004-metrics-text-by-hand.md.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

namespace neuraldbg {

inline constexpr const char* kPrometheusContentType = "text/plain; version=0.0.4; charset=utf-8";

class PrometheusText {
 public:
  enum class Type : std::uint8_t { kCounter, kGauge };
  using Labels = std::initializer_list<std::pair<std::string, std::string>>;

  // Starts a metric: all its samples follow before the next one starts. `help` is one line for people.
  void Metric(const std::string& name, Type type, const std::string& help);
  void Sample(double value) { Sample({}, value); }
  void Sample(const Labels& labels, double value);

  const std::string& text() const { return text_; }

 private:
  std::string name_, text_;
};

}  // namespace neuraldbg
