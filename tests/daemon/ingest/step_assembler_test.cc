// When is a step finished, what is in it, and does it survive a restart: StepAssembler over hand-made lanes.
#include "daemon/ingest/step_assembler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/daemon/ingest/record_builder.h"

namespace neuraldbg {
namespace {

constexpr std::uint32_t kSites = 16;
constexpr std::uint32_t kStepSite = 15;

class StepAssemblerTest : public ::testing::Test {
 protected:
  void Add(const std::vector<Record>& records) { assembler_.Add(records); }
  std::vector<StepFrame> EndPass(bool emptied = true) {
    std::vector<StepFrame> frames;
    assembler_.EndPass(emptied, frames);
    return frames;
  }
  std::vector<StepFrame> Finish() {
    std::vector<StepFrame> frames;
    assembler_.Finish(frames);
    return frames;
  }
  StepAssembler assembler_{kSites, 0};
};

TEST_F(StepAssemblerTest, Step_IsFinishedWhenItsRecordsAreThere) {
  Add({TensorRecord(0, 3, 1.0), TensorRecord(0, 1, 1.0), StepRecord(0, kStepSite, 3)});
  const auto frames = EndPass(false);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_TRUE(frames[0].complete);
  EXPECT_TRUE(frames[0].applied);
  EXPECT_TRUE(frames[0].training);
  EXPECT_EQ(frames[0].records_received, 3u);
  EXPECT_EQ(frames[0].records_missing, 0u);
  ASSERT_EQ(frames[0].samples.size(), 3u);
  EXPECT_EQ(frames[0].samples[0].site, 1u);
  EXPECT_EQ(frames[0].samples[1].site, 3u);
  EXPECT_EQ(frames[0].samples[2].kind, RecordKind::kStep);
  EXPECT_EQ(assembler_.pending_steps(), 0u);
}

TEST_F(StepAssemblerTest, Samples_AreOrderedByPhaseThenSite) {
  Add({TensorRecord(0, 1, 1.0, 10, kFlagTraining, Phase::kBackward), TensorRecord(0, 9, 1.0), TensorRecord(0, 2, 1.0),
       StepRecord(0, kStepSite, 4)});
  const auto frames = EndPass();
  ASSERT_EQ(frames.size(), 1u);
  std::vector<std::uint32_t> sites;
  for (const Sample& sample : frames[0].samples) sites.push_back(sample.site);
  EXPECT_EQ(sites, (std::vector<std::uint32_t>{2, 9, 1, kStepSite}));
}

TEST_F(StepAssemblerTest, Step_WaitsForAnotherLane) {
  Add({TensorRecord(0, 1, 1.0), StepRecord(0, kStepSite, 3)});
  EXPECT_TRUE(EndPass().empty());  // its record may still lie in a lane that was looked at before the STEP record came
  Add({TensorRecord(0, 2, 1.0, 10, kFlagTraining, Phase::kBackward)});
  const auto frames = EndPass();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].records_missing, 0u);
  EXPECT_EQ(frames[0].samples.size(), 3u);
}

TEST_F(StepAssemblerTest, NextStepsRecords_DoNotCompleteThisOne) {
  Add({TensorRecord(0, 1, 1.0), StepRecord(0, kStepSite, 3), TensorRecord(1, 1, 1.0), TensorRecord(1, 2, 1.0)});
  EXPECT_TRUE(EndPass(false).empty());
  Add({TensorRecord(0, 2, 1.0)});
  EXPECT_EQ(EndPass(false).size(), 1u);
}

TEST_F(StepAssemblerTest, Drops_CompleteAStepAndAreShown) {
  Add({TensorRecord(0, 1, 1.0), StepRecord(0, kStepSite, 5, 3)});
  auto frames = EndPass(false);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].records_missing, 3u);
  EXPECT_TRUE(frames[0].complete);
  // The next step has lost nothing of its own.
  Add({TensorRecord(1, 1, 1.0), StepRecord(1, kStepSite, 7, 3)});
  frames = EndPass(false);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].records_missing, 0u);
}

TEST_F(StepAssemblerTest, UncountedLoss_EndsOnceEveryLaneWasEmptied) {
  Add({TensorRecord(0, 1, 1.0), StepRecord(0, kStepSite, 4)});  // two slots the reader refused: no drop counts them
  EXPECT_TRUE(EndPass(true).empty());
  EXPECT_TRUE(EndPass(false).empty());
  const auto frames = EndPass(true);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].records_missing, 2u);
}

TEST_F(StepAssemblerTest, LostStepRecord_EndsWithTheNextStep) {
  Add({TensorRecord(0, 1, 1.0), TensorRecord(1, 1, 1.0), StepRecord(1, kStepSite, 4, 1)});
  const auto frames = EndPass(false);
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_FALSE(frames[0].complete);
  EXPECT_EQ(frames[0].records_missing, 1u);
  EXPECT_TRUE(frames[1].complete);
  EXPECT_EQ(frames[1].records_missing, 1u);  // the missing one may lie in either
}

TEST_F(StepAssemblerTest, OwnersDeath_EndsTheStepIncomplete) {
  Add({TensorRecord(0, 1, 1.0), StepRecord(0, kStepSite, 2), TensorRecord(1, 4, 1.0)});
  EXPECT_EQ(EndPass().size(), 1u);
  const auto frames = Finish();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].step, 1u);
  EXPECT_FALSE(frames[0].complete);
  EXPECT_EQ(assembler_.last_step(), 1u);
  EXPECT_EQ(assembler_.last_site(), 4u);
}

TEST_F(StepAssemblerTest, BlackBox_ExplainsButCompletesNothing) {
  Add({TensorRecord(0, 1, 1.0)});
  EndPass();
  const std::vector<Record> recovered = {TensorRecord(0, 2, 5.0), TensorRecord(1, 3, 1.0), StepRecord(1, kStepSite, 9)};
  assembler_.AddRecovered(recovered);
  const auto frames = Finish();
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(frames[0].records_received, 1u);
  EXPECT_EQ(frames[0].samples.size(), 2u);
  EXPECT_FALSE(frames[1].complete);
  EXPECT_EQ(assembler_.received(), 1u);
}

TEST_F(StepAssemblerTest, Microbatches_AreMerged) {
  Add({TensorRecord(0, 1, 1.0, 10), TensorRecord(0, 1, 3.0, 10), StepRecord(0, kStepSite, 3)});
  const auto frames = EndPass();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].samples[0].Get(Statistic::kMean), 2.0f);
  EXPECT_EQ(frames[0].samples[0].Get(Statistic::kCalls), 2.0f);
}

TEST_F(StepAssemblerTest, Evaluation_IsCountedButKeptOut) {
  Add({TensorRecord(0, 1, 100.0, 10, 0), TensorRecord(0, 1, 1.0), TensorRecord(0, 2, 100.0, 10, kFlagGradMode),
       StepRecord(0, kStepSite, 4)});
  const auto frames = EndPass();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_TRUE(frames[0].training);
  EXPECT_EQ(frames[0].records_received, 4u);
  ASSERT_EQ(frames[0].samples.size(), 2u);  // site 1 and STEP; site 2 ran in evaluation only
  EXPECT_EQ(frames[0].samples[0].Get(Statistic::kMean), 1.0f);
  EXPECT_EQ(assembler_.site_totals()[1].records, 2u);
}

TEST_F(StepAssemblerTest, EvaluationAlone_IsAFrameThatIsNotTraining) {
  Record end = StepRecord(0, kStepSite, 2);
  end.flags = kFlagUnannounced;
  Add({TensorRecord(0, 1, 100.0, 10, 0), end});
  const auto frames = EndPass();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_FALSE(frames[0].training);
  EXPECT_EQ(frames[0].samples[0].Get(Statistic::kMean), 100.0f);
}

TEST_F(StepAssemblerTest, TrainingInEvaluationMode_IsRecognisedByItsGradients) {
  Add({TensorRecord(0, 1, 2.0, 10, kFlagGradMode), TensorRecord(0, 2, 3.0, 10, 0, Phase::kBackward),
       StepRecord(0, kStepSite, 3)});
  const auto frames = EndPass();
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_TRUE(frames[0].training);
  EXPECT_EQ(frames[0].samples.size(), 3u);
}

TEST_F(StepAssemblerTest, Recompute_DoesNotCountTwiceButReplacesAPassThatWasNotRecorded) {
  const std::uint16_t recompute = kTrainingPass | kFlagRecompute;
  Add({TensorRecord(0, 1, 2.0), TensorRecord(0, 1, 2.0, 10, recompute),  // non-reentrant checkpointing
       TensorRecord(0, 2, 7.0, 10, kFlagTraining),                       // reentrant: first pass without autograd
       TensorRecord(0, 2, 7.0, 10, recompute), StepRecord(0, kStepSite, 5)});
  const auto frames = EndPass();
  ASSERT_EQ(frames.size(), 1u);
  ASSERT_EQ(frames[0].samples.size(), 3u);
  EXPECT_EQ(frames[0].samples[0].Get(Statistic::kCalls), 1.0f);
  EXPECT_EQ(frames[0].samples[1].Get(Statistic::kMean), 7.0f);
  EXPECT_EQ(frames[0].samples[1].Get(Statistic::kCalls), 1.0f);
}

TEST_F(StepAssemblerTest, KindsThatShareASite_StayApart) {
  Record attention = MakeRecord(RecordKind::kAttention, Phase::kForward, 0, 1, kTrainingPass);
  attention.attention.logit_max = 9;
  Add({TensorRecord(0, 1, 1.0), attention, TensorRecord(0, 1, 1.0), StepRecord(0, kStepSite, 4)});
  const auto frames = EndPass();
  ASSERT_EQ(frames.size(), 1u);
  ASSERT_EQ(frames[0].samples.size(), 3u);
  EXPECT_EQ(frames[0].samples[0].Get(Statistic::kCalls), 2.0f);
  EXPECT_EQ(frames[0].samples[1].Get(Statistic::kLogitMax), 9.0f);
}

TEST_F(StepAssemblerTest, LateRecord_IsCountedNotJudged) {
  Add({StepRecord(0, kStepSite, 1)});
  EXPECT_EQ(EndPass().size(), 1u);
  Add({TensorRecord(0, 1, 1.0), StepRecord(1, kStepSite, 3)});
  const auto frames = EndPass(false);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].step, 1u);
  EXPECT_EQ(frames[0].records_missing, 0u);
  EXPECT_EQ(assembler_.late(), 1u);
}

TEST_F(StepAssemblerTest, OpenSteps_AreBounded) {
  for (std::uint64_t step = 0; step < 100; ++step) Add({TensorRecord(step, 1, 1.0)});
  const auto frames = EndPass();
  EXPECT_EQ(assembler_.pending_steps(), StepAssembler::kPendingStepsMax);
  ASSERT_EQ(frames.size(), 100 - StepAssembler::kPendingStepsMax);
  EXPECT_FALSE(frames[0].complete);
}

TEST_F(StepAssemblerTest, SiteOutOfRange_IsRefused) {
  Add({TensorRecord(0, kSites, 1.0), StepRecord(0, kStepSite, 2)});
  const auto frames = EndPass(false);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(assembler_.refused(), 1u);
  EXPECT_EQ(frames[0].records_missing, 0u);
}

TEST_F(StepAssemblerTest, AlreadyConsumedRecords_CountAsReceived) {
  StepAssembler late(kSites, 1000);
  late.Add(std::vector<Record>{TensorRecord(7, 1, 1.0), StepRecord(7, kStepSite, 1002)});
  std::vector<StepFrame> frames;
  late.EndPass(false, frames);
  ASSERT_EQ(frames.size(), 1u);
  EXPECT_EQ(frames[0].records_missing, 0u);
}

// Two lanes, random interleaving and random cuts between passes, with or without a restart at every cut: the frames are
// always the same.
TEST(StepAssemblerPropertyTest, Frames_DoNotDependOnHowDrainsCutTheLanes) {
  std::vector<Record> lanes[2];
  std::uint64_t attempts = 0;
  for (std::uint64_t step = 0; step < 40; ++step) {
    for (std::uint32_t site = 0; site < 6; ++site, ++attempts) {
      lanes[site % 2].push_back(TensorRecord(step, site, static_cast<double>(step + site)));
    }
    lanes[0].push_back(StepRecord(step, kStepSite, ++attempts));
  }
  std::vector<std::uint64_t> expected;
  for (std::uint64_t step = 0; step < 40; ++step) expected.push_back(step);
  std::mt19937 random(20240611);
  for (int round = 0; round < 60; ++round) {
    StepAssembler assembler(kSites, 0);
    std::size_t at[2] = {0, 0};
    std::vector<StepFrame> frames;
    while (at[0] < lanes[0].size() || at[1] < lanes[1].size()) {
      for (int lane = 0; lane < 2; ++lane) {
        // Lane 1 has three records a step, lane 0 four; neither runs away by more steps than may be open.
        const bool far_ahead =
            at[lane] / (4 - static_cast<std::size_t>(lane)) >
            at[1 - lane] / (3 + static_cast<std::size_t>(lane)) + StepAssembler::kPendingStepsMax / 2;
        const std::size_t take = far_ahead ? 0 : std::min<std::size_t>(random() % 20, lanes[lane].size() - at[lane]);
        assembler.Add(std::span(lanes[lane]).subspan(at[lane], take));
        at[lane] += take;
      }
      assembler.EndPass(false, frames);
      if (round % 2 == 1) {  // as a restart does
        std::vector<std::byte> state;
        assembler.Serialize(state);
        StepAssembler restarted(kSites, 0);
        ASSERT_TRUE(restarted.Restore(state));
        assembler = std::move(restarted);
      }
    }
    std::vector<std::uint64_t> steps;
    for (const StepFrame& frame : frames) {
      steps.push_back(frame.step);
      EXPECT_EQ(frame.records_received, 7u);
      EXPECT_EQ(frame.records_missing, 0u);
      ASSERT_EQ(frame.samples.size(), 7u);
      EXPECT_EQ(frame.samples[4].Get(Statistic::kMean), static_cast<float>(frame.step + 4));
    }
    ASSERT_EQ(steps, expected) << "round " << round;
    EXPECT_EQ(assembler.late(), 0u);
  }
}

TEST(StepAssemblerStateTest, DamagedBytes_AreRefusedWithoutChange) {
  StepAssembler assembler(kSites, 0);
  assembler.Add(std::vector<Record>{TensorRecord(3, 1, 1.0), TensorRecord(3, 1, 2.0)});
  std::vector<std::byte> state;
  assembler.Serialize(state);
  for (std::size_t cut = 0; cut < state.size(); ++cut) {
    StepAssembler other(kSites, 5);
    EXPECT_FALSE(other.Restore(std::span(state).first(cut)));
    EXPECT_EQ(other.received(), 5u);
  }
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {  // must not crash, whatever the bytes say
    std::vector<std::byte> damaged = state;
    damaged[random() % damaged.size()] ^= static_cast<std::byte>(1 + random() % 255);
    StepAssembler other(kSites, 0);
    if (!other.Restore(damaged)) continue;
    std::vector<StepFrame> frames;
    other.Finish(frames);
  }
  StepAssembler larger(kSites + 1, 0);
  EXPECT_FALSE(larger.Restore(state));
}

}  // namespace
}  // namespace neuraldbg
