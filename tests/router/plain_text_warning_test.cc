// What a router's log says of ports that other machines can reach.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/tls/pem_files.h"
#include "router/router_server.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/test_certificates.h"

namespace baton::router {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

// Collects what is said of plain text while it lives.
class PlainTextWarnings final : public google::LogSink {
 public:
  PlainTextWarnings() { google::AddLogSink(this); }
  ~PlainTextWarnings() override { google::RemoveLogSink(this); }
  void send(google::LogSeverity severity, const char*, const char*, int,
            const google::LogMessageTime&, const char* message,
            size_t length) override {
    const std::string line(message, length);
    if (severity == google::GLOG_WARNING &&
        absl::StrContains(line, "is plain text")) {
      lines.push_back(line);
    }
  }
  std::vector<std::string> lines;
};

// What a router warns of that listens so.
std::vector<std::string> Warnings(const std::string& grpc,
                                  const std::string& http,
                                  std::shared_ptr<tls::PemFiles> tls) {
  RouterOptions options;
  options.model_dir = absl::StrCat(BATON_SOURCE_DIR, "/models/stories");
  options.metrics = "";
  options.listen = grpc;
  options.http.listen = http;
  options.client_tls = std::move(tls);
  const PlainTextWarnings warnings;
  const auto router = RouterServer::Start(options);
  EXPECT_TRUE(router.ok()) << router.status();
  return warnings.lines;
}

TEST(PlainTextWarningTest, NamesEachPortThatOthersReach) {
  EXPECT_THAT(Warnings("127.0.0.1:0", "127.0.0.1:0", nullptr), IsEmpty());
  EXPECT_THAT(Warnings("127.0.0.1:0", "0.0.0.0:0", nullptr),
              ElementsAre(MatchesRegex(
                  "HTTP on 0\\.0\\.0\\.0:[1-9][0-9]* is plain text and can be "
                  "reached from other machines")));
  EXPECT_THAT(Warnings("0.0.0.0:0", "localhost:0", nullptr),
              ElementsAre(MatchesRegex("gRPC on 0\\.0\\.0\\.0:0 is plain text "
                                       "and can be reached from other "
                                       "machines")));
}

TEST(PlainTextWarningTest, NotWithTls) {
  const test::ScratchDir scratch;
  test::TestCa ca("clients");
  const test::CertificateAndKey own = ca.Issue();
  const tls::PemPaths paths = {.certificate = scratch.path() + "/cert.pem",
                               .key = scratch.path() + "/key.pem"};
  test::WriteFileAtOnce(paths.certificate, own.certificate);
  test::WriteFileAtOnce(paths.key, own.key);
  auto files = tls::PemFiles::Open(paths);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(Warnings("0.0.0.0:0", "0.0.0.0:0", *std::move(files)), IsEmpty());
}

}  // namespace
}  // namespace baton::router
