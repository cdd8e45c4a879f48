// The record: the one fixed-size value that travels from a training process to the daemon.
//
// Both processes compile this file, and records written by one release are read by another, so every field is an
// explicitly sized type at a fixed offset (little endian), asserted below and described byte by byte in
// docs/ring-format.md. A record is 128 bytes (two cache lines): a 48-byte head that every kind shares and an 80-byte
// payload whose meaning the kind decides.
//
// Missing is never zero: a payload field counts only if its validity bit is set. Everything in a TENSOR payload is
// additive over micro-batches, calls and shards (max_abs: maximum), so the daemon can merge partial records.
//
// Ownership and threads: plain values, no pointers, trivially copyable. Who may write one where is the business of
// ring_writer.h and ring_reader.h.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace neuraldbg {

static_assert(std::endian::native == std::endian::little, "the wire format is little endian");

// What a record describes. All kinds are laid out from the first version; later releases only start to emit more.
enum class RecordKind : std::uint8_t {
  kNone = 0,
  kTensor = 1,     // a module output or input, or its gradient
  kParameter = 2,  // one parameter tensor: its value, gradient and update
  kOptimizer = 3,  // one optimizer parameter group
  kLoss = 4,
  kBatch = 5,  // one input tensor of the model
  kStep = 6,   // closes a step; carries the accounting that makes completeness decidable
  kPhases = 7,
  kAttention = 8,
  kRouter = 9,
};
inline constexpr std::uint8_t kRecordKindCount = 10;

// The part of the training step a record was taken in. Order is the order of the step, and inference relies on it.
enum class Phase : std::uint8_t {
  kData = 0,
  kForward = 1,
  kLoss = 2,
  kBackward = 3,
  kGradientSync = 4,
  kOptimizer = 5,
  kParameter = 6,
  kSystem = 7,
};
inline constexpr std::uint8_t kPhaseCount = 8;

enum class DType : std::uint8_t {
  kUnknown = 0,
  kFloat32 = 1,
  kFloat64 = 2,
  kFloat16 = 3,
  kBFloat16 = 4,
  kInt64 = 5,
  kInt32 = 6,
  kInt16 = 7,
  kInt8 = 8,
  kUInt8 = 9,
  kBool = 10,
  kComplex64 = 11,
  kComplex128 = 12,
  kFloat8 = 13,
};

// Bits of Record::flags.
enum RecordFlag : std::uint16_t {
  kFlagTraining = 1u << 0,        // the module was in training mode
  kFlagStepApplied = 1u << 1,     // the optimizer changed (or would have changed) the parameters
  kFlagRecompute = 1u << 2,       // activation checkpointing ran this forward pass a second time
  kFlagClipped = 1u << 3,         // gradients were clipped before this was read
  kFlagFoundInf = 1u << 4,        // the AMP scaler found non-finite gradients
  kFlagRequiresGrad = 1u << 5,    // the tensor takes part in autograd
  kFlagGradDirty = 1u << 6,       // STEP: gradients were not cleared before the first forward pass of this step
  kFlagGradPresent = 1u << 7,     // PARAMETER: .grad is not None
  kFlagGradMode = 1u << 8,        // autograd was recording
  kFlagUnannounced = 1u << 9,     // STEP: closed by the agent itself (no optimizer call), e.g. at detach
  kFlagAllParameters = 1u << 10,  // STEP: every parameter was observed, not only this step's rotation group
  kFlagLossObserved = 1u << 11,   // LOSS: seen by a hook, not announced by log_loss
  kFlagModuleEval = 1u << 12,     // forward TENSOR: the module itself was in evaluation mode, whatever the pass was
};

// Bits of Record::validity. Bits 0..19 belong to the kind's payload, in the order of its fields.
inline constexpr std::uint32_t ValidityBit(unsigned field) { return 1u << field; }

// Sums and maxima are over finite elements only. Counts saturate at 2^32 - 1.
struct TensorPayload {
  std::uint64_t numel;            // validity bit 0
  std::uint32_t nan_count;        // 1
  std::uint32_t inf_count;        // 2
  std::uint32_t zero_count;       // 3: exactly zero
  std::uint32_t saturated_count;  // 4: per module kind, see docs/ring-format.md
  std::uint32_t tiny_count;       // 5: 0 < |x| < 2^-24 (underflows in float16)
  std::uint32_t dead_units;       // 6: units (channels) with no positive (or no non-zero) output in this call
  double sum;                     // 7
  double sum_abs;                 // 8
  double sum_squares;             // 9
  float max_abs;                  // 10
  std::uint32_t units;            // 11: number of units that dead_units counts over
  std::uint64_t bits;             // 12: wrap-around sum of the raw bit patterns, element by element
  float aux[2];                   // 13, 14: reserved for later statistics of the kind
};

// One parameter tensor around one optimizer step: value after the step, gradient and update of the step.
struct ParameterPayload {
  std::uint64_t numel;               // 0
  std::uint64_t bits;                // 1: wrap-around sum of the raw bits of the value after the step
  double value_sum;                  // 2
  double value_sum_squares;          // 3
  double gradient_sum_squares;       // 4: of the gradient that the optimizer was called with
  double update_sum_squares;         // 5: of value_after - value_before
  double gradient_dot_update;        // 6
  float value_max_abs;               // 7
  float gradient_max_abs;            // 8
  std::uint32_t value_nonfinite;     // 9
  std::uint32_t gradient_nonfinite;  // 10
  std::uint32_t gradient_zero;       // 11
  std::uint32_t changed;             // 12: 1 if any bit of the value changed in this step
};

struct OptimizerPayload {
  double learning_rate;           // 0
  double loss_scale;              // 1: AMP scale, 1 without a scaler
  double weight_decay;            // 2
  double gradient_sum_squares;    // 3: over the parameters observed this step
  double update_sum_squares;      // 4
  float beta1;                    // 5: or momentum
  float beta2;                    // 6
  float epsilon;                  // 7
  std::uint32_t group;            // 8
  std::uint32_t parameter_count;  // 9
  std::uint32_t skipped_total;    // 10: steps skipped by the scaler so far
  std::uint32_t observed_count;   // 11: parameters observed this step
  std::uint32_t reserved;
  std::uint64_t reserved2;
};

enum class LossKind : std::uint32_t {
  kUnknown = 0,
  kCrossEntropy = 1,
  kMeanSquared = 2,
  kBinaryCrossEntropy = 3,
  kNegativeLogLikelihood = 4,
  kOther = 5
};
enum class Reduction : std::uint32_t { kUnknown = 0, kMean = 1, kSum = 2, kNone = 3 };

struct LossPayload {
  double value;                   // 0: mean over micro-batches is value / calls of the merged sample
  std::uint64_t label_count;      // 1: labels that count towards the loss
  std::uint64_t label_ignored;    // 2
  double label_sum;               // 3
  double label_sum_squares;       // 4
  double logit_gradient_sum_abs;  // 5: sum |dL/dlogits|
  double logsumexp_mean;          // 6
  LossKind loss_kind;             // 7
  Reduction reduction;            // 8
  std::uint32_t class_count;      // 9
  std::uint32_t nonfinite;        // 10: 1 if the value is NaN or Inf (value is then that NaN or Inf)
  std::uint64_t reserved;
};

// Emitted after all other records of the step were pushed (and any device table was flushed). attempts_total counts
// every push attempt of this segment up to and including this record, so a step is complete when
// received + dropped == attempts_total.
struct StepPayload {
  std::uint64_t attempts_total;   // 0
  std::uint64_t dropped_total;    // 1: as the producer counted it
  std::uint64_t samples;          // 2: in the batch, all micro-batches
  std::uint64_t duration_ns;      // 3: since the previous STEP record
  std::uint64_t agent_ns;         // 4: spent in the agent's operators during this step
  std::uint32_t microbatches;     // 5: forward passes of the root module in training mode
  std::uint32_t cadence;          // 6: n of "every n-th step is observed"
  std::uint32_t cadence_phase;    // 7: step modulo cadence
  std::uint32_t rotation_group;   // 8: parameters with index % rotation_groups == rotation_group were observed
  std::uint32_t rotation_groups;  // 9
  std::uint32_t shed_level;       // 10: 0 = everything planned is observed
  std::uint32_t skipped_total;    // 11
  std::uint32_t recompiles;       // 12
  std::uint64_t reserved;
};

struct PhasesPayload {
  std::uint64_t data_ns;                 // 0
  std::uint64_t forward_ns;              // 1
  std::uint64_t backward_ns;             // 2
  std::uint64_t to_first_collective_ns;  // 3
  std::uint64_t sync_ns;                 // 4
  std::uint64_t optimizer_ns;            // 5
  std::uint64_t collective_sequence;     // 6
  std::uint64_t reserved[3];
};

struct AttentionPayload {
  double logit_max;        // 0
  double entropy_mean;     // 1: nats, over query rows
  double logit_max_bound;  // 2: upper bound from query and key norms where scores are not visible
  std::uint64_t rows;      // 3
  std::uint32_t heads;     // 4
  std::uint32_t reserved;
  std::uint64_t reserved2[5];
};

struct RouterPayload {
  double load_max;               // 0: share of tokens of the fullest expert
  double load_entropy;           // 1: nats
  double score_sum;              // 2
  std::uint64_t tokens;          // 3
  std::uint32_t experts;         // 4
  std::uint32_t unused_experts;  // 5
  std::uint64_t reserved[5];
};

inline constexpr std::size_t kRecordBytes = 128;
inline constexpr std::size_t kPayloadBytes = 80;

struct Record {
  std::uint64_t time_ns;  // CLOCK_MONOTONIC of the producing host
  std::uint64_t step;     // counts from 0: the work that leads to the n-th optimizer step
  std::uint64_t attempt;  // n-th push attempt on this lane; set by the ring writer. A gap is a drop
  std::uint32_t site;     // index into the manifest
  std::uint32_t tag;      // set by the ring writer; detects a stale or foreign slot, is no authentication
  RecordKind kind;
  Phase phase;
  DType dtype;
  std::uint8_t reserved;
  std::uint16_t flags;     // RecordFlag
  std::uint16_t call;      // n-th call of this site within (step, microbatch)
  std::uint32_t validity;  // which payload fields hold a value
  std::uint32_t microbatch;
  union {
    TensorPayload tensor;  // also BATCH
    ParameterPayload parameter;
    OptimizerPayload optimizer;
    LossPayload loss;
    StepPayload step_end;
    PhasesPayload phases;
    AttentionPayload attention;
    RouterPayload router;
    std::byte payload[kPayloadBytes];
  };
};

static_assert(sizeof(TensorPayload) == kPayloadBytes);
static_assert(sizeof(ParameterPayload) == kPayloadBytes);
static_assert(sizeof(OptimizerPayload) == kPayloadBytes);
static_assert(sizeof(LossPayload) == kPayloadBytes);
static_assert(sizeof(StepPayload) == kPayloadBytes);
static_assert(sizeof(PhasesPayload) == kPayloadBytes);
static_assert(sizeof(AttentionPayload) == kPayloadBytes);
static_assert(sizeof(RouterPayload) == kPayloadBytes);
static_assert(sizeof(Record) == kRecordBytes);
static_assert(std::is_trivially_copyable_v<Record> && std::is_standard_layout_v<Record>);
static_assert(offsetof(Record, attempt) == 16 && offsetof(Record, site) == 24 && offsetof(Record, tag) == 28);
static_assert(offsetof(Record, kind) == 32 && offsetof(Record, flags) == 36 && offsetof(Record, validity) == 40);
static_assert(offsetof(Record, payload) == 48);

}  // namespace neuraldbg
