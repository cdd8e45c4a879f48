// Host and Origin, and what /healthz says.
#include "daemon/http/http_access.h"

#include <gtest/gtest.h>

#include <array>

#include "daemon/http/health.h"

namespace neuraldbg {
namespace {

TEST(HttpAccess, LoopbackNamesAndTheBoundAddress_AreThisHost) {
  for (const char* host : {"localhost", "LOCALHOST:7434", "127.0.0.1:7434", "127.8.9.1", "[::1]:8080", "gpu7:7434",
                           "GPU7", "192.0.2.7:7434"}) {
    EXPECT_TRUE(CheckHost(host, "gpu7", "192.0.2.7").ok()) << host;
  }
}

TEST(HttpAccess, AnyOtherName_IsNot) {
  for (const char* host : {"", ":7434", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "127.1",
                           "localhost:7434:1", "localhost:x", "[::1", "[::1]x", "[::2]", "192.0.2.8", "gpu7.",
                           "localhost@evil.example", "evil.example:localhost"}) {
    EXPECT_TRUE(absl::IsPermissionDenied(CheckHost(host, "gpu7", "192.0.2.7"))) << host;
  }
  EXPECT_FALSE(CheckHost("", "", "").ok());
}

TEST(HttpAccess, Origin_IsThePageOfThisPortAlone) {
  EXPECT_TRUE(CheckOrigin("http://localhost:7434", "localhost:7434").ok());
  EXPECT_TRUE(CheckOrigin("http://localhost:7434", "LocalHost:7434").ok());
  for (const char* origin : {"", "null", "https://localhost:7434", "http://localhost", "http://localhost:3000",
                             "http://localhost:74345", "http://evil.example", "http://127.0.0.1:7434"}) {
    EXPECT_FALSE(CheckOrigin(origin, "localhost:7434").ok()) << origin;
  }
}

TEST(Health, SaysWhyNothingIsRecorded) {
  const std::array<DaemonWarning, 1> alone = {
      DaemonWarning{DaemonWarning::Kind::kSegmentLeftAlone, 1, "One is left alone.", "Install."}};
  const std::array<DaemonWarning, 2> full = {
      alone[0], DaemonWarning{DaemonWarning::Kind::kNotStoring, 1, "The disk is full.", "Make room."}};
  EXPECT_EQ(Health(false, {}).body, "ok\n");
  EXPECT_EQ(Health(false, alone).status, 200u);
  EXPECT_EQ(Health(false, full).status, 503u);
  EXPECT_EQ(Health(false, full).body, "not storing: The disk is full. Make room.\n");
  EXPECT_EQ(Health(true, {}).status, 503u);
  EXPECT_TRUE(Health(true, {}).body.starts_with("draining"));
}

}  // namespace
}  // namespace neuraldbg
