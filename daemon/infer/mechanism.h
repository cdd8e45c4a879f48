// The accounting behind candidates: how much of a change is a node's own, what its inputs contribute, and which change
// in another pass of the same step stands behind it.
#pragma once

#include <cstdint>

#include "daemon/infer/cause.h"
#include "daemon/infer/suspects.h"

namespace neuraldbg {

struct OwnChange {
  std::uint64_t tick = 0;  // where the mechanism shows most clearly, from the onset on
  double change = 0;       // of the gain (of the level where nothing feeds the node), log2
  double excess = 0;       // |change| minus |change of the combined inputs|
  double evidence = 0;     // of gain and shares, in multiples of the alarm level
};

struct UpdateEdge {
  bool known = false;  // parameters of the node were observed close enough to tell
  bool explains = false;
  std::uint64_t step = 0;  // of the update
  std::uint32_t site = kNoSite;
};

class Mechanism {
 public:
  explicit Mechanism(const RankDetectors& detectors) : detectors_(detectors) {}

  // Kind, module, site, evidence and sentence for a suspect, read at `tick` of its clock.
  Cause Describe(const Suspect& suspect, std::uint64_t tick) const;

  OwnChange OwnChangeOf(const Suspect& suspect) const;
  double GainChange(const Suspect& suspect, std::uint64_t tick) const;
  // y = k*x changes both directions: the forward node (consumer, or co-input of a product) whose gain accounts for a
  // backward change; kNoSite if none does.
  std::uint32_t ForwardChangeBehind(const Suspect& backward, const OwnChange& own) const;
  // Did the node's own parameters change by enough just before the forward pass at `tick`?
  UpdateEdge UpdateBehind(const Suspect& forward, std::uint64_t tick, double change) const;
  // The same when rotation brought the parameters only after the alarm.
  UpdateEdge LateUpdateBehind(std::uint32_t node, std::uint64_t onset_step, double change) const;
  // Whether learning as usual may account for what happened to the node since `onset_step`: its parameters were seen
  // since, their updates are what they were before, and enough of them in a row would change the weight.
  bool LearnsAsUsual(std::uint32_t node, std::uint64_t onset_step) const;
  void MoveToUpdate(std::uint32_t node, const UpdateEdge& edge, Cause& cause) const;
  // A large gradient with a normal ratio of update to gradient accounts for a large update.
  bool GradientExplainsUpdate(std::uint32_t node, std::uint64_t step) const;

 private:
  double InputChange(bool backward, std::uint32_t node, std::uint64_t tick) const;
  void DescribeForward(std::uint32_t node, std::uint64_t tick, Cause& cause) const;
  void DescribeBackward(std::uint32_t node, std::uint64_t tick, Cause& cause) const;
  void DescribeLoss(Cause& cause) const;
  void DescribeBatch(std::uint32_t index, std::uint64_t tick, Cause& cause) const;
  void DescribeUpdate(std::uint32_t parameter, std::uint64_t tick, Cause& cause) const;
  double SumAbsAtSinks() const;

  const RankDetectors& detectors_;
};

}  // namespace neuraldbg
