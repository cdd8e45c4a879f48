// Fuzz target: an exported run. The first byte says what the input is: 0 a file, 1 what lies behind magic and version,
// 2 the sections as they are inside the zstd stream, without which nothing behind the decompression would be reached,
// 3 the same into detection and inference.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "daemon/infer/run_engine.h"
#include "daemon/store/portable_codec.h"
#include "daemon/store/portable_run.h"

namespace {

using namespace neuraldbg;
using store::Bytes;
using store::ByteSpan;

void Require(bool holds) {
  if (!holds) std::abort();
}

ByteSource SourceOf(ByteSpan bytes) {
  return [bytes](std::span<std::byte> to) mutable -> absl::StatusOr<std::size_t> {
    const std::size_t size = std::min(to.size(), bytes.size());
    if (size > 0) std::memcpy(to.data(), bytes.data(), size);
    bytes = bytes.subspan(size);
    return size;
  };
}

// What was accepted must encode to something that decodes to the same.
template <typename T, typename Encode, typename Decode>
void CheckExact(const T& value, Encode encode, Decode decode) {
  Bytes once, twice;
  encode(value, once);
  const auto again = decode(once);
  Require(again.has_value());
  encode(*again, twice);
  Require(once == twice);
}

class CheckingSink : public RunSink {
 public:
  absl::Status OnRun(const StoredRun& run) override {
    Require(!run.name.empty() && run.launch.size() <= kMaxStringBytes);
    CheckExact(run, store::EncodeRun, store::DecodeRun);
    return absl::OkStatus();
  }
  absl::Status OnRank(RecordedRank rank) override {
    Require(rank.rank.key.rank < kRanksMax && store::SitesOf(rank) <= store::kRecordedSitesMax);
    CheckExact(rank, store::EncodeRank, store::DecodeRank);
    return absl::OkStatus();
  }
  absl::Status OnTransition(Transition transition) override {
    Require(transition.from.size() <= kMaxStringBytes && transition.statistic < Statistic::kCount);
    return absl::OkStatus();
  }
  absl::Status OnFrame(StepFrame frame) override {
    for (const Sample& sample : frame.samples) {
      Require(static_cast<std::uint8_t>(sample.kind) < kRecordKindCount && sample.site != kNoSite);
    }
    return absl::OkStatus();
  }
  absl::Status OnDiagnosis(Diagnosis diagnosis) override {
    CheckExact(diagnosis, store::EncodeDiagnosis, store::DecodeDiagnosis);
    return absl::OkStatus();
  }
};

// As a replay does. Ranks with many sites say no more than ones with few, and take long.
class EngineSink final : public CheckingSink {
 public:
  absl::Status OnRank(RecordedRank rank) override {
    constexpr std::size_t kSites = 64, kRanks = 4;
    const std::size_t sites = store::SitesOf(rank);
    if (sites > kSites || ++ranks_ > kRanks) return absl::OutOfRangeError("");
    Topology topology;
    topology.sites.resize(sites);
    for (std::uint32_t id = 0; id < sites; ++id) topology.sites[id].id = id;
    for (const ManifestEntry& entry : rank.manifest) Add(entry, topology);
    engine_.SetTopology(rank.rank.key, topology);
    ends_.push_back(std::move(rank.rank));
    places_.push_back(std::move(rank.last_places));
    return absl::OkStatus();
  }
  absl::Status OnFrame(StepFrame frame) override {
    engine_.OnFrame(frame);
    engine_.TakeTransitions();
    return absl::OkStatus();
  }
  void Finish() {
    for (std::size_t i = 0; i < ends_.size(); ++i) {
      engine_.OnRankFate(ends_[i].key, RankFate::kDied, ends_[i].last_step, ends_[i].last_site, places_[i]);
    }
    engine_.Diagnose();
    RunEngine restored;
    Require(restored.Restore(engine_.Snapshot()));
  }

 private:
  static void Add(const ManifestEntry& entry, Topology& topology) {
    if (const auto* site = std::get_if<SiteEntry>(&entry)) topology.sites[site->id] = *site;
    if (const auto* edge = std::get_if<EdgeEntry>(&entry)) topology.edges.push_back(*edge);
    if (const auto* sink = std::get_if<SinkEntry>(&entry)) topology.sinks.push_back(sink->site);
    if (const auto* init = std::get_if<ParameterInitEntry>(&entry)) topology.parameter_inits.push_back(*init);
    if (const auto* mark = std::get_if<MarkEntry>(&entry)) topology.marks.push_back(*mark);
    if (const auto* run = std::get_if<RunEntry>(&entry)) topology.run = *run;
  }

  RunEngine engine_;
  std::size_t ranks_ = 0;
  std::vector<StoredRank> ends_;
  std::vector<std::vector<LastPlace>> places_;
};

void PlayIntoEngine(ByteSpan sections) {
  EngineSink sink;
  if (ReadPortableSections(SourceOf(sections), sink).ok()) sink.Finish();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 1) return 0;
  const ByteSpan input(reinterpret_cast<const std::byte*>(data) + 1, bytes - 1);
  CheckingSink sink;
  switch (data[0] % 4) {
    case 0:
      ReadPortableRun(SourceOf(input), sink).IgnoreError();
      break;
    case 1: {
      Bytes file;
      store::ByteWriter writer(file);
      writer.Append(std::as_bytes(std::span(store::kPortableMagic)));
      writer.Fixed(store::kPortableVersion);
      writer.Append(input);
      ReadPortableRun(SourceOf(file), sink).IgnoreError();
      break;
    }
    case 2:
      ReadPortableSections(SourceOf(input), sink).IgnoreError();
      break;
    default:
      PlayIntoEngine(input);
  }
  return 0;
}
