// Every number that a series (series.h) is judged by, and where it comes from. The daemon's detectors and the agent's
// gradient_health.h both include it, so that each rule exists once.
//
// Levels and gains are in log2 units: 1.0 is a factor of two. "Development recordings" are the MLP and GPT runs (three
// seeds) and their healthy controls that docs/detectors.md describes; the held-out families never set a number here.
#pragma once

#include <cstdint>

namespace neuraldbg::threshold {

// Level of a tensor whose finite elements are all zero, and the lowest level told apart from that.
inline constexpr float kLevelFloor = -50.0F;

// --- self-calibrating baseline (docs/detectors.md, "Baseline") ---
inline constexpr std::uint32_t kWindow = 48;          // samples; dev recordings: shorter windows alarm on warm-up
inline constexpr std::uint32_t kMinimumSamples = 32;  // before a series may speak; dev controls settle within 30 steps
inline constexpr std::uint32_t kMinimumRotated = 12;  // the same for parameters, which only rotation observes
inline constexpr std::uint32_t kEntryDelay = 10;      // samples enter late: a ramp of 6 % a step must not teach itself
inline constexpr std::uint32_t kReadmitAfter = 40;    // flagged samples in a row after which a series is a new normal
inline constexpr double kYoungFactor = 24.0;          // thresholds are widened by 1 + 24/n while n samples are few
// A hole in the record: more steps missing than the window holds, and far more than the cadence leaves out. Default.
inline constexpr std::uint64_t kHoleSteps = kWindow, kHoleGaps = 4;
inline constexpr double kMadToSigma = 1.4826;  // consistency constant of the MAD under a normal distribution

// Alarm: |deviation| > max(minimum, factor x robust sigma), sigma not below the floor. Set by hand on the development
// recordings: the largest healthy gain excursion there is 0.8, the largest level excursion 1.7.
inline constexpr double kLevelMinimum = 2.0, kLevelFactor = 8.0, kLevelSigmaFloor = 0.08;
inline constexpr double kGainMinimum = 0.9, kGainFactor = 10.0, kGainSigmaFloor = 0.04;
inline constexpr double kUpdateFactor = 6.0;
inline constexpr double kLossMinimum = 1.2, kLossFactor = 6.0;
inline constexpr double kShareMinimum = 0.4;  // dead and saturated shares, absolute, upward only
// Integer inputs (token ids, class labels) have no scale, but their spread and zero share are stable from batch to
// batch; half a binade of spread is twice the largest excursion of the GPT development recordings.
inline constexpr double kTokenMinimum = 0.5, kTokenFactor = 10.0;

inline constexpr int kPersistFlags = 2;               // flagged samples among the last three, or
inline constexpr double kSingleEvidence = 2.5;        // one sample with this multiple of the alarm level
inline constexpr std::uint64_t kStepSamples = 6;      // a small step of a gain must stay for so long, and
inline constexpr double kStepBefore = 0.4;            // have come from below this share of it
inline constexpr std::uint64_t kLossStepSamples = 8;  // a loss is noisier: longer, and
inline constexpr double kLossStepMinimum = 0.25, kLossStepFactor = 3.0;  // log2; healthy dev losses never stay so high
inline constexpr double kCandidateLevel = 0.6;     // share of the alarm level from which a node joins inference
inline constexpr std::uint32_t kLookBack = 12;     // samples that onset search may go back
inline constexpr std::uint64_t kOnsetHorizon = 3;  // samples after onset in which a mechanism is read most clearly

}  // namespace neuraldbg::threshold
