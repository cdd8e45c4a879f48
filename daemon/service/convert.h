// From the daemon's values to the messages of neuraldbg.v1. The only place where the two meet, so that neither side
// has to know how the other is laid out. Pure functions; names of sites come from a RunTopology.
#pragma once

#include "daemon/model/daemon_warnings.h"
#include "daemon/model/diagnosis.h"
#include "daemon/service/run_topology.h"
#include "daemon/store/store.h"
#include "neuraldbg/v1/diagnosis.pb.h"
#include "neuraldbg/v1/event.pb.h"
#include "neuraldbg/v1/run.pb.h"
#include "neuraldbg/v1/series.pb.h"

namespace neuraldbg {

// Steps are 64 bits wide inside and 32 bits in messages (a JSON number): the last representable step stands for all
// after it.
std::uint32_t ToStep(std::uint64_t step);

v1::TrainingStep::Phase ToProto(Phase phase);
v1::Hypothesis::Kind ToProto(HypothesisKind kind);
v1::Diagnosis::Verdict ToProto(Verdict verdict);
v1::Site::Kind ToProto(RecordKind kind);

v1::Run ToProto(const StoredRun& run, Verdict verdict);
v1::DaemonWarning ToProto(const DaemonWarning& warning);
v1::Rank ToProto(const StoredRank& rank, RunTopology& topology);
v1::Event ToProto(const Transition& transition, const StoredRun& run, RunTopology& topology);
v1::Diagnosis ToProto(const Diagnosis& diagnosis, const StoredRun& run, RunTopology& topology);

// `records` and `last_step` are left for the caller to add up over ranks.
v1::Site ToProto(const SiteEntry& site);
v1::Series ToProto(const Series& series, const SiteEntry& site, Statistic statistic);
v1::CausalGraph ToProto(const Topology& topology, const StoredRun& run);

}  // namespace neuraldbg
