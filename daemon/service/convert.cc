#include "daemon/service/convert.h"

#include <algorithm>
#include <limits>
#include <set>
#include <string>
#include <string_view>

namespace neuraldbg {
namespace {

google::protobuf::Timestamp ToTimestamp(std::uint64_t realtime_ns) {
  google::protobuf::Timestamp timestamp;
  timestamp.set_seconds(static_cast<std::int64_t>(realtime_ns / 1'000'000'000));
  timestamp.set_nanos(static_cast<std::int32_t>(realtime_ns % 1'000'000'000));
  return timestamp;
}

v1::Expectation ToExpectation(Statistic statistic, double low, double high) {
  v1::Expectation expectation;
  if (statistic != Statistic::kNone) expectation.set_statistic(std::string(StatisticName(statistic)));
  expectation.set_low(low);
  expectation.set_high(high);
  return expectation;
}

v1::Hypothesis ToProto(const Hypothesis& from, const RankKey& names, RunTopology& topology) {
  v1::Hypothesis to;
  to.set_incident(from.incident);
  to.set_kind(ToProto(from.kind));
  to.set_module(from.module);
  to.set_site(topology.SiteName(names, from.site));
  to.set_rank(from.rank);
  to.set_step(ToStep(from.step));
  to.set_detected_at_step(ToStep(from.detected_at_step));
  to.set_phase(ToProto(from.phase));
  to.set_confidence(from.confidence);
  to.set_summary(from.summary);
  to.set_remedy(from.remedy);
  for (const Evidence& evidence : from.evidence) {
    v1::Evidence* added = to.add_evidence();
    added->set_site(topology.SiteName(names, evidence.site));
    added->set_step(ToStep(evidence.step));
    added->set_observed(evidence.observed);
    *added->mutable_expected() = ToExpectation(evidence.statistic, evidence.expected_low, evidence.expected_high);
    added->set_note(evidence.note);
  }
  for (const ChainLink& link : from.chain) {
    v1::ChainLink* added = to.add_chain();
    added->set_site(topology.SiteName(names, link.site));
    if (const SiteEntry* site = topology.Site(names, link.site)) added->set_module(site->module);
    added->set_step(ToStep(link.step));
    added->set_phase(ToProto(link.phase));
    added->set_share(link.share);
    added->set_note(link.note);
  }
  for (const std::string& equivalent : from.equivalents) to.add_equivalents(equivalent);
  return to;
}

// Ids of a diagnosis are those of the newest incarnation of the rank it names.
RankKey NamesOf(const RunTopology& topology, const StoredRun& run, std::int32_t rank) {
  const StoredRank* newest = topology.Newest(rank);
  return newest == nullptr ? RankKey{run.id, 0, 0} : newest->key;
}

// Message: v1::Run or v1::Rank, whose states have the same names.
template <typename Message, typename State>
typename Message::State ToState(State state) {
  switch (state) {
    case State::kRunning:
      return Message::RUNNING;
    case State::kFinished:
      return Message::FINISHED;
    case State::kDied:
      return Message::DIED;
  }
  return Message::UNSPECIFIED;
}

v1::Event::Severity ToSeverity(Severity severity) {
  switch (severity) {
    case Severity::kInfo:
      return v1::Event::INFO;
    case Severity::kWarning:
      return v1::Event::WARNING;
    case Severity::kError:
      return v1::Event::ERROR;
  }
  return v1::Event::UNSPECIFIED;
}

// Enum of the model -> value of the same name, by the protobuf descriptor: the names are the contract, so a kind added
// on one side only shows as UNSPECIFIED in the test of all kinds instead of being shifted silently.
template <typename Enum>
Enum ByName(std::string_view name) {
  const auto* value = google::protobuf::GetEnumDescriptor<Enum>()->FindValueByName(std::string(name));
  return value == nullptr ? static_cast<Enum>(0) : static_cast<Enum>(value->number());
}

}  // namespace

std::uint32_t ToStep(std::uint64_t step) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(step, std::numeric_limits<std::uint32_t>::max()));
}

v1::TrainingStep::Phase ToProto(Phase phase) { return ByName<v1::TrainingStep::Phase>(PhaseName(phase)); }

v1::Hypothesis::Kind ToProto(HypothesisKind kind) { return ByName<v1::Hypothesis::Kind>(HypothesisKindName(kind)); }

v1::Diagnosis::Verdict ToProto(Verdict verdict) { return ByName<v1::Diagnosis::Verdict>(VerdictName(verdict)); }

v1::Site::Kind ToProto(RecordKind kind) {
  switch (kind) {
    case RecordKind::kNone:
      return v1::Site::NONE;
    case RecordKind::kTensor:
      return v1::Site::TENSOR;
    case RecordKind::kParameter:
      return v1::Site::PARAMETER;
    case RecordKind::kOptimizer:
      return v1::Site::OPTIMIZER;
    case RecordKind::kLoss:
      return v1::Site::LOSS;
    case RecordKind::kBatch:
      return v1::Site::BATCH;
    case RecordKind::kStep:
      return v1::Site::STEP;
    case RecordKind::kPhases:
      return v1::Site::PHASES;
    case RecordKind::kAttention:
      return v1::Site::ATTENTION;
    case RecordKind::kRouter:
      return v1::Site::ROUTER;
  }
  return v1::Site::NONE;
}

v1::Run ToProto(const StoredRun& run, Verdict verdict) {
  v1::Run to;
  to.set_run(run.display_name);
  to.set_name(run.name);
  to.set_launch(run.launch);
  to.set_state(ToState<v1::Run>(run.state));
  to.set_owner_uid(run.owner_uid);
  to.set_world_size(run.world_size);
  to.set_last_step(ToStep(run.last_step));
  to.set_steps_seen(ToStep(run.steps_seen));
  to.set_verdict(ToProto(verdict));
  to.set_framework(run.framework);
  *to.mutable_created() = ToTimestamp(run.created_realtime_ns);
  *to.mutable_updated() = ToTimestamp(run.updated_realtime_ns);
  return to;
}

v1::DaemonWarning ToProto(const DaemonWarning& warning) {
  v1::DaemonWarning to;
  to.set_kind(warning.kind == DaemonWarning::Kind::kNotStoring ? v1::DaemonWarning::NOT_STORING
                                                               : v1::DaemonWarning::SEGMENT_LEFT_ALONE);
  *to.mutable_since() = ToTimestamp(warning.since_realtime_ns);
  to.set_text(warning.text);
  to.set_remedy(warning.remedy);
  return to;
}

v1::Rank ToProto(const StoredRank& rank, RunTopology& topology) {
  v1::Rank to;
  to.set_rank(rank.key.rank);
  to.set_incarnation(rank.key.incarnation);
  to.set_host(rank.host);
  to.set_pid(rank.pid);
  to.set_state(ToState<v1::Rank>(rank.state));
  to.set_last_step(ToStep(rank.last_step));
  to.set_last_site(topology.SiteName(rank.key, rank.last_site));
  to.set_records_produced(static_cast<double>(rank.records_produced));
  to.set_records_received(static_cast<double>(rank.records_received));
  to.set_records_dropped(static_cast<double>(rank.records_dropped));
  return to;
}

v1::Event ToProto(const Transition& transition, const StoredRun& run, RunTopology& topology) {
  const RankKey key{run.id, transition.rank, transition.incarnation};
  v1::Event to;
  to.set_id(ToStep(transition.id));
  to.set_step(ToStep(transition.step));
  to.set_rank(transition.rank);
  to.set_site(topology.SiteName(key, transition.site));
  if (const SiteEntry* site = topology.Site(key, transition.site)) to.set_module(site->module);
  to.set_phase(ToProto(transition.phase));
  to.mutable_transition()->set_from(transition.from);
  to.mutable_transition()->set_to(transition.to);
  to.set_value(transition.value);
  *to.mutable_expected() = ToExpectation(transition.statistic, transition.expected_low, transition.expected_high);
  to.set_severity(ToSeverity(transition.severity));
  return to;
}

namespace {

// The only place that decides which causes are worth reading; every printer asks the message.
void MarkSummary(v1::Diagnosis& diagnosis) {
  constexpr double kNotWorthReading = 0.01;  // would print as 0 %
  constexpr std::size_t kIncidentsMax = 5;   // what people take in at a glance
  std::set<std::uint32_t> shown;
  for (v1::Hypothesis& hypothesis : *diagnosis.mutable_hypotheses()) {
    const bool likely = shown.empty() || hypothesis.confidence() >= kNotWorthReading;
    if (!likely || shown.size() == kIncidentsMax || shown.contains(hypothesis.incident())) continue;
    shown.insert(hypothesis.incident());
    hypothesis.set_in_summary(true);
  }
}

}  // namespace

v1::Diagnosis ToProto(const Diagnosis& diagnosis, const StoredRun& run, RunTopology& topology) {
  v1::Diagnosis to;
  to.set_run(run.display_name);
  to.set_verdict(ToProto(diagnosis.verdict));
  for (const Hypothesis& hypothesis : diagnosis.hypotheses) {
    *to.add_hypotheses() = ToProto(hypothesis, NamesOf(topology, run, hypothesis.rank), topology);
  }
  MarkSummary(to);
  for (const Notice& notice : diagnosis.notices) {
    v1::Notice* added = to.add_notices();
    added->set_step(ToStep(notice.step));
    added->set_rank(notice.rank);
    added->set_kind(ToProto(notice.kind));
    added->set_module(notice.module);
    added->set_text(notice.text);
  }
  for (const BlindSpot& spot : diagnosis.blind_spots) {
    v1::BlindSpot* added = to.add_blind_spots();
    added->set_site(topology.SiteName(NamesOf(topology, run, spot.rank), spot.site));
    added->set_rank(spot.rank);
    added->set_step(ToStep(spot.step));
    added->set_text(spot.text);
  }
  to.set_warm(diagnosis.warm);
  to.set_steps_seen(ToStep(diagnosis.steps_seen));
  for (const std::uint32_t rank : diagnosis.ranks_seen) to.add_ranks_seen(rank);
  return to;
}

namespace {

// The agent writes a level for every site; only tensors of modules are reached in different ways.
v1::Site::Level LevelOf(const SiteEntry& site) {
  if (KindOfRole(site.role) != RecordKind::kTensor) return v1::Site::NO_LEVEL;
  switch (site.level) {
    case ObservationLevel::kFused:
      return v1::Site::FUSED;
    case ObservationLevel::kTap:
      return v1::Site::TAP;
    case ObservationLevel::kForwardOnly:
      return v1::Site::FORWARD_ONLY;
    case ObservationLevel::kEager:
      return v1::Site::EAGER;
    case ObservationLevel::kNotObserved:
      break;
  }
  return v1::Site::NO_LEVEL;
}

}  // namespace

v1::Site ToProto(const SiteEntry& site) {
  v1::Site to;
  to.set_site(site.name);
  to.set_module(site.module);
  to.set_phase(ToProto(site.phase));
  to.set_kind(ToProto(KindOfRole(site.role)));
  to.set_state(site.level == ObservationLevel::kNotObserved ? v1::Site::NOT_OBSERVED : v1::Site::SILENT);
  to.set_level(LevelOf(site));
  return to;
}

v1::Series ToProto(const Series& series, const SiteEntry& site, Statistic statistic) {
  v1::Series to;
  to.set_site(site.name);
  to.set_module(site.module);
  to.set_phase(ToProto(site.phase));
  to.set_rank(series.rank);
  to.set_statistic(std::string(StatisticName(statistic)));
  to.mutable_points()->Reserve(static_cast<int>(series.points.size()));
  for (const SeriesPoint& point : series.points) {
    v1::Point* added = to.add_points();
    added->set_step(ToStep(point.step));
    added->set_value(point.value);
  }
  return to;
}

}  // namespace neuraldbg
