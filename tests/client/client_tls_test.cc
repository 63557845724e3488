// TLS, and mutual TLS, with certificates made for the test.
#include <fstream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/client.h"
#include "tests/client/fake_router.h"
#include "tests/support/await_that.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/test_certificates.h"

namespace baton::client {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

// What a client sees of a server that ends the connection.
testing::Matcher<const std::string&> HangsUp() {
  return AnyOf(HasSubstr("Socket closed"), HasSubstr("reset by peer"),
               HasSubstr("Broken pipe"));
}

class ClientTlsTest : public testing::Test {
 protected:
  ClientTlsTest()
      : ca_("the CA"),
        other_ca_("another CA"),
        router_(ca_.Issue()),
        own_(ca_.Issue()) {
    Write("ca.pem", ca_.certificate());
    Write("other-ca.pem", other_ca_.certificate());
    Write("own.pem", own_.certificate);
    Write("own.key", own_.key);
    Write("router.key", router_.key);
  }

  std::string File(const std::string& name) const {
    return dir_.path() + "/" + name;
  }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(File(name), std::ios::binary) << text;
  }

  // A router that asks for clients' certificates if `mutual`.
  std::unique_ptr<FakeRouter> MakeRouter(bool mutual) const {
    grpc::SslServerCredentialsOptions options(
        mutual ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
               : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
    options.pem_root_certs = ca_.certificate();
    options.pem_key_cert_pairs.push_back({router_.key, router_.certificate});
    return std::make_unique<FakeRouter>(grpc::SslServerCredentials(options));
  }

  // There is no connection, and the error says why. A busy machine may not get
  // to ask the channel for that in time: then again.
  static void ExpectNoConnection(
      const ClientOptions& options,
      const testing::Matcher<const std::string&>& why) {
    absl::Status status;
    EXPECT_TRUE(test::AwaitThat(
        [&] {
          status = Client::Connect(options).status();
          return !absl::IsUnavailable(status) ||
                 why.Matches(std::string(status.message()));
        },
        absl::Seconds(20)));
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_THAT(std::string(status.message()), why);
  }

  test::ScratchDir dir_;
  test::TestCa ca_;
  test::TestCa other_ca_;
  test::CertificateAndKey router_;
  test::CertificateAndKey own_;
};

TEST_F(ClientTlsTest, TrustsTheAuthorityThatItWasGiven) {
  const auto router = MakeRouter(/*mutual=*/false);
  ClientOptions options;
  options.address = router->address();
  options.connect_timeout = absl::Seconds(20);
  options.tls_ca_file = File("ca.pem");
  const auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*client)->GetModel().ok());

  options.tls_ca_file = File("other-ca.pem");
  ExpectNoConnection(options, HasSubstr("certificate verify failed"));
  // Nor do the system's authorities know it.
  options.tls_ca_file = "";
  options.tls = true;
  ExpectNoConnection(options, HasSubstr("certificate verify failed"));
}

TEST_F(ClientTlsTest, DoesNotFallBackToPlainText) {
  FakeRouter plain;
  ClientOptions options;
  options.address = plain.address();
  options.connect_timeout = absl::Seconds(20);
  options.tls_ca_file = File("ca.pem");
  options.api_key = "secret";
  ExpectNoConnection(options, HasSubstr("handshake"));
  EXPECT_TRUE(plain.last_seen().metadata.empty());

  const auto router = MakeRouter(/*mutual=*/false);
  ClientOptions insecure;
  insecure.address = router->address();
  insecure.connect_timeout = absl::Seconds(20);
  ExpectNoConnection(insecure, HangsUp());
}

TEST_F(ClientTlsTest, ShowsItsOwnCertificate) {
  const auto router = MakeRouter(/*mutual=*/true);
  ClientOptions options;
  options.address = router->address();
  options.connect_timeout = absl::Seconds(20);
  options.tls_ca_file = File("ca.pem");
  ExpectNoConnection(options, HangsUp());
  options.tls_cert_file = File("own.pem");
  options.tls_key_file = File("own.key");
  const auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*client)->GetModel().ok());
}

TEST_F(ClientTlsTest, AKeyOfAnotherCertificateIsAnError) {
  const auto router = MakeRouter(/*mutual=*/true);
  ClientOptions options;
  options.address = router->address();
  options.connect_timeout = absl::Seconds(20);
  options.tls_ca_file = File("ca.pem");
  options.tls_cert_file = File("own.pem");
  options.tls_key_file = File("router.key");
  // Not for lack of time.
  ExpectNoConnection(options, Not(HasSubstr("no connection in time")));
}

}  // namespace
}  // namespace baton::client
