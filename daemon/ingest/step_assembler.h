// Turns the records of one rank's segment into StepFrames, in step order, each step once.
//
// Owner: one RankReader; one thread. Memory: at most kPendingStepsMax steps in the making, each bounded by the
// segment's number of sites. No clock: what it returns depends on the records and their order alone, however the drains
// cut them.
//
// When a step is finished. The STEP record says how many pushes the segment had seen when it was written; when that
// many records have arrived or are counted as dropped, nothing of the step can still be on its way. Where the numbers
// never meet (a slot the reader had to refuse), a step is finished once every lane was emptied after its STEP record
// had been seen: the producer pushed all of the step before that record, so causality has delivered it. What is then
// missing is in records_missing. A step whose own STEP record was lost ends together with the next one, with complete =
// false.
//
// Which records count. Only training passes feed the samples of a step: forward records with the training flag and
// autograd recording, backward records with the training flag, and everything around the optimizer. A forward pass that
// activation checkpointing ran again would count twice, so it is used only where the first pass was not recorded.
// Evaluation passes are counted but kept out; a step that has nothing else becomes a frame with training = false.
// Someone who trains in evaluation mode on purpose (fine-tuning without dropout) is recognised by gradients that flow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "daemon/ingest/record_merge.h"
#include "daemon/model/sample.h"
#include "shared/record.h"

namespace neuraldbg {

// What one site has produced since the segment began. The store has the same under its own name.
struct SiteTotal {
  std::uint64_t records = 0;
  std::uint64_t last_step = 0;
};

class StepAssembler {
 public:
  // Steps overlap by a handful of records at most (a lane drained a moment later than another); more than this many
  // open steps means that STEP records were lost, and the oldest is given up as incomplete.
  static constexpr std::size_t kPendingStepsMax = 16;

  // `site_limit`: site ids are below it (segment header). `already_consumed`: records of this segment that an earlier
  // daemon took and whose state is not known here; they count as received.
  StepAssembler(std::uint32_t site_limit, std::uint64_t already_consumed);

  // Records of one lane in program order. Lanes may come in any order.
  void Add(std::span<const Record> records);
  // Records that found their lane full and were kept aside by the producer (SegmentReader::ReadBlackBox). They stay
  // counted as dropped: they tell about the last steps of a producer that is gone, they complete none.
  void AddRecovered(std::span<const Record> records);
  // A drain over all lanes has ended; `emptied`: it left nothing behind that had been published before it began.
  // Appends the frames that are finished now, in step order, without RankKey.
  void EndPass(bool emptied, std::vector<StepFrame>& finished);
  // The producer is gone and everything is drained: whatever is pending ends now.
  void Finish(std::vector<StepFrame>& finished);

  // Newest record of all, for "where it died".
  std::uint64_t last_step() const { return last_step_; }
  std::uint32_t last_site() const { return last_site_; }
  std::uint64_t received() const { return received_; }
  std::uint64_t late() const { return late_; }        // arrived after their step was finished; counted, not judged
  std::uint64_t refused() const { return refused_; }  // site out of range; counted as received
  const std::vector<SiteTotal>& site_totals() const { return site_totals_; }
  std::size_t pending_steps() const { return pending_.size(); }

  // Everything that later frames depend on. Restore returns false and changes nothing for foreign or damaged bytes.
  void Serialize(std::vector<std::byte>& out) const;
  bool Restore(std::span<const std::byte> bytes);

 private:
  // Records of a site in one step are kept apart by pass, because only the finished step shows which of them count.
  enum class Pass : std::uint8_t { kTraining = 0, kRecompute = 1, kEvaluationWithGradient = 2, kEvaluation = 3 };
  static constexpr std::size_t kPasses = 4;

  struct PendingStep {
    std::vector<std::uint32_t> first;  // [site * kPasses + pass] -> index into merged plus one; 0 = none
    std::vector<MergedRecord> merged;  // chained by `next` (index plus one) where kinds share a site
    std::uint32_t site_end = 0;        // sites with records are below it
    std::uint64_t received = 0;
    std::uint64_t time_ns = 0;
    bool has_training = false;    // a record of a training pass
    bool has_evaluation = false;  // a record of any other pass
    bool has_backward = false;    // gradients flowed, whatever the module's mode was
    bool step_seen = false;
    bool applied = false;
    std::uint64_t step_seen_in_pass = 0;
    std::uint64_t attempts_total = 0, dropped_total = 0;
  };

  static Pass PassOf(const Record& record);
  static bool Selects(const PendingStep& step, bool training, Pass pass);
  void AddToStep(PendingStep& step, const Record& record);
  void Observe(const Record& record);
  PendingStep& StepFor(std::uint64_t step);
  bool Accounted(std::uint64_t step) const;
  void Emit(std::uint64_t shortage, std::vector<StepFrame>& finished);
  void EmitThrough(std::uint64_t step, std::vector<StepFrame>& finished);
  std::uint64_t ReceivedThrough(std::uint64_t step) const;
  void CollectSamples(const PendingStep& step, StepFrame& frame) const;
  void Recycle(PendingStep&& step);

  std::uint32_t site_limit_;
  std::map<std::uint64_t, PendingStep> pending_;  // by step; the keys are the steps in the making
  std::vector<PendingStep> spare_;                // emptied, to keep their memory
  std::uint64_t next_step_ = 0;                   // steps below it are finished
  std::uint64_t pass_ = 0;
  std::uint64_t received_ = 0;            // all records, also of finished steps
  std::uint64_t received_finished_ = 0;   // of steps below next_step_
  std::uint64_t missing_attributed_ = 0;  // already shown in a frame's records_missing
  std::uint64_t late_ = 0, refused_ = 0;
  std::uint64_t last_step_ = 0, last_time_ns_ = 0;
  std::uint32_t last_site_ = kNoSite;
  std::vector<SiteTotal> site_totals_;
};

}  // namespace neuraldbg
