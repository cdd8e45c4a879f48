#include "daemon/store/run_import.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/store/portable_run.h"
#include "daemon/store/status_macros.h"

namespace neuraldbg {
namespace {

constexpr char kImported[] = "imported:";
// A commit is a dozen statements, whatever it holds.
constexpr std::size_t kFramesPerCommit = 64;
constexpr std::size_t kTransitionsPerCommit = 1024;

// A run that was imported, exported and imported again is the same run.
std::string LaunchOf(const StoredRun& run) {
  if (absl::StartsWith(run.launch, kImported)) return run.launch;
  return SanitizeString(absl::StrCat(kImported, run.created_realtime_ns, ":", run.launch));
}

class Importer final : public RunSink {
 public:
  Importer(Store& store, std::uint32_t owner_uid) : store_(store), owner_uid_(owner_uid) {}

  absl::Status OnRun(const StoredRun& run) override {
    const std::string launch = LaunchOf(run);
    const absl::StatusOr<StoredRun> known = store_.FindRun(absl::StrCat(run.name, "@", launch));
    if (known.ok()) {
      return absl::AlreadyExistsError(absl::StrCat("This run was imported before, as ", known->display_name, "."));
    }
    if (!absl::IsNotFound(known.status())) return known.status();
    STORE_ASSIGN_OR_RETURN(run_, store_.AdoptRun(owner_uid_, run.name, launch, run.world_size, run.framework));
    state_ = run.state == RunState::kRunning ? RunState::kFinished : run.state;
    return absl::OkStatus();
  }

  absl::Status OnRank(RecordedRank recorded) override {
    const RankKey in_file = recorded.rank.key;
    StoredRank& rank = ranks_[in_file];
    rank = std::move(recorded.rank);
    rank.key.run_id = run_.id;
    if (rank.state == RankState::kRunning) rank.state = RankState::kFinished;
    STORE_RETURN_IF_ERROR(Open(in_file));
    commit_.manifest = std::move(recorded.manifest);
    commit_.site_totals = std::move(recorded.site_totals);
    return Flush();
  }

  absl::Status OnTransition(Transition transition) override {
    if (!open_) return absl::DataLossError("The file has transitions of a run without ranks.");
    commit_.transitions.push_back(std::move(transition));
    return commit_.transitions.size() < kTransitionsPerCommit ? absl::OkStatus() : Flush();
  }

  absl::Status OnFrame(StepFrame frame) override {
    STORE_RETURN_IF_ERROR(Open(frame.rank));
    frame.rank = commit_.rank.key;
    commit_.frames.push_back(std::move(frame));
    return commit_.frames.size() < kFramesPerCommit ? absl::OkStatus() : Flush();
  }

  absl::Status OnDiagnosis(Diagnosis diagnosis) override {
    if (!open_) return absl::OkStatus();  // nothing was recorded, so there is nothing that it could be about
    commit_.diagnosis = std::move(diagnosis);
    return Flush();
  }

  absl::StatusOr<StoredRun> Finish() {
    if (open_) STORE_RETURN_IF_ERROR(Flush());
    STORE_RETURN_IF_ERROR(store_.SetRunState(run_.id, state_));
    return store_.FindRun(run_.display_name);
  }

 private:
  // Makes the commit one of this rank.
  absl::Status Open(const RankKey& in_file) {
    if (open_ && opened_ == in_file) return absl::OkStatus();
    if (open_) STORE_RETURN_IF_ERROR(Flush());
    opened_ = in_file;
    commit_.rank = ranks_.at(in_file);
    open_ = true;
    return absl::OkStatus();
  }

  absl::Status Flush() {
    absl::Status status = store_.Apply(commit_);
    StoredRank rank = std::move(commit_.rank);
    commit_ = {};
    commit_.rank = std::move(rank);
    return status;
  }

  Store& store_;
  const std::uint32_t owner_uid_;
  StoredRun run_;
  RunState state_ = RunState::kFinished;
  std::map<RankKey, StoredRank> ranks_;  // by the key that the file uses
  RankKey opened_;
  bool open_ = false;
  Commit commit_;
};

}  // namespace

absl::StatusOr<StoredRun> ImportRun(Store& store, const std::string& path, std::uint32_t owner_uid) {
  Importer importer(store, owner_uid);
  absl::StatusOr<StoredRun> imported = absl::UnknownError("");
  STORE_RETURN_IF_ERROR(store.Together([&]() -> absl::Status {
    STORE_RETURN_IF_ERROR(ReadPortableRun(path, importer));
    imported = importer.Finish();
    return imported.status();
  }));
  return imported;
}

}  // namespace neuraldbg
