#include "daemon/infer/phrasing.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace neuraldbg {
namespace {

using enum HypothesisKind;

// How sure a cause is, where more or less can be said for that.
enum class Certainty : std::uint8_t { kAny, kExact, kUncertain };
using enum Certainty;

struct KindText {
  HypothesisKind kind;
  Certainty certainty;
  // A sentence without its full stop; "{}" stands for the place, "{module}" for the module alone.
  const char* what;
  const char* remedy;
};

constexpr KindText kTexts[] = {
    {ACTIVATION_SHIFT, kExact, "{module} goes on training in evaluation mode",
     "Call train() after every evaluation, also after one that ends early; see which callback switched the mode."},
    {LOSS_DIVERGENCE, kExact, "the loss is negated",
     "Check the sign of the loss at this step, and what decides on it."},
    {NONFINITE_LOSS, kUncertain, "the loss is not finite, and what led to it was not observed in this step",
     "Run it again with cadence=1: then the step shows where it begins."},
    {DATA_NONFINITE, kAny, "the batch holds NaN or Inf",
     "Check the batch of this step: missing values, division by a zero standard deviation, corrupt files. Drop or "
     "repair such samples before the model."},
    {NONFINITE_FORWARD, kAny, "{} produces NaN or Inf from finite inputs",
     "Look for division by zero, log or sqrt of values <= 0, exp of large values, or a fully masked softmax row in "
     "this module; add an epsilon or a clamp there."},
    {NONFINITE_LOSS, kAny, "the loss is not finite although the model's outputs are",
     "Check the loss: all labels ignored, log(0), division by an empty count. Guard the reduction and clamp "
     "probabilities."},
    {NONFINITE_BACKWARD, kAny, "{} turns a finite gradient into NaN or Inf",
     "The derivative does not exist where the forward pass is fine: sqrt or norm at 0, x/|x|, masked branches of "
     "where(). Put the epsilon inside the root, or mask before the operation."},
    {NONFINITE_PARAMETER, kAny, "the optimizer wrote NaN or Inf into {} from finite gradients",
     "Check epsilon, betas and weight decay of the optimizer and the dtype of its state; restore a checkpoint before "
     "this step."},
    {LOW_PRECISION_OVERFLOW, kAny, "{} overflows its 16-bit floating-point range",
     "Keep this module in float32 or bfloat16, or scale its output down (normalise, smaller init)."},
    {LOW_PRECISION_UNDERFLOW, kAny, "{} underflows its 16-bit floating-point range",
     "Use loss scaling or bfloat16 for this module."},
    {VANISHING_GRADIENT, kAny, "the gradient vanishes in the backward pass of {}",
     "Check for a scaling factor, a saturated activation or a lost skip connection in this module; add normalisation "
     "or a residual path."},
    {EXPLODING_GRADIENT, kAny, "the gradient explodes in the backward pass of {}",
     "Check for a wrong factor in this module; clip gradients, normalise its input, or lower its init."},
    {DEAD_UNITS, kAny, "units of {} are dead",
     "Look at what feeds the activation: a bias or shift far below zero, a dropout of 1, too large an update before. "
     "Lower the learning rate or use a leaky activation."},
    {SATURATED_ACTIVATION, kAny, "{} is saturated",
     "Scale its input down (normalisation, smaller weights, smaller learning rate)."},
    {ACTIVATION_SHIFT, kAny, "the output of {} changed scale and its input did not",
     "Look at what changed in this module at this step: a factor, a mode switch, a normalisation's statistics, a "
     "replaced weight."},
    {ATTENTION_LOGIT_GROWTH, kAny, "the attention logits of {} grow without bound",
     "Normalise queries and keys, lower the learning rate, or clip the logits."},
    {ROUTER_COLLAPSE, kAny, "the router of {} sends nearly all tokens to few experts",
     "Raise the load-balancing loss, add noise to the router, or lower its learning rate."},
    {UPDATE_LOST, kAny, "the optimizer does not change {} although there is a gradient",
     "Check that the optimizer holds the model's current parameters (not copies from before a re-wrap), and that "
     "updates are not below one ulp of a bf16 weight."},
    {NO_GRADIENT, kAny, "{} gets no gradient any more",
     "Look for detach(), no_grad(), .data or requires_grad_(False) at this place, or a branch that is no longer used."},
    {UPDATE_TOO_SMALL, kAny, "the updates of {} are far too small",
     "Check gradient clipping (threshold, clipping before unscaling), averaging over ranks, and layer-wise learning "
     "rates."},
    {UPDATE_TOO_LARGE, kAny, "the update of {} is far too large",
     "Check weight decay, layer-wise multipliers and hand-written steps for this parameter."},
    {LEARNING_RATE_ZERO, kAny, "the learning rate is zero",
     "Check the scheduler: its counter, its end, and that it is stepped once per optimizer step."},
    {LEARNING_RATE_SPIKE, kAny, "the learning rate jumps far above its maximum so far",
     "Check the scheduler and any code that writes param_groups; restore a checkpoint before this step."},
    {GRADIENT_ACCUMULATING, kAny, "gradients are not cleared between steps",
     "Call zero_grad() once per optimizer step."},
    {SCALER_STALLED, kAny, "the loss scaler skips too many steps",
     "Find the module whose gradient is not finite at every step; keep it in float32."},
    {INIT_SCALE, kAny, "the initial weights of {} are far off in scale",
     "Initialise this module like the others (its fan-in decides the scale)."},
    {INIT_SYMMETRIC, kAny, "the initial weights of {} are all alike",
     "Initialise this weight randomly, so that its units can differ."},
    {DATA_SHIFT, kAny, "the model's input changed its distribution",
     "Check the data pipeline at this step: scaling, normalisation, source, shuffling, tokenisation."},
    {LABEL_ANOMALY, kAny, "the labels no longer fit the inputs",
     "Check the label pipeline at this step: shuffling, offsets, ignored indices, source."},
    {LOSS_SPIKE, kAny, "the loss changed scale", "Check reduction (sum against mean), loss weights and batch size."},
    {LOSS_DIVERGENCE, kAny, "training drives the loss up",
     "Check the sign of the loss and of the update, maximise flags, and hand-written steps."},
    {LOSS_PLATEAU, kAny, "the loss no longer falls",
     "Nothing may be wrong; see the learning rate and the update ratios."},
    {REPLICA_DIVERGENCE, kAny, "replicas of {} differ",
     "Check that every rank runs the same forward through the wrapped model and the same optimizer step."},
    {SILENT_CORRUPTION, kAny, "one rank computed a value in {} that no other did",
     "Re-run the step on this rank; if it repeats, take the device out."},
    {STRAGGLER, kAny, "one rank makes the others wait", "Look at this rank's data loading and device clocks."},
    {HANG, kAny, "a rank stopped before a collective", "Look at the stack of this rank's process."},
    {RANK_DIED, kAny, "the process of this rank ended without detaching",
     "Look at the end of its log and at the kernel log (out of memory, signals)."},
    {BLIND_SPOT, kAny, "{} should report and does not", "See the observation level of the site."},
};

bool Fits(const KindText& text, const Cause& cause) {
  if (text.kind != cause.finding.kind) return false;
  if (text.certainty == kExact) return cause.strong();
  return text.certainty == kAny || cause.finding.uncertain;
}

// The first row that fits: those of one certainty stand before those of any.
const KindText& TextOf(const Cause& cause) {
  const auto* found =
      std::find_if(std::begin(kTexts), std::end(kTexts), [&](const KindText& text) { return Fits(text, cause); });
  return found == std::end(kTexts) ? kTexts[std::size(kTexts) - 1] : *found;
}

// What other kinds leave the same trace (docs/faults.md, "Told from its neighbours").
constexpr struct {
  HypothesisKind kind;
  const char* other;
} kEquivalents[] = {
    {LABEL_ANOMALY, "label noise or harder data with the same input statistics"},
    {LOSS_SPIKE, "a real spike of a loss that is not a cross-entropy"},
    {UPDATE_TOO_SMALL, "UPDATE_LOST"},
    {UPDATE_TOO_LARGE, "ACTIVATION_SHIFT"},
};

std::string OrModel(const std::string& module) { return module.empty() ? "the model" : module; }

// In the user's words: a module, or the code of a module that is no module itself.
std::string PlaceOf(const Finding& finding, const Topology& topology) {
  const bool known = finding.site < topology.sites.size();
  const SiteEntry none;
  const SiteEntry& site = known ? topology.sites[finding.site] : none;
  switch (known ? site.role : SiteRole::kLoss) {
    case SiteRole::kInput:
      // Not finding.module: code of the model itself, which has no name, goes by the name of the module that reads it.
      return "the code of " + OrModel(site.owner) + " in front of " + OrModel(site.module);
    case SiteRole::kMerge:
      return "the code of " + OrModel(finding.module) + " where its branches meet";
    case SiteRole::kOutput:
    case SiteRole::kOutputGradient:
    case SiteRole::kInputGradient:
    case SiteRole::kMergeGradient:
      // A gradient tells of what stands behind its site: a module, or else code that has no name.
      if (!finding.module.empty() || site.module.empty()) break;
      return "the code of the model behind " + site.module;
    default:
      break;
  }
  if (!finding.module.empty()) return finding.module;
  const bool optimizer = finding.phase == Phase::kGradientSync || finding.phase == Phase::kOptimizer;
  return optimizer ? "the parameters" : "the model";
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "infinity" : "-infinity";
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// Empty where there is no range to hold the value against.
std::string NumbersOf(const Finding& finding) {
  if (finding.statistic == Statistic::kNone || !(finding.expected_high > finding.expected_low)) return "";
  const std::string range = std::isinf(finding.expected_high)
                                ? "at least " + Number(finding.expected_low)
                                : Number(finding.expected_low) + " to " + Number(finding.expected_high);
  return " (" + std::string(StatisticName(finding.statistic)) + " " + Number(finding.observed) + ", expected " + range +
         ")";
}

}  // namespace

std::string SummaryOf(const Cause& cause, const Topology& topology) {
  const Finding& finding = cause.finding;
  std::string text = "Step " + std::to_string(finding.step) + ": " + TextOf(cause).what;
  const auto fill_in = [&](std::string_view hole, const std::string& words) {
    if (const std::size_t at = text.find(hole); at != std::string::npos) text.replace(at, hole.size(), words);
  };
  fill_in("{}", PlaceOf(finding, topology));
  fill_in("{module}", OrModel(finding.module));
  return text + NumbersOf(finding) + ".";
}

std::string LossText(const LossEffect& loss) {
  char text[128];
  std::snprintf(text, sizeof text, "%s %.4g (expected %.4g to %.4g)",
                loss.evidence >= 1 ? "the loss rises to" : "the loss has not left its usual range:", loss.value,
                loss.expected_low, loss.expected_high);
  return text;
}

const char* RemedyFor(const Cause& cause) { return TextOf(cause).remedy; }

std::vector<std::string> EquivalentsOf(const Cause& cause) {
  std::vector<std::string> equivalents = cause.finding.equivalents;
  for (const auto& entry : kEquivalents) {
    if (entry.kind != cause.finding.kind) continue;
    if (std::find(equivalents.begin(), equivalents.end(), entry.other) == equivalents.end()) {
      equivalents.emplace_back(entry.other);
    }
  }
  return equivalents;
}

}  // namespace neuraldbg
