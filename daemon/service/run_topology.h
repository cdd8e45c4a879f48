// Names for the numbers of a run: which rank's manifest says what site 17 is.
//
// Records, transitions and hypotheses carry site ids, which mean something only together with the manifest of the rank
// (and incarnation) they came from. Lives for one call; reads a manifest when it is first asked for. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/store/store.h"

namespace neuraldbg {

class RunTopology {
 public:
  static absl::StatusOr<RunTopology> Load(StoreReader& reader, const StoredRun& run);
  // Of a run that is in no store.
  RunTopology(std::vector<StoredRank> ranks, std::map<RankKey, Topology> topologies);

  const std::vector<StoredRank>& ranks() const { return ranks_; }  // by rank, then incarnation
  // The newest incarnation of a rank; -1 or an unknown rank: of the lowest one. Null without any rank.
  const StoredRank* Newest(std::int64_t rank) const;
  bool HasRank(std::uint32_t rank) const;

  // Never null; empty for a rank whose manifest cannot be read.
  const Topology& Of(const RankKey& key);
  // Null where the manifest does not know the site.
  const SiteEntry* Site(const RankKey& key, std::uint32_t site);
  std::string SiteName(const RankKey& key, std::uint32_t site);

 private:
  RunTopology(StoreReader& reader, std::vector<StoredRank> ranks) : reader_(&reader), ranks_(std::move(ranks)) {}

  StoreReader* reader_ = nullptr;  // null: all is loaded
  std::vector<StoredRank> ranks_;
  std::map<RankKey, Topology> loaded_;
};

// The record kind that a site of this role reports with.
RecordKind KindOfRole(SiteRole role);

// Indices of `sites` in the order of the training step: by phase, then along the module graph (against it for
// gradients).
std::vector<std::size_t> SitesInStepOrder(const std::vector<SiteEntry>& sites);

}  // namespace neuraldbg
