// How fast the statistics of a tensor are made, next to what memory allows: reading it (a plain sum, in
// vectors of the baseline) and copying it. Absolute figures are the machine's; ratios are what counts. The
// candidates take turns, and the best of many rounds is printed. One JSON object a line.
//
//   kernel_benchmark [rounds]   (default 60)
//
// Two sizes: 256 KiB stays in a cache, as a small layer's output that was just written does; 64 MiB comes from memory.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "agent/src/tensor_statistics.h"

namespace neuraldbg::bench {
namespace {

constexpr std::size_t kInCache = 256 << 10, kInMemory = 64 << 20;
constexpr std::int64_t kUnits = 512;

struct Candidate {
  std::string name;
  std::function<double()> run;  // the result keeps the compiler from leaving the work out
  double best_seconds = std::numeric_limits<double>::infinity();
};

// Eight vectors of sums at once: what reading costs where the arithmetic is next to nothing.
float PlainSum(const float* data, std::size_t count) {
  constexpr std::size_t kSums = 32;
  float sums[kSums] = {};
  for (std::size_t i = 0; i + kSums <= count; i += kSums) {
    for (std::size_t lane = 0; lane < kSums; ++lane) sums[lane] += data[i + lane];
  }
  float sum = 0;
  for (const float one : sums) sum += one;
  return sum;
}

double Statistics(const void* data, DType dtype, std::size_t bytes, const StatisticsOptions& options) {
  const std::int64_t count = static_cast<std::int64_t>(bytes / ElementBytes(dtype));
  const std::int64_t sizes[] = {count / kUnits, kUnits}, strides[] = {kUnits, 1};
  TensorStatistics statistics;
  ComputeStatistics({data, dtype, 2, static_cast<std::uint64_t>(count), sizes, strides}, options, statistics);
  return statistics.total.sum_squares + statistics.dead_units;
}

// Numbers between -1 and 1 of `Element` as its bits: `one` is 1 in its type, and the `mantissa` bits below are random.
template <typename Element>
std::vector<Element> Numbers(std::size_t bytes, Element one, int mantissa) {
  std::vector<Element> data(bytes / sizeof(Element));
  std::uint64_t state = 1;
  for (Element& value : data) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    const std::uint64_t below = (state >> 8) & ((std::uint64_t{1} << mantissa) - 1);
    const std::uint64_t smaller = ((state >> 4) & 7) << mantissa;  // up to seven binades below one
    const std::uint64_t sign = (state >> 63) << (8 * sizeof(Element) - 1);
    value = static_cast<Element>(((std::uint64_t{one} - smaller) | below) | sign);
  }
  return data;
}

void Measure(const char* where, std::size_t bytes, int rounds) {
  const auto float32 = Numbers<std::uint32_t>(bytes, 0x3f800000U, 23);
  const auto float64 = Numbers<std::uint64_t>(bytes, 0x3ff0000000000000U, 52);
  const auto bfloat16 = Numbers<std::uint16_t>(bytes, 0x3f80, 7);
  const auto float16 = Numbers<std::uint16_t>(bytes, 0x3c00, 10);
  std::vector<float> data(bytes / sizeof(float)), copy(data.size());
  std::memcpy(data.data(), float32.data(), bytes);
  const StatisticsOptions plain, units{UnitMode::kLastDimension, Saturation::kNone, DeadRule::kNeverPositive};
  std::vector<Candidate> candidates;
  candidates.push_back({"plain sum", [&] { return static_cast<double>(PlainSum(data.data(), data.size())); }});
  candidates.push_back({"memcpy", [&] {
                          std::memcpy(copy.data(), data.data(), bytes);
                          return static_cast<double>(copy[bytes / 8]);
                        }});
  const auto add = [&](const std::string& name, const void* from, DType dtype, const StatisticsOptions& options) {
    candidates.push_back({name, [=] { return Statistics(from, dtype, bytes, options); }});
  };
  add("float32", data.data(), DType::kFloat32, plain);
  add("float32, dead units", data.data(), DType::kFloat32, units);
  add("bfloat16", bfloat16.data(), DType::kBFloat16, plain);
  add("bfloat16, dead units", bfloat16.data(), DType::kBFloat16, units);
  add("float16", float16.data(), DType::kFloat16, plain);
  add("float64", float64.data(), DType::kFloat64, plain);
  const int passes = static_cast<int>(std::max<std::size_t>(1, (4 << 20) / bytes));
  double kept = 0;
  for (int round = 0; round < rounds; ++round) {
    for (Candidate& candidate : candidates) {
      const auto start = std::chrono::steady_clock::now();
      for (int pass = 0; pass < passes; ++pass) kept += candidate.run();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      candidate.best_seconds = std::min(candidate.best_seconds, taken.count() / passes);
    }
  }
  const double sum_seconds = candidates.front().best_seconds;
  for (const Candidate& candidate : candidates) {
    std::printf("{\"name\": \"%s, %s\", \"value\": %.4g, \"unit\": \"GB/s\", \"goal\": \"\"}\n", where,
                candidate.name.c_str(), static_cast<double>(bytes) / candidate.best_seconds * 1e-9);
    if (&candidate == &candidates.front()) continue;
    std::printf("{\"name\": \"%s, %s / plain sum\", \"value\": %.4g, \"unit\": \"ratio of time\", \"goal\": \"\"}\n",
                where, candidate.name.c_str(), candidate.best_seconds / sum_seconds);
  }
  std::fprintf(stderr, "%s: kernels %s, checksum %g\n", where, BestKernels().name, kept);
}

}  // namespace
}  // namespace neuraldbg::bench

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 60;
  neuraldbg::bench::Measure("256 KiB", neuraldbg::bench::kInCache, rounds);
  neuraldbg::bench::Measure("64 MiB", neuraldbg::bench::kInMemory, rounds);
  return 0;
}
