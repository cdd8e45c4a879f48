// The mutating half of the store: turns a Commit into rows, inside the caller's transaction.
//
// Owner: the one Store of a data directory. It keeps nothing between calls: whatever a later commit needs is in the
// database, so a writer that was killed and started again goes on exactly where the last transaction ended.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/store/sqlite_connection.h"
#include "daemon/store/store.h"

namespace neuraldbg::store {

class StoreWriter {
 public:
  explicit StoreWriter(SqliteConnection& database) : database_(database) {}

  // Each is one transaction; on any error the previous state stands.
  absl::StatusOr<std::uint64_t> AdoptRun(std::uint32_t owner_uid, const std::string& name, const std::string& launch,
                                         std::uint32_t world_size, const std::string& framework);
  absl::Status Apply(const Commit& commit);
  absl::Status SetRunState(std::uint64_t run_id, RunState state);
  // One transaction around those of `changes`.
  absl::Status Together(const std::function<absl::Status()>& changes);

 private:
  struct Target;  // the rank that a commit is about

  absl::Status SetDurability(const Commit& commit);
  absl::Status SetFullSynchronous(bool full);
  absl::StatusOr<Target> WriteRank(const Commit& commit);
  absl::Status WriteSegment(const Commit& commit, const Target& target);
  absl::Status WriteManifest(const Commit& commit, const Target& target);
  absl::Status WriteFrames(const Commit& commit, Target& target);
  absl::Status WriteSiteTotals(const Commit& commit, const Target& target);
  absl::Status WriteRun(const Commit& commit, const Target& target, std::uint64_t now_ns);

  SqliteConnection& database_;
  bool full_synchronous_ = false;
  bool together_ = false;  // the durability of the whole is settled
};

}  // namespace neuraldbg::store
