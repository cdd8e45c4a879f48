// A producer process with a stream that depends on nothing but the step: a two-layer model whose first layer's output
// turns NaN at a given step. Usage: steady_producer SHM_DIR RUN STEPS PAUSE_US [NAN_STEP] [END: close|die]
//
// The ring is large enough for any outage of the tests (9 records a step); should a record be dropped after all, it
// says so and fails, because the tests compare complete streams.
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "shared/ring_writer.h"

namespace neuraldbg {
namespace {

enum SiteId : std::uint32_t {
  kBatchSite,
  kFirst,
  kSecond,
  kFirstGradient,
  kSecondGradient,
  kWeight,
  kOptimizer,
  kLossSite,
  kStepSite
};

void Announce(SegmentWriter& writer, const std::string& run) {
  RunEntry entry;
  entry.run_name = run;
  entry.launch = "test-launch";
  entry.host = "testhost";
  entry.framework = "none";
  entry.planned_sites = 9;
  entry.parameter_count = 1;
  entry.graph_exact = true;
  writer.manifest().Append(entry);
  const auto site = [&](SiteId id, const char* name, const char* module, SiteRole role, Phase phase,
                        std::uint32_t order, std::uint32_t twin) {
    SiteEntry s;
    s.id = id;
    s.name = name;
    s.module = module;
    s.module_kind = *module == '\0' ? "" : "Linear";
    s.role = role;
    s.phase = phase;
    s.dtype = DType::kFloat32;
    s.requires_grad = true;
    s.topological_index = order;
    s.twin = twin;
    s.shape = {8, 16};
    writer.manifest().Append(s);
  };
  site(kBatchSite, "batch", "", SiteRole::kBatch, Phase::kData, 0, kNoSite);
  site(kFirst, "fc1:output", "fc1", SiteRole::kOutput, Phase::kForward, 1, kFirstGradient);
  site(kSecond, "fc2:output", "fc2", SiteRole::kOutput, Phase::kForward, 2, kSecondGradient);
  site(kFirstGradient, "fc1:gradient", "fc1", SiteRole::kOutputGradient, Phase::kBackward, 1, kFirst);
  site(kSecondGradient, "fc2:gradient", "fc2", SiteRole::kOutputGradient, Phase::kBackward, 2, kSecond);
  site(kWeight, "fc1.weight", "fc1", SiteRole::kParameter, Phase::kParameter, 1, kFirst);
  site(kOptimizer, "optimizer[0]", "", SiteRole::kOptimizer, Phase::kOptimizer, 0, kNoSite);
  site(kLossSite, "loss", "", SiteRole::kLoss, Phase::kLoss, 3, kNoSite);
  site(kStepSite, "step", "", SiteRole::kStep, Phase::kSystem, 0, kNoSite);
  writer.manifest().Append(EdgeEntry{kBatchSite, kFirst});
  writer.manifest().Append(EdgeEntry{kFirst, kSecond});
  writer.manifest().Append(SinkEntry{kSecond});
  writer.manifest().Append(ReadyEntry{0});
}

// In [0, 1), from step and site alone.
double Noise(std::uint64_t step, std::uint32_t site) {
  std::uint64_t x = step * 0x9e3779b97f4a7c15ull + site * 0xbf58476d1ce4e5b9ull + 1;
  x ^= x >> 31;
  x *= 0x94d049bb133111ebull;
  x ^= x >> 29;
  return static_cast<double>(x >> 11) * 0x1p-53;
}

class Producer {
 public:
  Producer(SegmentWriter& writer, std::uint64_t nan_step) : writer_(writer), nan_step_(nan_step) {}

  void Step(std::uint64_t step) {
    Tensor(step, kBatchSite, Phase::kData, RecordKind::kBatch, 1.0);
    Tensor(step, kFirst, Phase::kForward, RecordKind::kTensor, 0.5);
    Tensor(step, kSecond, Phase::kForward, RecordKind::kTensor, 0.7);
    Loss(step);
    Tensor(step, kSecondGradient, Phase::kBackward, RecordKind::kTensor, 1e-3);
    Tensor(step, kFirstGradient, Phase::kBackward, RecordKind::kTensor, 2e-3);
    Parameter(step);
    Optimizer(step);
    Record end = Head(step, kStepSite, Phase::kSystem, RecordKind::kStep);
    end.flags = kFlagStepApplied | kFlagAllParameters;
    end.step_end.attempts_total = writer_.attempts() + 1;
    end.step_end.dropped_total = writer_.dropped();
    end.step_end.samples = 8;
    end.step_end.microbatches = 1;
    end.step_end.cadence = 1;
    end.step_end.rotation_groups = 1;
    writer_.Push(end);
  }

 private:
  static Record Head(std::uint64_t step, std::uint32_t site, Phase phase, RecordKind kind) {
    Record record{};
    record.time_ns = 1'000'000 * step + site;
    record.step = step;
    record.site = site;
    record.kind = kind;
    record.phase = phase;
    record.dtype = DType::kFloat32;
    record.flags = kFlagTraining | kFlagGradMode;
    record.validity = 0x1fff;
    return record;
  }
  bool Poisoned(std::uint64_t step, std::uint32_t site) const {
    return step >= nan_step_ && site != kBatchSite && !(step == nan_step_ && site == kWeight);
  }
  void Tensor(std::uint64_t step, std::uint32_t site, Phase phase, RecordKind kind, double scale) {
    Record record = Head(step, site, phase, kind);
    TensorPayload& t = record.tensor;
    const double rms = scale * (1.0 + 0.1 * Noise(step, site));
    t.numel = 128;
    t.nan_count = Poisoned(step, site) ? 128 : 0;
    if (t.nan_count == 0) {
      t.sum = 128 * rms * 0.01;
      t.sum_abs = 128 * rms * 0.8;
      t.sum_squares = 128 * rms * rms;
      t.max_abs = static_cast<float>(rms * 3);
    }
    t.units = 16;
    t.bits = step * 31 + site;
    writer_.Push(record);
  }
  void Loss(std::uint64_t step) {
    Record record = Head(step, kLossSite, Phase::kLoss, RecordKind::kLoss);
    record.loss.value = Poisoned(step, kLossSite) ? std::nan("") : 2.0 / (1.0 + 0.01 * static_cast<double>(step));
    record.loss.nonfinite = Poisoned(step, kLossSite) ? 1 : 0;
    record.loss.label_count = 8;
    record.loss.label_sum = 8 * Noise(step, 99);
    record.loss.loss_kind = LossKind::kCrossEntropy;
    record.loss.class_count = 10;
    writer_.Push(record);
  }
  void Parameter(std::uint64_t step) {
    Record record = Head(step, kWeight, Phase::kParameter, RecordKind::kParameter);
    ParameterPayload& p = record.parameter;
    p.numel = 256;
    p.value_sum_squares = 256 * 0.01;
    p.gradient_sum_squares = 256 * 1e-6 * (1 + Noise(step, 50));
    p.update_sum_squares = 256 * 1e-8 * (1 + Noise(step, 51));
    p.gradient_dot_update = -256 * 1e-7;
    p.value_nonfinite = Poisoned(step, kWeight) ? 256 : 0;
    p.gradient_nonfinite = step >= nan_step_ ? 256 : 0;
    p.changed = 1;
    record.flags |= kFlagGradPresent | kFlagStepApplied;
    writer_.Push(record);
  }
  void Optimizer(std::uint64_t step) {
    Record record = Head(step, kOptimizer, Phase::kOptimizer, RecordKind::kOptimizer);
    record.optimizer.learning_rate = 0.1;
    record.optimizer.loss_scale = 1;
    record.optimizer.parameter_count = 1;
    record.optimizer.observed_count = 1;
    record.flags |= kFlagStepApplied;
    writer_.Push(record);
  }

  SegmentWriter& writer_;
  std::uint64_t nan_step_;
};

int Main(int argc, char** argv) {
  if (argc < 5) return 2;
  const std::uint64_t steps = std::strtoull(argv[3], nullptr, 10);
  const auto pause_us = static_cast<useconds_t>(std::strtoul(argv[4], nullptr, 10));
  const std::uint64_t nan_step = argc > 5 ? std::strtoull(argv[5], nullptr, 10) : ~std::uint64_t{0};
  SegmentOptions options;
  options.directory = argv[1];
  options.run_name = argv[2];
  options.launch = "test-launch";
  options.lanes = 1;
  options.lane_capacity = 16384;
  options.sites = 16;
  options.manifest_bytes = 16384;
  auto created = SegmentWriter::Create(options);
  if (!created.ok()) return std::fprintf(stderr, "%s\n", created.error().message), 1;
  SegmentWriter& writer = *created.value();
  Announce(writer, argv[2]);
  Producer producer(writer, nan_step);
  for (std::uint64_t step = 0; step < steps; ++step) {
    producer.Step(step);
    std::printf("%llu\n", static_cast<unsigned long long>(step));
    std::fflush(stdout);
    if (pause_us > 0) ::usleep(pause_us);
  }
  if (writer.dropped() != 0) return std::fprintf(stderr, "records were dropped\n"), 1;
  if (argc > 6 && std::string(argv[6]) == "die") ::_exit(0);
  writer.Close();
  return 0;
}

}  // namespace
}  // namespace neuraldbg

int main(int argc, char** argv) { return neuraldbg::Main(argc, argv); }
