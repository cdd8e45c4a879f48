#include "daemon/infer/phrasing.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace neuraldbg {
namespace {

using enum HypothesisKind;

struct KindText {
  HypothesisKind kind;
  // A sentence without its full stop; "{}" stands for the place.
  const char* what;
  const char* remedy;
};

constexpr KindText kTexts[] = {
    {DATA_NONFINITE, "the batch holds NaN or Inf",
     "Check the batch of this step: missing values, division by a zero standard deviation, corrupt files. Drop or "
     "repair such samples before the model."},
    {NONFINITE_FORWARD, "{} produces NaN or Inf from finite inputs",
     "Look for division by zero, log or sqrt of values <= 0, exp of large values, or a fully masked softmax row in "
     "this module; add an epsilon or a clamp there."},
    {NONFINITE_LOSS, "the loss is not finite although the model's outputs are",
     "Check the loss: all labels ignored, log(0), division by an empty count. Guard the reduction and clamp "
     "probabilities."},
    {NONFINITE_BACKWARD, "{} turns a finite gradient into NaN or Inf",
     "The derivative does not exist where the forward pass is fine: sqrt or norm at 0, x/|x|, masked branches of "
     "where(). Put the epsilon inside the root, or mask before the operation."},
    {NONFINITE_PARAMETER, "the optimizer wrote NaN or Inf into {} from finite gradients",
     "Check epsilon, betas and weight decay of the optimizer and the dtype of its state; restore a checkpoint before "
     "this step."},
    {LOW_PRECISION_OVERFLOW, "{} overflows its 16-bit floating-point range",
     "Keep this module in float32 or bfloat16, or scale its output down (normalise, smaller init)."},
    {LOW_PRECISION_UNDERFLOW, "{} underflows its 16-bit floating-point range",
     "Use loss scaling or bfloat16 for this module."},
    {VANISHING_GRADIENT, "the gradient vanishes in the backward pass of {}",
     "Check for a scaling factor, a saturated activation or a lost skip connection in this module; add normalisation "
     "or a residual path."},
    {EXPLODING_GRADIENT, "the gradient explodes in the backward pass of {}",
     "Check for a wrong factor in this module; clip gradients, normalise its input, or lower its init."},
    {DEAD_UNITS, "units of {} are dead",
     "Look at what feeds the activation: a bias or shift far below zero, a dropout of 1, too large an update before. "
     "Lower the learning rate or use a leaky activation."},
    {SATURATED_ACTIVATION, "{} is saturated",
     "Scale its input down (normalisation, smaller weights, smaller learning rate)."},
    {ACTIVATION_SHIFT, "the output of {} changed scale and its input did not",
     "Look at what changed in this module at this step: a factor, a mode switch, a normalisation's statistics, a "
     "replaced weight."},
    {ATTENTION_LOGIT_GROWTH, "the attention logits of {} grow without bound",
     "Normalise queries and keys, lower the learning rate, or clip the logits."},
    {ROUTER_COLLAPSE, "the router of {} sends nearly all tokens to few experts",
     "Raise the load-balancing loss, add noise to the router, or lower its learning rate."},
    {UPDATE_LOST, "the optimizer does not change {} although there is a gradient",
     "Check that the optimizer holds the model's current parameters (not copies from before a re-wrap), and that "
     "updates are not below one ulp of a bf16 weight."},
    {NO_GRADIENT, "{} gets no gradient any more",
     "Look for detach(), no_grad(), .data or requires_grad_(False) at this place, or a branch that is no longer used."},
    {UPDATE_TOO_SMALL, "the updates of {} are far too small",
     "Check gradient clipping (threshold, clipping before unscaling), averaging over ranks, and layer-wise learning "
     "rates."},
    {UPDATE_TOO_LARGE, "the update of {} is far too large",
     "Check weight decay, layer-wise multipliers and hand-written steps for this parameter."},
    {LEARNING_RATE_ZERO, "the learning rate is zero",
     "Check the scheduler: its counter, its end, and that it is stepped once per optimizer step."},
    {LEARNING_RATE_SPIKE, "the learning rate jumps far above its maximum so far",
     "Check the scheduler and any code that writes param_groups; restore a checkpoint before this step."},
    {GRADIENT_ACCUMULATING, "gradients are not cleared between steps", "Call zero_grad() once per optimizer step."},
    {SCALER_STALLED, "the loss scaler skips too many steps",
     "Find the module whose gradient is not finite at every step; keep it in float32."},
    {INIT_SCALE, "the initial weights of {} are far off in scale",
     "Initialise this module like the others (its fan-in decides the scale)."},
    {INIT_SYMMETRIC, "the initial weights of {} are all alike",
     "Initialise this weight randomly, so that its units can differ."},
    {DATA_SHIFT, "the model's input changed its distribution",
     "Check the data pipeline at this step: scaling, normalisation, source, shuffling, tokenisation."},
    {LABEL_ANOMALY, "the labels no longer fit the inputs",
     "Check the label pipeline at this step: shuffling, offsets, ignored indices, source."},
    {LOSS_SPIKE, "the loss changed scale", "Check reduction (sum against mean), loss weights and batch size."},
    {LOSS_DIVERGENCE, "training drives the loss up",
     "Check the sign of the loss and of the update, maximise flags, and hand-written steps."},
    {LOSS_PLATEAU, "the loss no longer falls", "Nothing may be wrong; see the learning rate and the update ratios."},
    {REPLICA_DIVERGENCE, "replicas of {} differ",
     "Check that every rank runs the same forward through the wrapped model and the same optimizer step."},
    {SILENT_CORRUPTION, "one rank computed a value in {} that no other did",
     "Re-run the step on this rank; if it repeats, take the device out."},
    {STRAGGLER, "one rank makes the others wait", "Look at this rank's data loading and device clocks."},
    {HANG, "a rank stopped before a collective", "Look at the stack of this rank's process."},
    {RANK_DIED, "the process of this rank ended without detaching",
     "Look at the end of its log and at the kernel log (out of memory, signals)."},
    {BLIND_SPOT, "{} should report and does not", "See the observation level of the site."},
};

// Kinds that statistics find, where an exact rule found them and more can be said.
constexpr KindText kExactTexts[] = {
    {ACTIVATION_SHIFT, "{} goes on training in evaluation mode",
     "Call train() after every evaluation, also after one that ends early; see which callback switched the mode."},
    {LOSS_DIVERGENCE, "the loss is negated", "Check the sign of the loss at this step, and what decides on it."},
};

// A step of which only the loss was observed, in a run that is sampled.
constexpr KindText kLossAlone{NONFINITE_LOSS,
                              "the loss is not finite, and what led to it was not observed in this step",
                              "Run it again with cadence=1: then the step shows where it begins."};

const KindText& TextOf(const Cause& cause) {
  if (cause.finding.uncertain && cause.finding.kind == NONFINITE_LOSS) return kLossAlone;
  const auto of_kind = [&](const KindText& text) { return text.kind == cause.finding.kind; };
  if (cause.strong()) {
    const auto* exact = std::find_if(std::begin(kExactTexts), std::end(kExactTexts), of_kind);
    if (exact != std::end(kExactTexts)) return *exact;
  }
  const auto* found = std::find_if(std::begin(kTexts), std::end(kTexts), of_kind);
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
  constexpr std::string_view kPlace = "{}";
  if (const std::size_t at = text.find(kPlace); at != std::string::npos) {
    const bool of_module = cause.strong() && finding.kind == ACTIVATION_SHIFT;  // a mode is no matter of one output
    text.replace(at, kPlace.size(), of_module ? OrModel(finding.module) : PlaceOf(finding, topology));
  }
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
