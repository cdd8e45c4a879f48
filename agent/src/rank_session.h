// One attached training rank: its segment, its table of sites, and where it is in the run (step, micro-batch, mode).
//
// Owner: the session table. Thread-safety: the operators' calls (Observe*, the parameter calls) may come from any
// thread; calls that open or close a step come from the thread that runs the optimizer, and everything between them
// counts towards the step in which it happened. Nothing throws. Nothing waits either, except Close, which joins the
// heartbeat thread: a lock that is taken elsewhere makes an observation be skipped and counted.
//
// Invariant: attempts_total of a STEP record is the number of pushes up to and including that record.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "agent/src/call_table.h"
#include "agent/src/heartbeat.h"
#include "agent/src/loss_statistics.h"
#include "agent/src/packing.h"
#include "agent/src/parameter_observer.h"
#include "agent/src/tensor_statistics.h"
#include "shared/manifest.h"
#include "shared/record.h"
#include "shared/ring_writer.h"

namespace neuraldbg {

// How the tensors of a site are read; what the manifest says about it is in SiteEntry.
struct SiteReading {
  Phase phase = Phase::kForward;
  bool requires_grad = false;
  StatisticsOptions options;
  std::uint32_t optimizer_group = kNoSite;
};

// agent_ns counts since attach; nonfinite_* count records whose tensor held a NaN or Inf.
struct SessionStatus {
  std::uint64_t attempts = 0, dropped = 0, agent_ns = 0;
  std::uint64_t records_this_step = 0, nonfinite_this_step = 0, nonfinite_total = 0;
  std::uint64_t step = 0, skipped_tensors = 0;
  std::uint64_t lost = 0;          // of the dropped: records in removed segments that nobody had read
  std::uint32_t replacements = 0;  // segments that were removed by somebody and replaced
  std::uint32_t lane_capacity = 0;
  bool enabled = false;
};

class RankSession {
 public:
  // On failure `reason` holds one sentence.
  static std::unique_ptr<RankSession> Create(const SegmentOptions& options, RunEntry run, std::string& reason) noexcept;
  ~RankSession();
  RankSession(const RankSession&) = delete;
  RankSession& operator=(const RankSession&) = delete;

  // Clean end: nothing is pushed afterwards, the segment is marked closed, the heartbeat thread is joined.
  void Close() noexcept;

  // The site's id, or kNoSite when tables or manifest are full.
  std::uint32_t AddSite(SiteEntry entry, const SiteReading& reading) noexcept;
  bool UpdateSite(SiteEntry entry, const SiteReading& reading) noexcept;
  // The n-th call of `slot` within a forward pass reports as sites[n] (kNoSite: not at all). For a gradient `forward`
  // names the slot whose calls these are the gradients of, and they come in reverse (kNoGradient where none comes);
  // kNoSite for forward slots. A call beyond the last one starts again from the first. At most kMaxCalls sites; once
  // per slot.
  bool SetCalls(std::uint32_t slot, std::uint32_t forward, std::span<const std::uint32_t> sites) noexcept;
  void Append(const ManifestEntry& entry) noexcept;
  void Ready(bool graph_exact, std::uint32_t planned_sites, std::uint32_t parameters) noexcept;

  void Arm(bool tensors) noexcept { armed_.store(tensors, std::memory_order_relaxed); }
  bool armed() const noexcept { return armed_.load(std::memory_order_relaxed); }
  void SetContext(bool training, bool grad_mode, std::uint32_t microbatch) noexcept;

  // `flags`: kFlagRequiresGrad if this very tensor takes part in autograd (what the manifest says of the site is the
  // plan), and kFlagRecompute if a backward pass is running, which only marks the records of forward sites.
  void ObserveTensor(std::uint32_t site, const TensorView& view, RecordKind kind, std::uint16_t flags) noexcept;
  // From now on the module behind a site is in evaluation mode, or is not. Cheap: called when a mode has changed.
  void SetModuleMode(std::uint32_t site, bool evaluation) noexcept;
  // `in_backward`: the record is made when backward begins, of the pass that backward belongs to.
  void ObserveLoss(std::uint32_t site, const LossInput& input, bool in_backward) noexcept;
  void SkipTensor() noexcept { skipped_.fetch_add(1, std::memory_order_relaxed); }
  void ParameterInit(std::uint32_t site, const TensorView& value) noexcept;
  // `gradient` may be null, or sparse and the like (`gradient_present` without a view).
  void ParameterBefore(std::uint32_t site, const TensorView& value, const TensorView* gradient,
                       bool gradient_present) noexcept;
  void ParameterAfter(std::uint32_t site, const TensorView& value) noexcept;

  // The caller fills kind, payload, validity and its own flags; head fields that the session knows are set here.
  // Returns false for a site that does not exist.
  bool Emit(std::uint32_t site, Record& record) noexcept;

  // Sums over the parameters of one optimizer group that were observed in this step; false when there were none.
  bool GroupSums(std::uint32_t group, GroupTotals& sums) noexcept { return parameters_.GroupSums(group, sums); }

  // Completes the payload (accounting, agent time), pushes it and opens the next step. Returns the step it closed.
  std::uint64_t EndStep(std::uint32_t site, Record& record) noexcept;

  std::uint64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }
  void AddAgentTime(std::uint64_t nanoseconds) noexcept { agent_ns_.fetch_add(nanoseconds, std::memory_order_relaxed); }
  SessionStatus Status() const noexcept;
  // Of the segment that is written now; valid as long as the session.
  const std::string& path() const noexcept { return writer().path(); }

 private:
  struct SiteState;

  RankSession(const SegmentOptions& options, std::unique_ptr<SegmentWriter> first, RunEntry run);
  SegmentWriter& writer() const noexcept { return *current_.load(std::memory_order_acquire); }
  void Beat() noexcept;                       // once a second, on the heartbeat thread
  void MoveTo(SegmentWriter& next) noexcept;  // between two steps, on the thread that ends them
  bool Exists(std::uint32_t site) const noexcept { return site < site_count_.load(std::memory_order_acquire); }
  std::uint16_t NextCall(SiteState& site) noexcept;
  std::uint32_t SiteOfCall(std::uint32_t slot) noexcept;
  void CountNonfinite(std::uint64_t elements) noexcept;

  // Where the file is removed under us (RemoveIPC, a cleaning script), the heartbeat thread makes another segment, and
  // the thread that ends the step moves there. The old one stays mapped: a push may be in it. It is closed a beat later
  // and read to its end by a daemon that has it open; where none has, what lies in it unread counts as dropped.
  static constexpr std::uint32_t kMaxSegments = 9;  // bounds the memory: eight replacements in one run, then silence
  SegmentOptions options_;
  std::vector<std::unique_ptr<SegmentWriter>> writers_;  // guarded by sites_mutex_; the last one is current
  std::atomic<SegmentWriter*> current_{nullptr};
  std::unique_ptr<SegmentWriter> prepared_;    // set by Beat while next_ is null, taken by MoveTo while it is not
  std::atomic<SegmentWriter*> next_{nullptr};  // release in Beat pairs with acquire in EndStep, and back
  std::atomic<SegmentWriter*> replaced_{nullptr};
  SegmentWriter* retired_ = nullptr;  // only Beat touches this and the next
  std::uint32_t segments_made_ = 1;
  std::unique_ptr<Heartbeat> heartbeat_;
  ParameterObserver parameters_;

  std::mutex sites_mutex_;  // guards run_ and the adding of sites; operators only read published ones
  RunEntry run_;
  std::uint32_t site_capacity_;  // drop counters of the segment: a record of a further site could not be accounted for
  std::unique_ptr<SiteState[]> sites_;
  std::atomic<std::uint32_t> site_count_{0};
  std::vector<std::unique_ptr<CallTable>> call_tables_;  // guarded by sites_mutex_; the tables live as long as this

  std::atomic<bool> armed_{true};
  std::atomic<bool> training_{true};
  std::atomic<bool> grad_mode_{true};
  std::atomic<bool> gradient_training_{true};  // training_ of the last pass in grad mode
  std::atomic<std::uint32_t> microbatch_{0};
  std::atomic<std::uint64_t> step_{0};
  std::atomic<std::uint64_t> epoch_{1};  // changes with step and micro-batch; calls of a site are counted within one
  std::atomic<std::uint64_t> pass_{1};   // changes with every forward pass that is announced, evaluation included

  // Of the segments before the current one; `lost` is in the current one's count of drops.
  std::atomic<std::uint64_t> attempts_before_{0}, dropped_before_{0}, lost_{0};
  std::atomic<std::uint32_t> replacements_{0};

  std::atomic<std::uint64_t> agent_ns_{0};  // since attach
  std::uint64_t agent_ns_at_step_ = 0;      // only EndStep touches it
  std::atomic<std::uint64_t> records_this_step_{0};
  std::atomic<std::uint64_t> nonfinite_this_step_{0};
  std::atomic<std::uint64_t> nonfinite_total_{0};
  std::atomic<std::uint64_t> skipped_{0};
};

}  // namespace neuraldbg
