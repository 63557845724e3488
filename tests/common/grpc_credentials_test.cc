#include "common/rpc/grpc_credentials.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_setup.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/test_certificates.h"

namespace baton::rpc {
namespace {

using ::testing::HasSubstr;

// A server with the standard health service, of which no stub is needed to see
// whether a connection stands.
class GrpcCredentialsTest : public testing::Test {
 protected:
  GrpcCredentialsTest() : ca_("cluster CA"), stranger_("another CA") {}

  std::string Dir(const std::string& name) const {
    return absl::StrCat(scratch_.path(), "/", name);
  }
  std::shared_ptr<tls::PemFiles> Files(const std::string& name,
                                       const std::string& ca,
                                       const test::CertificateAndKey& own) {
    test::WriteClusterTls(Dir(name), ca, own);
    auto files = tls::PemFiles::Open(tls::ClusterPaths(Dir(name)), &clock_);
    EXPECT_TRUE(files.ok()) << files.status();
    return *files;
  }
  // Its certificate is for no host: who checks names refuses it.
  std::shared_ptr<tls::PemFiles> MemberFiles(const std::string& name) {
    return Files(name, ca_.certificate(), ca_.Issue({.hosts = ""}));
  }

  void Serve(std::shared_ptr<tls::PemFiles> files) {
    auto server = StartServer("127.0.0.1:0", {}, std::move(files));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::shared_ptr<grpc::Channel> Channel(
      std::shared_ptr<grpc::ChannelCredentials> credentials) {
    return MakeControlChannel(absl::StrCat("127.0.0.1:", server_.port),
                              std::move(credentials));
  }
  static bool Connects(grpc::Channel& channel) {
    const auto deadline =
        std::chrono::system_clock::now() + std::chrono::seconds(10);
    grpc_connectivity_state state = channel.GetState(/*try_to_connect=*/true);
    while (state != GRPC_CHANNEL_READY &&
           state != GRPC_CHANNEL_TRANSIENT_FAILURE &&
           channel.WaitForStateChange(state, deadline)) {
      state = channel.GetState(/*try_to_connect=*/true);
    }
    return state == GRPC_CHANNEL_READY;
  }
  bool MemberConnects(const tls::PemFiles& files) {
    auto copy = tls::PemFiles::Open(files.paths(), &clock_);
    EXPECT_TRUE(copy.ok()) << copy.status();
    return Connects(*Channel(MakeClusterCredentials(*(*copy)->Get())));
  }

  const test::ScratchDir scratch_;
  test::ManualClock clock_;
  test::TestCa ca_;
  test::TestCa stranger_;
  RunningServer server_;
};

TEST_F(GrpcCredentialsTest, MembersOfOneClusterBelieveEachOther) {
  Serve(MemberFiles("worker"));
  EXPECT_TRUE(MemberConnects(*MemberFiles("router")));
}

TEST_F(GrpcCredentialsTest, NobodyElseConnects) {
  Serve(MemberFiles("worker"));
  // Shows a certificate of another CA, or an old one.
  EXPECT_FALSE(MemberConnects(
      *Files("stranger", ca_.certificate(), stranger_.Issue({.hosts = ""}))));
  EXPECT_FALSE(MemberConnects(
      *Files("old", ca_.certificate(),
             ca_.Issue({.hosts = "", .valid_for = -absl::Minutes(1)}))));
  // Shows none.
  EXPECT_FALSE(Connects(
      *Channel(grpc::SslCredentials({.pem_root_certs = ca_.certificate()}))));
  // Speaks plain text.
  EXPECT_FALSE(Connects(*Channel(nullptr)));
}

TEST_F(GrpcCredentialsTest, AMemberBelievesNobodyElse) {
  const auto router = MemberFiles("router");
  Serve(Files("stranger", ca_.certificate(), stranger_.Issue({.hosts = ""})));
  EXPECT_FALSE(MemberConnects(*router));
  Serve(Files("old", ca_.certificate(),
              ca_.Issue({.hosts = "", .valid_for = -absl::Minutes(1)})));
  EXPECT_FALSE(MemberConnects(*router));
  Serve(nullptr);
  EXPECT_FALSE(MemberConnects(*router));
}

TEST_F(GrpcCredentialsTest, ClientsNeedNoCertificateUnlessAskedFor) {
  const test::CertificateAndKey own = ca_.Issue();
  test::WriteClusterTls(Dir("server"), ca_.certificate(), own);
  tls::PemPaths paths = tls::ClusterPaths(Dir("server"));
  paths.client_ca.clear();
  auto files = tls::PemFiles::Open(paths, &clock_);
  ASSERT_TRUE(files.ok()) << files.status();
  Serve(*files);
  EXPECT_TRUE(Connects(
      *Channel(grpc::SslCredentials({.pem_root_certs = ca_.certificate()}))));
  EXPECT_FALSE(Connects(*Channel(
      grpc::SslCredentials({.pem_root_certs = stranger_.certificate()}))));
}

TEST_F(GrpcCredentialsTest, NewConnectionsGetTheNewCertificate) {
  const auto worker = MemberFiles("worker");
  const auto router = MemberFiles("router");
  Serve(worker);
  const std::shared_ptr<grpc::Channel> before =
      Channel(MakeClusterCredentials(*router->Get()));
  ASSERT_TRUE(Connects(*before));

  // The cluster moves to another CA.
  test::WriteClusterTls(Dir("worker"), stranger_.certificate(),
                        stranger_.Issue({.hosts = ""}));
  test::WriteClusterTls(Dir("new"), stranger_.certificate(),
                        stranger_.Issue({.hosts = ""}));
  clock_.Advance(absl::Seconds(1));
  EXPECT_FALSE(MemberConnects(*router));
  auto renewed = tls::PemFiles::Open(tls::ClusterPaths(Dir("new")), &clock_);
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_TRUE(MemberConnects(**renewed));
  EXPECT_EQ(before->GetState(false), GRPC_CHANNEL_READY);  // goes on
}

TEST_F(GrpcCredentialsTest, ABrokenNewCertificateKeepsTheOldOneInForce) {
  const auto worker = MemberFiles("worker");
  const auto router = MemberFiles("router");
  Serve(worker);
  ASSERT_TRUE(MemberConnects(*router));
  test::WriteFileAtOnce(Dir("worker") + "/key.pem", ca_.Issue().key);
  clock_.Advance(absl::Seconds(1));
  EXPECT_TRUE(MemberConnects(*router));
}

TEST(ExplainConnectErrorTest, SaysWhatIsLikelyBehindIt) {
  EXPECT_THAT(ExplainConnectError("SSL routines::wrong version number", true),
              AllOf(HasSubstr("wrong version number"),
                    HasSubstr("does not speak TLS")));
  EXPECT_THAT(ExplainConnectError("certificate verify failed", true),
              HasSubstr("CA"));
  EXPECT_EQ(ExplainConnectError("Connection refused", true),
            "Connection refused");
  EXPECT_EQ(ExplainConnectError("Connection refused", false),
            "Connection refused");
}

TEST(IsLoopbackTest, KnowsWhatOnlyThisMachineReaches) {
  for (const char* address :
       {"127.0.0.1:80", "127.1.2.3:0", "localhost:80", "[::1]:80"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address : {"0.0.0.0:80", "[::]:80", "10.0.0.1:80",
                              "127.evil.example:80", "host:80", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

}  // namespace
}  // namespace baton::rpc
