// What a downsampled series may leave out: never a spike, a NaN, an infinity or the last value. The pyramid is compared
// with the full series, over ranges that cut its buckets anywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg {
namespace {

constexpr std::uint64_t kFrames = 9000;  // two buckets of 4096 and a rest of every finer level
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SeriesTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new TemporaryDirectory();
    auto opened = Store::Open(directory_->path());
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = opened->release();
    run_ = *store_->AdoptRun(1000, "long", "1", 1, "");
    std::mt19937_64 random(5);
    for (std::uint64_t step = 0; step < kFrames;) {
      std::vector<StepFrame> batch;
      for (int i = 0; i < 50 && step < kFrames; ++i, ++step) {
        batch.push_back(FrameAt(step, random));
      }
      const absl::Status applied = store_->Apply(CommitOf({run_.id, 0, 0}, batch, step));
      ASSERT_TRUE(applied.ok()) << applied;
    }
  }
  static void TearDownTestSuite() {
    delete store_;
    delete directory_;
  }

  // Site 0: noise with rare spikes, NaNs and infinities. Site 1: reports every third step. Site 2: constant but once.
  static StepFrame FrameAt(std::uint64_t step, std::mt19937_64& random) {
    StepFrame frame;
    frame.rank = {run_.id, 0, 0};
    frame.step = step;
    frame.complete = frame.applied = true;
    const auto add = [&](std::uint32_t site, float value) {
      Sample sample;
      sample.site = site;
      sample.kind = RecordKind::kTensor;
      sample.Set(Statistic::kRms, value);
      sample.Set(Statistic::kNumel, 64);
      frame.samples.push_back(sample);
    };
    float value = 1.0f + static_cast<float>(random() % 1000) / 10000.0f;
    switch (random() % 400) {
      case 0:
        value = kNan;
        break;
      case 1:
        value = random() % 2 == 0 ? kInfinity : -kInfinity;
        break;
      case 2:
        value *= 1000;
        break;
      case 3:
        value *= -1000;
        break;
      default:
        break;
    }
    add(0, value);
    if (step % 3 == 0) {
      add(1, static_cast<float>(step));
    }
    add(2, step == 6789 ? 2.0f : 1.0f);
    return frame;
  }

  static std::vector<Series> Query(std::uint64_t from, std::uint64_t to, std::uint32_t max_points,
                                   std::vector<std::uint32_t> sites = {}) {
    SeriesQuery query;
    query.run_id = run_.id;
    query.statistic = Statistic::kRms;
    query.from_step = from;
    query.to_step = to;
    query.max_points = max_points;
    query.sites = std::move(sites);
    auto series = store_->QuerySeries(query);
    EXPECT_TRUE(series.ok()) << series.status();
    return series.ok() ? *series : std::vector<Series>{};
  }

  static TemporaryDirectory* directory_;
  static Store* store_;
  static StoredRun run_;
};
TemporaryDirectory* SeriesTest::directory_ = nullptr;
Store* SeriesTest::store_ = nullptr;
StoredRun SeriesTest::run_;

// What must be in any reduction of these points.
struct Landmarks {
  float min = kInfinity, max = -kInfinity;
  bool nan = false, inf = false;
};
Landmarks LandmarksOf(const std::vector<SeriesPoint>& points) {
  Landmarks marks;
  for (const SeriesPoint& point : points) {
    if (std::isnan(point.value)) {
      marks.nan = true;
    } else if (std::isinf(point.value)) {
      marks.inf = true;
    } else {
      marks.min = std::min(marks.min, point.value);
      marks.max = std::max(marks.max, point.value);
    }
  }
  return marks;
}

bool SameValue(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

TEST_F(SeriesTest, FullDetailIsEveryValueInOrder) {
  const auto series = Query(0, kFrames, 0);
  ASSERT_EQ(series.size(), 3u);
  ASSERT_EQ(series[0].points.size(), kFrames);
  ASSERT_EQ(series[1].points.size(), kFrames / 3);
  for (std::uint64_t i = 0; i < kFrames; ++i) {
    ASSERT_EQ(series[0].points[i].step, i);
  }
  EXPECT_EQ(series[1].points[1000].step, 3000u);
  EXPECT_EQ(series[1].points[1000].value, 3000.0f);
  const auto part = Query(4000, 4200, 0, {0});
  ASSERT_EQ(part.size(), 1u);
  EXPECT_EQ(part[0].points.size(), 201u);
  EXPECT_EQ(part[0].points.front().step, 4000u);
}

TEST_F(SeriesTest, DownsamplingKeepsExtremesAndNonFiniteValues) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 120; ++round) {
    const std::uint64_t a = random() % (kFrames + 100), b = random() % (kFrames + 100);
    const std::uint64_t from = std::min(a, b), to = std::max(a, b);
    const std::uint32_t max_points =
        static_cast<std::uint32_t>(round % 7 == 0 ? 1 + random() % 8 : 20 + random() % 800);
    const auto full = Query(from, to, 0);
    const auto reduced = Query(from, to, max_points);
    ASSERT_EQ(full.size(), reduced.size());
    for (std::size_t i = 0; i < full.size(); ++i) {
      SCOPED_TRACE(testing::Message() << "site " << full[i].site << " steps " << from << ".." << to << " max "
                                      << max_points);
      ASSERT_EQ(full[i].site, reduced[i].site);
      EXPECT_LE(reduced[i].points.size(), std::max(max_points, 5u));
      std::size_t at = 0;
      for (const SeriesPoint& point : reduced[i].points) {  // every point is one of the series, in order
        while (at < full[i].points.size() && full[i].points[at].step < point.step) {
          ++at;
        }
        ASSERT_LT(at, full[i].points.size());
        ASSERT_EQ(full[i].points[at].step, point.step);
        ASSERT_TRUE(SameValue(full[i].points[at].value, point.value));
      }
      const Landmarks want = LandmarksOf(full[i].points), got = LandmarksOf(reduced[i].points);
      EXPECT_EQ(want.min, got.min);
      EXPECT_EQ(want.max, got.max);
      EXPECT_EQ(want.nan, got.nan);
      EXPECT_EQ(want.inf, got.inf);
      EXPECT_EQ(full[i].points.back().step, reduced[i].points.back().step);
      if (full[i].points.size() <= max_points && to - from < max_points) {
        EXPECT_EQ(full[i].points.size(), reduced[i].points.size()) << "nothing had to go";
      }
    }
  }
}

// A spike must survive not only overall but in its own stretch: no stretch of 5 % may lose its extremes.
TEST_F(SeriesTest, NoStretchLosesItsExtremes) {
  const auto full = Query(0, kFrames, 0, {0});
  const auto reduced = Query(0, kFrames, 400, {0});
  ASSERT_LE(reduced[0].points.size(), 400u);
  for (std::uint64_t start = 0; start + kFrames / 20 <= kFrames; start += kFrames / 20) {
    const std::uint64_t end = start + kFrames / 20;
    for (const SeriesPoint& point : full[0].points) {
      if (point.step >= start && point.step < end && std::isfinite(point.value) && std::abs(point.value) > 500) {
        // Some point of the reduction near this spike is at least as far out.
        const bool seen = std::any_of(reduced[0].points.begin(), reduced[0].points.end(), [&](const SeriesPoint& p) {
          return p.step + 200 > point.step && p.step < point.step + 200 &&
                 (point.value > 0 ? p.value >= point.value : p.value <= point.value);
        });
        EXPECT_TRUE(seen) << "spike of " << point.value << " at step " << point.step;
      }
      if (point.step >= start && point.step < end && std::isnan(point.value)) {
        const bool seen = std::any_of(reduced[0].points.begin(), reduced[0].points.end(), [&](const SeriesPoint& p) {
          return p.step + 200 > point.step && p.step < point.step + 200 && std::isnan(p.value);
        });
        EXPECT_TRUE(seen) << "NaN at step " << point.step;
      }
    }
  }
  EXPECT_EQ(LandmarksOf(Query(0, kFrames, 10, {2})[0].points).max, 2.0f) << "the one step that differs";
}

TEST_F(SeriesTest, ARepeatedStepShowsBothIncarnations) {
  std::mt19937_64 random(1);
  const StoredRun run = *store_->AdoptRun(1000, "restarted", "1", 1, "");
  for (std::uint32_t incarnation : {0u, 1u}) {
    std::vector<StepFrame> frames;
    for (std::uint64_t step = 10 * incarnation; step < 20; ++step) {
      frames.push_back(FrameAt(step, random));
      frames.back().rank = {run.id, 0, incarnation};
    }
    ASSERT_TRUE(store_->Apply(CommitOf({run.id, 0, incarnation}, frames, 1)).ok());
  }
  SeriesQuery query;
  query.run_id = run.id;
  query.sites = {2};
  for (const std::uint32_t max_points : {0u, 1000u}) {
    query.max_points = max_points;
    const auto series = store_->QuerySeries(query);
    ASSERT_EQ(series->size(), 1u);
    ASSERT_EQ(series->front().points.size(), 30u);
    EXPECT_TRUE(std::is_sorted(series->front().points.begin(), series->front().points.end(),
                               [](const auto& a, const auto& b) { return a.step < b.step; }));
  }
}

}  // namespace
}  // namespace neuraldbg
