// Configuration: precedence of the four layers, and one sentence for everything that cannot be meant.
#include "daemon/app/config.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

namespace neuraldbg {
namespace {

class ConfigTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "config.XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  Surroundings Around() {
    Surroundings surroundings;
    surroundings.environment = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = environment_.find(name);
      return found == environment_.end() ? std::nullopt : std::optional(found->second);
    };
    surroundings.uid = 1000;
    surroundings.gid = 2000;
    surroundings.own_group = [](const std::string& name) {
      return name == "lab" || name == "2001" ? std::optional(2001u) : std::nullopt;
    };
    surroundings.user_name = user_;
    surroundings.home = "/home/u";
    surroundings.is_directory = [this](const std::string& path) { return path == existing_directory_; };
    surroundings.is_writable = [](const std::string&) { return true; };
    return surroundings;
  }
  Config Parse(const std::vector<std::string>& arguments) {
    const auto line = ParseCommandLine(arguments, Around());
    EXPECT_TRUE(line.ok()) << line.status();
    return line.ok() ? line->config : Config{};
  }
  std::string Refusal(const std::vector<std::string>& arguments) {
    const auto line = ParseCommandLine(arguments, Around());
    EXPECT_FALSE(line.ok());
    EXPECT_TRUE(absl::IsInvalidArgument(line.status()));
    const std::string message(line.status().message());
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    return message;
  }
  std::string File(const std::string& text) {
    const std::string path = directory_ + "/neuraldbgd.toml";
    std::ofstream(path) << text;
    return path;
  }

  std::string directory_, existing_directory_, user_ = "u";
  std::map<std::string, std::string> environment_;
};

TEST_F(ConfigTest, Defaults) {
  const Config config = Parse({});
  EXPECT_EQ(config.shm_directory, "/dev/shm");
  EXPECT_EQ(config.data_directory, "/home/u/.local/state/neuraldbg");
  EXPECT_EQ(config.grpc,
            (std::vector<std::string>{"unix:/tmp/neuraldbg-1000/neuraldbg/neuraldbgd.sock", "127.0.0.1:7433"}));
  EXPECT_EQ(config.segment_access.uid, 1000u);
  EXPECT_EQ(config.segment_access.gid, std::nullopt);
  EXPECT_FALSE(config.exit_when_idle_s);
}

TEST_F(ConfigTest, Http_IsOnUnlessItIsOff) {
  EXPECT_EQ(Parse({}).http, "127.0.0.1:7434");
  EXPECT_FALSE(Parse({}).http_next_free) << "a port that everybody knows: that it is taken must be said";
  EXPECT_EQ(Parse({"--http", "0.0.0.0:80"}).http, "0.0.0.0:80");
  EXPECT_EQ(Parse({"--http", "off"}).http, std::nullopt);
  EXPECT_EQ(Parse({"--config", File("http = \"off\"\n")}).http, std::nullopt);
  EXPECT_NE(Refusal({"--http", "7434"}).find("--http must be HOST:PORT or off"), std::string::npos);
  EXPECT_NE(Refusal({"--grpc", "foo"}).find("--grpc must be unix:PATH or HOST:PORT"), std::string::npos);
}

TEST_F(ConfigTest, ADaemonThatAJobStarted_TakesTheNextFreeHttpPort) {
  EXPECT_TRUE(Parse({"--exit-when-idle", "60"}).http_next_free);
  EXPECT_EQ(Parse({"--exit-when-idle", "60"}).http, "127.0.0.1:7434");
  EXPECT_FALSE(Parse({"--exit-when-idle", "60", "--http", "127.0.0.1:8000"}).http_next_free);
  EXPECT_TRUE(Parse({"--config", File(ToToml(Parse({"--exit-when-idle", "60"})))}).http_next_free);
}

TEST_F(ConfigTest, RuntimeDirectory_PrefersXdgThenTheUsersOwn) {
  existing_directory_ = "/run/user/1000";
  EXPECT_EQ(Parse({}).grpc[0], "unix:/run/user/1000/neuraldbg/neuraldbgd.sock");
  environment_["XDG_RUNTIME_DIR"] = existing_directory_ = "/xdg";
  EXPECT_EQ(Parse({}).grpc[0], "unix:/xdg/neuraldbg/neuraldbgd.sock");
}

TEST_F(ConfigTest, ServiceUser_ServesItsGroupFromVarLib) {
  user_ = "neuraldbg";
  const Config config = Parse({});
  EXPECT_EQ(config.data_directory, "/var/lib/neuraldbg");
  EXPECT_EQ(config.segment_access.uid, 1000u);
  EXPECT_EQ(config.segment_access.gid, 2000u) << "and of those who open theirs to the service's group";
}

TEST_F(ConfigTest, Group_IsOneOfTheProcess) {
  EXPECT_EQ(Parse({"--group", "lab"}).segment_access.gid, 2001u);
  EXPECT_EQ(Parse({"--config", File("group = \"2001\"\n")}).segment_access.gid, 2001u);
  environment_["NEURALDBG_GROUP"] = "lab";
  EXPECT_EQ(Parse({}).segment_access.gid, 2001u);
  EXPECT_NE(ToToml(Parse({})).find("group = \"2001\""), std::string::npos);
  EXPECT_NE(Refusal({"--group", "wheel"}).find("--group must name a group"), std::string::npos);
}

TEST_F(ConfigTest, Precedence_FlagEnvironmentFileDefault) {
  const std::string file = File(
      "shm_dir = \"/file\"\ndata_dir = \"/file\"\nhost_name = \"file\"\nlog_level = \"debug\"\n"
      "grpc = [\"127.0.0.1:1\", \"unix:/s\"]\nexit_when_idle = 2.5\nallowed_uids = [7, 8]\n");
  environment_["NEURALDBG_SHM_DIR"] = "/environment";
  environment_["NEURALDBG_DATA_DIR"] = "/environment";
  environment_["NEURALDBG_CONFIG"] = file;
  const Config config = Parse({"--shm-dir", "/flag"});
  EXPECT_EQ(config.shm_directory, "/flag");
  EXPECT_EQ(config.data_directory, "/environment");
  EXPECT_EQ(config.host_name, "file");
  EXPECT_EQ(config.log_level, "debug");
  EXPECT_EQ(config.grpc, (std::vector<std::string>{"127.0.0.1:1", "unix:/s"}));
  EXPECT_EQ(config.exit_when_idle_s, 2.5);
  EXPECT_EQ(config.allowed_uids, (std::vector<std::uint32_t>{7, 8}));
  environment_["NEURALDBG_ADDRESS"] = "unix:/environment.sock";
  EXPECT_EQ(Parse({}).grpc, (std::vector<std::string>{"unix:/environment.sock"}));
  EXPECT_EQ(Parse({"--grpc", "unix:/a", "--grpc", "127.0.0.1:2"}).grpc,
            (std::vector<std::string>{"unix:/a", "127.0.0.1:2"}));
}

TEST_F(ConfigTest, EffectiveConfiguration_CanBeReadBack) {
  const std::vector<std::string> flags = {"--data-dir", "/a \"b\"", "--grpc",           "unix:/s",
                                          "--http",     "off",      "--exit-when-idle", "3"};
  const std::string file = File(ToToml(Parse(flags)));
  const Config config = Parse({"--config", file});
  EXPECT_EQ(config.data_directory, "/a \"b\"");
  EXPECT_EQ(config.grpc, (std::vector<std::string>{"unix:/s"}));
  EXPECT_EQ(config.exit_when_idle_s, 3.0);
  EXPECT_EQ(config.http, std::nullopt);
}

TEST_F(ConfigTest, ShippedConfigurationFile_IsValid) {
  const auto line = ParseCommandLine({"--config", NEURALDBG_SOURCE_DIR "/deploy/config/neuraldbgd.toml"}, Around());
  EXPECT_TRUE(line.ok()) << line.status();
}

TEST_F(ConfigTest, Mistakes_AreNamed) {
  EXPECT_NE(Refusal({"--frobnicate"}).find("--frobnicate"), std::string::npos);
  EXPECT_NE(Refusal({"stray"}).find("stray"), std::string::npos);
  EXPECT_NE(Refusal({"--grpc", "nonsense"}).find("nonsense"), std::string::npos);
  EXPECT_NE(Refusal({"--grpc", "127.0.0.1:70000"}).find("70000"), std::string::npos);
  EXPECT_NE(Refusal({"--grpc", "unix:relative"}).find("absolute"), std::string::npos);
  EXPECT_NE(Refusal({"--exit-when-idle", "-1"}).find("--exit-when-idle"), std::string::npos);
  EXPECT_NE(Refusal({"--exit-when-idle", "soon"}).find("--exit-when-idle"), std::string::npos);
  EXPECT_NE(Refusal({"--role", "king"}).find("king"), std::string::npos);
  environment_["NEURALDBG_LOG_LEVEL"] = "loud";
  EXPECT_NE(Refusal({}).find("loud"), std::string::npos);
}

TEST_F(ConfigTest, MistakesInTheFile_NameTheirLine) {
  EXPECT_NE(Refusal({"--config", File("shm_dir = \"/a\"\ndata_dirr = \"/b\"\n")}).find(":2: data_dirr"),
            std::string::npos);
  EXPECT_NE(Refusal({"--config", File("\n\nshm_dir = 7\n")}).find(":3: shm_dir must be a string"), std::string::npos);
  EXPECT_NE(Refusal({"--config", File("shm_dir = \n")}).find(":1:"), std::string::npos);
  EXPECT_NE(Refusal({"--config", File("allowed_uids = [-1]\n")}).find("user ids"), std::string::npos);
  EXPECT_NE(Refusal({"--config", directory_ + "/none.toml"}).find("none.toml"), std::string::npos);
}

TEST_F(ConfigTest, WhatThisReleaseLacks_IsRefusedNotIgnored) {
  EXPECT_NE(Refusal({"--role", "fleet"}).find("fleet"), std::string::npos);
  EXPECT_NE(Refusal({"--nats", "nats://localhost"}).find("NATS"), std::string::npos);
  EXPECT_NE(Refusal({"--tenant", "t"}).find("--tenant"), std::string::npos);
  EXPECT_NE(Refusal({"--config", File("role = \"fleet\"\n")}).find("fleet"), std::string::npos);
}

TEST_F(ConfigTest, HelpAndVersion_ArePrinted) {
  const auto help = ParseCommandLine({"--help"}, Around());
  ASSERT_TRUE(help.ok() && help->print);
  for (const char* flag : {"--config", "--shm-dir", "--data-dir", "--grpc", "--http", "--host-name", "--exit-when-idle",
                           "--check-config"}) {
    EXPECT_NE(help->print->find(flag), std::string::npos) << flag;
  }
  for (const char* flag : {"--role", "--nats", "--tenant"}) {
    EXPECT_EQ(help->print->find(flag), std::string::npos) << flag << " does nothing in this release";
  }
  const auto version = ParseCommandLine({"--version"}, Around());
  ASSERT_TRUE(version.ok() && version->print);
  EXPECT_NE(version->print->find("neuraldbgd"), std::string::npos);
}

}  // namespace
}  // namespace neuraldbg
