#include "daemon/export/prometheus.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace neuraldbg {
namespace {

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return absl::StrFormat("%.17g", value);
}

}  // namespace

void PrometheusText::Metric(const std::string& name, Type type, const std::string& help) {
  name_ = name;
  const std::string line = absl::StrReplaceAll(help, {{"\\", "\\\\"}, {"\n", "\\n"}});
  absl::StrAppend(&text_, "# HELP ", name_, " ", line, "\n# TYPE ", name_, " ",
                  type == Type::kCounter ? "counter" : "gauge", "\n");
}

void PrometheusText::Sample(const Labels& labels, double value) {
  absl::StrAppend(&text_, name_);
  char opening = '{';
  for (const auto& [label, content] : labels) {
    const std::string escaped = absl::StrReplaceAll(content, {{"\\", "\\\\"}, {"\n", "\\n"}, {"\"", "\\\""}});
    absl::StrAppend(&text_, std::string(1, opening), label, "=\"", escaped, "\"");
    opening = ',';
  }
  absl::StrAppend(&text_, labels.size() == 0 ? " " : "} ", Number(value), "\n");
}

}  // namespace neuraldbg
