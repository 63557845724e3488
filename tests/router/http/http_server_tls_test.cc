// The server behind TLS, with certificates that change.
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/tls/pem_files.h"
#include "router/http/http_server.h"
#include "tests/router/http/held_handler.h"
#include "tests/router/http/raw_client.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/test_certificates.h"

namespace baton::router::http {
namespace {

using ContextPtr = std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)>;

// A client's context that trusts `ca`, and shows `own` if there is one.
ContextPtr ClientContext(const std::string& ca,
                         const test::CertificateAndKey* own = nullptr) {
  ContextPtr context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  const auto open = [](const std::string& pem) {
    return std::unique_ptr<BIO, decltype(&BIO_free)>(
        BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())), BIO_free);
  };
  X509* trusted = PEM_read_bio_X509(open(ca).get(), nullptr, nullptr, nullptr);
  X509_STORE_add_cert(SSL_CTX_get_cert_store(context.get()), trusted);
  X509_free(trusted);
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  if (own != nullptr) {
    X509* certificate = PEM_read_bio_X509(open(own->certificate).get(), nullptr,
                                          nullptr, nullptr);
    EVP_PKEY* key = PEM_read_bio_PrivateKey(open(own->key).get(), nullptr,
                                            nullptr, nullptr);
    SSL_CTX_use_certificate(context.get(), certificate);
    SSL_CTX_use_PrivateKey(context.get(), key);
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  return context;
}

std::string PeerName(const RawClient& client) {
  X509* certificate = SSL_get1_peer_certificate(client.ssl());
  if (certificate == nullptr) return "";
  char name[100] = "";
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName,
                            name, sizeof(name));
  X509_free(certificate);
  return name;
}

class HttpServerTlsTest : public testing::Test {
 protected:
  HttpServerTlsTest() { Use(ca_.Issue({.name = "first"})); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(scratch_.path(), "/", name);
  }
  // What the server shows from now on.
  void Use(const test::CertificateAndKey& own) {
    test::WriteFileAtOnce(Path("key.pem"), own.key);
    test::WriteFileAtOnce(Path("cert.pem"), own.certificate);
    clock_.Advance(absl::Seconds(1));
  }
  void Start(Handler* handler, bool ask_clients = false,
             HttpServer::Options options = {}) {
    test::WriteFileAtOnce(Path("ca.pem"), client_ca_.certificate());
    auto files = tls::PemFiles::Open(
        {Path("cert.pem"), Path("key.pem"), ask_clients ? Path("ca.pem") : ""},
        &clock_);
    ASSERT_TRUE(files.ok()) << files.status();
    options.listen = "127.0.0.1:0";
    options.tls = *files;
    auto server = HttpServer::Start(options, handler);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  const std::string& address() const { return server_->address(); }

  const test::ScratchDir scratch_;
  test::ManualClock clock_;
  test::TestCa ca_{"servers"};
  test::TestCa client_ca_{"clients"};
  const ContextPtr trusting_ = ClientContext(ca_.certificate());
  FunctionHandler echo_ = EchoHandler();
  HeldHandler held_;
  std::unique_ptr<Handler> handler_;    // what a test brings
  std::unique_ptr<HttpServer> server_;  // uses the others to its end
};

TEST_F(HttpServerTlsTest, AnswersThroughTls) {
  Start(&echo_);
  RawClient client(address(), 0, trusting_.get());
  ASSERT_TRUE(client.tls_ok());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(client.Send(kGet));
    EXPECT_EQ(client.Read().body, "GET /a ? []");
  }
  const std::string body(3 << 20, 'x');
  std::thread sender([&] {
    EXPECT_TRUE(client.Send(
        absl::StrCat("POST /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                     "Content-Length: ",
                     body.size(), "\r\n\r\n", body)));
  });
  // One SSL object is not for two threads.
  sender.join();
  const RawAnswer answer = client.Read();
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body, "POST /b ? [" + body + "]");
  EXPECT_TRUE(client.Ended());
}

TEST_F(HttpServerTlsTest, StreamsAndNoticesWhoLeaves) {
  Start(&held_);
  RawClient client(address(), 0, trusting_.get());
  ASSERT_TRUE(client.Send(kGet));
  const HeldRequest held = held_.Next();
  const auto gone = Gone(*held.responder);
  held.responder->Start({});
  client.ReadUntil("\r\n\r\n");
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(held.responder->Write("token"));
    EXPECT_EQ(client.ReadUntil("token\r\n"), "5\r\ntoken\r\n");
  }
  EXPECT_FALSE(gone->HasBeenNotified());
  client.Close();
  EXPECT_TRUE(gone->WaitForNotificationWithTimeout(kSoon));
}

TEST_F(HttpServerTlsTest, ASlowReaderIsGivenUp) {
  HttpServer::Options options;
  options.max_pending_bytes = 100000;
  Start(&held_, false, options);
  RawClient client(address(), 4096, trusting_.get());
  ASSERT_TRUE(client.Send(kGet));
  const HeldRequest held = held_.Next();
  const auto gone = Gone(*held.responder);
  held.responder->Start({});
  int written = 0;
  while (held.responder->Write(std::string(10000, 'x'))) {
    ASSERT_LT(++written, 100000);
  }
  EXPECT_TRUE(gone->WaitForNotificationWithTimeout(kSoon));
}

TEST_F(HttpServerTlsTest, ALargeAnswerIsWholeForASlowReader) {
  const std::string body(2 << 20, 'x');
  handler_ = std::make_unique<FunctionHandler>(
      [body](Request, std::shared_ptr<Responder> responder) {
        responder->Send({200, {}, body});
      });
  Start(handler_.get());
  RawClient client(address(), 4096, trusting_.get());
  ASSERT_TRUE(client.Send(kGet));
  const RawAnswer answer = client.Read();
  EXPECT_TRUE(answer.whole);
  EXPECT_EQ(answer.body, body);
}

TEST_F(HttpServerTlsTest, NewConnectionsSeeTheNewCertificate) {
  Start(&echo_);
  RawClient old_one(address(), 0, trusting_.get());
  EXPECT_EQ(PeerName(old_one), "first");
  Use(ca_.Issue({.name = "second"}));
  RawClient new_one(address(), 0, trusting_.get());
  EXPECT_EQ(PeerName(new_one), "second");
  // Who is there stays.
  for (RawClient* client : {&old_one, &new_one}) {
    ASSERT_TRUE(client->Send(kGet));
    EXPECT_EQ(client->Read().status, 200);
  }
  // A broken set changes nothing.
  Use({"no certificate", "no key"});
  RawClient later(address(), 0, trusting_.get());
  EXPECT_EQ(PeerName(later), "second");
}

TEST_F(HttpServerTlsTest, AsksClientsForCertificates) {
  Start(&echo_, /*ask_clients=*/true);
  const test::CertificateAndKey good = client_ca_.Issue();
  const ContextPtr known = ClientContext(ca_.certificate(), &good);
  RawClient client(address(), 0, known.get());
  ASSERT_TRUE(client.tls_ok());
  ASSERT_TRUE(client.Send(kGet));
  EXPECT_EQ(client.Read().status, 200);

  const test::CertificateAndKey strange = ca_.Issue();
  const ContextPtr unknown = ClientContext(ca_.certificate(), &strange);
  // In TLS 1.3 a client learns of it when it reads.
  for (SSL_CTX* context : {trusting_.get(), unknown.get()}) {
    RawClient refused(address(), 0, context);
    refused.Send(kGet);
    EXPECT_EQ(refused.Read().status, 0);
  }
}

TEST_F(HttpServerTlsTest, OldVersionsAreRefused) {
  Start(&echo_);
  const ContextPtr old = ClientContext(ca_.certificate());
  SSL_CTX_set_security_level(old.get(), 0);
  SSL_CTX_set_max_proto_version(old.get(), TLS1_1_VERSION);
  RawClient refused(address(), 0, old.get());
  EXPECT_FALSE(refused.tls_ok());
  const ContextPtr good = ClientContext(ca_.certificate());
  SSL_CTX_set_max_proto_version(good.get(), TLS1_2_VERSION);
  RawClient client(address(), 0, good.get());
  EXPECT_TRUE(client.tls_ok());
}

TEST_F(HttpServerTlsTest, AgreesOnHttp11) {
  Start(&echo_);
  const ContextPtr context = ClientContext(ca_.certificate());
  const unsigned char offered[] = "\x02h2\x08http/1.1";
  SSL_CTX_set_alpn_protos(context.get(), offered, sizeof(offered) - 1);
  RawClient client(address(), 0, context.get());
  const unsigned char* chosen = nullptr;
  unsigned int size = 0;
  SSL_get0_alpn_selected(client.ssl(), &chosen, &size);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(chosen), size),
            "http/1.1");
}

TEST_F(HttpServerTlsTest, WhoDoesNotShakeHandsIsDropped) {
  HttpServer::Options options;
  options.header_deadline = absl::Milliseconds(50);
  Start(&echo_, false, options);
  RawClient silent(address());
  EXPECT_TRUE(silent.Ended());
  RawClient plain(address());
  ASSERT_TRUE(plain.Send(kGet));
  plain.ReadToEnd();  // Perhaps an alert.
}

}  // namespace
}  // namespace baton::router::http
