// Everything that is known about one rank: its detectors, the exact findings so far, and the incidents that statistics
// raised. Memory is bounded by sites, and by kMaxFindings and kMaxIncidents.
//
// Owner: the run's engine. Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "daemon/detect/rank_detectors.h"
#include "daemon/infer/cause.h"
#include "daemon/infer/run_engine.h"
#include "daemon/infer/topology_archive.h"

namespace neuraldbg {

class RankInference {
 public:
  void SetTopology(const Topology& topology);
  // A new incarnation of the rank: what was learned about its normal is void, what was found stays.
  void Restart();
  void OnFrame(const StepFrame& frame, std::vector<Transition>& transitions);
  void OnFate(RankFate fate, std::uint64_t last_step, std::uint32_t last_site, std::vector<LastPlace> places,
              std::vector<Transition>& transitions);

  const Topology& topology() const { return topology_; }
  const RankDetectors& detectors() const { return detectors_; }
  const std::vector<Cause>& findings() const { return findings_; }
  const std::vector<LastPlace>& last_places() const { return last_places_; }  // of the incarnation that died
  const std::vector<Incident>& incidents() const { return incidents_; }
  std::uint64_t steps_seen() const { return steps_seen_; }
  std::uint64_t applied_steps() const { return applied_steps_; }
  std::uint64_t last_step() const { return last_step_; }
  // Steps of which nothing arrived, between the first that did and the last that is known of.
  struct Missing {
    std::uint64_t steps = 0, from = 0, to = 0;
  };
  const Missing& missing() const { return missing_; }
  std::uint32_t incarnation() const { return incarnation_; }
  void set_identity(std::uint32_t rank, std::uint32_t incarnation) {
    rank_ = rank;
    incarnation_ = incarnation;
  }

  template <typename Archive>
  void Visit(Archive& archive) {
    Fields(archive, rank_, incarnation_, findings_, incidents_, steps_seen_, applied_steps_, last_step_, waited_, fate_,
           last_places_, next_step_, missing_.steps, missing_.from, missing_.to);
    VisitTopology(archive, topology_);
    if constexpr (Archive::kReading) detectors_.AdoptGraph(topology_);
    detectors_.Visit(archive);
  }
  bool Valid() const { return detectors_.FitsGraph(); }

 private:
  void CountMissing(std::uint64_t step);
  void Judge(std::uint64_t step, std::vector<Finding> findings);
  void UpdateIncidents(std::uint64_t step);
  void SayInterval(Finding& finding) const;
  void WatchLoss(Incident& incident) const;
  void AddFinding(Finding finding);

  std::uint32_t rank_ = 0, incarnation_ = 0;
  Topology topology_;
  RankDetectors detectors_;
  std::vector<Cause> findings_;      // in order of detection
  std::vector<Incident> incidents_;  // in order of alarm
  std::uint64_t steps_seen_ = 0, applied_steps_ = 0, last_step_ = 0;
  std::uint64_t next_step_ = 0;  // of this incarnation, expected next; 0: none has come yet
  Missing missing_;
  std::uint32_t waited_ = 0;  // steps for which an alarm has waited for the next step that observes tensors
  RankFate fate_ = RankFate::kRunning;
  std::vector<LastPlace> last_places_;
};

}  // namespace neuraldbg
