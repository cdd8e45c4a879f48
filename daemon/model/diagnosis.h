// What detection and inference produce. Mirrors neuraldbg.v1; daemon/service/convert.cc is the only place where the
// two meet.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/model/sample.h"

namespace neuraldbg {

enum class Severity : std::uint8_t { kInfo = 0, kWarning = 1, kError = 2 };

// A site changed its regime: detectors emit one when it enters and one when it leaves. `id` is dense per run, in order
// of emission, so streams can resume.
struct Transition {
  std::uint64_t id = 0;
  std::uint64_t step = 0;
  std::uint32_t rank = 0, incarnation = 0;
  std::uint32_t site = kNoSite;
  Phase phase = Phase::kForward;
  Statistic statistic = Statistic::kNone;
  std::string from, to;  // regime names, e.g. "HEALTHY" -> "VANISHING"
  double value = 0;      // observed
  double expected_low = 0, expected_high = 0;
  Severity severity = Severity::kWarning;
};

// clang-format off: version 23 indents this list further at every run.
#define NEURALDBG_HYPOTHESIS_KINDS(X)                                                                            \
  X(DATA_NONFINITE) X(NONFINITE_FORWARD) X(NONFINITE_LOSS) X(NONFINITE_BACKWARD) X(NONFINITE_PARAMETER)          \
  X(LOW_PRECISION_OVERFLOW) X(LOW_PRECISION_UNDERFLOW) X(VANISHING_GRADIENT) X(EXPLODING_GRADIENT) X(DEAD_UNITS) \
  X(SATURATED_ACTIVATION) X(ACTIVATION_SHIFT) X(ATTENTION_LOGIT_GROWTH) X(ROUTER_COLLAPSE) X(UPDATE_LOST)        \
  X(NO_GRADIENT) X(UPDATE_TOO_SMALL) X(UPDATE_TOO_LARGE) X(LEARNING_RATE_ZERO) X(LEARNING_RATE_SPIKE)            \
  X(GRADIENT_ACCUMULATING) X(SCALER_STALLED) X(INIT_SCALE) X(INIT_SYMMETRIC) X(DATA_SHIFT) X(LABEL_ANOMALY)      \
  X(LOSS_SPIKE) X(LOSS_DIVERGENCE) X(LOSS_PLATEAU) X(REPLICA_DIVERGENCE) X(SILENT_CORRUPTION) X(STRAGGLER)       \
  X(HANG) X(RANK_DIED) X(BLIND_SPOT)
// clang-format on

enum class HypothesisKind : std::uint8_t {
#define X(name) name,
  NEURALDBG_HYPOTHESIS_KINDS(X)
#undef X
};
std::string_view HypothesisKindName(HypothesisKind kind);

struct Evidence {
  std::uint32_t site = kNoSite;
  std::uint64_t step = 0;
  Statistic statistic = Statistic::kNone;
  double observed = 0, expected_low = 0, expected_high = 0;
  std::string note;  // one sentence
};

struct ChainLink {
  std::uint32_t site = kNoSite;
  std::uint64_t step = 0;
  Phase phase = Phase::kForward;
  double share = 0;  // of the change of the symptom that this link's own mechanism explains
  std::string note;
};

struct Hypothesis {
  std::uint32_t incident = 0;
  HypothesisKind kind = HypothesisKind::BLIND_SPOT;
  std::string module;
  std::uint32_t site = kNoSite;
  std::int32_t rank = 0;  // -1 = all
  std::uint64_t step = 0;
  std::uint64_t detected_at_step = 0;
  Phase phase = Phase::kForward;
  double confidence = 0;
  std::string summary, remedy;
  std::vector<Evidence> evidence;
  std::vector<ChainLink> chain;
  std::vector<std::string> equivalents;
};

struct Notice {
  std::uint64_t step = 0;
  std::int32_t rank = 0;
  HypothesisKind kind = HypothesisKind::LOSS_PLATEAU;
  std::string module, text;
};

struct BlindSpot {
  std::uint32_t site = kNoSite;
  std::int32_t rank = 0;
  std::uint64_t step = 0;
  std::string text;
};

enum class Verdict : std::uint8_t { HEALTHY, FAULT, INCOMPLETE_DATA, UNSURE };
std::string_view VerdictName(Verdict verdict);

struct Diagnosis {
  Verdict verdict = Verdict::INCOMPLETE_DATA;
  std::vector<Hypothesis> hypotheses;  // best first
  std::vector<Notice> notices;
  std::vector<BlindSpot> blind_spots;
  bool warm = false;
  std::uint64_t steps_seen = 0;
  std::vector<std::uint32_t> ranks_seen;
  std::vector<std::uint64_t> through_steps;  // by position in ranks_seen: the last training step that went in
};

}  // namespace neuraldbg
