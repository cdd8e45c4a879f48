// neuraldbg-segment-dump PATH [--release]: prints what a segment holds, one JSON object a line: first its identity,
// then the manifest's entries, then every record that is waiting in the ring, last the counters.
//
// A tool for people and tests: it reads through the same SegmentReader as the daemon. Without --release the ring is
// left as it was, so that a daemon still gets every record.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>

#include "shared/ring_reader.h"

namespace neuraldbg {
namespace {

using Json = nlohmann::ordered_json;

// JSON knows no NaN and no infinity; the spelling is that of the protobuf mapping.
Json Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "Infinity" : "-Infinity";
  return value;
}
template <typename T>
  requires std::is_integral_v<T>
Json Number(T value) {
  return value;
}
template <typename T>
  requires std::is_enum_v<T>
Json Number(T value) {
  return static_cast<std::uint64_t>(value);
}

void Print(const Json& line) { std::printf("%s\n", line.dump(-1, ' ', false, Json::error_handler_t::replace).c_str()); }

// One payload: adds the fields whose validity bit is set, and no others.
class Fields {
 public:
  Fields(Json& out, std::uint32_t validity) : out_(out), validity_(validity) {}
  template <typename T>
  void Put(unsigned bit, const char* name, T value) {
    if ((validity_ & ValidityBit(bit)) != 0) out_[name] = Number(value);
  }

 private:
  Json& out_;
  std::uint32_t validity_;
};

void PutTensor(Fields fields, const TensorPayload& p) {
  fields.Put(0, "numel", p.numel);
  fields.Put(1, "nan_count", p.nan_count);
  fields.Put(2, "inf_count", p.inf_count);
  fields.Put(3, "zero_count", p.zero_count);
  fields.Put(4, "saturated_count", p.saturated_count);
  fields.Put(5, "tiny_count", p.tiny_count);
  fields.Put(6, "dead_units", p.dead_units);
  fields.Put(7, "sum", p.sum);
  fields.Put(8, "sum_abs", p.sum_abs);
  fields.Put(9, "sum_squares", p.sum_squares);
  fields.Put(10, "max_abs", static_cast<double>(p.max_abs));
  fields.Put(11, "units", p.units);
  fields.Put(12, "bits", p.bits);
}

void PutParameter(Fields fields, const ParameterPayload& p) {
  fields.Put(0, "numel", p.numel);
  fields.Put(1, "bits", p.bits);
  fields.Put(2, "value_sum", p.value_sum);
  fields.Put(3, "value_sum_squares", p.value_sum_squares);
  fields.Put(4, "gradient_sum_squares", p.gradient_sum_squares);
  fields.Put(5, "update_sum_squares", p.update_sum_squares);
  fields.Put(6, "gradient_dot_update", p.gradient_dot_update);
  fields.Put(7, "value_max_abs", static_cast<double>(p.value_max_abs));
  fields.Put(8, "gradient_max_abs", static_cast<double>(p.gradient_max_abs));
  fields.Put(9, "value_nonfinite", p.value_nonfinite);
  fields.Put(10, "gradient_nonfinite", p.gradient_nonfinite);
  fields.Put(11, "gradient_zero", p.gradient_zero);
  fields.Put(12, "changed", p.changed);
}

void PutOptimizer(Fields fields, const OptimizerPayload& p) {
  fields.Put(0, "learning_rate", p.learning_rate);
  fields.Put(1, "loss_scale", p.loss_scale);
  fields.Put(2, "weight_decay", p.weight_decay);
  fields.Put(3, "gradient_sum_squares", p.gradient_sum_squares);
  fields.Put(4, "update_sum_squares", p.update_sum_squares);
  fields.Put(5, "beta1", static_cast<double>(p.beta1));
  fields.Put(6, "beta2", static_cast<double>(p.beta2));
  fields.Put(7, "epsilon", static_cast<double>(p.epsilon));
  fields.Put(8, "group", p.group);
  fields.Put(9, "parameter_count", p.parameter_count);
  fields.Put(10, "skipped_total", p.skipped_total);
  fields.Put(11, "observed_count", p.observed_count);
}

void PutLoss(Fields fields, const LossPayload& p) {
  fields.Put(0, "value", p.value);
  fields.Put(1, "label_count", p.label_count);
  fields.Put(2, "label_ignored", p.label_ignored);
  fields.Put(3, "label_sum", p.label_sum);
  fields.Put(4, "label_sum_squares", p.label_sum_squares);
  fields.Put(5, "logit_gradient_sum_abs", p.logit_gradient_sum_abs);
  fields.Put(6, "logsumexp_mean", p.logsumexp_mean);
  fields.Put(7, "loss_kind", p.loss_kind);
  fields.Put(8, "reduction", p.reduction);
  fields.Put(9, "class_count", p.class_count);
  fields.Put(10, "nonfinite", p.nonfinite);
}

void PutStep(Fields fields, const StepPayload& p) {
  fields.Put(0, "attempts_total", p.attempts_total);
  fields.Put(1, "dropped_total", p.dropped_total);
  fields.Put(2, "samples", p.samples);
  fields.Put(3, "duration_ns", p.duration_ns);
  fields.Put(4, "agent_ns", p.agent_ns);
  fields.Put(5, "microbatches", p.microbatches);
  fields.Put(6, "cadence", p.cadence);
  fields.Put(7, "cadence_phase", p.cadence_phase);
  fields.Put(8, "rotation_group", p.rotation_group);
  fields.Put(9, "rotation_groups", p.rotation_groups);
  fields.Put(10, "shed_level", p.shed_level);
  fields.Put(11, "skipped_total", p.skipped_total);
  fields.Put(12, "recompiles", p.recompiles);
}

void PrintRecord(std::uint32_t lane, const Record& record) {
  static constexpr const char* kKinds[kRecordKindCount] = {"NONE",  "TENSOR", "PARAMETER", "OPTIMIZER", "LOSS",
                                                           "BATCH", "STEP",   "PHASES",    "ATTENTION", "ROUTER"};
  const auto kind = static_cast<std::uint8_t>(record.kind);
  Json line{{"record", kind < kRecordKindCount ? kKinds[kind] : "UNKNOWN"},
            {"step", record.step},
            {"site", record.site},
            {"phase", Number(record.phase)},
            {"dtype", Number(record.dtype)},
            {"flags", record.flags},
            {"call", record.call},
            {"microbatch", record.microbatch},
            {"lane", lane},
            {"attempt", record.attempt},
            {"time_ns", record.time_ns}};
  const Fields fields(line, record.validity);
  switch (record.kind) {
    case RecordKind::kTensor:
    case RecordKind::kBatch:
      PutTensor(fields, record.tensor);
      break;
    case RecordKind::kParameter:
      PutParameter(fields, record.parameter);
      break;
    case RecordKind::kOptimizer:
      PutOptimizer(fields, record.optimizer);
      break;
    case RecordKind::kLoss:
      PutLoss(fields, record.loss);
      break;
    case RecordKind::kStep:
      PutStep(fields, record.step_end);
      break;
    default:
      break;
  }
  Print(line);
}

struct EntryPrinter {
  void operator()(const RunEntry& e) const {
    Print({{"entry", "run"},
           {"run_name", e.run_name},
           {"launch", e.launch},
           {"host", e.host},
           {"framework", e.framework},
           {"agent_version", e.agent_version},
           {"rank", e.rank},
           {"world_size", e.world_size},
           {"incarnation", e.incarnation},
           {"start_step", e.start_step},
           {"compiled", e.compiled},
           {"graph_exact", e.graph_exact},
           {"planned_sites", e.planned_sites},
           {"parameter_count", e.parameter_count}});
  }
  void operator()(const SiteEntry& e) const {
    Print({{"entry", "site"},
           {"id", e.id},
           {"name", e.name},
           {"module", e.module},
           {"module_kind", e.module_kind},
           {"role", Number(e.role)},
           {"phase", Number(e.phase)},
           {"dtype", Number(e.dtype)},
           {"requires_grad", e.requires_grad},
           {"level", Number(e.level)},
           {"topological_index", e.topological_index},
           {"twin", e.twin},
           {"covered_by", e.covered_by},
           {"tie_group", e.tie_group},
           {"optimizer_group", e.optimizer_group},
           {"owner", e.owner},
           {"shape", e.shape}});
  }
  void operator()(const EdgeEntry& e) const {
    Print({{"entry", "edge"}, {"producer", e.producer}, {"consumer", e.consumer}});
  }
  void operator()(const SinkEntry& e) const { Print({{"entry", "sink"}, {"site", e.site}}); }
  void operator()(const ParameterInitEntry& e) const {
    Print({{"entry", "parameter_init"},
           {"site", e.site},
           {"numel", e.numel},
           {"sum", Number(e.sum)},
           {"sum_squares", Number(e.sum_squares)},
           {"max_abs", Number(static_cast<double>(e.max_abs))},
           {"bits", e.bits}});
  }
  void operator()(const MarkEntry& e) const { Print({{"entry", "mark"}, {"step", e.step}, {"text", e.text}}); }
  void operator()(const ReadyEntry& e) const { Print({{"entry", "ready"}, {"step", e.step}}); }
};

void PrintIdentity(const SegmentReader& reader) {
  const SegmentIdentity& identity = reader.identity();
  Print({{"segment", identity.path},
         {"pid", identity.pid},
         {"rank", identity.rank},
         {"world_size", identity.world_size},
         {"incarnation", identity.incarnation},
         {"lanes", identity.lanes},
         {"lane_capacity", identity.lane_capacity},
         {"sites", identity.sites},
         {"owner_state", Number(reader.owner_state())},
         {"heartbeat_ns", reader.heartbeat_ns()}});
}

void PrintCounters(const SegmentReader& reader) {
  Json lanes = Json::array();
  for (const LaneCounters& lane : reader.counters()) {
    lanes.push_back({{"consumed", lane.consumed},
                     {"dropped", lane.dropped},
                     {"invalid", lane.invalid},
                     {"resyncs", lane.resyncs},
                     {"quarantined", lane.quarantined}});
  }
  Print({{"counters", lanes}, {"dropped_total", reader.dropped_total()}});
}

int Dump(const std::string& path, bool release) {
  auto attached = SegmentReader::Attach(path);
  if (!attached.ok()) {
    std::fprintf(stderr, "%s: %s\n", path.c_str(), attached.error().message);
    return 2;
  }
  SegmentReader& reader = *attached.value();
  PrintIdentity(reader);
  const Error manifest = reader.manifest().Poll([](const ManifestEntry& entry) { std::visit(EntryPrinter{}, entry); });
  if (manifest.code != Errc::kOk) std::fprintf(stderr, "manifest: %s\n", manifest.message);
  while (reader.Drain([](std::uint32_t lane, std::span<const Record> records) {
    for (const Record& record : records) PrintRecord(lane, record);
  }) != 0) {
  }
  PrintCounters(reader);
  if (release) reader.Release();
  return manifest.code == Errc::kOk ? 0 : 1;
}

}  // namespace
}  // namespace neuraldbg

int main(int argc, char** argv) {
  const bool release = argc == 3 && std::strcmp(argv[2], "--release") == 0;
  if (argc != 2 && !release) {
    std::fprintf(stderr, "usage: %s PATH [--release]\n", argv[0]);
    return 2;
  }
  return neuraldbg::Dump(argv[1], release);
}
