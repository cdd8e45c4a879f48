#include "daemon/service/run_topology.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace neuraldbg {

namespace {

bool Before(const StoredRank& a, const StoredRank& b) { return a.key < b.key; }

}  // namespace

RunTopology::RunTopology(std::vector<StoredRank> ranks, std::map<RankKey, Topology> topologies)
    : ranks_(std::move(ranks)), loaded_(std::move(topologies)) {
  std::sort(ranks_.begin(), ranks_.end(), Before);
}

absl::StatusOr<RunTopology> RunTopology::Load(StoreReader& reader, const StoredRun& run) {
  absl::StatusOr<std::vector<StoredRank>> ranks = reader.ListRanks(run.id);
  if (!ranks.ok()) return ranks.status();
  std::sort(ranks->begin(), ranks->end(), Before);
  return RunTopology(reader, *std::move(ranks));
}

const StoredRank* RunTopology::Newest(std::int64_t rank) const {
  if (ranks_.empty()) return nullptr;
  const bool known = rank >= 0 && HasRank(static_cast<std::uint32_t>(rank));
  const std::uint32_t wanted = known ? static_cast<std::uint32_t>(rank) : ranks_.front().key.rank;
  const StoredRank* newest = nullptr;
  for (const StoredRank& entry : ranks_) {
    if (entry.key.rank == wanted) newest = &entry;  // sorted: the last one is the newest incarnation
  }
  return newest;
}

bool RunTopology::HasRank(std::uint32_t rank) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&](const StoredRank& entry) { return entry.key.rank == rank; });
}

const Topology& RunTopology::Of(const RankKey& key) {
  const auto found = loaded_.find(key);
  if (found != loaded_.end()) return found->second;
  if (reader_ == nullptr) return loaded_[key];
  absl::StatusOr<Topology> topology = reader_->GetTopology(key);
  // A rank that died before its manifest was written still has counters and events worth showing, without names.
  return loaded_.emplace(key, topology.ok() ? *std::move(topology) : Topology{}).first->second;
}

const SiteEntry* RunTopology::Site(const RankKey& key, std::uint32_t site) {
  const Topology& topology = Of(key);
  return site < topology.sites.size() ? &topology.sites[site] : nullptr;
}

std::string RunTopology::SiteName(const RankKey& key, std::uint32_t site) {
  if (site == kNoSite) return "";
  const SiteEntry* entry = Site(key, site);
  return entry == nullptr || entry->name.empty() ? absl::StrCat("#", site) : entry->name;
}

RecordKind KindOfRole(SiteRole role) {
  switch (role) {
    case SiteRole::kOutput:
    case SiteRole::kInput:
    case SiteRole::kMerge:
    case SiteRole::kOutputGradient:
    case SiteRole::kInputGradient:
    case SiteRole::kMergeGradient:
      return RecordKind::kTensor;
    case SiteRole::kParameter:
      return RecordKind::kParameter;
    case SiteRole::kOptimizer:
      return RecordKind::kOptimizer;
    case SiteRole::kLoss:
      return RecordKind::kLoss;
    case SiteRole::kBatch:
      return RecordKind::kBatch;
    case SiteRole::kStep:
      return RecordKind::kStep;
    case SiteRole::kSystem:
      return RecordKind::kPhases;
  }
  return RecordKind::kNone;
}

std::vector<std::size_t> SitesInStepOrder(const std::vector<SiteEntry>& sites) {
  const auto position = [&](std::size_t index) {
    const SiteEntry& site = sites[index];
    const auto along = static_cast<std::int64_t>(site.topological_index);
    return std::tuple(site.phase, site.phase == Phase::kBackward ? -along : along, index);
  };
  std::vector<std::size_t> order(sites.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return position(a) < position(b); });
  return order;
}

}  // namespace neuraldbg
