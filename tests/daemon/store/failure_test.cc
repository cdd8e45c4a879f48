// What goes wrong around a store: writers killed in the middle of a commit, full disks, damaged and foreign files,
// directories that cannot be written. The previous state must stand, and the user must get one sentence.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg {
namespace {

constexpr std::uint64_t kAll = std::numeric_limits<std::uint64_t>::max();

// The frame of a step is a function of the step, so that a reader can tell what must be there.
StepFrame FrameAt(const RankKey& key, std::uint64_t step) {
  FrameSource source(step * 7919 + 1, 5);
  StepFrame frame = source.Next(key, step);
  frame.complete = true;
  return frame;
}

// Commits as a daemon does, without end: a few frames, heads that count them, now and then a transition and a snapshot.
// A byte for every commit goes to `progress`.
[[noreturn]] void WriteUntilKilled(const std::string& directory, std::uint64_t seed, int progress) {
  auto opened = Store::Open(directory);
  if (!opened.ok()) {
    ::_exit(3);
  }
  Store& store = **opened;
  const StoredRun run = *store.AdoptRun(1000, "killed", "1", 1, "");
  const RankKey key{run.id, 0, 0};
  const Commit probe = CommitOf(key, {}, 0);
  const auto resume = *store.ResumeSegment(probe.rank.segment_uuid);
  std::uint64_t step = resume ? resume->lane_heads[0].head : 0;
  std::mt19937_64 random(seed);
  for (;;) {
    std::vector<StepFrame> frames;
    for (std::uint64_t n = 1 + random() % 20; n > 0; --n) {
      frames.push_back(FrameAt(key, step++));
    }
    Commit commit = CommitOf(key, std::move(frames), step);
    commit.assembler_state.assign(step % 100, std::byte{7});
    if (random() % 8 == 0) {
      Transition transition;
      transition.id = step;
      transition.step = step;
      commit.transitions.push_back(transition);
      commit.diagnosis = Diagnosis{};
      commit.diagnosis->steps_seen = step;
    }
    if (random() % 8 == 0) {
      commit.engine_snapshot.assign(8, std::byte{0});
      std::memcpy(commit.engine_snapshot.data(), &step, sizeof(step));
    }
    if (!store.Apply(commit).ok() || ::write(progress, "", 1) != 1) {
      ::_exit(4);
    }
  }
}

std::string IntegrityOf(const std::string& directory) {
  sqlite3* database = nullptr;
  std::string result = "cannot open";
  if (sqlite3_open_v2((directory + "/neuraldbg.db").c_str(), &database, SQLITE_OPEN_READWRITE, nullptr) == SQLITE_OK) {
    result.clear();
    const auto collect = [](void* out, int, char** values, char**) {
      *static_cast<std::string*>(out) += values[0];
      return 0;
    };
    sqlite3_exec(database, "PRAGMA integrity_check", collect, &result, nullptr);
    std::string violations;
    sqlite3_exec(database, "PRAGMA foreign_key_check", collect, &violations, nullptr);
    result += violations;
  }
  sqlite3_close(database);
  return result;
}

void ExpectConsistent(Store& store) {
  const auto run = store.FindRun("killed");
  if (!run.ok()) {
    return;  // killed before the first commit
  }
  const RankKey key{run->id, 0, 0};
  const auto resume = store.ResumeSegment(CommitOf(key, {}, 0).rank.segment_uuid);
  ASSERT_TRUE(resume.ok()) << resume.status();
  if (!resume->has_value()) {
    return;
  }
  const std::uint64_t head = (*resume)->lane_heads[0].head;
  EXPECT_EQ((*resume)->assembler_state.size(), head % 100);
  const auto frames = store.ReadFrames(key, 0, kAll);
  ASSERT_TRUE(frames.ok()) << frames.status();
  ASSERT_EQ(frames->size(), head) << "frames and lane heads are of one transaction";
  for (std::uint64_t step = 0; step < head; ++step) {
    ASSERT_TRUE(SameFrame(FrameAt(key, step), (*frames)[step]));
  }
  const auto engine = store.ResumeEngine(run->id);
  std::uint64_t snapshot_step = 0;
  if (!engine->snapshot.empty()) {
    std::memcpy(&snapshot_step, engine->snapshot.data(), sizeof(snapshot_step));
  }
  EXPECT_EQ(engine->frame_sequence, snapshot_step);
  EXPECT_EQ(store.FramesSince(run->id, engine->frame_sequence)->size(), head - snapshot_step);
  const auto transitions = store.ListTransitions(run->id, 0, 1u << 20);
  EXPECT_EQ(transitions->size(), engine->transitions_stored);
  if (!transitions->empty()) {
    EXPECT_LE(transitions->back().step, head);
    EXPECT_EQ(store.GetDiagnosis(run->id)->steps_seen, transitions->back().step);
  }
  SeriesQuery query;  // the pyramid covers exactly the frames
  query.run_id = run->id;
  query.statistic = Statistic::kLoss;
  const auto full = store.QuerySeries(query);
  query.max_points = 20;
  const auto reduced = store.QuerySeries(query);
  ASSERT_TRUE(full.ok() && reduced.ok());
  ASSERT_EQ(full->size(), reduced->size());
  for (std::size_t i = 0; i < full->size(); ++i) {
    EXPECT_EQ((*full)[i].points.back().step, (*reduced)[i].points.back().step);
  }
}

TEST(StoreFailureTest, AKilledWriterLeavesAConsistentStore) {
  TemporaryDirectory directory;
  std::mt19937_64 random(20);
  std::uint64_t last_head = 0;
  for (std::uint64_t round = 0; round < 30; ++round) {
    int progress[2];
    ASSERT_EQ(::pipe2(progress, O_CLOEXEC), 0);
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      WriteUntilKilled(directory.path(), round, progress[1]);
    }
    ::close(progress[1]);
    char byte = 0;
    for (std::uint64_t commits = round % 10 == 0 ? 0 : 1 + random() % 10; commits > 0; --commits) {
      ASSERT_EQ(::read(progress[0], &byte, 1), 1) << "the writer ended by itself";
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 4000));  // somewhere within the next commit
    ::kill(child, SIGKILL);
    ::close(progress[0]);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself with " << WEXITSTATUS(status);
    // The very first writer may die before it has made the file.
    if (std::filesystem::exists(directory.path() + "/neuraldbg.db")) {
      ASSERT_EQ(IntegrityOf(directory.path()), "ok") << "round " << round;
    }
    auto store = Store::Open(directory.path());
    ASSERT_TRUE(store.ok()) << store.status();
    ExpectConsistent(**store);
    if (HasFatalFailure()) {
      FAIL() << "round " << round;
    }
    if (const auto run = (*store)->FindRun("killed"); run.ok() && round + 1 == 30) {
      last_head = (*store)->ListRanks(run->id)->front().last_step;
    }
  }
  EXPECT_GT(last_head, 300u) << "the writers must have got somewhere, beyond one block";
}

TEST(StoreFailureTest, AFullDiskLeavesThePreviousState) {
  TemporaryDirectory directory;
  if (::mount("tmpfs", directory.path().c_str(), "tmpfs", 0, "size=3m") != 0) {
    GTEST_SKIP() << "mounting a small file system needs root: " << std::strerror(errno);
  }
  struct Unmount {
    std::string path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{directory.path()};
  auto opened = Store::Open(directory.path() + "/data");
  ASSERT_TRUE(opened.ok()) << opened.status();
  Store& store = **opened;
  const StoredRun run = *store.AdoptRun(1000, "full", "1", 1, "");
  const RankKey key{run.id, 0, 0};
  std::uint64_t stored = 0;
  absl::Status status;
  for (std::uint64_t step = 0; step < 20000 && status.ok(); ++step) {
    status = store.Apply(CommitOf(key, {FrameAt(key, step)}, step + 1));
    stored += status.ok() ? 1 : 0;
  }
  ASSERT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("full"));
  EXPECT_GT(stored, 64u);
  const auto expect_previous = [&](Store& any) {
    const auto frames = any.ReadFrames(key, 0, kAll);
    ASSERT_TRUE(frames.ok()) << frames.status();
    ASSERT_EQ(frames->size(), stored);
    EXPECT_TRUE(SameFrame(FrameAt(key, stored - 1), frames->back()));
    EXPECT_EQ((*any.ResumeSegment(CommitOf(key, {}, 0).rank.segment_uuid))->lane_heads[0].head, stored);
  };
  expect_previous(store);
  EXPECT_TRUE(absl::IsResourceExhausted(store.Apply(CommitOf(key, {FrameAt(key, stored)}, stored + 1))) ||
              ++stored != 0);
  // Room again: the same store goes on where it was.
  ASSERT_EQ(::mount("tmpfs", directory.path().c_str(), "tmpfs", MS_REMOUNT, "size=64m"), 0) << std::strerror(errno);
  for (int i = 0; i < 300; ++i, ++stored) {
    const absl::Status again = store.Apply(CommitOf(key, {FrameAt(key, stored)}, stored + 1));
    ASSERT_TRUE(again.ok()) << again;
  }
  expect_previous(store);
  opened->reset();
  EXPECT_EQ(IntegrityOf(directory.path() + "/data"), "ok");
}

TEST(StoreFailureTest, ReadersAndTheWriterDoNotDisturbEachOther) {
  TemporaryDirectory directory;
  auto store = *Store::Open(directory.path());
  const StoredRun run = *store->AdoptRun(1000, "busy", "1", 1, "");
  const RankKey key{run.id, 0, 0};
  std::atomic<bool> done{false};
  std::atomic<std::uint64_t> committed{0};
  std::vector<std::thread> readers;
  for (int i = 0; i < 2; ++i) {
    readers.emplace_back([&] {
      auto reader = *Store::OpenReadOnly(directory.path());
      std::uint64_t seen = 0;
      while (!done.load()) {
        const std::uint64_t before = committed.load();
        SeriesQuery query;
        query.run_id = run.id;
        query.statistic = Statistic::kDurationSeconds;
        const auto frames = reader->ReadFrames(key, 0, kAll);
        ASSERT_TRUE(frames.ok() || before == 0) << frames.status();
        ASSERT_TRUE(reader->QuerySeries(query).ok());
        if (frames.ok()) {
          ASSERT_GE(frames->size(), std::max(seen, before)) << "a commit that returned is visible";
          for (std::size_t f = 0; f < frames->size(); ++f) {
            ASSERT_EQ((*frames)[f].step, f) << "no frame twice or missing while it moves into its block";
          }
          seen = frames->size();
        }
      }
    });
  }
  for (std::uint64_t step = 0; step < 600; ++step) {
    const absl::Status applied = store->Apply(CommitOf(key, {FrameAt(key, step)}, step + 1));
    ASSERT_TRUE(applied.ok()) << applied;
    committed.store(step + 1);
  }
  done.store(true);
  for (std::thread& reader : readers) {
    reader.join();
  }
}

// One sentence for the user: starts as one, ends as one, is one line.
void ExpectSentence(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  const std::string message(status.message());
  EXPECT_THAT(message, testing::HasSubstr(part));
  EXPECT_THAT(message, testing::EndsWith("."));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

void Execute(const std::string& path, const char* sql) {
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &database), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(database, sql, nullptr, nullptr, nullptr), SQLITE_OK) << sqlite3_errmsg(database);
  sqlite3_close(database);
}

TEST(StoreFailureTest, FilesThatAreNotOursAreNamedNotTouched) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/neuraldbg.db";
  ExpectSentence(Store::OpenReadOnly(directory.path()).status(), absl::StatusCode::kNotFound, directory.path());

  std::ofstream(path) << std::string(8192, 'x');
  ExpectSentence(Store::Open(directory.path()).status(), absl::StatusCode::kDataLoss, path);
  ExpectSentence(Store::OpenReadOnly(directory.path()).status(), absl::StatusCode::kDataLoss, path);
  EXPECT_EQ(std::filesystem::file_size(path), 8192u);

  std::filesystem::remove(path);
  Execute(path, "CREATE TABLE other (x)");
  ExpectSentence(Store::Open(directory.path()).status(), absl::StatusCode::kDataLoss, "another program");

  std::filesystem::remove(path);
  ASSERT_TRUE(Store::Open(directory.path()).ok());
  Execute(path, "PRAGMA user_version=99");
  ExpectSentence(Store::Open(directory.path()).status(), absl::StatusCode::kFailedPrecondition, "newer release");
  ExpectSentence(Store::OpenReadOnly(directory.path()).status(), absl::StatusCode::kFailedPrecondition,
                 "newer release");
}

TEST(StoreFailureTest, DamageInTheMiddleIsReportedNotReturned) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/neuraldbg.db";
  RankKey key;
  {
    auto store = *Store::Open(directory.path());
    key = {store->AdoptRun(1000, "damaged", "1", 1, "")->id, 0, 0};
    std::vector<StepFrame> frames;
    for (std::uint64_t step = 0; step < 300; ++step) {
      frames.push_back(FrameAt(key, step));
    }
    ASSERT_TRUE(store->Apply(CommitOf(key, frames, 300)).ok());
  }
  Execute(path, "UPDATE blocks SET directory=substr(directory, 1, length(directory)/2) WHERE level=0");
  auto store = Store::Open(directory.path());
  ASSERT_TRUE(store.ok());
  ExpectSentence((*store)->ReadFrames(key, 0, kAll).status(), absl::StatusCode::kDataLoss, path);
}

TEST(StoreFailureTest, ADirectoryThatCannotBeWrittenIsNamed) {
  TemporaryDirectory directory;
  std::ofstream(directory.path() + "/file") << "x";
  ExpectSentence(Store::Open(directory.path() + "/file").status(), absl::StatusCode::kPermissionDenied,
                 directory.path() + "/file");
  ExpectSentence(Store::Open("/proc/neuraldbg").status(), absl::StatusCode::kPermissionDenied, "/proc/neuraldbg");
}

// As another user, without write permission: a finished run can be read, nothing can be written.
TEST(StoreFailureTest, AStoreOfAnotherUserCanBeReadButNotWritten) {
  if (::geteuid() != 0) {
    GTEST_SKIP() << "changing the user needs root";
  }
  TemporaryDirectory directory;
  {
    auto store = *Store::Open(directory.path());
    ASSERT_TRUE(store->AdoptRun(1000, "shared", "1", 1, "").ok());
  }
  std::filesystem::permissions(directory.path(), static_cast<std::filesystem::perms>(0755));
  std::filesystem::permissions(directory.path() + "/neuraldbg.db", static_cast<std::filesystem::perms>(0644));
  const pid_t child = ::fork();
  if (child == 0) {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) {
      ::_exit(10);
    }
    const auto writer = Store::Open(directory.path());
    const auto reader = Store::OpenReadOnly(directory.path());
    const bool readable = reader.ok() && (*reader)->FindRun("shared").ok();
    ::_exit(absl::IsPermissionDenied(writer.status()) ? (readable ? 0 : 2) : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: writing was not refused, 2: reading failed";
}

}  // namespace
}  // namespace neuraldbg
