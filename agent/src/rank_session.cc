#include "agent/src/rank_session.h"

#include <unistd.h>

#include <cstring>
#include <new>
#include <utility>

#include "shared/segment_creation.h"
#include "shared/segment_sweep.h"

namespace neuraldbg {

// What an operator needs to know about its site, in atomics: a site may be announced again while graphs run.
struct RankSession::SiteState {
  std::atomic<std::uint32_t> reading{0};  // SiteReading without the group, packed
  std::atomic<std::uint32_t> optimizer_group{kNoSite};
  std::atomic<bool> evaluation{false};          // the module's mode
  std::atomic<std::uint64_t> calls{0};          // epoch << 16 | calls of the site in it
  std::atomic<CallTable*> call_table{nullptr};  // of modules that run several times in a pass

  void Set(const SiteReading& value) noexcept {
    optimizer_group.store(value.optimizer_group, std::memory_order_relaxed);
    reading.store(static_cast<std::uint32_t>(value.phase) | static_cast<std::uint32_t>(value.options.unit_mode) << 8 |
                      static_cast<std::uint32_t>(value.options.saturation) << 12 |
                      static_cast<std::uint32_t>(value.options.dead_rule) << 16 |
                      static_cast<std::uint32_t>(value.requires_grad) << 20,
                  std::memory_order_relaxed);
  }
  SiteReading Get() const noexcept {
    const std::uint32_t packed = reading.load(std::memory_order_relaxed);
    SiteReading value;
    value.phase = static_cast<Phase>(packed & 0xff);
    value.options.unit_mode = static_cast<UnitMode>(packed >> 8 & 0xf);
    value.options.saturation = static_cast<Saturation>(packed >> 12 & 0xf);
    value.options.dead_rule = static_cast<DeadRule>(packed >> 16 & 0xf);
    value.requires_grad = (packed >> 20 & 1) != 0;
    value.optimizer_group = optimizer_group.load(std::memory_order_relaxed);
    return value;
  }
};

namespace {

std::string Sentence(const SegmentOptions& options, const Error& error) {
  std::string text = "cannot create a segment in " + options.directory + ": " + error.message;
  if (error.system_errno != 0) text += std::string(" (") + std::strerror(error.system_errno) + ")";
  return text;
}

}  // namespace

RankSession::RankSession(const SegmentOptions& options, std::unique_ptr<SegmentWriter> first, RunEntry run)
    : options_(options),
      heartbeat_(std::make_unique<Heartbeat>()),
      run_(std::move(run)),
      site_capacity_(options.sites),
      sites_(std::make_unique<SiteState[]>(options.sites)),
      step_(run_.start_step) {
  writers_.reserve(kMaxSegments);
  writers_.push_back(std::move(first));
  current_.store(writers_.back().get(), std::memory_order_release);
}

std::unique_ptr<RankSession> RankSession::Create(const SegmentOptions& options, RunEntry run,
                                                 std::string& reason) noexcept try {
  // Where no daemon comes by, nobody else removes what killed jobs of this user left: it would fill shared memory.
  SweepSegments({.directory = options.directory, .uid = static_cast<std::uint32_t>(::geteuid())});
  Result<std::unique_ptr<SegmentWriter>> writer = SegmentWriter::Create(options);
  if (!writer.ok()) {
    reason = Sentence(options, writer.error());
    return nullptr;
  }
  std::unique_ptr<RankSession> session(new RankSession(options, std::move(writer).value(), std::move(run)));
  session->Append(session->run_);  // a first version, so that the daemon can name the run before the first step
  if (!session->heartbeat_->Start([raw = session.get()] { raw->Beat(); })) {
    reason = "cannot start the heartbeat thread";
    return nullptr;
  }
  return session;
} catch (...) {
  reason = "no memory for the session";
  return nullptr;
}

RankSession::~RankSession() { Close(); }

void RankSession::Close() noexcept {
  writer().Close();
  heartbeat_->Stop();
  // Where the file was replaced in the last second, the old one is not closed yet, and a new one may stand ready.
  const std::lock_guard lock(sites_mutex_);
  for (const std::unique_ptr<SegmentWriter>& one : writers_) one->Close();
  if (prepared_ != nullptr) {
    prepared_->Close();
    ::unlink(prepared_->path().c_str());  // nothing is in it
  }
}

void RankSession::Append(const ManifestEntry& entry) noexcept {
  const std::lock_guard lock(sites_mutex_);
  (void)writer().manifest().Append(entry);
}

void RankSession::Beat() noexcept {
  SegmentWriter& current = writer();
  current.Heartbeat();
  if (retired_ != nullptr) retired_->Close();
  retired_ = replaced_.exchange(nullptr, std::memory_order_acq_rel);
  if (next_.load(std::memory_order_acquire) != nullptr || !current.enabled() || !current.Unlinked()) return;
  if (segments_made_ == kMaxSegments) return;
  Result<std::unique_ptr<SegmentWriter>> made = SegmentWriter::Create(options_);
  if (!made.ok()) return;  // asked again at the next beat
  ++segments_made_;
  prepared_ = std::move(made).value();
  next_.store(prepared_.get(), std::memory_order_release);
}

void RankSession::MoveTo(SegmentWriter& next) noexcept {
  const std::lock_guard lock(sites_mutex_);
  SegmentWriter& old = writer();
  if (next.manifest().CopyFrom(old.manifest()).code != Errc::kOk) return;
  const SegmentWriter::Lost lost = old.Claimed() ? SegmentWriter::Lost{} : next.CountLost(old);
  try {
    (void)next.manifest().Append(
        MarkEntry{step(), "the file in shared memory was removed by somebody; this is a new one"});
  } catch (...) {  // no memory for the text: it goes on without
  }
  // What was lost is among the new segment's drops, and counts there.
  attempts_before_ += old.attempts() - lost.records - lost.drops;
  dropped_before_ += old.dropped() - lost.drops;
  lost_.fetch_add(lost.records + lost.drops, std::memory_order_relaxed);
  writers_.push_back(std::move(prepared_));  // has room for kMaxSegments
  current_.store(&next, std::memory_order_release);
  next_.store(nullptr, std::memory_order_release);
  replaced_.store(&old, std::memory_order_release);
  replacements_.fetch_add(1, std::memory_order_relaxed);
}

std::uint32_t RankSession::AddSite(SiteEntry entry, const SiteReading& reading) noexcept {
  const std::lock_guard lock(sites_mutex_);
  const std::uint32_t id = site_count_.load(std::memory_order_relaxed);
  if (id >= site_capacity_) return kNoSite;
  entry.id = id;
  if (writer().manifest().Append(std::move(entry)).code != Errc::kOk) return kNoSite;
  sites_[id].Set(reading);
  site_count_.store(id + 1, std::memory_order_release);  // pairs with the acquire load in Exists
  return id;
}

bool RankSession::UpdateSite(SiteEntry entry, const SiteReading& reading) noexcept {
  const std::uint32_t id = entry.id;
  if (!Exists(id)) return false;
  const std::lock_guard lock(sites_mutex_);
  if (writer().manifest().Append(std::move(entry)).code != Errc::kOk) return false;
  sites_[id].Set(reading);
  return true;
}

bool RankSession::SetCalls(std::uint32_t slot, std::uint32_t forward, std::span<const std::uint32_t> sites) noexcept
    try {
  const std::lock_guard lock(sites_mutex_);
  if (!Exists(slot) || sites.empty() || sites.size() > kMaxCalls) return false;
  CallTable* of_forward = nullptr;
  if (forward != kNoSite) {
    if (!Exists(forward)) return false;
    of_forward = sites_[forward].call_table.load(std::memory_order_acquire);
    if (of_forward == nullptr) return false;
  }
  for (const std::uint32_t site : sites) {
    const bool is_site = site != kNoSite && (of_forward == nullptr || site != kNoGradient);
    if (is_site && !Exists(site)) return false;
  }
  call_tables_.push_back(std::make_unique<CallTable>(sites, of_forward));
  // Pairs with the acquire load in SiteOfCall.
  sites_[slot].call_table.store(call_tables_.back().get(), std::memory_order_release);
  return true;
} catch (...) {
  return false;
}

void RankSession::Ready(bool graph_exact, std::uint32_t planned_sites, std::uint32_t parameters) noexcept {
  const std::lock_guard lock(sites_mutex_);
  run_.graph_exact = graph_exact;
  run_.planned_sites = planned_sites;
  run_.parameter_count = parameters;
  (void)writer().manifest().Append(run_);
  (void)writer().manifest().Append(ReadyEntry{step()});
}

void RankSession::SetContext(bool training, bool grad_mode, std::uint32_t microbatch) noexcept {
  training_.store(training, std::memory_order_relaxed);
  if (grad_mode) gradient_training_.store(training, std::memory_order_relaxed);
  grad_mode_.store(grad_mode, std::memory_order_relaxed);
  pass_.fetch_add(1, std::memory_order_relaxed);
  if (microbatch_.exchange(microbatch, std::memory_order_relaxed) != microbatch) {
    epoch_.fetch_add(1, std::memory_order_relaxed);
  }
}

std::uint16_t RankSession::NextCall(SiteState& site) noexcept {
  // Two threads in the same site at once may read the same number; calls are additive in the daemon: nothing is lost.
  const std::uint64_t epoch = epoch_.load(std::memory_order_relaxed) << 16;
  const std::uint64_t calls = site.calls.load(std::memory_order_relaxed);
  const std::uint64_t call = (calls ^ epoch) >> 16 == 0 ? (calls & 0xffff) : 0;
  site.calls.store(epoch | (call < 0xffff ? call + 1 : call), std::memory_order_relaxed);
  return static_cast<std::uint16_t>(call);
}

std::uint32_t RankSession::SiteOfCall(std::uint32_t slot) noexcept {
  CallTable* table = sites_[slot].call_table.load(std::memory_order_acquire);
  return table == nullptr ? slot : table->Next(pass_.load(std::memory_order_relaxed));
}

bool RankSession::Emit(std::uint32_t site, Record& record) noexcept {
  if (!Exists(site)) return false;
  SiteState& state = sites_[site];
  const SiteReading reading = state.Get();
  record.time_ns = MonotonicNanoseconds();
  record.step = step();
  record.site = site;
  record.phase = reading.phase;
  record.call = NextCall(state);
  record.microbatch = microbatch_.load(std::memory_order_relaxed);
  // A pass without gradients between forward and backward (a metric, say) says nothing of what backward computes.
  const bool gradients = reading.phase >= Phase::kBackward || (record.flags & kFlagGradMode) != 0;
  if ((gradients ? gradient_training_ : training_).load(std::memory_order_relaxed)) record.flags |= kFlagTraining;
  if (gradients || grad_mode_.load(std::memory_order_relaxed)) record.flags |= kFlagGradMode;
  if (record.kind != RecordKind::kTensor && reading.requires_grad) record.flags |= kFlagRequiresGrad;
  if (state.evaluation.load(std::memory_order_relaxed)) record.flags |= kFlagModuleEval;
  (void)writer().Push(record);  // a drop is counted by the writer
  records_this_step_.fetch_add(1, std::memory_order_relaxed);
  return true;
}

void RankSession::CountNonfinite(std::uint64_t elements) noexcept {
  if (elements == 0) return;
  nonfinite_this_step_.fetch_add(1, std::memory_order_relaxed);
  nonfinite_total_.fetch_add(1, std::memory_order_relaxed);
}

void RankSession::SetModuleMode(std::uint32_t site, bool evaluation) noexcept {
  if (Exists(site)) sites_[site].evaluation.store(evaluation, std::memory_order_relaxed);
}

void RankSession::ObserveTensor(std::uint32_t site, const TensorView& view, RecordKind kind,
                                std::uint16_t flags) noexcept {
  if (!Exists(site)) return;
  site = SiteOfCall(site);
  if (site == kNoSite) return;
  TensorStatistics statistics;
  const SiteReading reading = sites_[site].Get();
  if (!ComputeStatistics(view, reading.options, statistics)) return SkipTensor();
  Record record{};
  record.kind = kind;
  record.dtype = view.dtype;
  PackTensor(statistics, record);
  record.flags = flags;
  if (reading.phase >= Phase::kBackward) record.flags &= static_cast<std::uint16_t>(~kFlagRecompute);
  CountNonfinite(statistics.total.nan_count + statistics.total.inf_count);
  Emit(site, record);
}

void RankSession::ObserveLoss(std::uint32_t site, const LossInput& input, bool in_backward) noexcept {
  if (!Exists(site)) return;
  Record record{};
  if (!PackLoss(input, record)) return SkipTensor();
  CountNonfinite(record.loss.nonfinite);
  if (in_backward) record.flags |= kFlagGradMode;
  Emit(site, record);
}

void RankSession::ParameterInit(std::uint32_t site, const TensorView& value) noexcept {
  if (!Exists(site)) return;
  TensorStatistics statistics;
  if (!ComputeStatistics(value, {}, statistics)) return SkipTensor();
  const Accumulator& total = statistics.total;
  Append(ParameterInitEntry{site, total.count, total.sum, total.sum_squares, NarrowMaximum(total.max_abs), total.bits});
}

void RankSession::ParameterBefore(std::uint32_t site, const TensorView& value, const TensorView* gradient,
                                  bool gradient_present) noexcept {
  if (!Exists(site)) return;
  if (!parameters_.Before(site, value, gradient, gradient_present)) SkipTensor();
}

void RankSession::ParameterAfter(std::uint32_t site, const TensorView& value) noexcept {
  if (!Exists(site)) return;
  ParameterObserver::Outcome outcome;
  if (!parameters_.After(site, sites_[site].Get().optimizer_group, value, outcome)) return;
  Record record{};
  record.kind = RecordKind::kParameter;
  record.dtype = value.dtype;
  if (outcome.gradient_present) record.flags |= kFlagGradPresent;
  PackParameter(outcome.statistics, record);
  const Accumulator& total = outcome.statistics.value;
  const Accumulator& gradient = outcome.statistics.gradient;
  CountNonfinite(total.nan_count + total.inf_count + gradient.nan_count + gradient.inf_count);
  Emit(site, record);
}

std::uint64_t RankSession::EndStep(std::uint32_t site, Record& record) noexcept {
  StepPayload& payload = record.step_end;
  payload.attempts_total = writer().attempts() + 1;
  payload.dropped_total = writer().dropped();
  const std::uint64_t agent_ns = agent_ns_.load(std::memory_order_relaxed);
  payload.agent_ns = agent_ns - agent_ns_at_step_;
  agent_ns_at_step_ = agent_ns;
  const std::uint64_t closed = step();
  if (payload.cadence != 0) payload.cadence_phase = static_cast<std::uint32_t>(closed % payload.cadence);
  (void)Emit(site, record);
  parameters_.EndStep();
  records_this_step_.store(0, std::memory_order_relaxed);
  nonfinite_this_step_.store(0, std::memory_order_relaxed);
  microbatch_.store(0, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_relaxed);
  pass_.fetch_add(1, std::memory_order_relaxed);
  step_.store(closed + 1, std::memory_order_relaxed);
  if (SegmentWriter* next = next_.load(std::memory_order_acquire); next != nullptr) MoveTo(*next);
  return closed;
}

SessionStatus RankSession::Status() const noexcept {
  SessionStatus status;
  status.attempts = attempts_before_.load(std::memory_order_relaxed) + writer().attempts();
  status.dropped = dropped_before_.load(std::memory_order_relaxed) + writer().dropped();
  status.lost = lost_.load(std::memory_order_relaxed);
  status.replacements = replacements_.load(std::memory_order_relaxed);
  status.agent_ns = agent_ns_.load(std::memory_order_relaxed);
  status.records_this_step = records_this_step_.load(std::memory_order_relaxed);
  status.nonfinite_this_step = nonfinite_this_step_.load(std::memory_order_relaxed);
  status.nonfinite_total = nonfinite_total_.load(std::memory_order_relaxed);
  status.step = step();
  status.skipped_tensors = skipped_.load(std::memory_order_relaxed);
  status.lane_capacity = writer().lane_capacity();
  status.enabled = writer().enabled();
  return status;
}

}  // namespace neuraldbg
