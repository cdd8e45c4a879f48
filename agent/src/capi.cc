// The C interface: checks what comes in, turns C structures into the session's types, and lets nothing out.
#include "agent/src/capi.h"

#include <cstdio>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>

#include "agent/src/gradient_health.h"
#include "agent/src/rank_session.h"
#include "agent/src/segment_sizing.h"
#include "agent/src/session_table.h"

using neuraldbg::GradientHealth;
using neuraldbg::GradientHealthName;
using neuraldbg::RankSession;
using neuraldbg::SessionUse;

struct ndbg_gradient_norms {
  neuraldbg::GradientNormSeries series;
};

namespace {

constexpr std::uint32_t kLanesMax = 64;  // bound of the segment format

std::string Text(const char* text) { return text == nullptr ? std::string() : std::string(text); }

void Report(const std::string& sentence, char* error, std::uint32_t error_bytes) noexcept {
  if (error != nullptr && error_bytes != 0) std::snprintf(error, error_bytes, "%s", sentence.c_str());
}

std::int32_t CreateSession(const ndbg_session_options& options, std::string& reason) {
  neuraldbg::SegmentOptions segment;
  if (options.shm_directory != nullptr && *options.shm_directory != '\0') segment.directory = options.shm_directory;
  segment.run_name = Text(options.run_name);
  segment.launch = Text(options.launch);
  segment.rank = options.rank;
  segment.world_size = options.world_size == 0 ? 1 : options.world_size;
  segment.incarnation = options.incarnation;
  if (options.for_group != 0) {
    segment.group = options.group;
    segment.mode = 0660;
  }
  if (options.lanes != 0) segment.lanes = options.lanes < kLanesMax ? options.lanes : kLanesMax;
  if (options.lane_capacity != 0) segment.lane_capacity = options.lane_capacity;
  segment = neuraldbg::SizedFor(std::move(segment), {options.records_per_step, options.sites});
  if (segment.lane_capacity_min > segment.lane_capacity) segment.lane_capacity_min = segment.lane_capacity;

  neuraldbg::RunEntry run;
  run.run_name = segment.run_name;
  run.launch = segment.launch;
  run.host = Text(options.host);
  run.framework = Text(options.framework);
  run.agent_version = NEURALDBG_VERSION;
  run.rank = segment.rank;
  run.world_size = segment.world_size;
  run.incarnation = segment.incarnation;
  run.start_step = options.start_step;
  run.compiled = options.compiled != 0;

  std::unique_ptr<RankSession> session = RankSession::Create(segment, std::move(run), reason);
  if (session == nullptr) return -1;
  const std::int32_t handle = neuraldbg::RegisterSession(session);
  if (handle < 0) reason = "this process has attached too often: there is no handle left";
  return handle;
}

neuraldbg::SiteEntry EntryOf(const ndbg_site& site) {
  neuraldbg::SiteEntry entry;
  entry.name = Text(site.name);
  entry.module = Text(site.module);
  entry.module_kind = Text(site.module_kind);
  entry.owner = Text(site.owner);
  entry.role = static_cast<neuraldbg::SiteRole>(site.role);
  entry.phase = static_cast<neuraldbg::Phase>(site.phase);
  entry.dtype = static_cast<neuraldbg::DType>(site.dtype);
  entry.level = static_cast<neuraldbg::ObservationLevel>(site.level);
  entry.requires_grad = site.requires_grad != 0;
  entry.topological_index = site.topological_index;
  entry.twin = site.twin;
  entry.covered_by = site.covered_by;
  entry.tie_group = site.tie_group;
  entry.optimizer_group = site.optimizer_group;
  if (site.shape != nullptr) {
    const std::size_t dimensions =
        site.dimensions < neuraldbg::kMaxDimensions ? site.dimensions : neuraldbg::kMaxDimensions;
    entry.shape.assign(site.shape, site.shape + dimensions);
  }
  return entry;
}

neuraldbg::SiteReading ReadingOf(const ndbg_site& site) noexcept {
  neuraldbg::SiteReading reading;
  reading.phase = static_cast<neuraldbg::Phase>(site.phase);
  reading.requires_grad = site.requires_grad != 0;
  reading.options.unit_mode = static_cast<neuraldbg::UnitMode>(site.unit_mode);
  reading.options.saturation = static_cast<neuraldbg::Saturation>(site.saturation);
  reading.options.dead_rule = static_cast<neuraldbg::DeadRule>(site.dead);
  reading.optimizer_group = site.optimizer_group;
  return reading;
}

// Values that the record's and the manifest's one-byte fields can hold and that their readers accept.
bool IsAcceptable(const ndbg_site* site) noexcept {
  return site != nullptr && site->role <= static_cast<std::uint32_t>(neuraldbg::SiteRole::kSystem) &&
         site->phase < neuraldbg::kPhaseCount && site->dtype <= static_cast<std::uint32_t>(neuraldbg::DType::kFloat8) &&
         site->level <= static_cast<std::uint32_t>(neuraldbg::ObservationLevel::kNotObserved) &&
         site->unit_mode <= NDBG_UNITS_DIM1 && site->saturation <= NDBG_SATURATION_SOFTMAX &&
         site->dead <= NDBG_DEAD_NEVER_POSITIVE;
}

void FillOptimizer(const ndbg_optimizer& from, RankSession& session, neuraldbg::Record& record) noexcept {
  neuraldbg::OptimizerPayload& payload = record.optimizer;
  payload.learning_rate = from.learning_rate;
  payload.loss_scale = from.loss_scale;
  payload.weight_decay = from.weight_decay;
  payload.beta1 = static_cast<float>(from.beta1);
  payload.beta2 = static_cast<float>(from.beta2);
  payload.epsilon = static_cast<float>(from.epsilon);
  payload.group = from.group;
  payload.parameter_count = from.parameter_count;
  payload.skipped_total = from.skipped_total;
  payload.observed_count = from.observed_count;
  payload.gradient_sum_squares = from.gradient_sum_squares;
  payload.update_sum_squares = from.update_sum_squares;
  // Every field but the two sums, which mean something only over parameters that were observed.
  std::uint32_t validity = neuraldbg::ValidityBit(12) - 1;
  validity &= ~(neuraldbg::ValidityBit(3) | neuraldbg::ValidityBit(4));
  neuraldbg::GroupTotals sums;
  if (session.GroupSums(from.group, sums)) {
    payload.gradient_sum_squares = sums.gradient_sum_squares;
    payload.update_sum_squares = sums.update_sum_squares;
    payload.observed_count = sums.observed;
  }
  if (payload.observed_count != 0) validity |= neuraldbg::ValidityBit(3) | neuraldbg::ValidityBit(4);
  record.validity = validity;
}

void FillStep(const ndbg_step& from, neuraldbg::Record& record) noexcept {
  neuraldbg::StepPayload& payload = record.step_end;
  payload.samples = from.samples;
  payload.duration_ns = from.duration_ns;
  payload.microbatches = from.microbatches;
  payload.cadence = from.cadence;
  payload.rotation_group = from.rotation_group;
  payload.rotation_groups = from.rotation_groups;
  payload.shed_level = from.shed_level;
  payload.skipped_total = from.skipped_total;
  payload.recompiles = from.recompiles;
  record.validity = neuraldbg::ValidityBit(13) - 1;
}

void SetFlag(neuraldbg::Record& record, std::uint32_t condition, neuraldbg::RecordFlag flag) noexcept {
  if (condition != 0) record.flags = static_cast<std::uint16_t>(record.flags | flag);
}

}  // namespace

extern "C" {

int32_t ndbg_session_create(const ndbg_session_options* options, char* error, uint32_t error_bytes) {
  try {
    std::string reason = "no options were given";
    const std::int32_t handle = options == nullptr ? -1 : CreateSession(*options, reason);
    if (handle < 0) Report(reason, error, error_bytes);
    return handle;
  } catch (...) {
    Report("no memory for the session", error, error_bytes);
    return -1;
  }
}

void ndbg_session_destroy(int32_t session) { neuraldbg::UnregisterSession(session).reset(); }

const char* ndbg_session_path(int32_t session) {
  const SessionUse use(session);
  return use ? use->path().c_str() : "";
}

const char* ndbg_version(void) { return NEURALDBG_VERSION; }

uint32_t ndbg_session_add_site(int32_t session, const ndbg_site* site) {
  const SessionUse use(session);
  if (!use || !IsAcceptable(site)) return neuraldbg::kNoSite;
  try {
    return use->AddSite(EntryOf(*site), ReadingOf(*site));
  } catch (...) {
    return neuraldbg::kNoSite;
  }
}

uint32_t ndbg_session_update_site(int32_t session, uint32_t id, const ndbg_site* site) {
  const SessionUse use(session);
  if (!use || !IsAcceptable(site)) return neuraldbg::kNoSite;
  try {
    neuraldbg::SiteEntry entry = EntryOf(*site);
    entry.id = id;
    return use->UpdateSite(std::move(entry), ReadingOf(*site)) ? id : neuraldbg::kNoSite;
  } catch (...) {
    return neuraldbg::kNoSite;
  }
}

uint32_t ndbg_session_calls(int32_t session, uint32_t slot, uint32_t forward, const uint32_t* sites, uint32_t count) {
  const SessionUse use(session);
  return use && sites != nullptr && use->SetCalls(slot, forward, {sites, count}) ? 1 : 0;
}

void ndbg_session_add_edge(int32_t session, uint32_t producer, uint32_t consumer) {
  if (const SessionUse use(session); use) use->Append(neuraldbg::EdgeEntry{producer, consumer});
}

void ndbg_session_add_sink(int32_t session, uint32_t site) {
  if (const SessionUse use(session); use) use->Append(neuraldbg::SinkEntry{site});
}

void ndbg_session_add_mark(int32_t session, uint64_t step, const char* text) {
  const SessionUse use(session);
  if (!use) return;
  try {
    use->Append(neuraldbg::MarkEntry{step, Text(text)});
  } catch (...) {  // no memory for the copy: the mark is lost, the training goes on
  }
}

void ndbg_session_ready(int32_t session, uint32_t graph_exact, uint32_t planned_sites, uint32_t parameters) {
  if (const SessionUse use(session); use) use->Ready(graph_exact != 0, planned_sites, parameters);
}

int64_t ndbg_slot(int32_t session, uint32_t site) { return neuraldbg::MakeSlot(session, site); }

void ndbg_session_arm(int32_t session, uint32_t armed) {
  if (const SessionUse use(session); use) use->Arm((armed & 1u) != 0);
}

void ndbg_session_context(int32_t session, uint32_t training, uint32_t grad_mode, uint32_t microbatch) {
  if (const SessionUse use(session); use) use->SetContext(training != 0, grad_mode != 0, microbatch);
}

void ndbg_session_modes(int32_t session, const uint32_t* sites, const uint8_t* evaluation, uint32_t count) {
  const SessionUse use(session);
  if (!use || sites == nullptr || evaluation == nullptr) return;
  for (std::uint32_t i = 0; i < count; ++i) use->SetModuleMode(sites[i], evaluation[i] != 0);
}

void ndbg_session_optimizer(int32_t session, const ndbg_optimizer* from) {
  const SessionUse use(session);
  if (!use || from == nullptr) return;
  neuraldbg::Record record{};
  record.kind = neuraldbg::RecordKind::kOptimizer;
  FillOptimizer(*from, *use, record);
  SetFlag(record, from->applied, neuraldbg::kFlagStepApplied);
  SetFlag(record, from->found_inf, neuraldbg::kFlagFoundInf);
  SetFlag(record, from->clipped, neuraldbg::kFlagClipped);
  use->Emit(from->site, record);
}

uint64_t ndbg_session_end_step(int32_t session, const ndbg_step* from) {
  const SessionUse use(session);
  if (!use || from == nullptr) return 0;
  neuraldbg::Record record{};
  record.kind = neuraldbg::RecordKind::kStep;
  FillStep(*from, record);
  SetFlag(record, from->applied, neuraldbg::kFlagStepApplied);
  SetFlag(record, from->found_inf, neuraldbg::kFlagFoundInf);
  SetFlag(record, from->grad_dirty, neuraldbg::kFlagGradDirty);
  SetFlag(record, from->unannounced, neuraldbg::kFlagUnannounced);
  SetFlag(record, from->all_parameters, neuraldbg::kFlagAllParameters);
  return use->EndStep(from->site, record);
}

uint64_t ndbg_session_step(int32_t session) {
  const SessionUse use(session);
  return use ? use->step() : 0;
}

void ndbg_session_status(int32_t session, ndbg_status* status) {
  if (status == nullptr) return;
  std::memset(status, 0, sizeof *status);
  const SessionUse use(session);
  if (!use) return;
  const neuraldbg::SessionStatus now = use->Status();
  status->attempts = now.attempts;
  status->dropped = now.dropped;
  status->agent_ns = now.agent_ns;
  status->records_this_step = now.records_this_step;
  status->nonfinite_this_step = now.nonfinite_this_step;
  status->nonfinite_total = now.nonfinite_total;
  status->step = now.step;
  status->lane_capacity = now.lane_capacity;
  status->enabled = now.enabled ? 1 : 0;
  status->lost = now.lost;
  status->replacements = now.replacements;
}

uint64_t ndbg_session_skipped(int32_t session) {
  const SessionUse use(session);
  return use ? use->Status().skipped_tensors : 0;
}

ndbg_gradient_norms* ndbg_gradient_norms_create() { return new (std::nothrow) ndbg_gradient_norms; }

void ndbg_gradient_norms_destroy(ndbg_gradient_norms* norms) { delete norms; }

const char* ndbg_gradient_norms_observe(ndbg_gradient_norms* norms, double norm) {
  return GradientHealthName(norms == nullptr ? GradientHealth::kUnknown : norms->series.Observe(norm));
}

const char* ndbg_gradient_norms_classify(const ndbg_gradient_norms* norms, double norm) {
  return GradientHealthName(norms == nullptr ? GradientHealth::kUnknown : norms->series.Classify(norm));
}

}  // extern "C"
