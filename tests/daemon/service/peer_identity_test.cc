// Goal: nobody gets in as another user. Method: tables in the kernel's format with the traps in them, and one real
// connection looked up in the real table.
#include "daemon/service/peer_identity.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg {
namespace {

constexpr const char* kHeader =
    "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";

// 7433 is 1D09, 40000 is 9C40.
std::string Row(const char* local, const char* remote, const char* state, int uid, int inode) {
  return absl::StrCat("   0: ", local, " ", remote, " ", state, " 00000000:00000000 00:00000000 00000000  ", uid,
                      "        0 ", inode, " 1 0000000000000000 20 4 30 10 -1\n");
}

class TcpTableTest : public ::testing::Test {
 protected:
  void Write(const std::string& tcp, const std::string& tcp6 = "") {
    std::ofstream(directory_.path() + "/tcp") << kHeader << tcp;
    std::ofstream(directory_.path() + "/tcp6") << kHeader << tcp6;
  }
  std::optional<std::uint32_t> Uid(const std::string& peer) { return UidOfTcpPeer(peer, {7433}, directory_.path()); }

  TemporaryDirectory directory_;
};

TEST_F(TcpTableTest, EstablishedSocket_BelongsToItsUser) {
  Write(Row("0100007F:9C40", "0100007F:1D09", "01", 1000, 55));
  EXPECT_EQ(Uid("ipv4:127.0.0.1:40000"), 1000u);
  EXPECT_EQ(Uid("ipv4:127.0.0.1:40001"), std::nullopt);
  EXPECT_EQ(Uid("ipv4:127.0.0.2:40000"), std::nullopt);
}

TEST_F(TcpTableTest, ClosedSocket_DoesNotLookLikeRoot) {
  Write(Row("0100007F:9C40", "0100007F:1D09", "06", 0, 0));  // TIME_WAIT
  EXPECT_EQ(Uid("ipv4:127.0.0.1:40000"), std::nullopt);
  Write(Row("0100007F:9C40", "0100007F:1D09", "04", 0, 0));  // FIN_WAIT1
  EXPECT_EQ(Uid("ipv4:127.0.0.1:40000"), std::nullopt);
  Write(Row("0100007F:9C40", "0100007F:1D09", "01", 0, 0));  // held by no process
  EXPECT_EQ(Uid("ipv4:127.0.0.1:40000"), std::nullopt);
}

TEST_F(TcpTableTest, SocketToAnotherPort_ProvesNothing) {
  Write(Row("0100007F:9C40", "0100007F:0050", "01", 0, 55));
  EXPECT_EQ(Uid("ipv4:127.0.0.1:40000"), std::nullopt);
}

TEST_F(TcpTableTest, TwoUsersWithTheSameAddress_AreNobody) {
  Write(Row("0100007F:9C40", "0100007F:1D09", "01", 0, 55) + Row("0100007F:9C40", "0500007F:1D09", "01", 1000, 56));
  EXPECT_EQ(Uid("ipv4:127.0.0.1:40000"), std::nullopt);
}

TEST_F(TcpTableTest, DualStackSocket_IsFoundByItsIpv4Address) {
  Write("", Row("0000000000000000FFFF00000100007F:9C40", "0000000000000000FFFF00000100007F:1D09", "01", 7, 55));
  EXPECT_EQ(Uid("ipv4:127.0.0.1:40000"), 7u);
  EXPECT_EQ(Uid("ipv6:%5B::ffff:127.0.0.1%5D:40000"), 7u);
}

TEST_F(TcpTableTest, Ipv6Loopback) {
  Write("", Row("00000000000000000000000001000000:9C40", "00000000000000000000000001000000:1D09", "01", 8, 55));
  EXPECT_EQ(Uid("ipv6:[::1]:40000"), 8u);
  EXPECT_EQ(Uid("ipv6:%5B::1%5D:40000"), 8u);
}

TEST_F(TcpTableTest, Garbage_IsNobody) {
  Write("nonsense\n   0: 0100007F:XXXX\n");
  for (const char* peer : {"", "ipv4:", "ipv4:127.0.0.1", "ipv4:127.0.0.1:99999", "ipv6:[", "unix:", "dns:x:1"}) {
    EXPECT_EQ(Uid(peer), std::nullopt) << peer;
  }
}

TEST_F(TcpTableTest, RealConnection_IsFoundInTheRealTable) {
  const int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(listen(server, 1), 0);
  ASSERT_EQ(getsockname(server, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::uint16_t port = ntohs(address.sin_port);
  ASSERT_EQ(connect(client, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(getsockname(client, reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string peer = absl::StrCat("ipv4:127.0.0.1:", ntohs(address.sin_port));
  EXPECT_EQ(UidOfTcpPeer(peer, {port}), geteuid());
  close(client);
  close(server);
}

class IdentifyPeerTest : public TcpTableTest {
 protected:
  IdentifyPeerTest() {
    policy_.daemon_uid = 1000;
    policy_.allowed_uids = {2000};
    policy_.tcp_ports = {7433};
    policy_.proc_net = directory_.path();
  }
  absl::StatusOr<Caller> From(int uid, const std::string& authorization = "") {
    Write(Row("0100007F:9C40", "0100007F:1D09", "01", uid, 55));
    return IdentifyPeer(policy_, {"ipv4:127.0.0.1:40000", authorization, "", ""});
  }
  PeerPolicy policy_;
};

TEST_F(IdentifyPeerTest, OwnUserAndRootAreAdmins_ConfiguredUsersAreNot) {
  EXPECT_TRUE(From(1000)->admin);
  EXPECT_TRUE(From(0)->admin);
  ASSERT_TRUE(From(2000).ok());
  EXPECT_FALSE(From(2000)->admin);
  EXPECT_EQ(From(2000)->uid, 2000u);
}

TEST_F(IdentifyPeerTest, StrangerIsRefusedUnlessItHasTheToken) {
  EXPECT_TRUE(absl::IsUnauthenticated(From(3000).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(From(3000, "Bearer ").status())) << "no token is set, so none matches";
  policy_.token = "0123456789abcdef";
  EXPECT_TRUE(absl::IsUnauthenticated(From(3000, "Bearer 0123456789abcdeX").status()));
  EXPECT_TRUE(absl::IsUnauthenticated(From(3000, "0123456789abcdef").status()));
  ASSERT_TRUE(From(3000, "Bearer 0123456789abcdef").ok());
  EXPECT_TRUE(From(3000, "Bearer 0123456789abcdef")->admin);
}

TEST_F(IdentifyPeerTest, ClaimedUidCountsWithTheKeyOfTheProcessOnly) {
  Write("");
  const std::string peer = "ipv4:127.0.0.1:40000";
  EXPECT_TRUE(absl::IsUnauthenticated(IdentifyPeer(policy_, {peer, "", "", "0"}).status())) << "there is no key";
  policy_.in_process_key = MakeInProcessKey();
  EXPECT_EQ(policy_.in_process_key.size(), 32u);
  EXPECT_NE(policy_.in_process_key, MakeInProcessKey());
  EXPECT_EQ(IdentifyPeer(policy_, {"unknown", "", policy_.in_process_key, "2000"})->uid, 2000u);
  EXPECT_TRUE(absl::IsUnauthenticated(IdentifyPeer(policy_, {"unknown", "", policy_.in_process_key, ""}).status()));
  EXPECT_TRUE(absl::IsUnauthenticated(IdentifyPeer(policy_, {peer, "", MakeInProcessKey(), "0"}).status()));
}

TEST(TokenFileTest, MustBePrivateAndLong) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/token";
  std::ofstream(path) << "0123456789abcdef\n";
  chmod(path.c_str(), 0644);
  EXPECT_FALSE(ReadTokenFile(path).ok());
  chmod(path.c_str(), 0600);
  EXPECT_EQ(*ReadTokenFile(path), "0123456789abcdef");
  std::ofstream(path) << "short\n";
  EXPECT_FALSE(ReadTokenFile(path).ok());
}

}  // namespace
}  // namespace neuraldbg
