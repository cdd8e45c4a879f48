// How large and how fast the store is. Prints bytes per scalar (fingerprints excluded, page waste and the roll-up
// pyramid included) and scalars written per second, from Apply to a checkpointed file, for
//   model  a synthetic transformer: statistics with the noise of a training run, counts that are mostly constant;
//   noise  the worst case: every scalar of every site has a random 23-bit mantissa.
// Goals: at most 4 bytes a scalar, at least 2 million scalars a second.
#include <sqlite3.h>
#include <stdlib.h>
#include <time.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>

#include "daemon/store/store.h"

namespace neuraldbg {
namespace {

using Clock = std::chrono::steady_clock;

// Of this process alone: what a machine shared with other work leaves comparable.
double CpuSeconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

class Workload {
 public:
  Workload(bool noise, std::uint32_t sites) : noise_(noise), sites_(sites) {}

  StepFrame Next(const RankKey& key, std::uint64_t step) {
    StepFrame frame;
    frame.rank = key;
    frame.step = step;
    frame.complete = frame.applied = true;
    frame.records_received = 2 * sites_;
    frame.time_ns = step * 1000000 + random_() % 1000;
    for (std::uint32_t site = 0; site < sites_; ++site) {
      frame.samples.push_back(Tensor(site, Phase::kForward, step));
    }
    for (std::uint32_t site = 0; site < sites_; ++site) {
      frame.samples.push_back(Tensor(sites_ + site, Phase::kBackward, step));
    }
    for (std::uint32_t site = step % 16; site < sites_; site += 16) {  // parameters rotate
      frame.samples.push_back(Parameter(2 * sites_ + site, step));
    }
    samples_ += frame.samples.size();
    for (const Sample& sample : frame.samples) {
      scalars_ += static_cast<std::uint64_t>(std::popcount(sample.present));
    }
    return frame;
  }
  std::uint64_t scalars() const { return scalars_; }
  std::uint64_t samples() const { return samples_; }

 private:
  float Around(double centre, double spread) {
    return static_cast<float>(centre * std::exp(spread * normal_(random_)));
  }

  // Scale differs between sites and drifts over the run, as it does while a model learns.
  Sample Tensor(std::uint32_t site, Phase phase, std::uint64_t step) {
    Sample sample;
    sample.site = site;
    sample.kind = RecordKind::kTensor;
    sample.phase = phase;
    sample.flags = kFlagTraining;
    const double scale = (phase == Phase::kBackward ? 1e-4 : 1.0) * (1 + site % 17) *
                         (1 + 0.3 * std::sin(static_cast<double>(step) / 2000));
    const float numel = 32 * 128 * 256;
    sample.Set(Statistic::kNumel, numel);
    for (const Statistic zero : {Statistic::kNan, Statistic::kInf, Statistic::kSaturated, Statistic::kTiny}) {
      sample.Set(zero, 0);
    }
    sample.Set(Statistic::kZero, site % 4 == 0 ? std::floor(Around(numel / 2, 0.01)) : 0.0f);
    sample.Set(Statistic::kDeadUnits, site % 4 == 0 ? static_cast<float>(random_() % 4) : 0.0f);
    sample.Set(Statistic::kUnits, 256);
    sample.Set(Statistic::kMean, static_cast<float>(0.01 * scale * normal_(random_)));
    sample.Set(Statistic::kMeanAbs, Around(0.8 * scale, 0.02));
    sample.Set(Statistic::kRms, Around(scale, 0.02));
    sample.Set(Statistic::kMaxAbs, Around(5 * scale, 0.1));
    sample.Set(Statistic::kCalls, 1);
    Finish(sample);
    return sample;
  }

  Sample Parameter(std::uint32_t site, std::uint64_t step) {
    Sample sample;
    sample.site = site;
    sample.kind = RecordKind::kParameter;
    sample.phase = Phase::kParameter;
    sample.Set(Statistic::kNumel, 65536);
    sample.Set(Statistic::kRms, static_cast<float>(0.02 + 1e-6 * static_cast<double>(step)));
    sample.Set(Statistic::kMean, static_cast<float>(1e-4 * normal_(random_)));
    sample.Set(Statistic::kMaxAbs, Around(0.2, 1e-4));
    sample.Set(Statistic::kGradientRms, Around(1e-4, 0.1));
    sample.Set(Statistic::kUpdateRms, Around(1e-6, 0.1));
    sample.Set(Statistic::kGradientDotUpdate, Around(-0.3, 0.1));
    sample.Set(Statistic::kGradientMaxAbs, Around(1e-3, 0.2));
    sample.Set(Statistic::kValueNonfinite, 0);
    sample.Set(Statistic::kGradientNonfinite, 0);
    sample.Set(Statistic::kGradientZero, 0);
    sample.Set(Statistic::kChanged, 1);
    Finish(sample);
    return sample;
  }

  void Finish(Sample& sample) {
    sample.has_bits = true;
    sample.bits = random_();
    for (std::size_t i = 0; noise_ && i < kMaxStatistics; ++i) {
      sample.value[i] = 1.0f + static_cast<float>(random_() % (1u << 23)) / (1u << 23);
    }
  }

  bool noise_;
  std::uint32_t sites_;
  std::uint64_t scalars_ = 0, samples_ = 0;
  std::mt19937_64 random_{1};
  std::normal_distribution<double> normal_;
};

std::int64_t QueryInt(const std::string& path, const char* sql) {
  sqlite3* database = nullptr;
  std::int64_t value = -1;
  sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READONLY, nullptr);
  sqlite3_exec(
      database, sql,
      [](void* out, int, char** values, char**) {
        *static_cast<std::int64_t*>(out) = values[0] == nullptr ? 0 : std::atoll(values[0]);
        return 0;
      },
      &value, nullptr);
  sqlite3_close(database);
  return value;
}

void Query(StoreReader& reader, std::uint64_t run, const char* what, std::vector<std::uint32_t> sites,
           std::uint32_t max_points) {
  SeriesQuery query;
  query.run_id = run;
  query.sites = std::move(sites);
  query.max_points = max_points;
  const auto start = Clock::now();
  const auto series = reader.QuerySeries(query);
  std::size_t points = 0;
  for (const Series& one : series.ok() ? *series : std::vector<Series>{}) {
    points += one.points.size();
  }
  std::printf("  %-34s %8.1f ms  %zu points\n", what, 1e3 * SecondsSince(start), points);
}

struct Outcome {
  std::uint64_t run_id = 0;
  double seconds = 0, cpu_seconds = 0;
};

// Times `work` into the outcome.
template <typename Work>
absl::Status Timed(Outcome& outcome, const Work& work) {
  const auto start = Clock::now();
  const double cpu_start = CpuSeconds();
  const absl::Status status = work();
  outcome.seconds += SecondsSince(start);
  outcome.cpu_seconds += CpuSeconds() - cpu_start;
  return status;
}

absl::StatusOr<Outcome> Write(const std::string& directory, Workload& workload, std::uint64_t steps) {
  auto store = Store::Open(directory);
  if (!store.ok()) return store.status();
  const auto run = (*store)->AdoptRun(1000, "bench", "1", 1, "");
  if (!run.ok()) return run.status();
  Outcome outcome;
  outcome.run_id = run->id;
  const RankKey key{run->id, 0, 0};
  for (std::uint64_t step = 0; step < steps;) {
    Commit commit;
    commit.rank.key = key;
    for (int i = 0; i < 8 && step < steps; ++i) {  // what a drain of a fast model finds
      commit.frames.push_back(workload.Next(key, step++));
    }
    commit.lane_heads = {{step, step}};
    const absl::Status applied = Timed(outcome, [&] { return (*store)->Apply(commit); });
    if (!applied.ok()) return applied;
  }
  Timed(outcome, [&] {
    store->reset();  // checkpoints the log
    return absl::OkStatus();
  }).IgnoreError();
  return outcome;
}

void Report(const std::string& path, const Outcome& outcome, std::uint64_t scalar_count, std::uint64_t print_count) {
  const auto scalars = static_cast<double>(scalar_count);
  const auto bytes = static_cast<double>(std::filesystem::file_size(path));
  const auto unused = static_cast<double>(
      QueryInt(path, "SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size"));
  const auto prints = static_cast<double>(QueryInt(path, "SELECT sum(pgsize) FROM dbstat WHERE name='fingerprints'"));
  const auto pyramid = static_cast<double>(
      QueryInt(path,
               "SELECT (SELECT sum(length(data)) FROM packs JOIN blocks ON blocks.id=block_id WHERE level>0) + "
               "(SELECT sum(length(directory)) FROM blocks WHERE level>0)"));
  std::printf("  bytes per scalar                   %8.2f     (goal 4; of this the pyramid %.2f, free pages %.2f)\n",
              (bytes - prints) / scalars, pyramid / scalars, unused / scalars);
  std::printf("  bytes per fingerprint              %8.2f\n", prints / static_cast<double>(print_count));
  std::printf("  scalars per second                 %8.2f M   (goal 2 M; per second of processor time %.2f M)\n",
              scalars / outcome.seconds / 1e6, scalars / outcome.cpu_seconds / 1e6);
}

int Measure(const char* name, bool noise, std::uint32_t sites, std::uint64_t steps) {
  std::string directory = (std::filesystem::temp_directory_path() / "neuraldbg-store-bench-XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) return 1;
  Workload workload(noise, sites);
  const absl::StatusOr<Outcome> outcome = Write(directory, workload, steps);
  auto reader = Store::OpenReadOnly(directory);
  if (!outcome.ok() || !reader.ok()) {
    std::fprintf(stderr, "%s\n%s\n", outcome.status().ToString().c_str(), reader.status().ToString().c_str());
    return 1;
  }
  std::printf("%s: %u sites, %llu steps, %.1f M scalars\n", name, 2 * sites, static_cast<unsigned long long>(steps),
              static_cast<double>(workload.scalars()) / 1e6);
  Report(directory + "/neuraldbg.db", *outcome, workload.scalars(), workload.samples());
  Query(**reader, outcome->run_id, "one series, full detail", {3}, 0);
  Query(**reader, outcome->run_id, "one series, 500 points", {3}, 500);
  Query(**reader, outcome->run_id, "all series, 200 points each", {}, 200);
  std::filesystem::remove_all(directory);
  return 0;
}

}  // namespace
}  // namespace neuraldbg

int main(int argc, char** argv) {
  const std::uint64_t steps = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 4096;
  return neuraldbg::Measure("model", false, 100, steps) + neuraldbg::Measure("small model", false, 8, steps) +
         neuraldbg::Measure("noise", true, 100, steps);
}
