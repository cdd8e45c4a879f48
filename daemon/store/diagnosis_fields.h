// One list of fields per table of findings. The same list binds a row and reads it back, and the same list writes and
// reads the portable file, so that no two of them can disagree.
//
// `io` takes any number of fields, and Enum(field, count) for a value below `count`.
#pragma once

#include <cstdint>

#include "daemon/model/diagnosis.h"

namespace neuraldbg::store {

inline constexpr std::int64_t kVerdictCount = 4;

template <typename Io, typename T>
void TransitionFields(Io& io, T& t) {
  io(t.id, t.step, t.rank, t.incarnation, t.site);
  io.Enum(t.phase, kPhaseCount);
  io.Enum(t.statistic, static_cast<std::int64_t>(Statistic::kCount));
  io(t.from, t.to, t.value, t.expected_low, t.expected_high);
  io.Enum(t.severity, 3);
}

template <typename Io, typename T>
void HypothesisFields(Io& io, T& h) {
  io(h.incident);
  io.Enum(h.kind, static_cast<std::int64_t>(HypothesisKind::BLIND_SPOT) + 1);
  io(h.module, h.site, h.rank, h.step, h.detected_at_step);
  io.Enum(h.phase, kPhaseCount);
  io(h.confidence, h.summary, h.remedy);
}

template <typename Io, typename T>
void EvidenceFields(Io& io, T& e) {
  io(e.site, e.step);
  io.Enum(e.statistic, static_cast<std::int64_t>(Statistic::kCount));
  io(e.observed, e.expected_low, e.expected_high, e.note);
}

template <typename Io, typename T>
void ChainFields(Io& io, T& link) {
  io(link.site, link.step);
  io.Enum(link.phase, kPhaseCount);
  io(link.share, link.note);
}

template <typename Io, typename T>
void NoticeFields(Io& io, T& notice) {
  io(notice.step, notice.rank);
  io.Enum(notice.kind, static_cast<std::int64_t>(HypothesisKind::BLIND_SPOT) + 1);
  io(notice.module, notice.text);
}

template <typename Io, typename T>
void BlindSpotFields(Io& io, T& spot) {
  io(spot.site, spot.rank, spot.step, spot.text);
}

}  // namespace neuraldbg::store
