// Goal: no sentence of a diagnosis has a hole in it. Method: every kind at every form of a place, with every form of a
// measurement, read by rules that a broken sentence violates.
#include "daemon/infer/phrasing.h"

#include <gmock/gmock.h>

#include <cctype>
#include <limits>
#include <set>
#include <sstream>

namespace neuraldbg {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::vector<HypothesisKind> AllKinds() {
  return {
#define X(name) HypothesisKind::name,
      NEURALDBG_HYPOTHESIS_KINDS(X)
#undef X
  };
}

constexpr SiteRole kRoles[] = {
    SiteRole::kOutput, SiteRole::kOutputGradient, SiteRole::kInput,     SiteRole::kInputGradient,
    SiteRole::kMerge,  SiteRole::kMergeGradient,  SiteRole::kParameter, SiteRole::kOptimizer,
    SiteRole::kBatch,  SiteRole::kLoss,           SiteRole::kStep};
constexpr Phase kPhases[] = {Phase::kData,         Phase::kForward,   Phase::kLoss,      Phase::kBackward,
                             Phase::kGradientSync, Phase::kOptimizer, Phase::kParameter, Phase::kSystem};

struct Measurement {
  Statistic statistic;
  double observed, low, high;
};
constexpr Measurement kMeasurements[] = {{Statistic::kNone, 0, 0, 0},
                                         {Statistic::kRms, 3.25, 0.5, 1},
                                         {Statistic::kRms, 3.25, 1, 1},
                                         {Statistic::kNan, 12, 0, 0},
                                         {Statistic::kLoss, kNan, 0.5, 1},
                                         {Statistic::kRms, 3.25, kNan, kNan},
                                         {Statistic::kRms, 0.001, 0.5, kInfinity},
                                         {Statistic::kRms, kInfinity, 0.5, 1}};

void ExpectWhole(const std::string& sentence) {
  EXPECT_THAT(sentence, ::testing::EndsWith("."));
  for (const char* broken : {"  ", "{}", "()", " .", " ,", " :", ": :", ",,", "..", "nan,", "nan)", "(nan nan", "-nan",
                             "inf ", "inf)", "in ,", "of  ", "expected ,", "expected )"}) {
    EXPECT_THAT(sentence, Not(HasSubstr(broken)));
  }
  // A name that is said twice.
  std::istringstream words(sentence);
  std::string word, before;
  while (words >> word) {
    EXPECT_NE(word, before) << sentence;
    before = word;
  }
}

Topology TopologyWith(SiteRole role, const std::string& module, const std::string& owner) {
  Topology topology;
  SiteEntry site;
  site.role = role;
  site.module = module;
  site.owner = owner;
  site.name = module + ":site";
  topology.sites = {site};
  return topology;
}

TEST(PhrasingTest, EveryKindAtEveryPlaceIsAWholeSentence) {
  std::set<std::string> said;
  for (const HypothesisKind kind : AllKinds()) {
    for (const Phase phase : kPhases) {
      for (const Measurement& m : kMeasurements) {
        Cause cause;
        cause.finding.kind = kind;
        cause.finding.phase = phase;
        cause.finding.step = 41;
        cause.finding.statistic = m.statistic;
        cause.finding.observed = m.observed;
        cause.finding.expected_low = m.low;
        cause.finding.expected_high = m.high;
        for (const char* module : {"", "layers.3"}) {
          cause.finding.module = module;
          cause.exact = true;
          cause.finding.site = kNoSite;
          said.insert(SummaryOf(cause, Topology()));
          cause.exact = false;
          said.insert(SummaryOf(cause, Topology()));
          cause.finding.site = 0;
          for (const SiteRole role : kRoles) {
            for (const char* of : {"", "layers.3", "layers.3.0"}) {
              for (const char* owner : {"", "layers"}) said.insert(SummaryOf(cause, TopologyWith(role, of, owner)));
            }
          }
        }
      }
    }
  }
  for (const std::string& sentence : said) {
    ExpectWhole(sentence);
    if (HasFailure()) FAIL() << sentence;
  }
  EXPECT_GT(said.size(), AllKinds().size() * std::size(kMeasurements) / 2);
}

// A finding of `module` at a site of `of` whose tensor the code of `owner` computed.
std::string Said(HypothesisKind kind, const std::string& module, SiteRole role, const std::string& of,
                 const std::string& owner) {
  Cause cause;
  cause.finding.kind = kind;
  cause.finding.module = module;
  cause.finding.site = 0;
  const std::string text = SummaryOf(cause, TopologyWith(role, of, owner));
  return text.substr(text.find(": ") + 2);
}

TEST(PhrasingTest, FunctionalCodeIsNamedByTheModulesAroundIt) {
  using enum HypothesisKind;
  EXPECT_EQ(Said(NONFINITE_FORWARD, "layers.3", SiteRole::kInput, "layers.3.0", "layers.3"),
            "the code of layers.3 in front of layers.3.0 produces NaN or Inf from finite inputs.");
  EXPECT_EQ(Said(NONFINITE_FORWARD, "fc", SiteRole::kInput, "fc", ""),
            "the code of the model in front of fc produces NaN or Inf from finite inputs.");
  EXPECT_EQ(Said(ACTIVATION_SHIFT, "block", SiteRole::kMerge, "block", "block"),
            "the output of the code of block where its branches meet changed scale and its input did not.");
}

TEST(PhrasingTest, AGradientTellsOfWhatStandsBehindItsSite) {
  using enum HypothesisKind;
  EXPECT_EQ(Said(VANISHING_GRADIENT, "layers.3.0", SiteRole::kInputGradient, "layers.3.0", "layers.3"),
            "the gradient vanishes in the backward pass of layers.3.0.");
  EXPECT_EQ(Said(NONFINITE_BACKWARD, "head", SiteRole::kMergeGradient, "block", "block"),
            "head turns a finite gradient into NaN or Inf.");
  EXPECT_EQ(Said(VANISHING_GRADIENT, "", SiteRole::kOutputGradient, "fc", "fc"),
            "the gradient vanishes in the backward pass of the code of the model behind fc.");
}

TEST(PhrasingTest, WhatIsNotOfAModuleHasASubject) {
  Cause cause;
  cause.finding.kind = HypothesisKind::UPDATE_LOST;
  cause.finding.phase = Phase::kOptimizer;
  EXPECT_EQ(SummaryOf(cause, Topology()),
            "Step 0: the optimizer does not change the parameters although there is a gradient.");
  cause.finding.kind = HypothesisKind::RANK_DIED;
  cause.finding.module = "layers.3";
  EXPECT_EQ(SummaryOf(cause, Topology()), "Step 0: the process of this rank ended without detaching.");
}

TEST(PhrasingTest, WhatAnExactRuleFoundIsSaidSo) {
  Cause cause;
  cause.finding.kind = HypothesisKind::ACTIVATION_SHIFT;
  cause.finding.site = 0;
  cause.exact = true;
  const Topology topology = TopologyWith(SiteRole::kOutput, "drop", "");
  EXPECT_EQ(SummaryOf(cause, topology), "Step 0: the model goes on training in evaluation mode.");
  cause.finding.module = "drop";
  EXPECT_EQ(SummaryOf(cause, topology), "Step 0: drop goes on training in evaluation mode.");
  EXPECT_THAT(RemedyFor(cause), HasSubstr("train()"));
  cause.exact = false;
  EXPECT_THAT(SummaryOf(cause, topology), HasSubstr("changed scale"));
}

TEST(PhrasingTest, ALossThatWasSeenAloneClearsNobody) {
  Cause cause;
  cause.finding.kind = HypothesisKind::NONFINITE_LOSS;
  cause.exact = true;
  EXPECT_THAT(SummaryOf(cause, Topology()), HasSubstr("the model's outputs are"));
  cause.finding.uncertain = true;
  EXPECT_EQ(SummaryOf(cause, Topology()),
            "Step 0: the loss is not finite, and what led to it was not observed in this step.");
  EXPECT_THAT(RemedyFor(cause), HasSubstr("cadence=1"));
}

TEST(PhrasingTest, EveryKindSaysWhatToDo) {
  for (const HypothesisKind kind : AllKinds()) {
    for (const bool exact : {false, true}) {
      Cause cause;
      cause.finding.kind = kind;
      cause.exact = exact;
      const std::string remedy = RemedyFor(cause);
      EXPECT_GT(remedy.size(), 20u) << HypothesisKindName(kind);
      EXPECT_THAT(remedy, ::testing::EndsWith("."));
      EXPECT_THAT(remedy, Not(HasSubstr("  ")));
    }
  }
}

}  // namespace
}  // namespace neuraldbg
