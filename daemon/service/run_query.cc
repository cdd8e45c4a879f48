#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "daemon/service/convert.h"
#include "daemon/service/paging.h"
#include "daemon/service/query.h"
#include "daemon/service/run_topology.h"

namespace neuraldbg {
namespace {

// What is said of a run does not depend on those that the caller may not see.
absl::Status NoSuchRun(StoreReader& reader, const Caller& caller, const std::string& name) {
  if (name.empty()) return absl::NotFoundError("There is no run yet.");
  const std::size_t at = name.find('@');
  const std::string plain = name.substr(0, at);
  if (at != std::string::npos && !plain.empty() && ResolveRun(reader, caller, plain).ok()) {
    return absl::NotFoundError(absl::StrCat("Run '", plain, "' has no launch '", name.substr(at + 1), "'."));
  }
  return absl::NotFoundError(absl::StrCat("There is no run '", plain, "'."));
}

// The sites of all asked ranks under one name each, in the order in which they were first seen.
class SiteList {
 public:
  // `newest`: this incarnation says whether the site reports now; older ones only add their records.
  void Add(const SiteEntry& entry, const SiteSummary* summary, bool newest) {
    const auto [found, inserted] = index_.try_emplace(entry.name, sites_.size());
    if (inserted) sites_.push_back(ToProto(entry));
    v1::Site& site = sites_[found->second];
    if (summary == nullptr || summary->records == 0) return;
    site.set_records(site.records() + static_cast<double>(summary->records));
    site.set_last_step(std::max(site.last_step(), ToStep(summary->last_step)));
    if (newest) site.set_state(v1::Site::REPORTING);
  }
  std::vector<v1::Site> Take() { return std::move(sites_); }

 private:
  std::map<std::string, std::size_t> index_;
  std::vector<v1::Site> sites_;
};

absl::Status CollectSites(StoreReader& reader, RunTopology& topology, const StoredRank& rank, SiteList& list) {
  absl::StatusOr<std::vector<SiteSummary>> totals = reader.SiteTotals(rank.key);
  if (!totals.ok()) return totals.status();
  std::map<std::uint32_t, const SiteSummary*> by_site;
  for (const SiteSummary& summary : *totals) by_site[summary.site] = &summary;
  const std::vector<SiteEntry>& sites = topology.Of(rank.key).sites;
  const bool newest = topology.Newest(rank.key.rank)->key == rank.key;
  for (const std::size_t index : SitesInStepOrder(sites)) {
    const auto found = by_site.find(static_cast<std::uint32_t>(index));
    list.Add(sites[index], found == by_site.end() ? nullptr : found->second, newest);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StoredRun> ResolveRun(StoreReader& reader, const Caller& caller, const std::string& name) {
  if (caller.admin) {
    absl::StatusOr<StoredRun> run = reader.FindRun(name);
    return absl::IsNotFound(run.status()) ? NoSuchRun(reader, caller, name) : run;
  }
  absl::StatusOr<std::vector<StoredRun>> runs = reader.ListRuns();
  if (!runs.ok()) return runs.status();
  // name#1 is the first launch, which is displayed by its plain name.
  const auto matches = [&](const StoredRun& run) {
    return caller.Sees(run) && (name.empty() || run.name == name || run.display_name == name ||
                                (run.display_name == run.name && run.name + "#1" == name) ||
                                absl::StrCat(run.name, "@", run.launch) == name);
  };
  const auto found = std::find_if(runs->begin(), runs->end(), matches);  // newest first
  if (found == runs->end()) return NoSuchRun(reader, caller, name);
  return *found;
}

absl::StatusOr<v1::ListRunsResponse> ListRuns(StoreReader& reader, const Caller& caller,
                                              const v1::ListRunsRequest& request, Warnings warnings) {
  const absl::StatusOr<std::uint64_t> offset = ParsePageToken(request.page_token());
  if (!offset.ok()) return offset.status();
  absl::StatusOr<std::vector<StoredRun>> runs = reader.ListRuns();
  if (!runs.ok()) return runs.status();
  std::erase_if(*runs, [&](const StoredRun& run) { return !caller.Sees(run); });
  const PageRange page = PageOf(*offset, PageSize(request.page_size(), kRunsPerPageDefault), runs->size());
  v1::ListRunsResponse response;
  for (std::size_t i = page.begin; i < page.end; ++i) {
    const absl::StatusOr<Diagnosis> diagnosis = reader.GetDiagnosis((*runs)[i].id);
    if (!diagnosis.ok() && !absl::IsNotFound(diagnosis.status())) return diagnosis.status();
    *response.add_runs() = ToProto((*runs)[i], diagnosis.ok() ? diagnosis->verdict : Verdict::INCOMPLETE_DATA);
  }
  if (page.more) response.set_next_page_token(absl::StrCat(page.end));
  if (*offset > 0) return response;
  for (const DaemonWarning& warning : warnings) *response.add_warnings() = ToProto(warning);
  return response;
}

absl::StatusOr<v1::GetRunResponse> GetRun(StoreReader& reader, const Caller& caller, const v1::GetRunRequest& request) {
  const absl::StatusOr<StoredRun> run = ResolveRun(reader, caller, request.run());
  if (!run.ok()) return run.status();
  const absl::StatusOr<Diagnosis> diagnosis = reader.GetDiagnosis(run->id);
  if (!diagnosis.ok() && !absl::IsNotFound(diagnosis.status())) return diagnosis.status();
  v1::GetRunResponse response;
  *response.mutable_run() = ToProto(*run, diagnosis.ok() ? diagnosis->verdict : Verdict::INCOMPLETE_DATA);
  return response;
}

absl::StatusOr<v1::ListRanksResponse> ListRanks(StoreReader& reader, const Caller& caller,
                                                const v1::ListRanksRequest& request) {
  const absl::StatusOr<std::uint64_t> offset = ParsePageToken(request.page_token());
  if (!offset.ok()) return offset.status();
  const absl::StatusOr<StoredRun> run = ResolveRun(reader, caller, request.run());
  if (!run.ok()) return run.status();
  absl::StatusOr<RunTopology> topology = RunTopology::Load(reader, *run);
  if (!topology.ok()) return topology.status();
  const PageRange page = PageOf(*offset, PageSize(request.page_size(), kPageSizeMax), topology->ranks().size());
  v1::ListRanksResponse response;
  for (std::size_t i = page.begin; i < page.end; ++i) *response.add_ranks() = ToProto(topology->ranks()[i], *topology);
  if (page.more) response.set_next_page_token(absl::StrCat(page.end));
  return response;
}

absl::StatusOr<v1::ListSitesResponse> ListSites(StoreReader& reader, const Caller& caller,
                                                const v1::ListSitesRequest& request) {
  const absl::StatusOr<std::uint64_t> offset = ParsePageToken(request.page_token());
  if (!offset.ok()) return offset.status();
  const absl::StatusOr<StoredRun> run = ResolveRun(reader, caller, request.run());
  if (!run.ok()) return run.status();
  absl::StatusOr<RunTopology> topology = RunTopology::Load(reader, *run);
  if (!topology.ok()) return topology.status();
  if (request.has_rank() && !topology->HasRank(request.rank())) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank: run '", run->display_name, "' has no rank ", request.rank(), "."));
  }
  SiteList list;
  for (const StoredRank& rank : topology->ranks()) {
    if (request.has_rank() && rank.key.rank != request.rank()) continue;
    const absl::Status status = CollectSites(reader, *topology, rank, list);
    if (!status.ok()) return status;
  }
  std::vector<v1::Site> sites = list.Take();
  const PageRange page = PageOf(*offset, PageSize(request.page_size(), kPageSizeMax), sites.size());
  v1::ListSitesResponse response;
  for (std::size_t i = page.begin; i < page.end; ++i) *response.add_sites() = std::move(sites[i]);
  if (page.more) response.set_next_page_token(absl::StrCat(page.end));
  return response;
}

}  // namespace neuraldbg
