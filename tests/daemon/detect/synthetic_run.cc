#include "tests/daemon/detect/synthetic_run.h"

#include <algorithm>

namespace neuraldbg::testing {
namespace {

constexpr float kNoise = 0.1F;  // log2; what a small healthy net shows from step to step
constexpr float kNumel = 1024, kUnits = 64;

SiteEntry MakeSite(std::uint32_t id, std::string name, std::string module, std::string kind, SiteRole role,
                   Phase phase) {
  SiteEntry site;
  site.id = id;
  site.name = std::move(name);
  site.module = std::move(module);
  site.module_kind = std::move(kind);
  site.role = role;
  site.phase = phase;
  site.dtype = DType::kFloat32;
  return site;
}

Sample Tensor(std::uint32_t site, Phase phase, float level, float numel, float nan, std::uint16_t flags) {
  Sample sample;
  sample.site = site;
  sample.kind = RecordKind::kTensor;
  sample.phase = phase;
  sample.flags = flags;
  sample.Set(Statistic::kNumel, numel);
  sample.Set(Statistic::kNan, nan);
  sample.Set(Statistic::kInf, 0);
  const float rms = level <= -50 ? 0.0F : std::exp2(level);
  sample.Set(Statistic::kMean, 0);
  sample.Set(Statistic::kMeanAbs, 0.8F * rms);
  sample.Set(Statistic::kRms, rms);
  sample.Set(Statistic::kMaxAbs, 3 * rms);
  return sample;
}

}  // namespace

SyntheticRun::SyntheticRun(std::uint32_t layers, std::uint32_t rotation) : layers_(layers), rotation_(rotation) {
  nodes_ = 2 * layers_ + 1;
  parameters_ = 2 * (layers_ + 1);
  AddSites();
}

void SyntheticRun::AddSites() {
  const auto module = [&](std::uint32_t node) {
    if (node + 1 == nodes_) return std::string("head");
    std::string name(node % 2 == 0 ? "l" : "a");
    name += std::to_string(node / 2);
    return name;
  };
  for (std::uint32_t i = 0; i < nodes_; ++i) {
    const std::string kind = i % 2 == 1 ? "ReLU" : "Linear";
    SiteEntry site = MakeSite(i, module(i) + ":output", module(i), kind, SiteRole::kOutput, Phase::kForward);
    site.topological_index = i;
    site.requires_grad = true;
    topology.sites.push_back(site);
  }
  for (std::uint32_t i = 0; i < nodes_; ++i) {
    SiteEntry site = MakeSite(nodes_ + i, module(i) + ":output:gradient", module(i), "", SiteRole::kOutputGradient,
                              Phase::kBackward);
    site.topological_index = i;
    site.twin = i;
    topology.sites.push_back(site);
  }
  for (std::uint32_t p = 0; p < parameters_; ++p) {
    const std::uint32_t node = p / 2 * 2;
    SiteEntry site = MakeSite(2 * nodes_ + p, module(node) + (p % 2 == 0 ? ".weight" : ".bias"), module(node), "",
                              SiteRole::kParameter, Phase::kParameter);
    site.twin = node;
    site.requires_grad = true;
    site.optimizer_group = 0;
    site.shape = p % 2 == 0 ? std::vector<std::uint64_t>{64, 64} : std::vector<std::uint64_t>{64};
    topology.sites.push_back(site);
    topology.parameter_inits.push_back({site.id, p % 2 == 0 ? 4096U : 64U, 0, p % 2 == 0 ? 64.0 : 0.0, 0.4F, 0});
  }
  const std::uint32_t next = 2 * nodes_ + parameters_;
  topology.sites.push_back(MakeSite(next, "optimizer[0]", "", "Adam", SiteRole::kOptimizer, Phase::kOptimizer));
  topology.sites.push_back(MakeSite(next + 1, "loss", "", "", SiteRole::kLoss, Phase::kLoss));
  topology.sites.push_back(MakeSite(next + 2, "batch", "", "", SiteRole::kBatch, Phase::kData));
  topology.sites.push_back(MakeSite(next + 3, "step", "", "", SiteRole::kStep, Phase::kSystem));
  topology.edges.push_back({next + 2, 0});
  for (std::uint32_t i = 1; i < nodes_; ++i) topology.edges.push_back({i - 1, i});
  topology.sinks.push_back(nodes_ - 1);
  topology.run.graph_exact = true;
  topology.ready = true;
}

std::uint32_t SyntheticRun::NodeOf(const std::string& module) const {
  for (std::uint32_t i = 0; i < nodes_; ++i) {
    if (topology.sites[i].module == module) return i;
  }
  return kNoSite;
}

std::uint32_t SyntheticRun::ParameterOf(const std::string& name) const {
  for (std::uint32_t p = 0; p < parameters_; ++p) {
    if (topology.sites[2 * nodes_ + p].name == name) return p;
  }
  return kNoSite;
}

float SyntheticRun::Noise(std::uint64_t step, std::uint32_t stream) const {
  std::uint64_t x = step * 0x9e3779b97f4a7c15ULL + stream * 0xbf58476d1ce4e5b9ULL + 0x94d049bb133111ebULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return static_cast<float>((x ^ (x >> 31)) >> 40) / static_cast<float>(1U << 24) - 0.5F;
}

StepValues SyntheticRun::Normal(std::uint64_t step) const {
  StepValues values;
  values.step = step;
  values.input_level = kNoise * Noise(step, 0);
  values.loss = std::exp2(-0.002F * static_cast<float>(step) + kNoise * Noise(step, 1));
  values.root_level += kNoise * Noise(step, 2);
  std::uint32_t stream = 16;
  for (std::uint32_t i = 0; i < nodes_; ++i) {
    values.forward_gain.push_back((i % 2 == 1 ? -0.5F : 0.4F) + kNoise * Noise(step, stream++));
    values.backward_gain.push_back(0.1F + kNoise * Noise(step, stream++));
  }
  values.dead_share.assign(nodes_, 0.05F);
  values.forward_nan.assign(nodes_, 0);
  values.backward_nan.assign(nodes_, 0);
  values.requires_grad.assign(nodes_, 1);
  values.cut.assign(nodes_, 0);
  values.evaluation.assign(nodes_, 0);
  values.absent.assign(nodes_, 0);
  values.numel.assign(nodes_, kNumel);
  for (std::uint32_t p = 0; p < parameters_; ++p) {
    values.gradient_level.push_back(-8 + kNoise * Noise(step, stream++));
    values.update_level.push_back(-11 + kNoise * Noise(step, stream++));
    values.parameter_level.push_back(-3);
  }
  values.changed.assign(parameters_, 1);
  values.has_gradient.assign(parameters_, 1);
  values.value_nan.assign(parameters_, 0);
  values.frozen_since.assign(parameters_, 0);
  return values;
}

StepFrame SyntheticRun::Frame(std::uint64_t step, const Hook& hook) const {
  StepValues values = Normal(step);
  if (hook) hook(values);
  StepFrame frame;
  frame.step = step;
  frame.complete = values.complete;
  frame.applied = values.applied;
  frame.records_missing = values.missing;
  AddForward(values, frame);
  AddBackward(values, frame);
  AddOptimizer(values, frame);
  frame.records_received = frame.samples.size();
  return frame;
}

void SyntheticRun::AddForward(const StepValues& v, StepFrame& frame) const {
  Sample batch = Tensor(other_sites() + 2, Phase::kData, v.input_level, kNumel, v.batch_nan, 0);
  batch.kind = RecordKind::kBatch;
  frame.samples.push_back(batch);
  float level = v.input_level;
  for (std::uint32_t i = 0; i < nodes_; ++i) {
    level = std::max(level + v.forward_gain[i], -50.0F);
    if (v.absent[i] != 0) continue;
    const auto flags =
        static_cast<std::uint16_t>(kFlagTraining | kFlagGradMode | (v.requires_grad[i] != 0 ? kFlagRequiresGrad : 0) |
                                   (v.evaluation[i] != 0 ? kFlagModuleEval : 0));
    Sample sample = Tensor(i, Phase::kForward, level, v.numel[i], v.forward_nan[i], flags);
    sample.Set(Statistic::kDeadUnits, v.dead_share[i] * kUnits);
    sample.Set(Statistic::kUnits, kUnits);
    frame.samples.push_back(sample);
  }
  Sample loss;
  loss.site = other_sites() + 1;
  loss.kind = RecordKind::kLoss;
  loss.phase = Phase::kLoss;
  loss.Set(Statistic::kLoss, v.loss);
  loss.Set(Statistic::kNonfinite, std::isfinite(v.loss) ? 0.0F : 1.0F);
  loss.Set(Statistic::kLabelCount, 16);
  frame.samples.push_back(loss);
}

void SyntheticRun::AddBackward(const StepValues& v, StepFrame& frame) const {
  float gradient = v.root_level;
  bool flows = true;
  for (std::uint32_t reversed = 0; reversed < nodes_; ++reversed) {
    const std::uint32_t i = nodes_ - 1 - reversed;
    if (reversed > 0) gradient = std::max(gradient + v.backward_gain[i], -50.0F);
    flows = flows && v.requires_grad[i] != 0 && v.cut[i] == 0;
    if (!flows || v.absent[i] != 0) continue;
    frame.samples.push_back(
        Tensor(nodes_ + i, Phase::kBackward, gradient + std::log2(v.loss_scale), v.numel[i], v.backward_nan[i], 0));
  }
}

Sample SyntheticRun::Parameter(const StepValues& v, std::uint32_t p) const {
  Sample sample;
  sample.site = 2 * nodes_ + p;
  sample.kind = RecordKind::kParameter;
  sample.phase = Phase::kParameter;
  sample.Set(Statistic::kNumel, p % 2 == 0 ? 4096 : 64);
  sample.Set(Statistic::kRms, std::exp2(v.parameter_level[p]));
  if (v.has_gradient[p] != 0) {
    sample.flags = kFlagGradPresent;
    sample.Set(Statistic::kGradientRms, v.gradient_level[p] <= -50 ? 0.0F : std::exp2(v.gradient_level[p]));
    sample.Set(Statistic::kGradientDotUpdate, -0.7F);
  }
  sample.Set(Statistic::kUpdateRms, v.changed[p] != 0 ? std::exp2(v.update_level[p]) : 0.0F);
  sample.Set(Statistic::kChanged, v.changed[p] != 0 ? 1.0F : 0.0F);
  sample.Set(Statistic::kValueNonfinite, v.value_nan[p]);
  sample.Set(Statistic::kGradientNonfinite, 0);
  sample.has_bits = true;
  sample.bits = 1000 * (v.changed[p] != 0 ? v.step : v.frozen_since[p]) + p;
  return sample;
}

void SyntheticRun::AddOptimizer(const StepValues& v, StepFrame& frame) const {
  const auto flags = static_cast<std::uint16_t>((v.applied ? kFlagStepApplied : 0) | (v.found_inf ? kFlagFoundInf : 0) |
                                                (v.dirty ? kFlagGradDirty : 0));
  Sample optimizer;
  optimizer.site = other_sites();
  optimizer.kind = RecordKind::kOptimizer;
  optimizer.phase = Phase::kOptimizer;
  optimizer.flags = flags;
  optimizer.Set(Statistic::kLearningRate, v.learning_rate);
  optimizer.Set(Statistic::kLossScale, v.loss_scale);
  frame.samples.push_back(optimizer);
  for (std::uint32_t p = 0; p < parameters_; ++p) {
    if (p % rotation_ == v.step % rotation_) frame.samples.push_back(Parameter(v, p));
  }
  Sample end;
  end.site = other_sites() + 3;
  end.kind = RecordKind::kStep;
  end.phase = Phase::kSystem;
  end.flags = flags;
  end.Set(Statistic::kRotationGroups, static_cast<float>(rotation_));
  end.Set(Statistic::kRotationGroup, static_cast<float>(v.step % rotation_));
  end.Set(Statistic::kMicrobatches, 1);
  frame.samples.push_back(end);
}

}  // namespace neuraldbg::testing
