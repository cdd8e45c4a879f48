#include "daemon/infer/assembly.h"

#include <algorithm>
#include <optional>

#include "daemon/infer/confidence.h"
#include "daemon/infer/phrasing.h"

namespace neuraldbg {
namespace {

using namespace threshold;

constexpr std::size_t kMaxHypotheses = 16;
constexpr double kUnsureBelow = 0.5;    // design: below, the answer is UNSURE
constexpr std::uint64_t kSameStep = 1;  // ranks that see one fault see it within a step

struct Ranked {
  Cause cause;
  std::int32_t rank = 0;
};

// Causes close in time: one fault and what followed from it. `until` is the last step with an alarm or finding.
struct Cluster {
  std::vector<Ranked> exact, statistical;
  std::uint64_t first = 0, until = 0;
  std::vector<Ranked> ordered;
  std::uint32_t number = 0;
  LossEffect loss;  // the largest of the incidents
  bool passed = true;
};

bool EarlierRanked(const Ranked& a, const Ranked& b) {
  // Of two odd initial weights the one further out leads: they have no order in time.
  const bool init = a.cause.finding.kind == HypothesisKind::INIT_SCALE && b.cause.finding.kind == a.cause.finding.kind;
  if (init && a.cause.finding.step == b.cause.finding.step) return a.cause.finding.score > b.cause.finding.score;
  return Earlier(a.cause, b.cause);
}

class Assembler {
 public:
  explicit Assembler(const std::map<std::uint32_t, RankInference>& ranks) : ranks_(ranks) {}

  Diagnosis Run() {
    Account();
    Collect();
    for (Cluster& cluster : clusters_) Order(cluster);
    std::vector<const Cluster*> best;
    best.reserve(clusters_.size());
    for (const Cluster& cluster : clusters_) best.push_back(&cluster);
    std::stable_sort(best.begin(), best.end(), [](const Cluster* a, const Cluster* b) { return Better(*a, *b); });
    for (const Cluster* cluster : best) Publish(*cluster);
    Decide();
    return std::move(diagnosis_);
  }

 private:
  void Account() {
    diagnosis_.warm = !ranks_.empty();
    for (const auto& [rank, state] : ranks_) {
      diagnosis_.ranks_seen.push_back(rank);
      diagnosis_.through_steps.push_back(state.last_step());
      diagnosis_.steps_seen = std::max(diagnosis_.steps_seen, state.steps_seen());
      diagnosis_.warm &= state.detectors().warm();
      tensors_observed_ |= state.detectors().tensors().ticks() > 0;
      applied_ = std::max(applied_, state.applied_steps());
      if (state.missing().steps > missing_.steps) {
        missing_ = state.missing();
        missing_rank_ = static_cast<std::int32_t>(rank);
      }
      for (const SilenceDetector::Silent& silent : state.detectors().silence().Spots()) {
        BlindSpot spot;
        spot.site = silent.site;
        spot.rank = static_cast<std::int32_t>(rank);
        spot.step = silent.since;
        spot.text = "It is planned and has not reported in complete steps since; nothing is known about it.";
        diagnosis_.blind_spots.push_back(std::move(spot));
      }
    }
    if (missing_.steps > 0) NoteMissing();
  }

  void NoteMissing() {
    Notice notice;
    notice.kind = HypothesisKind::BLIND_SPOT;
    notice.step = missing_.from;
    notice.rank = missing_rank_;
    notice.text = "Of the steps " + std::to_string(missing_.from) + " to " + std::to_string(missing_.to) + ", " +
                  std::to_string(missing_.steps) +
                  " were not received, and what happened in them is not known: the ring was full, or nobody read it. "
                  "`neuraldbgctl doctor` says more.";
    diagnosis_.notices.push_back(std::move(notice));
  }

  // A verdict over the smaller part of a run says nothing of the run.
  bool MostlyMissing() const { return missing_.steps > diagnosis_.steps_seen; }

  void Collect() {
    struct Event {
      Ranked ranked;
      std::uint64_t until;
      bool exact;
      LossEffect loss;
      bool passed = false;  // a single step stood out, and later ones did not
    };
    std::vector<Event> events;
    for (const auto& [rank, state] : ranks_) {
      const auto number = static_cast<std::int32_t>(rank);
      const bool optimizer_lost = std::any_of(state.findings().begin(), state.findings().end(), [](const Cause& cause) {
        return cause.finding.kind == HypothesisKind::UPDATE_LOST && cause.finding.module.empty();
      });
      for (const Cause& cause : state.findings()) {
        // Single parameters that stood still were the first to be looked at of all that did.
        if (optimizer_lost && cause.finding.kind == HypothesisKind::UPDATE_LOST && !cause.finding.module.empty())
          continue;
        events.push_back({{cause, number}, cause.finding.detected, true, {}});
      }
      for (const Incident& incident : state.incidents()) {
        const bool passed = incident.hot_steps == 1 && state.last_step() >= incident.alarm_step + kPassedSteps;
        for (const Cause& cause : incident.causes) {
          events.push_back({{cause, number}, incident.last_hot_step, false, incident.loss, passed});
        }
      }
    }
    std::stable_sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
      return a.ranked.cause.finding.step < b.ranked.cause.finding.step;
    });
    for (Event& event : events) {
      const std::uint64_t step = event.ranked.cause.finding.step;
      if (clusters_.empty() || step > clusters_.back().until + kExplainedLead) {
        clusters_.emplace_back();
        clusters_.back().first = step;
        clusters_.back().number = static_cast<std::uint32_t>(clusters_.size() - 1);
      }
      Cluster& cluster = clusters_.back();
      cluster.until = std::max(cluster.until, event.until);
      cluster.passed &= event.passed;
      if (event.loss.known && (!cluster.loss.known || event.loss.evidence > cluster.loss.evidence)) {
        cluster.loss = event.loss;
      }
      (event.exact ? cluster.exact : cluster.statistical).push_back(std::move(event.ranked));
    }
    for (Cluster& cluster : clusters_) {
      // Behind whatever a cause was put in its own incident, it stays there among those of the others.
      std::stable_partition(cluster.statistical.begin(), cluster.statistical.end(),
                            [](const Ranked& ranked) { return !ranked.cause.explained && !ranked.cause.faint; });
      FoldRanks(cluster.exact);
      FoldRanks(cluster.statistical);
    }
  }

  // The same fault on every rank is one fault, of rank -1.
  void FoldRanks(std::vector<Ranked>& causes) const {
    if (ranks_.size() < 2) return;
    std::vector<Ranked> folded;
    for (Ranked& ranked : causes) {
      const auto same = [&](const Ranked& other) {
        const Finding &a = other.cause.finding, &b = ranked.cause.finding;
        return a.kind == b.kind && a.module == b.module &&
               std::max(a.step, b.step) - std::min(a.step, b.step) <= kSameStep;
      };
      const auto known = std::find_if(folded.begin(), folded.end(),
                                      [&](const Ranked& other) { return other.rank == -1 && same(other); });
      if (known != folded.end()) continue;
      std::vector<std::int32_t> seen;
      for (const Ranked& other : causes) {
        if (same(other) && std::find(seen.begin(), seen.end(), other.rank) == seen.end()) seen.push_back(other.rank);
      }
      if (seen.size() == ranks_.size()) ranked.rank = -1;
      folded.push_back(ranked);
    }
    causes = std::move(folded);
  }

  // Exact findings lead, except that a statistical cause shortly before them explains them.
  static void Order(Cluster& cluster) {
    auto& exact = cluster.exact;
    auto& statistical = cluster.statistical;
    const bool starved = std::any_of(statistical.begin(), statistical.end(), [](const Ranked& ranked) {
      return ranked.cause.finding.kind == HypothesisKind::UPDATE_TOO_SMALL;
    });
    if (starved) {
      std::erase_if(exact, [](const Ranked& r) { return r.cause.finding.kind == HypothesisKind::UPDATE_LOST; });
    }
    std::stable_sort(exact.begin(), exact.end(), EarlierRanked);
    const auto append = [&](std::vector<Ranked>& from, std::size_t begin) {
      for (std::size_t i = begin; i < from.size(); ++i) cluster.ordered.push_back(from[i]);
    };
    if (exact.empty() || statistical.empty()) {
      append(exact, 0);
      append(statistical, 0);
      return;
    }
    std::uint64_t earliest = statistical.front().cause.finding.step;
    for (const Ranked& ranked : statistical) earliest = std::min(earliest, ranked.cause.finding.step);
    const Finding& lead = exact.front().cause.finding;
    if (lead.weak && earliest <= lead.step + 1) {
      append(statistical, 0);
      append(exact, 0);
    } else if (earliest < lead.step && earliest + kExplainedLead >= lead.step) {
      cluster.ordered.push_back(statistical.front());
      append(exact, 0);
      append(statistical, 1);
    } else {
      append(exact, 0);
      append(statistical, 0);
    }
  }

  static bool Better(const Cluster& a, const Cluster& b) {
    const auto key = [](const Cluster& cluster) {
      const Cause& lead = cluster.ordered.front().cause;
      return std::tuple(!lead.strong(), lead.fallback, cluster.number);
    };
    if (a.ordered.empty() || b.ordered.empty()) return !a.ordered.empty() && b.ordered.empty();
    return key(a) < key(b);
  }

  // Said, and no reason for doubt: levels that drift while the loss is in its range (a network that learns), and one
  // batch with a high loss that nothing followed from.
  bool Harmless(const Cluster& cluster) {
    const Ranked& lead = cluster.ordered.front();
    const Finding& finding = lead.cause.finding;
    const bool quiet = cluster.loss.known && cluster.loss.evidence < kQuietLoss;
    const bool learns = !lead.cause.exact && lead.cause.drift && quiet;
    const bool one_batch = !lead.cause.exact && finding.phase == Phase::kLoss && cluster.passed;
    if (!learns && !one_batch) return false;
    diagnosis_.notices.push_back(
        {finding.step, lead.rank, learns ? finding.kind : HypothesisKind::LOSS_SPIKE, finding.module,
         learns ? "Activations have drifted step by step since here, as they do in a network that learns; the loss is "
                  "in its usual range."
                : "The loss of this one step stood out; the steps after it did not."});
    return true;
  }

  void Publish(const Cluster& cluster) {
    if (cluster.ordered.empty() || Harmless(cluster)) return;
    std::vector<Cause> causes;
    causes.reserve(cluster.ordered.size());
    for (const Ranked& ranked : cluster.ordered) causes.push_back(ranked.cause);
    for (std::size_t i = 0; i < cluster.ordered.size() && diagnosis_.hypotheses.size() < kMaxHypotheses; ++i) {
      const std::span<const Cause> behind = std::span<const Cause>(causes).subspan(i + 1);
      Hypothesis hypothesis = Phrase(cluster.ordered[i], cluster, behind);
      // What ranks behind is at most as likely as what it would have to displace.
      if (i > 0) hypothesis.confidence *= 1.0 - lead_confidence_;
      if (i == 0) lead_confidence_ = hypothesis.confidence;
      if (!lead_) lead_ = causes[i];
      diagnosis_.hypotheses.push_back(std::move(hypothesis));
    }
  }

  Hypothesis Phrase(const Ranked& ranked, const Cluster& cluster, std::span<const Cause> behind) const {
    const Cause& cause = ranked.cause;
    const Finding& finding = cause.finding;
    const auto state = ranks_.find(static_cast<std::uint32_t>(std::max(ranked.rank, 0)));
    static const Topology kNone;
    const Topology& topology = state == ranks_.end() ? kNone : state->second.topology();
    Hypothesis hypothesis;
    hypothesis.incident = cluster.number;
    hypothesis.kind = finding.kind;
    hypothesis.module = finding.module;
    hypothesis.site = finding.site;
    hypothesis.rank = ranked.rank;
    hypothesis.step = finding.step;
    hypothesis.detected_at_step = finding.detected;
    hypothesis.phase = finding.phase;
    hypothesis.confidence = ConfidenceOf(cause, behind);
    hypothesis.summary = SummaryOf(cause, topology);
    hypothesis.remedy = RemedyFor(cause);
    hypothesis.equivalents = EquivalentsOf(cause);
    hypothesis.evidence.push_back({finding.site, finding.step, finding.statistic, finding.observed,
                                   finding.expected_low, finding.expected_high, finding.note});
    if (!cause.exact) AddOwnChange(cause, hypothesis);
    if (finding.kind == HypothesisKind::RANK_DIED && state != ranks_.end()) AddLastPlaces(state->second, hypothesis);
    for (const MarkEntry& mark : topology.marks) {
      if (mark.step > finding.step + kSameStep || mark.step + kQuietSteps < finding.step) continue;
      hypothesis.evidence.push_back({kNoSite, mark.step, Statistic::kNone, 0, 0, 0, "Announced then: " + mark.text});
    }
    for (const Link& link : cause.chain) {
      hypothesis.chain.push_back({link.site, link.step, link.phase, link.share, link.note});
    }
    if (hypothesis.chain.empty()) {
      hypothesis.chain.push_back({finding.site, finding.step, finding.phase, 1.0, finding.note});
    }
    AddConsequences(behind, hypothesis);
    AddLoss(cluster.loss, topology, hypothesis);
    return hypothesis;
  }

  // The ratio by which a module answers what it is given, against its own normal: what tells a cause from what follows.
  static void AddOwnChange(const Cause& cause, Hypothesis& hypothesis) {
    if (cause.own_change == 0 || !std::isfinite(cause.own_change)) return;
    const Finding& finding = cause.finding;
    hypothesis.evidence.push_back({finding.site, finding.step, Statistic::kNone, std::exp2(cause.own_change),
                                   std::exp2(-kGainMinimum), std::exp2(kGainMinimum),
                                   finding.phase == Phase::kBackward
                                       ? "Factor by which gradient out against gradient in changed in this module."
                                       : "Factor by which output against inputs changed in this module."});
  }

  static void AddLastPlaces(const RankInference& rank, Hypothesis& hypothesis) {
    for (const LastPlace& place : rank.last_places()) {
      const std::string who =
          place.thread == 0 ? "A thread that had ended before" : "Thread " + std::to_string(place.thread);
      hypothesis.evidence.push_back(
          {place.site, place.step, Statistic::kNone, 0, 0, 0,
           who + " did this last, in the phase " + std::string(PhaseName(place.phase)) + "."});
    }
  }

  static void AddLoss(const LossEffect& loss, const Topology& topology, Hypothesis& hypothesis) {
    if (!loss.known || hypothesis.chain.back().phase == Phase::kLoss) return;
    const auto site = std::find_if(topology.sites.begin(), topology.sites.end(),
                                   [](const SiteEntry& entry) { return entry.role == SiteRole::kLoss; });
    if (site == topology.sites.end()) return;
    hypothesis.chain.push_back(
        {static_cast<std::uint32_t>(site - topology.sites.begin()), loss.step, Phase::kLoss, 0, LossText(loss)});
  }

  // Exact causes have no split of their own; what statistics saw afterwards is what followed from them.
  static void AddConsequences(std::span<const Cause> behind, Hypothesis& hypothesis) {
    constexpr std::size_t kShown = 2;
    std::size_t shown = 0;
    for (const Cause& other : behind) {
      if (shown == kShown || hypothesis.chain.size() > 1 + kShown) return;
      if (other.finding.step < hypothesis.step || other.finding.site == hypothesis.site) continue;
      hypothesis.chain.push_back({other.finding.site, other.finding.step, other.finding.phase, 0, other.finding.note});
      ++shown;
    }
  }

  void Decide() {
    const bool strong = lead_ && lead_->strong();
    if ((applied_ < kMinimumApplied || !tensors_observed_) && !strong) {
      diagnosis_.verdict = Verdict::INCOMPLETE_DATA;
    } else if (!lead_) {
      diagnosis_.verdict = MostlyMissing() ? Verdict::INCOMPLETE_DATA : Verdict::HEALTHY;
    } else if (lead_->fallback || diagnosis_.hypotheses.front().confidence < kUnsureBelow) {
      diagnosis_.verdict = Verdict::UNSURE;
    } else {
      diagnosis_.verdict = Verdict::FAULT;
    }
  }

  const std::map<std::uint32_t, RankInference>& ranks_;
  std::vector<Cluster> clusters_;
  Diagnosis diagnosis_;
  std::optional<Cause> lead_;
  double lead_confidence_ = 0;
  std::uint64_t applied_ = 0;
  RankInference::Missing missing_;  // of the rank that lost most
  std::int32_t missing_rank_ = 0;
  bool tensors_observed_ = false;  // without any, silence would be taken for health
};

}  // namespace

Diagnosis Assemble(const std::map<std::uint32_t, RankInference>& ranks) { return Assembler(ranks).Run(); }

}  // namespace neuraldbg
