// The C interface between the Python package (ctypes) and the agent's shared library; also what C++ training loops use
// through neuraldbg/agent.h. Everything per tensor goes through the operators in ops.cc instead.
//
// Errors: functions return a handle or 0/1; never throw. After ndbg_session_create nothing here blocks, except
// ndbg_session_destroy, which joins the heartbeat thread within 50 ms. Handles are small non-negative integers;
// an unknown or destroyed handle is a no-op. Calls with one handle may come from any thread.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NDBG_EXPORT __attribute__((visibility("default")))

typedef struct {
  const char* shm_directory;
  const char* run_name;
  const char* launch;
  const char* host;
  const char* framework;
  uint32_t rank, world_size, incarnation;
  uint64_t start_step;
  uint32_t lanes, lane_capacity;     // 0 = default
  uint32_t records_per_step, sites;  // expected, to size the segment; 0 = unknown
  uint32_t compiled;
  uint32_t for_group, group;  // for_group 1: members of this gid may read and drain the segment; 0: its owner alone
} ndbg_session_options;

// Returns a handle >= 0, or -1 with one sentence in `error` (NUL-terminated, at most error_bytes).
NDBG_EXPORT int32_t ndbg_session_create(const ndbg_session_options* options, char* error, uint32_t error_bytes);
// Clean end: pushes nothing more, marks the segment closed, joins the heartbeat thread, unmaps. The file stays for the
// daemon.
NDBG_EXPORT void ndbg_session_destroy(int32_t session);
// Of the segment that is written now: a new one where somebody removed the file. Valid until destroy.
NDBG_EXPORT const char* ndbg_session_path(int32_t session);
NDBG_EXPORT const char* ndbg_version(void);

// How `saturated_count` and `dead_units` are counted for a tensor site.
enum ndbg_unit_mode { NDBG_UNITS_NONE = 0, NDBG_UNITS_LAST_DIM = 1, NDBG_UNITS_DIM1 = 2 };
enum ndbg_saturation {
  NDBG_SATURATION_NONE = 0,
  NDBG_SATURATION_TANH = 1,     // output: |x| > 0.99
  NDBG_SATURATION_SIGMOID = 2,  // output: |x - 0.5| > 0.49
  NDBG_SATURATION_SOFTMAX = 3   // output: x > 0.99
};
enum ndbg_dead { NDBG_DEAD_NEVER_NONZERO = 0, NDBG_DEAD_NEVER_POSITIVE = 1 };

typedef struct {
  const char* name;
  const char* module;
  const char* module_kind;
  const char* owner;
  uint32_t role, phase, dtype, level;  // SiteRole, Phase, DType, ObservationLevel of shared/
  uint32_t requires_grad;
  uint32_t topological_index, twin, covered_by, tie_group, optimizer_group;
  uint32_t unit_mode, saturation, dead;
  const uint64_t* shape;
  uint32_t dimensions;
} ndbg_site;

// Adds a site to the manifest and returns its id (consecutive from 0), or 0xffffffff when it does not fit. The same
// call with the id of an existing site in `id` re-announces it with changed properties (level, topological_index,
// covered_by …).
NDBG_EXPORT uint32_t ndbg_session_add_site(int32_t session, const ndbg_site* site);
NDBG_EXPORT uint32_t ndbg_session_update_site(int32_t session, uint32_t id, const ndbg_site* site);
// Calls of a module that runs several times in one forward pass: the n-th call of `slot` (a site's id) reports as
// sites[n], 0xffffffff meaning not at all. `forward`: for gradients the slot of the forward sites, announced before;
// else 0xffffffff, and 0xfffffffe in their list marks a call that gets no gradient. At most 16 sites. Returns 0 when an
// argument is wrong.
NDBG_EXPORT uint32_t ndbg_session_calls(int32_t session, uint32_t slot, uint32_t forward, const uint32_t* sites,
                                        uint32_t count);
NDBG_EXPORT void ndbg_session_add_edge(int32_t session, uint32_t producer, uint32_t consumer);
NDBG_EXPORT void ndbg_session_add_sink(int32_t session, uint32_t site);
NDBG_EXPORT void ndbg_session_add_mark(int32_t session, uint64_t step, const char* text);
// `graph_exact`: edges are dataflow, not execution order. Also appends RunEntry with the final counts.
NDBG_EXPORT void ndbg_session_ready(int32_t session, uint32_t graph_exact, uint32_t planned_sites, uint32_t parameters);

// The value of the slot tensor (int64, one element, CPU) that the tensor operators take for this site.
NDBG_EXPORT int64_t ndbg_slot(int32_t session, uint32_t site);

// armed: bit 0 = tensor sites are observed. The operators read it at run time, so that one compiled graph serves all.
NDBG_EXPORT void ndbg_session_arm(int32_t session, uint32_t armed);
// training: module mode of the running forward pass; microbatch counts root forward passes in this step. Not called for
// the pass that activation checkpointing runs again: the operators see for themselves that backward is running.
NDBG_EXPORT void ndbg_session_context(int32_t session, uint32_t training, uint32_t grad_mode, uint32_t microbatch);

// The module behind sites[n] is in evaluation mode from now on (evaluation[n] = 1), or no longer (0).
NDBG_EXPORT void ndbg_session_modes(int32_t session, const uint32_t* sites, const uint8_t* evaluation, uint32_t count);

typedef struct {
  uint32_t site;
  uint32_t group, parameter_count, observed_count, skipped_total;
  uint32_t applied, found_inf, clipped;
  double learning_rate, loss_scale, weight_decay;
  double beta1, beta2, epsilon;
  double gradient_sum_squares, update_sum_squares;
} ndbg_optimizer;
NDBG_EXPORT void ndbg_session_optimizer(int32_t session, const ndbg_optimizer* record);

typedef struct {
  uint32_t site;
  uint32_t applied, found_inf, grad_dirty, unannounced, all_parameters;
  uint64_t samples, duration_ns;
  uint32_t microbatches, cadence, rotation_group, rotation_groups, shed_level, skipped_total, recompiles;
} ndbg_step;
// Pushes the STEP record that closes the current step and moves on to the next. Returns the number of the step it
// closed.
NDBG_EXPORT uint64_t ndbg_session_end_step(int32_t session, const ndbg_step* record);
NDBG_EXPORT uint64_t ndbg_session_step(int32_t session);

typedef struct {
  uint64_t attempts, dropped, agent_ns, records_this_step, nonfinite_this_step, nonfinite_total, step;
  uint32_t lane_capacity, enabled;
  uint64_t lost;          // of the dropped: what lay unread in segments that somebody removed
  uint32_t replacements;  // such segments, each replaced by a new one
} ndbg_status;
// agent_ns, attempts and dropped count since attach; nonfinite_* count records that met a NaN or Inf.
NDBG_EXPORT void ndbg_session_status(int32_t session, ndbg_status* status);
// Tensors that an operator was given and could not read (device, layout, element type), since attach.
NDBG_EXPORT uint64_t ndbg_session_skipped(int32_t session);

// Health of a gradient from its norm alone (gradient_health.h). One object a series of norms; for one thread at a time.
// Returns NULL without memory, which the others take for an object that knows nothing. Health is the name of one:
// "unknown", "healthy", "vanishing", "exploding" or "nonfinite".
typedef struct ndbg_gradient_norms ndbg_gradient_norms;
NDBG_EXPORT ndbg_gradient_norms* ndbg_gradient_norms_create(void);
NDBG_EXPORT void ndbg_gradient_norms_destroy(ndbg_gradient_norms* norms);
NDBG_EXPORT const char* ndbg_gradient_norms_observe(ndbg_gradient_norms* norms, double norm);
NDBG_EXPORT const char* ndbg_gradient_norms_classify(const ndbg_gradient_norms* norms, double norm);

#ifdef __cplusplus
}
#endif

// Operators (schemas in ops.cc, registered under torch.ops.neuraldbg). `slot` is a one-element int64 CPU tensor.
//   observe(Tensor x, Tensor slot, bool requires_grad=False) -> ()
//     TENSOR record of x, which is detached; requires_grad says what it was before. Traceable: fake implementation
//     returns nothing; Python registers the ORDERED effect.
//   batch(Tensor x, Tensor slot) -> ()                     BATCH record; any dtype
//   loss(Tensor value, Tensor? logits, Tensor? targets, int ignore_index, int kind, int reduction, Tensor slot) -> ()
//     LOSS record. value: any shape (summed after unreduced losses). targets: int labels or floats.
//   parameter_init(Tensor value, Tensor slot) -> ()        ParameterInit entry in the manifest
//   parameter_before(Tensor value, Tensor? grad, Tensor slot) -> ()
//     keeps a copy of value and the statistics of grad, right before optimizer.step
//   parameter_after(Tensor value, Tensor slot) -> ()       PARAMETER record; does nothing without parameter_before
//   gradient_norm(Tensor grad) -> float                    for the clipping flag; local shard
// Defined in Python (ops.py): enter, which a compiled root leaves in its graph, and tap with its backward, which torch
// before 2.13 needs for gradients inside of a graph.
// None of them blocks, synchronises a device or raises on odd input: unsupported tensors are counted and skipped.
