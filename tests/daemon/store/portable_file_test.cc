// The file of an exported run and the store that it is imported into: all of it or nothing, and nothing else is
// touched.
#include "tests/daemon/store/portable_fixture.h"

namespace neuraldbg {
namespace {

TEST_F(PortableRunTest, ASecondImportIsRefused) {
  Export(*store_, Fill(*store_, "gpt", 2), path_);
  ASSERT_TRUE(ImportRun(*store_, path_, 2000).ok());
  const absl::StatusOr<StoredRun> again = ImportRun(*store_, path_, 2000);
  EXPECT_TRUE(absl::IsAlreadyExists(again.status()));
  EXPECT_THAT(std::string(again.status().message()), HasSubstr("gpt#2"));
  EXPECT_EQ(store_->ListRuns()->size(), 2u);
}

TEST_F(PortableRunTest, AnImportThatFailsLeavesNothing) {
  const std::string file = Export(*store_, Fill(*store_, "gpt", 2), path_);
  const std::string cut = other_.path() + "/cut";
  std::ofstream(cut, std::ios::binary) << file.substr(0, file.size() - 5);
  EXPECT_FALSE(ImportRun(*store_, cut, 2000).ok());
  EXPECT_EQ(store_->ListRuns()->size(), 1u);
  EXPECT_TRUE(ImportRun(*store_, path_, 2000).ok()) << "the store goes on";
}

TEST_F(PortableRunTest, AFileIsNotReplacedUnasked) {
  const StoredRun run = Fill(*store_, "gpt", 2);
  std::ofstream(path_) << "mine";
  EXPECT_TRUE(absl::IsAlreadyExists(PortableRunWriter::Create(path_, PortableRunWriter::Existing::kRefuse).status()));
  {
    auto abandoned = PortableRunWriter::Create(path_, PortableRunWriter::Existing::kReplace);
    ASSERT_TRUE(store_->ReadRun(run.id, **abandoned).ok());
  }
  std::string text;
  std::ifstream(path_) >> text;
  EXPECT_EQ(text, "mine") << "without Finish the file is as it was";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(other_.path()), {}), 1) << "and nothing lies beside it";
}

TEST_F(PortableRunTest, OnlyARegularFileIsWrittenOrRead) {
  const std::string pipe = other_.path() + "/pipe", link = other_.path() + "/link";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink(path_, link);
  for (const std::string& name : {pipe, link, std::string("/dev/full"), other_.path()}) {
    for (const auto existing : {PortableRunWriter::Existing::kRefuse, PortableRunWriter::Existing::kReplace}) {
      const absl::Status status = PortableRunWriter::Create(name, existing).status();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << name << ": " << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(name + " is no regular file"));
    }
  }
  const absl::Status read = ImportRun(*store_, pipe, 2000).status();  // would wait for a writer
  EXPECT_TRUE(absl::IsDataLoss(read)) << read;
}

TEST_F(PortableRunTest, AFileHasNoNameUntilItIsWhole) {
  const StoredRun run = Fill(*store_, "gpt", 2);
  const int probe = ::open(other_.path().c_str(), O_WRONLY | O_TMPFILE, 0600);
  if (probe < 0) GTEST_SKIP() << "this file system names every file";
  ::close(probe);
  const auto here = [this] { return std::distance(std::filesystem::directory_iterator(other_.path()), {}); };
  for (const auto existing : {PortableRunWriter::Existing::kRefuse, PortableRunWriter::Existing::kReplace}) {
    const auto before = here();
    const auto writer = PortableRunWriter::Create(path_, existing);
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE(store_->ReadRun(run.id, **writer).ok());
    EXPECT_EQ(here(), before) << "a kill now leaves nothing";
    ASSERT_TRUE((*writer)->Finish().ok());
    EXPECT_EQ(here(), 1);
  }
}

}  // namespace
}  // namespace neuraldbg
