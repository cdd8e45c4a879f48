#include "daemon/infer/run_engine.h"

#include <map>
#include <utility>

#include "daemon/infer/assembly.h"
#include "daemon/infer/rank_inference.h"

namespace neuraldbg {
namespace {

constexpr std::uint64_t kSnapshotMagic = 0x32676e456e67644eULL;
// Raised whenever a field of any detector changes (tests/daemon/infer/snapshot_layout_test.cc notices): a snapshot of
// another release is foreign.
constexpr std::uint32_t kSnapshotVersion = 6;
constexpr std::size_t kHeaderBytes = 24;  // magic, version, reserved, checksum of the rest

std::uint64_t Checksum(std::span<const std::byte> bytes) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a, 64 bits: against damage, not against malice
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3ULL;
  return hash;
}

template <typename Archive>
void VisitTransition(Archive& archive, Transition& t) {
  Fields(archive, t.id, t.step, t.rank, t.incarnation, t.site, t.phase, t.statistic, t.from, t.to, t.value,
         t.expected_low, t.expected_high, t.severity);
}

}  // namespace

struct RunEngine::Impl {
  std::map<std::uint32_t, RankInference> ranks;
  std::vector<Transition> pending;  // emitted and not yet taken
  std::uint64_t next_transition = 0;

  // The rank's state for the incarnation of `key`; nullptr for records of one that was already replaced.
  RankInference* Find(const RankKey& key) {
    const auto [entry, added] = ranks.try_emplace(key.rank);
    RankInference& rank = entry->second;
    if (!added && key.incarnation < rank.incarnation()) return nullptr;
    if (!added && key.incarnation > rank.incarnation()) rank.Restart();
    rank.set_identity(key.rank, key.incarnation);
    return &rank;
  }

  void Number(std::size_t first) {
    for (std::size_t i = first; i < pending.size(); ++i) pending[i].id = next_transition++;
  }

  template <typename Archive>
  void Visit(Archive& archive) {
    Field(archive, next_transition);
    VisitList(archive, pending, [&](Transition& transition) { VisitTransition(archive, transition); });
    std::uint64_t count = archive.Count(ranks.size(), 1);
    if constexpr (Archive::kReading) {
      ranks.clear();
      for (; count > 0 && archive.ok(); --count) {
        std::uint32_t rank = 0;
        Field(archive, rank);
        RankInference& state = ranks[rank];
        state.Visit(archive);
        if (!state.Valid()) archive.Fail();
      }
    } else {
      for (auto& [rank, state] : ranks) {
        std::uint32_t number = rank;
        Field(archive, number);
        state.Visit(archive);
      }
    }
  }
};

RunEngine::RunEngine() : impl_(std::make_unique<Impl>()) {}
RunEngine::~RunEngine() = default;

void RunEngine::SetTopology(const RankKey& rank, const Topology& topology) {
  if (RankInference* state = impl_->Find(rank)) state->SetTopology(topology);
}

void RunEngine::OnFrame(const StepFrame& frame) {
  const std::size_t first = impl_->pending.size();
  if (RankInference* state = impl_->Find(frame.rank)) state->OnFrame(frame, impl_->pending);
  impl_->Number(first);
}

void RunEngine::OnRankFate(const RankKey& rank, RankFate fate, std::uint64_t last_step, std::uint32_t last_site,
                           std::vector<LastPlace> places) {
  const std::size_t first = impl_->pending.size();
  if (RankInference* state = impl_->Find(rank))
    state->OnFate(fate, last_step, last_site, std::move(places), impl_->pending);
  impl_->Number(first);
}

std::vector<Transition> RunEngine::TakeTransitions() { return std::exchange(impl_->pending, {}); }

Diagnosis RunEngine::Diagnose() const { return Assemble(impl_->ranks); }

std::vector<LastPlace> RunEngine::LastPlaces(std::uint32_t rank) const {
  const auto found = impl_->ranks.find(rank);
  return found == impl_->ranks.end() ? std::vector<LastPlace>{} : found->second.last_places();
}

std::vector<std::byte> RunEngine::Snapshot() const {
  StateWriter body;
  impl_->Visit(body);  // a writer changes nothing
  StateWriter snapshot;
  std::uint64_t magic = kSnapshotMagic, checksum = Checksum(body.bytes());
  std::uint32_t version = kSnapshotVersion, reserved = 0;
  Fields(snapshot, magic, version, reserved, checksum);
  snapshot.Raw(body.bytes().data(), body.bytes().size());
  return std::move(snapshot.bytes());
}

bool RunEngine::Restore(std::span<const std::byte> snapshot) {
  impl_ = std::make_unique<Impl>();
  if (snapshot.size() < kHeaderBytes) return false;
  StateReader header(snapshot.first(kHeaderBytes));
  std::uint64_t magic = 0, checksum = 0;
  std::uint32_t version = 0, reserved = 0;
  Fields(header, magic, version, reserved, checksum);
  const std::span<const std::byte> body = snapshot.subspan(kHeaderBytes);
  if (magic != kSnapshotMagic || version != kSnapshotVersion || checksum != Checksum(body)) return false;
  StateReader reader(body);
  impl_->Visit(reader);
  if (reader.ok() && reader.AtEnd()) return true;
  impl_ = std::make_unique<Impl>();
  return false;
}

}  // namespace neuraldbg
