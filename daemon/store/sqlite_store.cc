// Opening: Store::Open, Store::OpenReadOnly, and the two classes behind them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "daemon/store/byte_stream.h"
#include "daemon/store/directory_lock.h"
#include "daemon/store/migrations.h"
#include "daemon/store/run_rows.h"
#include "daemon/store/sqlite_connection.h"
#include "daemon/store/status_macros.h"
#include "daemon/store/store.h"
#include "daemon/store/store_queries.h"
#include "daemon/store/store_writer.h"

namespace neuraldbg {
namespace {

using store::DirectoryLock;
using store::SqliteAccess;
using store::SqliteConnection;
using store::SqliteRow;

// WAL: readers never wait for the writer. A checkpoint every 16 MiB lets the pages of pending frames, which live for
// one block only, be rewritten in the log instead of in the database; the log is cut back to 64 MiB after a long reader
// had kept it from being reset.
constexpr char kWriterPragmas[] =
    "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL; PRAGMA foreign_keys=ON; PRAGMA wal_autocheckpoint=4096;"
    "PRAGMA journal_size_limit=67108864; PRAGMA cache_size=-16384;";
constexpr char kReaderPragmas[] = "PRAGMA query_only=ON; PRAGMA cache_size=-8192;";

std::string DatabasePath(const std::string& directory) { return directory + "/neuraldbg.db"; }

// StoreReader's functions on one connection; Base is StoreReader or Store.
template <typename Base>
class SqliteReader : public Base {
 public:
  explicit SqliteReader(std::unique_ptr<SqliteConnection> database)
      : database_(std::move(database)), queries_(*database_) {}

  absl::StatusOr<std::vector<StoredRun>> ListRuns() override { return queries_.ListRuns(); }
  absl::StatusOr<StoredRun> FindRun(const std::string& name) override { return queries_.FindRun(name); }
  absl::StatusOr<std::vector<StoredRank>> ListRanks(std::uint64_t run_id) override {
    return queries_.ListRanks(run_id);
  }
  absl::StatusOr<Topology> GetTopology(const RankKey& rank) override { return queries_.GetTopology(rank); }
  absl::StatusOr<std::vector<SiteSummary>> SiteTotals(const RankKey& rank) override {
    return queries_.SiteTotals(rank);
  }
  absl::StatusOr<std::vector<Series>> QuerySeries(const SeriesQuery& query) override {
    return queries_.QuerySeries(query);
  }
  absl::StatusOr<std::vector<Transition>> ListTransitions(std::uint64_t run_id, std::uint64_t after_id,
                                                          std::uint32_t limit) override {
    return queries_.ListTransitions(run_id, after_id, limit);
  }
  absl::StatusOr<Diagnosis> GetDiagnosis(std::uint64_t run_id) override { return queries_.GetDiagnosis(run_id); }
  absl::StatusOr<std::vector<StepFrame>> ReadFrames(const RankKey& rank, std::uint64_t from,
                                                    std::uint64_t to) override {
    return queries_.ReadFrames(rank, from, to);
  }
  absl::Status ReadRun(std::uint64_t run_id, RunSink& sink) override {
    return store::ReadRun(*database_, queries_, run_id, sink);
  }
  absl::StatusOr<std::vector<std::byte>> EngineSnapshot(std::uint64_t run_id) override {
    return queries_.EngineSnapshot(run_id);
  }

 protected:
  std::unique_ptr<SqliteConnection> database_;
  store::StoreQueries queries_;
};

class SqliteStore final : public SqliteReader<Store> {
 public:
  SqliteStore(std::unique_ptr<DirectoryLock> lock, std::unique_ptr<SqliteConnection> database)
      : SqliteReader(std::move(database)), lock_(std::move(lock)), writer_(*database_) {}
  ~SqliteStore() override { database_.reset(); }  // before the lock: the next daemon must find the log closed

  absl::StatusOr<StoredRun> AdoptRun(std::uint32_t owner_uid, const std::string& name, const std::string& launch,
                                     std::uint32_t world_size, const std::string& framework) override {
    STORE_ASSIGN_OR_RETURN(const std::uint64_t id, writer_.AdoptRun(owner_uid, name, launch, world_size, framework));
    return queries_.GetRun(id);
  }
  absl::Status Apply(const Commit& commit) override { return writer_.Apply(commit); }
  absl::Status SetRunState(std::uint64_t run_id, RunState state) override { return writer_.SetRunState(run_id, state); }
  absl::Status Together(const std::function<absl::Status()>& changes) override { return writer_.Together(changes); }
  absl::StatusOr<std::optional<SegmentResume>> ResumeSegment(const SegmentUuid& uuid) override;
  absl::StatusOr<EngineResume> ResumeEngine(std::uint64_t run_id) override;
  absl::StatusOr<std::vector<StepFrame>> FramesSince(std::uint64_t run_id, std::uint64_t frame_sequence) override {
    return queries_.FramesSince(run_id, frame_sequence);
  }

 private:
  std::unique_ptr<DirectoryLock> lock_;
  store::StoreWriter writer_;
};

absl::StatusOr<std::optional<Store::SegmentResume>> SqliteStore::ResumeSegment(const SegmentUuid& uuid) {
  SegmentResume resume;
  STORE_ASSIGN_OR_RETURN(const bool found,
                         database_
                             ->Use("SELECT run_id, rank, incarnation, lane_heads, assembler_state FROM segments "
                                   "JOIN ranks ON ranks.id=rank_id WHERE uuid=?")
                             .Bind(std::as_bytes(std::span(uuid)))
                             .First([&](const SqliteRow& row) {
                               resume.key = {row.Unsigned<std::uint64_t>(0), row.Unsigned<std::uint32_t>(1),
                                             row.Unsigned<std::uint32_t>(2)};
                               for (store::ByteReader heads(row.Blob(3));
                                    heads.remaining() >= 2 * sizeof(std::uint64_t);) {
                                 const auto head = heads.Fixed<std::uint64_t>();
                                 resume.lane_heads.push_back({head, heads.Fixed<std::uint64_t>()});
                               }
                               const auto state = row.Blob(4);
                               resume.assembler_state.assign(state.begin(), state.end());
                             }));
  return found ? std::optional(std::move(resume)) : std::nullopt;
}

absl::StatusOr<Store::EngineResume> SqliteStore::ResumeEngine(std::uint64_t run_id) {
  EngineResume resume;
  STORE_RETURN_IF_ERROR(database_->Use("SELECT frame_sequence, snapshot FROM engine_snapshots WHERE run_id=?")
                            .Bind(run_id)
                            .First([&](const SqliteRow& row) {
                              resume.frame_sequence = row.Unsigned<std::uint64_t>(0);
                              const auto snapshot = row.Blob(1);
                              resume.snapshot.assign(snapshot.begin(), snapshot.end());
                            })
                            .status());
  STORE_RETURN_IF_ERROR(
      database_->Use("SELECT count(*) FROM transitions WHERE run_id=?")
          .Bind(run_id)
          .First([&](const SqliteRow& row) { resume.transitions_stored = row.Unsigned<std::uint64_t>(0); })
          .status());
  return resume;
}

// A reader of a WAL database maps its index file. Where that can be neither found nor made (a directory of another
// user, a read-only medium), the file may be read as it is if there is no log: then nobody has it open.
absl::StatusOr<std::unique_ptr<SqliteConnection>> OpenForReading(const std::string& path) {
  absl::Status failure;
  for (const SqliteAccess access : {SqliteAccess::kReadOnly, SqliteAccess::kImmutable}) {
    struct stat log{};
    if (access == SqliteAccess::kImmutable && ::stat((path + "-wal").c_str(), &log) == 0 && log.st_size > 0) {
      break;
    }
    STORE_ASSIGN_OR_RETURN(std::unique_ptr<SqliteConnection> database, SqliteConnection::Open(path, access));
    failure = database->Execute(kReaderPragmas);
    if (failure.ok()) {
      failure = store::CheckSchema(*database);
    }
    if (failure.ok()) {
      return database;
    }
    if (!absl::IsPermissionDenied(failure)) {
      break;
    }
  }
  return failure;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> Store::Open(const std::string& directory) {
  STORE_ASSIGN_OR_RETURN(std::unique_ptr<DirectoryLock> lock, DirectoryLock::Acquire(directory));
  // 0600 from the start: the database is its owner's, however open the directory is. SQLite gives its log the same
  // mode.
  if (const int file = ::open(DatabasePath(directory).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600); file >= 0) {
    ::close(file);
  }
  absl::StatusOr<std::unique_ptr<SqliteConnection>> database =
      SqliteConnection::Open(DatabasePath(directory), SqliteAccess::kReadWrite);
  absl::Status ready = database.status();
  if (ready.ok()) {
    ready = (*database)->Execute(kWriterPragmas);
  }
  if (ready.ok()) {
    ready = store::MigrateSchema(**database);
  }
  if (!ready.ok()) {
    return ready;
  }
  return std::unique_ptr<Store>(new SqliteStore(std::move(lock), *std::move(database)));
}

absl::StatusOr<std::unique_ptr<StoreReader>> Store::OpenReadOnly(const std::string& directory) {
  const std::string path = DatabasePath(directory);
  if (::access(path.c_str(), F_OK) != 0) {
    return errno == EACCES ? absl::PermissionDeniedError(absl::StrCat("The data directory ", directory,
                                                                      " may not be read: ", std::strerror(errno), "."))
                           : absl::NotFoundError(absl::StrCat("No run is stored in ", directory, "."));
  }
  STORE_ASSIGN_OR_RETURN(std::unique_ptr<SqliteConnection> database, OpenForReading(path));
  return std::unique_ptr<StoreReader>(new SqliteReader<StoreReader>(std::move(database)));
}

bool Store::Exists(const std::string& directory) {
  struct stat status{};
  return ::stat(DatabasePath(directory).c_str(), &status) == 0;
}

void Store::Remove(const std::string& directory) {
  if (const auto lock = DirectoryLock::Acquire(directory); lock.ok()) {
    for (const char* part : {"-wal", "-shm", ""}) ::unlink((DatabasePath(directory) + part).c_str());
    (*lock)->RemoveFile();
  }
  ::rmdir(directory.c_str());
}

std::uint64_t Store::BytesOnDisk(const std::string& directory) {
  std::uint64_t bytes = 0;
  for (const char* part : {"", "-wal", "-shm"}) {
    std::error_code absent;
    const std::uintmax_t size = std::filesystem::file_size(DatabasePath(directory) + part, absent);
    if (!absent) bytes += size;
  }
  return bytes;
}

}  // namespace neuraldbg
