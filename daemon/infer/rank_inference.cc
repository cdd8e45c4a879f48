#include "daemon/infer/rank_inference.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "daemon/infer/candidates.h"
#include "daemon/infer/chain.h"

namespace neuraldbg {

using namespace threshold;

// A manifest is append-only. A smaller one is an older reading, or its memory was damaged since: what is known stays,
// because state that refers to the sites that are gone would refer to nothing.
void RankInference::SetTopology(const Topology& topology) {
  if (topology.sites.size() < topology_.sites.size()) return;
  // Nodes are numbered anew, sites are not.
  std::vector<std::pair<std::uint32_t*, std::uint32_t>> waiting;
  for (Incident& incident : incidents_) {
    for (Cause& cause : incident.causes) {
      if (!incident.open || cause.pending_node >= detectors_.graph().node_count()) continue;
      waiting.emplace_back(&cause.pending_node, detectors_.graph().nodes()[cause.pending_node].site);
    }
  }
  topology_ = topology;
  detectors_.SetTopology(topology);
  for (const auto& [node, site] : waiting) {
    const SiteUse use = detectors_.graph().use(site);
    *node = use.kind == SiteUse::Kind::kForward ? use.index : kNoSite;
  }
}

// The next incarnation may be another network: nothing of the old one's sites holds for it.
void RankInference::Restart() {
  topology_ = Topology();
  detectors_ = RankDetectors();
  for (Incident& incident : incidents_) incident.open = false;
  fate_ = RankFate::kRunning;
  next_step_ = 0;  // it may go on at any step
}

// A ring that was full, or records that no daemon could read: silence there is no health.
void RankInference::CountMissing(std::uint64_t step) {
  if (next_step_ != 0 && step > next_step_) {
    if (missing_.steps == 0) missing_.from = next_step_;
    missing_.steps += step - next_step_;
    missing_.to = step - 1;
  }
  if (step < UINT64_MAX) next_step_ = std::max(next_step_, step + 1);
}

void RankInference::OnFrame(const StepFrame& frame, std::vector<Transition>& transitions) {
  CountMissing(frame.step);
  if (!frame.training) return;
  ++steps_seen_;
  if (frame.applied) ++applied_steps_;
  last_step_ = frame.step;
  std::vector<Finding> findings;
  detectors_.Observe(frame, transitions, findings);
  for (Finding& finding : findings) AddFinding(std::move(finding));
  UpdateIncidents(frame.step);
}

void RankInference::AddFinding(Finding finding) {
  if (findings_.size() >= kMaxFindings) return;  // the first ones are the causes
  // Several parameter groups or optimizers show one mistake.
  for (const Cause& known : findings_) {
    if (known.finding.kind == finding.kind && known.finding.module == finding.module &&
        known.finding.step == finding.step) {
      return;
    }
  }
  SayInterval(finding);
  Cause cause;
  cause.exact = true;
  cause.fallback = finding.uncertain;
  cause.chain = NonfiniteChain(detectors_, finding);
  cause.finding = std::move(finding);
  findings_.push_back(std::move(cause));
}

// Where steps are sampled, the first observed step that shows a change need not be the first that had it.
void RankInference::SayInterval(Finding& finding) const {
  if (finding.phase != Phase::kForward && finding.phase != Phase::kBackward) return;
  const std::uint64_t first = detectors_.tensors().FirstUnseen(finding.step);
  if (first >= finding.step) return;
  finding.note += " It began in one of the steps " + std::to_string(first) + " to " + std::to_string(finding.step) +
                  ", of which only the last was observed.";
}

// An incident opens at an alarm and ends after kQuietSteps without one; alarms in between belong to it.
void RankInference::UpdateIncidents(std::uint64_t step) {
  Incident* open = !incidents_.empty() && incidents_.back().open ? &incidents_.back() : nullptr;
  if (open != nullptr) {
    for (Cause& cause : open->causes) ResolvePending(detectors_, cause);
    WatchLoss(*open);
  }
  if (!detectors_.Alarmed() && waited_ == 0) {
    if (open != nullptr && ++open->quiet >= kQuietSteps) open->open = false;
    return;
  }
  if (open != nullptr) {
    open->quiet = 0;
    open->last_hot_step = step;
    ++open->hot_steps;
    return;
  }
  // With sampling, a step may show that something is wrong and not where; the next observed one will.
  if (!detectors_.observation().tensors_observed && ++waited_ < kQuietSteps) return;
  waited_ = 0;
  // Memory stays bounded: the first incidents explain the run, so the newest gives way.
  if (incidents_.size() >= kMaxIncidents) incidents_.pop_back();
  Incident incident;
  incident.alarm_step = incident.last_hot_step = step;
  incident.rank = rank_;
  // Some alarms look back over many samples: they are none of a single step.
  const LossSeries& loss = detectors_.loss();
  if (loss.series().SteppedAndStayed() || loss.cusum() >= 1) incident.hot_steps = kLossStepSamples;
  incident.causes = FindCauses(detectors_, step);
  for (Cause& cause : incident.causes) SayInterval(cause.finding);
  WatchLoss(incident);
  incidents_.push_back(std::move(incident));
}

// The chain of a cause ends at the loss, which most faults reach only steps after they were found.
void RankInference::WatchLoss(Incident& incident) const {
  const LossSeries& loss = detectors_.loss();
  if (!detectors_.observation().loss.present || loss.ticks() == 0) return;
  const Series& series = loss.series();
  const std::uint64_t tick = loss.ticks() - 1;
  if (!std::isfinite(series.Deviation(tick))) return;
  const double evidence = static_cast<double>(series.Evidence(tick));
  if (incident.loss.known && evidence <= incident.loss.evidence) return;
  const double normal = static_cast<double>(series.Value(tick)) - series.DeviationOrZero(tick);
  incident.loss = {true,
                   loss.StepOf(tick),
                   evidence,
                   static_cast<double>(detectors_.observation().loss.value),
                   std::exp2(normal - series.threshold()),
                   std::exp2(normal + series.threshold())};
}

constexpr std::size_t kMaxPlaces = 8;  // threads that are named; a training process has three or four that push

void RankInference::OnFate(RankFate fate, std::uint64_t last_step, std::uint32_t last_site,
                           std::vector<LastPlace> places, std::vector<Transition>& transitions) {
  if (fate == fate_) return;
  fate_ = fate;
  if (fate == RankFate::kRunning) return;
  Transition transition;
  transition.step = last_step;
  transition.rank = rank_;
  transition.incarnation = incarnation_;
  transition.site = last_site;
  transition.phase = Phase::kSystem;
  transition.from = "RUNNING";
  transition.to = fate == RankFate::kDied ? "DIED" : "FINISHED";
  transition.severity = fate == RankFate::kDied ? Severity::kError : Severity::kInfo;
  transitions.push_back(std::move(transition));
  if (fate != RankFate::kDied) return;
  places.resize(std::min(places.size(), kMaxPlaces));
  last_places_ = std::move(places);
  Finding finding;
  finding.kind = HypothesisKind::RANK_DIED;
  finding.site = last_site;
  finding.step = finding.detected = last_step;
  finding.phase = Phase::kSystem;
  finding.note = "The process ended without closing its segment.";
  if (last_site < topology_.sites.size()) {
    finding.module = topology_.sites[last_site].module;
    finding.note += " Its last record came from " + topology_.sites[last_site].name + ".";
  }
  AddFinding(std::move(finding));
}

}  // namespace neuraldbg
