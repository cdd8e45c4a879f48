#include "daemon/ingest/step_assembler.h"

#include <algorithm>
#include <array>
#include <utility>

namespace neuraldbg {

StepAssembler::StepAssembler(std::uint32_t site_limit, std::uint64_t already_consumed)
    : site_limit_(site_limit),
      received_(already_consumed),
      received_finished_(already_consumed),
      site_totals_(site_limit) {}

StepAssembler::Pass StepAssembler::PassOf(const Record& record) {
  switch (record.kind) {
    case RecordKind::kParameter:
    case RecordKind::kOptimizer:
    case RecordKind::kStep:
    case RecordKind::kPhases:
      return Pass::kTraining;  // around the optimizer: belongs to the step, not to a pass
    default:
      break;
  }
  if ((record.flags & kFlagRecompute) != 0) return Pass::kRecompute;
  const bool training = (record.flags & kFlagTraining) != 0;
  // Autograd does not record while it runs backward, so the grad-mode flag says something in the forward pass only.
  const bool gradient = record.phase >= Phase::kBackward || (record.flags & kFlagGradMode) != 0;
  if (!gradient) return Pass::kEvaluation;
  return training ? Pass::kTraining : Pass::kEvaluationWithGradient;
}

void StepAssembler::Observe(const Record& record) {
  ++received_;
  if (record.time_ns >= last_time_ns_) {
    last_time_ns_ = record.time_ns;
    last_site_ = record.site;
  }
  last_step_ = std::max(last_step_, record.step);
  SiteTotal& total = site_totals_[record.site];
  ++total.records;
  total.last_step = std::max(total.last_step, record.step);
}

void StepAssembler::Add(std::span<const Record> records) {
  PendingStep* step = nullptr;
  std::uint64_t step_number = 0;
  for (const Record& record : records) {
    if (record.site >= site_limit_) {
      ++received_;
      ++received_finished_;
      ++refused_;
      continue;
    }
    Observe(record);
    if (record.step < next_step_) {
      ++late_;
      ++received_finished_;
      continue;
    }
    if (step == nullptr || record.step != step_number) {
      step_number = record.step;
      step = &StepFor(step_number);
    }
    ++step->received;
    AddToStep(*step, record);
  }
}

void StepAssembler::AddRecovered(std::span<const Record> records) {
  for (const Record& record : records) {
    if (record.site >= site_limit_ || record.step < next_step_ || record.kind == RecordKind::kStep) continue;
    if (record.time_ns >= last_time_ns_) {
      last_time_ns_ = record.time_ns;
      last_site_ = record.site;
    }
    last_step_ = std::max(last_step_, record.step);
    AddToStep(StepFor(record.step), record);
  }
}

StepAssembler::PendingStep& StepAssembler::StepFor(std::uint64_t step) {
  const auto found = pending_.lower_bound(step);
  if (found != pending_.end() && found->first == step) return found->second;
  PendingStep fresh;
  if (!spare_.empty()) {
    fresh = std::move(spare_.back());
    spare_.pop_back();
  }
  fresh.first.resize(std::size_t{site_limit_} * kPasses);
  return pending_.emplace_hint(found, step, std::move(fresh))->second;
}

void StepAssembler::AddToStep(PendingStep& step, const Record& record) {
  const Pass pass = PassOf(record);
  step.time_ns = std::max(step.time_ns, record.time_ns);
  if (record.kind == RecordKind::kStep) {
    step.step_seen = true;
    step.step_seen_in_pass = pass_;
    step.attempts_total = record.step_end.attempts_total;
    step.dropped_total = record.step_end.dropped_total;
    step.applied = (record.flags & kFlagStepApplied) != 0;
  } else if (pass != Pass::kTraining) {
    step.has_evaluation |= pass != Pass::kRecompute;
    step.has_backward |= record.phase == Phase::kBackward;
  } else {
    step.has_training |= record.phase <= Phase::kBackward;
  }
  step.site_end = std::max(step.site_end, record.site + 1);
  std::uint32_t* link = &step.first[std::size_t{record.site} * kPasses + static_cast<std::size_t>(pass)];
  while (*link != 0) {
    MergedRecord& merged = step.merged[*link - 1];
    if (merged.record.kind == record.kind) {
      Merge(merged, record);
      return;
    }
    link = &merged.next;
  }
  *link = static_cast<std::uint32_t>(step.merged.size() + 1);  // before the push moves what it points into
  step.merged.push_back({.record = record, .calls = 1, .next = 0});
}

std::uint64_t StepAssembler::ReceivedThrough(std::uint64_t step) const {
  std::uint64_t received = received_finished_;
  for (const auto& [number, pending] : pending_) {
    if (number > step) break;
    received += pending.received;
  }
  return received;
}

bool StepAssembler::Accounted(std::uint64_t step) const {
  const PendingStep& pending = pending_.at(step);
  const std::uint64_t received = ReceivedThrough(step);
  return pending.attempts_total <= received || pending.attempts_total - received <= pending.dropped_total;
}

void StepAssembler::EndPass(bool emptied, std::vector<StepFrame>& finished) {
  for (auto it = pending_.begin(); it != pending_.end();) {
    const auto& [number, step] = *it;
    const bool ready = step.step_seen && (Accounted(number) || (emptied && step.step_seen_in_pass < pass_));
    if (!ready) {
      ++it;
      continue;
    }
    EmitThrough(number, finished);
    it = pending_.begin();
  }
  while (pending_.size() > kPendingStepsMax) EmitThrough(pending_.begin()->first, finished);
  ++pass_;
}

void StepAssembler::Finish(std::vector<StepFrame>& finished) {
  // Up to the last STEP record everything is accounted for; what follows it was cut off by the producer's end.
  for (auto it = pending_.rbegin(); it != pending_.rend(); ++it) {
    if (!it->second.step_seen) continue;
    EmitThrough(it->first, finished);
    break;
  }
  while (!pending_.empty()) EmitThrough(pending_.begin()->first, finished);
}

void StepAssembler::EmitThrough(std::uint64_t step, std::vector<StepFrame>& finished) {
  while (!pending_.empty() && pending_.begin()->first <= step) {
    // The next STEP record that exists tells what is missing up to it. In a stretch whose STEP records were lost the
    // missing ones may lie in any of its steps, so each of them shows the whole shortage.
    const auto closing =
        std::find_if(pending_.begin(), pending_.end(), [](const auto& e) { return e.second.step_seen; });
    std::uint64_t shortage = 0;
    if (closing != pending_.end() && closing->first <= step) {
      const std::uint64_t known = ReceivedThrough(closing->first) + missing_attributed_;
      shortage = closing->second.attempts_total > known ? closing->second.attempts_total - known : 0;
      if (closing == pending_.begin()) missing_attributed_ += shortage;
    }
    Emit(shortage, finished);
  }
}

void StepAssembler::Emit(std::uint64_t shortage, std::vector<StepFrame>& finished) {
  auto node = pending_.extract(pending_.begin());
  PendingStep& step = node.mapped();
  StepFrame frame;
  frame.step = node.key();
  frame.complete = step.step_seen;
  frame.applied = step.applied;
  frame.training = step.has_training || step.has_backward || step.applied || !step.has_evaluation;
  frame.records_received = step.received;
  frame.records_missing = shortage;
  frame.time_ns = step.time_ns;
  CollectSamples(step, frame);
  finished.push_back(std::move(frame));
  received_finished_ += step.received;
  next_step_ = node.key() + 1;
  Recycle(std::move(step));
}

bool StepAssembler::Selects(const PendingStep& step, bool training, Pass pass) {
  switch (pass) {
    case Pass::kTraining:
    case Pass::kRecompute:
      return true;
    case Pass::kEvaluationWithGradient:
      return !training || (step.has_backward && !step.has_training);
    case Pass::kEvaluation:
      return !training;
  }
  return false;
}

void StepAssembler::CollectSamples(const PendingStep& step, StepFrame& frame) const {
  // Per site the first pass that counts; then a counting sort by phase, which keeps the order of sites.
  std::vector<std::uint32_t> chosen;
  chosen.reserve(step.merged.size());
  std::array<std::size_t, kPhaseCount + 1> begin{};
  for (std::size_t site = 0; site < step.site_end; ++site) {
    for (std::size_t pass = 0; pass < kPasses; ++pass) {
      std::uint32_t index = step.first[site * kPasses + pass];
      if (index == 0 || !Selects(step, frame.training, static_cast<Pass>(pass))) continue;
      for (; index != 0; index = step.merged[index - 1].next) {
        chosen.push_back(index - 1);
        ++begin[static_cast<std::size_t>(step.merged[index - 1].record.phase) % kPhaseCount + 1];
      }
      break;
    }
  }
  for (std::size_t phase = 1; phase <= kPhaseCount; ++phase) begin[phase] += begin[phase - 1];
  frame.samples.resize(chosen.size());
  for (const std::uint32_t index : chosen) {
    const MergedRecord& merged = step.merged[index];
    ToSample(merged, frame.samples[begin[static_cast<std::size_t>(merged.record.phase) % kPhaseCount]++]);
  }
}

void StepAssembler::Recycle(PendingStep&& step) {
  if (spare_.size() >= 2) return;  // two steps overlap in normal operation; more memory than that need not stay
  for (const MergedRecord& merged : step.merged) {
    const std::size_t base = std::size_t{merged.record.site} * kPasses;
    std::fill_n(step.first.begin() + static_cast<std::ptrdiff_t>(base), kPasses, 0u);
  }
  PendingStep empty;
  empty.first = std::move(step.first);
  empty.merged = std::move(step.merged);
  empty.merged.clear();
  spare_.push_back(std::move(empty));
}

}  // namespace neuraldbg
