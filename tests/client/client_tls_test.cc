// TLS, and mutual TLS, with certificates made for the test.
#include <fstream>
#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "client/client.h"
#include "tests/client/fake_router.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/test_certificates.h"

namespace baton::client {
namespace {

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
  options.tls_ca_file = File("ca.pem");
  const auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*client)->GetModel().ok());

  options.tls_ca_file = File("other-ca.pem");
  const absl::Status other = Client::Connect(options).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kUnavailable) << other;
  // Nor do the system's authorities know it.
  options.tls_ca_file = "";
  options.tls = true;
  EXPECT_EQ(Client::Connect(options).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ClientTlsTest, DoesNotFallBackToPlainText) {
  FakeRouter plain;
  ClientOptions options;
  options.address = plain.address();
  options.tls_ca_file = File("ca.pem");
  options.api_key = "secret";
  options.connect_timeout = absl::Seconds(1);
  EXPECT_EQ(Client::Connect(options).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_TRUE(plain.last_seen().metadata.empty());

  const auto router = MakeRouter(/*mutual=*/false);
  ClientOptions insecure;
  insecure.address = router->address();
  insecure.connect_timeout = absl::Seconds(1);
  EXPECT_EQ(Client::Connect(insecure).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(ClientTlsTest, ShowsItsOwnCertificate) {
  const auto router = MakeRouter(/*mutual=*/true);
  ClientOptions options;
  options.address = router->address();
  options.tls_ca_file = File("ca.pem");
  options.connect_timeout = absl::Seconds(2);
  EXPECT_EQ(Client::Connect(options).status().code(),
            absl::StatusCode::kUnavailable);
  options.tls_cert_file = File("own.pem");
  options.tls_key_file = File("own.key");
  options.connect_timeout = absl::Seconds(20);
  const auto client = Client::Connect(options);
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_TRUE((*client)->GetModel().ok());
}

TEST_F(ClientTlsTest, AKeyOfAnotherCertificateIsAnError) {
  const auto router = MakeRouter(/*mutual=*/true);
  ClientOptions options;
  options.address = router->address();
  options.tls_ca_file = File("ca.pem");
  options.tls_cert_file = File("own.pem");
  options.tls_key_file = File("router.key");
  options.connect_timeout = absl::Seconds(1);
  EXPECT_FALSE(Client::Connect(options).ok());
}

}  // namespace
}  // namespace baton::client
