// Every number that a detector or a rule of inference compares with, and where it comes from. Those of a single series
// stand in shared/series/series_thresholds.h.
//
// Levels and gains are in log2 units: 1.0 is a factor of two. "Development recordings" are the MLP and GPT runs (three
// seeds) and their healthy controls that docs/detectors.md describes; the held-out families never set a number here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shared/series/series_thresholds.h"

namespace neuraldbg::threshold {

inline constexpr double kOnsetShare = 0.25;      // onset: same sign and at least this share of the alarm deviation
inline constexpr double kOwnExcess = 0.45;       // own change minus change of the inputs: half of kGainMinimum
inline constexpr std::uint32_t kQuietSteps = 8;  // steps without a flag that end an incident

// --- what is no cause; each a default, chosen before it was tried, but for kDriftShare ---
// Evidence and own change of a node against another below the alarm level: two binades are no noise.
inline constexpr double kDwarfing = 4.0;
// Largest step of a drift against the whole of it. A planted change comes in one step, so that its share is 1; at 0.4
// no two steps make a drift. Set on healthy adversarial pairs, whose single noisy steps 0.25 took for a jump; on the
// development recordings two slow ramps in layers with weights became notices.
inline constexpr double kDriftShare = 0.4;
// Updates of a drift, summed, against the weight: where inputs have a mean and updates pull one way, a layer of 256
// inputs makes that into all of its output.
inline constexpr double kLearnedShare = 1.0 / 16;
inline constexpr double kQuietLoss = 0.25;        // of the alarm level; the share that ends the walk back to an onset
inline constexpr std::uint64_t kPassedSteps = 3;  // samples that the alarm looks at

// --- CUSUM of the loss: clip 10, drift 1.5; largest healthy development run 31.6 (a curriculum), next 6.3 ---
inline constexpr double kCusumClip = 10.0, kCusumDrift = 1.5, kCusumLimit = 36.0, kCusumSigmaFloor = 0.15;
inline constexpr std::uint64_t kCusumStart = 40;
inline constexpr double kCusumOrdering = 0.2;    // share of the limit from which the start orders the loss
inline constexpr double kLossFloorShare = 0.05;  // below 5 % of its start the loss of a memorising net is noise
inline constexpr std::uint64_t kLossStart = 20;
// log2: a negated loss has the size of each of the fifteen before within a factor of two, so that the way to the other
// side of zero is at least as long as their band is wide. Only the first negative value of a run is asked. Default.
inline constexpr double kNegatedWithin = 1.0;

// --- exact rules ---
inline constexpr double kRateSpike = 4.0;  // times the largest learning rate so far
inline constexpr std::uint64_t kRateSpikeStart = 5;
inline constexpr std::uint32_t kRateZeroSteps = 5;     // warm-up from zero has one or two such steps
inline constexpr double kRateZeroShare = 0.01;         // a schedule that decays below 1 % first may end at zero
inline constexpr std::uint32_t kLostSteps = 15;        // applied steps with gradient and without change
inline constexpr std::uint32_t kLostObservations = 2;  // of which at least the first and the last were observed
inline constexpr double kLostGradientFloor = -40.0;    // log2 rms: below, an update may honestly round to nothing
inline constexpr double kLostGradientSpan = 16.0;      // within 2^16 of the largest gradient (key biases are zero)
inline constexpr double kLostPrecision = 24.0;         // log2: half a unit in the last place of a float32, and finer
inline constexpr double kLostRateShare = 1e-3;         // of the largest learning rate so far
inline constexpr double kLostAllShare = 0.8;           // of the trainable parameters: the optimizer, not a layer
inline constexpr std::uint32_t kNoGradientSteps = 20;
// A gradient that came in so many observed steps in a row and then in none of so many: default. What comes every n-th
// step only (a critic trained more often than its generator) has no such streak.
inline constexpr std::uint32_t kGradientStreak = 10, kCutSteps = 2;
inline constexpr double kUpdateShareLog2 = -4.0589;  // log2 0.06: updates below 6 % of the weight never matter
inline constexpr double kScalerWindow = 50, kScalerShare = 0.25;  // skipped share; AMP start-up skips 4 to 14 steps
// A run whose gradients are dirty at the first forward pass of every step may clear them before backward, which is
// legal; accumulation shows as gradients growing against what the backward sites deliver (random directions: 2^2 in
// 16).
inline constexpr double kDirtyGrowth = 1.5;
inline constexpr std::uint32_t kDirtySteps = 16;

// --- start of training: log2(rms(w) * sqrt(fan_in)) outside the range and far from the model's other weights ---
inline constexpr double kInitLow = -5.0, kInitHigh = 2.5, kInitOutlier = 3.3, kInitZero = -14.0;
inline constexpr double kSymmetricVariance = 0.02;  // of mean^2
inline constexpr std::uint32_t kProfileSteps = 10;  // depth profile is read over the first ten steps
inline constexpr double kProfileSpan = 14.0;        // binades between first and last sites; catches 14 sigmoid layers

// --- routed sites (experts, dropped layers) ---
inline constexpr std::uint64_t kRoutedSteps = 40;
inline constexpr double kRoutedNumel = 0.2, kRoutedShare = 0.2;

inline constexpr double kHalfPrecisionHeadroom = 8192;  // float16 overflows at 65504; three binades below is "near"
inline constexpr std::uint32_t kSilentSteps = 10;       // complete, fully observed steps that make silence a blind spot
inline constexpr std::uint32_t kWarmSteps = kMinimumSamples + kEntryDelay;
inline constexpr std::uint64_t kMinimumApplied = 10;  // design: fewer applied steps are INCOMPLETE_DATA
inline constexpr std::uint64_t kExplainedLead = 25;   // steps by which a statistical cause may precede an exact finding
inline constexpr std::size_t kMaxFindings = 64, kMaxIncidents = 16;  // per rank: memory never grows with the run

}  // namespace neuraldbg::threshold
