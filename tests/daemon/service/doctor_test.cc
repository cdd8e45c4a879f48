// Goal: whatever doctor finds, it says what to do about it. Method: the real checks in surroundings that are broken in
// one way each.
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "daemon/cli/verbs.h"
#include "nlohmann/json.hpp"
#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class DoctorTest : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("NEURALDBG_SHM_DIR", directory_.path().c_str(), 1); }
  void TearDown() override { ::unsetenv("NEURALDBG_SHM_DIR"); }

  std::string Path(const std::string& name) const { return directory_.path() + "/" + name; }

  // The check of that name, after a look at all of them.
  json Check(const std::string& name, const std::string& address) {
    Arguments arguments;
    arguments.format = OutputFormat::kJson;
    arguments.file = Path("said");
    arguments.address = address;
    arguments.data_directory = Path("data");
    absl::StatusOr<Output> output = Output::Open(arguments);
    EXPECT_EQ(RunDoctor(arguments, *output), kExitFault) << "without a daemon";
    EXPECT_TRUE(output->Finish().ok());
    json asked;
    const json said = json::parse(std::ifstream(Path("said")));
    for (const json& check : said["checks"]) {
      EXPECT_EQ(check["result"] == "ok", check["remedy"].get<std::string>().empty()) << check;
      if (check["check"] == name) asked = check;
    }
    return asked;
  }

  TemporaryDirectory directory_;
};

TEST_F(DoctorTest, SaysWhatToDoWhereNothingHasBeenStarted) {
  const json check = Check("daemon", "unix:" + Path("none.sock"));
  EXPECT_EQ(check["result"], "failure");
  EXPECT_THAT(check["remedy"].get<std::string>(), HasSubstr("Start neuraldbgd"));
  EXPECT_EQ(Check("store", "unix:" + Path("none.sock"))["result"], "warning");
}

TEST_F(DoctorTest, SaysWhatToDoAboutASocketThatIsNone) {
  std::ofstream(Path("file")) << "x";
  const json check = Check("socket", "unix:" + Path("file"));
  EXPECT_EQ(check["result"], "failure");
  EXPECT_THAT(check["remedy"].get<std::string>(), HasSubstr("NEURALDBG_ADDRESS"));
}

TEST_F(DoctorTest, SaysWhatToDoAboutMissingSharedMemory) {
  ::setenv("NEURALDBG_SHM_DIR", Path("gone").c_str(), 1);
  const json check = Check("shared memory", "127.0.0.1:1");
  EXPECT_EQ(check["result"], "failure");
  EXPECT_THAT(check["remedy"].get<std::string>(), HasSubstr("NEURALDBG_SHM_DIR"));
}

TEST_F(DoctorTest, SaysWhatToDoAboutAForeignStore) {
  std::filesystem::create_directory(Path("data"));
  std::ofstream(Path("data/neuraldbg.db")) << std::string(8192, 'x');
  const json check = Check("store", "127.0.0.1:1");
  EXPECT_EQ(check["result"], "failure");
  EXPECT_FALSE(check["text"].get<std::string>().empty());
}

}  // namespace
}  // namespace neuraldbg
