#include "daemon/model/diagnosis.h"

#include <array>

namespace neuraldbg {
namespace {

#define X(name) #name,
constexpr auto kKindNames = std::to_array<std::string_view>({NEURALDBG_HYPOTHESIS_KINDS(X)});
#undef X

constexpr auto kVerdictNames = std::to_array<std::string_view>({"HEALTHY", "FAULT", "INCOMPLETE_DATA", "UNSURE"});

}  // namespace

std::string_view HypothesisKindName(HypothesisKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kKindNames.size() ? kKindNames[index] : "UNKNOWN";
}

std::string_view VerdictName(Verdict verdict) {
  const auto index = static_cast<std::size_t>(verdict);
  return index < kVerdictNames.size() ? kVerdictNames[index] : "UNKNOWN";
}

}  // namespace neuraldbg
