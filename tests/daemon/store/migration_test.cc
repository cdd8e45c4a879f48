// A store of an earlier release opens and loses nothing; one of a later release is refused and stays as it is.
// Method: the schema of version 1 as it was (schema_version_1.sql), filled with rows that this release wrote.
#include <gmock/gmock.h>
#include <sqlite3.h>

#include <fstream>
#include <map>
#include <sstream>

#include "daemon/store/migrations.h"
#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg {
namespace {

using ::testing::HasSubstr;

constexpr std::uint64_t kSteps = 700;  // blocks, roll-ups and pending frames

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

class Database {
 public:
  explicit Database(const std::string& path) { EXPECT_EQ(sqlite3_open(path.c_str(), &database_), SQLITE_OK); }
  ~Database() { sqlite3_close(database_); }
  Database(const Database&) = delete;
  Database& operator=(const Database&) = delete;

  std::vector<std::string> Run(const std::string& sql) {
    std::vector<std::string> rows;
    const auto collect = [](void* out, int columns, char** values, char**) {
      std::string row;
      for (int i = 0; i < columns; ++i) row += std::string(i == 0 ? "" : "|") + (values[i] ? values[i] : "NULL");
      static_cast<std::vector<std::string>*>(out)->push_back(row);
      return 0;
    };
    EXPECT_EQ(sqlite3_exec(database_, sql.c_str(), collect, &rows, nullptr), SQLITE_OK) << sqlite3_errmsg(database_);
    return rows;
  }

  // Every table with its columns and every index with its.
  std::map<std::string, std::vector<std::string>> Layout() {
    std::map<std::string, std::vector<std::string>> layout;
    for (const std::string& name : Run("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'")) {
      layout[name] = Run("SELECT * FROM pragma_table_xinfo('" + name + "')");
      if (layout[name].empty()) layout[name] = Run("SELECT * FROM pragma_index_xinfo('" + name + "')");
    }
    return layout;
  }

 private:
  sqlite3* database_ = nullptr;
};

class MigrationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Fill();
    WriteVersionOne();
  }

  // A store of this release, with something in every table.
  void Fill() {
    auto store = *Store::Open(newer_.path());
    const StoredRun run = *store->AdoptRun(1000, "gpt", "launch", 1, "torch 2.13.0");
    key_ = {run.id, 0, 0};
    FrameSource source(3, 8);
    for (std::uint64_t step = 0; step < kSteps; ++step) frames_.push_back(source.Next(key_, step));
    Commit commit = CommitOf(key_, frames_, kSteps);
    SiteEntry site;
    site.name = "fc:output";
    site.module = "fc";
    commit.manifest = {site, ReadyEntry{0}};
    commit.assembler_state.assign(5, std::byte{7});
    commit.engine_snapshot.assign(9, std::byte{3});
    commit.site_totals = {{0, kSteps, kSteps - 1}};
    Transition transition;
    transition.id = 1;
    transition.from = "HEALTHY";
    transition.to = "NONFINITE";
    commit.transitions = {transition};
    commit.diagnosis = Diagnosis{};
    commit.diagnosis->verdict = Verdict::FAULT;
    commit.diagnosis->steps_seen = kSteps;
    commit.diagnosis->ranks_seen = {0};
    Hypothesis hypothesis;
    hypothesis.kind = HypothesisKind::NONFINITE_LOSS;
    hypothesis.summary = "The loss is NaN.";
    hypothesis.evidence = {{0, 7, Statistic::kLoss, 1, 0, 1, "It is."}};
    hypothesis.chain = {{0, 7, Phase::kLoss, 1, "here"}};
    hypothesis.equivalents = {"LABEL_ANOMALY"};
    commit.diagnosis->hypotheses = {hypothesis};
    commit.diagnosis->notices = {{3, 0, HypothesisKind::LOSS_PLATEAU, "fc", "flat"}};
    commit.diagnosis->blind_spots = {{0, 0, 2, "silent"}};
    const absl::Status applied = store->Apply(commit);
    ASSERT_TRUE(applied.ok()) << applied;
  }

  void WriteVersionOne() {
    Database old(old_.path() + "/neuraldbg.db");
    old.Run(Contents(NEURALDBG_SOURCE_DIR "/tests/daemon/store/schema_version_1.sql"));
    old.Run("PRAGMA application_id=" + std::to_string(0x4e444247) + "; PRAGMA user_version=1");
    old.Run("ATTACH '" + newer_.path() + "/neuraldbg.db' AS newer");
    for (const std::string& table : old.Run("SELECT name FROM main.sqlite_master WHERE type='table'")) {
      const std::string columns =
          old.Run("SELECT group_concat(name) FROM pragma_table_info('" + table + "', 'main')").at(0);
      old.Run("INSERT INTO main." + table + " (" + columns + ") SELECT " + columns + " FROM newer." + table);
      EXPECT_NE(old.Run("SELECT count(*) FROM main." + table).at(0), "0") << table << " must be tried, too";
    }
  }

  TemporaryDirectory old_, newer_;
  RankKey key_;
  std::vector<StepFrame> frames_;
};

TEST_F(MigrationTest, AStoreOfVersionOneOpensWithAllThatIsInIt) {
  auto opened = Store::Open(old_.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  Store& store = **opened;
  const absl::StatusOr<StoredRun> run = store.FindRun("gpt");
  ASSERT_TRUE(run.ok()) << run.status();
  EXPECT_TRUE(SameFrames(frames_, *store.ReadFrames(key_, 0, UINT64_MAX)));
  EXPECT_EQ(store.GetTopology(key_)->sites.at(0).name, "fc:output");
  EXPECT_EQ(store.SiteTotals(key_)->at(0).records, kSteps);
  EXPECT_EQ(store.ListTransitions(run->id, 0, 10)->at(0).to, "NONFINITE");
  const absl::StatusOr<Diagnosis> diagnosis = store.GetDiagnosis(run->id);
  ASSERT_TRUE(diagnosis.ok()) << diagnosis.status();
  EXPECT_EQ(diagnosis->hypotheses.at(0).summary, "The loss is NaN.");
  EXPECT_EQ(diagnosis->hypotheses.at(0).equivalents.at(0), "LABEL_ANOMALY");
  EXPECT_EQ(diagnosis->notices.at(0).text, "flat");
  EXPECT_EQ(diagnosis->blind_spots.at(0).text, "silent");
  EXPECT_EQ(store.ResumeEngine(run->id)->snapshot.size(), 9u);
  EXPECT_EQ((*store.ResumeSegment(CommitOf(key_, {}, 0).rank.segment_uuid))->assembler_state.size(), 5u);
  // And it goes on.
  Commit commit = CommitOf(key_, {FrameSource(4, 8).Next(key_, kSteps)}, kSteps + 1);
  commit.diagnosis = *diagnosis;
  commit.diagnosis->through_steps = {kSteps};
  ASSERT_TRUE(store.Apply(commit).ok());
  EXPECT_EQ(store.GetDiagnosis(run->id)->through_steps, std::vector<std::uint64_t>{kSteps});
}

TEST_F(MigrationTest, BothWaysToThisVersionEndInTheSameTables) {
  ASSERT_TRUE(Store::Open(old_.path()).ok());
  EXPECT_EQ(Database(old_.path() + "/neuraldbg.db").Layout(), Database(newer_.path() + "/neuraldbg.db").Layout());
}

TEST_F(MigrationTest, AReaderOfAnOldStoreSaysWhoCanBringItUp) {
  const absl::Status status = Store::OpenReadOnly(old_.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("start neuraldbgd once"));
}

TEST_F(MigrationTest, AStoreOfALaterReleaseIsRefusedAndStaysAsItIs) {
  const std::string path = newer_.path() + "/neuraldbg.db";
  const std::string later = std::to_string(store::kSchemaVersion + 1);
  Database(path).Run("PRAGMA wal_checkpoint(TRUNCATE); PRAGMA user_version=" + later);
  Database(path).Run("PRAGMA wal_checkpoint(TRUNCATE)");
  const std::string before = Contents(path);
  for (const absl::Status& status :
       {Store::Open(newer_.path()).status(), Store::OpenReadOnly(newer_.path()).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("newer release (schema " + later));
    EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos);
  }
  EXPECT_EQ(Contents(path), before);
}

}  // namespace
}  // namespace neuraldbg
