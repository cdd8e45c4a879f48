#include "tests/daemon/service/filled_store.h"

#include <cmath>
#include <limits>
#include <utility>

namespace neuraldbg {
namespace {

enum : std::uint32_t { kOutputSite, kGradientSite, kWeightSite, kLossSite, kStepSite, kSkippedSite };

SiteEntry MakeSite(std::uint32_t id, std::string name, std::string module, SiteRole role, Phase phase) {
  SiteEntry site;
  site.id = id;
  site.name = std::move(name);
  site.module = std::move(module);
  site.module_kind = site.module.empty() ? "" : "Linear";
  site.role = role;
  site.phase = phase;
  return site;
}

std::vector<ManifestEntry> Manifest() {
  SiteEntry output = MakeSite(kOutputSite, "fc:output", "fc", SiteRole::kOutput, Phase::kForward);
  output.twin = kGradientSite;
  SiteEntry gradient = MakeSite(kGradientSite, "fc:output.grad", "fc", SiteRole::kOutputGradient, Phase::kBackward);
  gradient.twin = kOutputSite;
  SiteEntry weight = MakeSite(kWeightSite, "fc.weight", "fc", SiteRole::kParameter, Phase::kParameter);
  weight.twin = kOutputSite;
  SiteEntry skipped = MakeSite(kSkippedSite, "root:output", "root", SiteRole::kOutput, Phase::kForward);
  skipped.level = ObservationLevel::kNotObserved;
  return {output,
          gradient,
          weight,
          MakeSite(kLossSite, "loss", "", SiteRole::kLoss, Phase::kLoss),
          MakeSite(kStepSite, "step", "", SiteRole::kStep, Phase::kSystem),
          skipped,
          SinkEntry{kOutputSite},
          ReadyEntry{0}};
}

Sample MakeSample(std::uint32_t site, RecordKind kind, Phase phase, Statistic statistic, float value) {
  Sample sample;
  sample.site = site;
  sample.kind = kind;
  sample.phase = phase;
  sample.Set(statistic, value);
  return sample;
}

// rms of fc:output is the step, of rank 1 ten times as much; at step 7 the loss is NaN.
StepFrame MakeFrame(const RankKey& key, std::uint64_t step) {
  StepFrame frame;
  frame.rank = key;
  frame.step = step;
  frame.complete = frame.applied = true;
  frame.records_received = 4;
  const float rms = static_cast<float>(step) * (key.rank == 0 ? 1.0f : 10.0f);
  const float loss = step == 7 ? std::numeric_limits<float>::quiet_NaN() : 0.5f;
  frame.samples = {MakeSample(kOutputSite, RecordKind::kTensor, Phase::kForward, Statistic::kRms, rms),
                   MakeSample(kLossSite, RecordKind::kLoss, Phase::kLoss, Statistic::kLoss, loss),
                   MakeSample(kGradientSite, RecordKind::kTensor, Phase::kBackward, Statistic::kRms, 0.25f),
                   MakeSample(kWeightSite, RecordKind::kParameter, Phase::kParameter, Statistic::kRms, 1.5f)};
  return frame;
}

Transition MakeTransition(std::uint64_t id, const RankKey& key) {
  Transition transition;
  transition.id = id;
  transition.step = 7;
  transition.rank = key.rank;
  transition.incarnation = key.incarnation;
  transition.site = kLossSite;
  transition.phase = Phase::kLoss;
  transition.statistic = Statistic::kLoss;
  transition.from = "HEALTHY";
  transition.to = "NONFINITE";
  transition.value = std::numeric_limits<double>::quiet_NaN();
  transition.expected_low = 0;
  transition.expected_high = 1;
  transition.severity = Severity::kError;
  return transition;
}

Diagnosis MakeFault() {
  Hypothesis hypothesis;
  hypothesis.kind = HypothesisKind::NONFINITE_LOSS;
  hypothesis.site = kLossSite;
  hypothesis.rank = -1;
  hypothesis.step = 7;
  hypothesis.detected_at_step = 7;
  hypothesis.phase = Phase::kLoss;
  hypothesis.confidence = 0.97;
  hypothesis.summary = "The loss became NaN although everything before it is finite.";
  hypothesis.remedy = "Guard the logarithm.";
  hypothesis.evidence = {{kLossSite, 7, Statistic::kLoss, std::numeric_limits<double>::infinity(), 0, 1, "It is inf."}};
  hypothesis.chain = {{kOutputSite, 6, Phase::kForward, 0.25, ""}, {kLossSite, 7, Phase::kLoss, 0.75, "here"}};
  hypothesis.equivalents = {"LABEL_ANOMALY at loss"};
  Diagnosis diagnosis;
  diagnosis.verdict = Verdict::FAULT;
  diagnosis.hypotheses = {hypothesis};
  diagnosis.blind_spots = {{kWeightSite, 1, 3, "No record came."}};
  diagnosis.warm = true;
  diagnosis.steps_seen = kStepsStored;
  diagnosis.ranks_seen = {0, 1};
  return diagnosis;
}

Commit MakeCommit(const RankKey& key, std::vector<StepFrame> frames) {
  const std::uint64_t last_step = frames.back().step;
  Commit commit = CommitOf(key, std::move(frames), 4 * (last_step + 1));
  commit.rank.host = "node-a";
  commit.rank.pid = 4242 + key.rank;
  commit.rank.last_step = last_step;
  commit.rank.last_site = kStepSite;
  commit.rank.records_produced = commit.rank.records_received = 5 * (last_step + 1);
  for (const std::uint32_t site : {kOutputSite, kGradientSite, kWeightSite, kLossSite}) {
    commit.site_totals.push_back({site, last_step + 1, last_step});
  }
  return commit;
}

void Require(const absl::Status& status) { ASSERT_TRUE(status.ok()) << status; }

StoredRun Adopt(Store& store, std::uint32_t uid, const std::string& name, const std::string& launch) {
  absl::StatusOr<StoredRun> run = store.AdoptRun(uid, name, launch, 2, "torch 2.13.0");
  Require(run.status());
  return run.ok() ? *run : StoredRun{};
}

}  // namespace

FilledStore::FilledStore() {
  absl::StatusOr<std::unique_ptr<Store>> store = Store::Open(directory_.path());
  Require(store.status());
  store_ = *std::move(store);
  Adopt(*store_, kStranger, "other", "x");
  FillFinished();
  running_ = Adopt(*store_, kOwner, "gpt", "second");
  Advance(0);
}

void FilledStore::FillFinished() {
  finished_ = Adopt(*store_, kOwner, "gpt", "first");
  for (std::uint32_t rank = 0; rank < 2; ++rank) {
    const RankKey key{finished_.id, rank, 0};
    std::vector<StepFrame> frames;
    for (std::uint64_t step = 0; step < kStepsStored; ++step) frames.push_back(MakeFrame(key, step));
    Commit commit = MakeCommit(key, std::move(frames));
    commit.manifest = Manifest();
    commit.rank.state = RankState::kFinished;
    if (rank == 0) {
      for (std::uint64_t id = 1; id <= kEventsStored; ++id) commit.transitions.push_back(MakeTransition(id, key));
    } else {
      commit.diagnosis = MakeFault();
    }
    Require(store_->Apply(commit));
  }
  Require(store_->SetRunState(finished_.id, RunState::kFinished));
}

std::unique_ptr<StoreReader> FilledStore::Reader() const {
  absl::StatusOr<std::unique_ptr<StoreReader>> reader = Store::OpenReadOnly(directory_.path());
  Require(reader.status());
  return reader.ok() ? *std::move(reader) : nullptr;
}

void FilledStore::Advance(std::uint64_t step, std::uint64_t first_id, std::uint64_t count, Verdict verdict) {
  const RankKey key{running_.id, 0, 0};
  Commit commit = MakeCommit(key, {MakeFrame(key, step)});
  if (step == 0) commit.manifest = Manifest();
  for (std::uint64_t id = first_id; id < first_id + count; ++id) commit.transitions.push_back(MakeTransition(id, key));
  Diagnosis diagnosis;
  diagnosis.verdict = verdict;
  diagnosis.steps_seen = step + 1;
  diagnosis.ranks_seen = {0};
  diagnosis.through_steps = {step};
  commit.diagnosis = diagnosis;
  Require(store_->Apply(commit));
}

void FilledStore::AdvanceUndiagnosed(std::uint64_t step) {
  const RankKey key{running_.id, 0, 0};
  Require(store_->Apply(MakeCommit(key, {MakeFrame(key, step)})));
}

void FilledStore::EndRun() { Require(store_->SetRunState(running_.id, RunState::kFinished)); }

}  // namespace neuraldbg
