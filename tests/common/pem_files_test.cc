#include "common/tls/pem_files.h"

#include <openssl/err.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/manual_clock.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/test_certificates.h"

namespace baton::tls {
namespace {

using ::testing::HasSubstr;

class PemFilesTest : public testing::Test {
 protected:
  PemFilesTest() : ca_("one CA"), own_(ca_.Issue()) {
    test::WriteClusterTls(dir(), ca_.certificate(), own_);
  }

  const std::string& dir() const { return scratch_.path(); }
  std::string Path(const std::string& name) const {
    return absl::StrCat(dir(), "/", name);
  }
  void Write(const std::string& name, const std::string& text) {
    test::WriteFileAtOnce(Path(name), text);
  }
  absl::StatusOr<std::shared_ptr<PemFiles>> Open() {
    return PemFiles::Open(ClusterPaths(dir()), &clock_);
  }
  // What Open says when one of the files has another text.
  std::string ErrorWith(const std::string& name, const std::string& text) {
    Write(name, text);
    const absl::StatusOr<std::shared_ptr<PemFiles>> files = Open();
    return files.ok() ? "" : std::string(files.status().message());
  }
  void LetTimePass() { clock_.Advance(absl::Seconds(1)); }

  const test::ScratchDir scratch_;
  test::ManualClock clock_;
  test::TestCa ca_;
  const test::CertificateAndKey own_;
};

TEST_F(PemFilesTest, GivesWhatTheFilesHold) {
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  const std::shared_ptr<const PemContents> contents = (*files)->Get();
  EXPECT_EQ(contents->certificate_chain, own_.certificate);
  EXPECT_EQ(contents->private_key, own_.key);
  EXPECT_EQ(contents->client_ca, ca_.certificate());
  EXPECT_EQ(contents->version, 1u);
  EXPECT_GT(contents->expires, absl::Now() + absl::Minutes(50));
  EXPECT_LT(contents->expires, absl::Now() + absl::Minutes(70));
}

TEST_F(PemFilesTest, NeedsNoClientCa) {
  PemPaths paths = ClusterPaths(dir());
  paths.client_ca.clear();
  std::filesystem::remove(Path("ca.pem"));
  const auto files = PemFiles::Open(paths, &clock_);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->Get()->client_ca, "");
}

TEST_F(PemFilesTest, ReadsAChainAndABundle) {
  test::TestCa other("another CA");
  const std::string chain = own_.certificate + ca_.certificate();
  const std::string bundle =
      "# comment\n" + ca_.certificate() + "\n" + other.certificate();
  Write("cert.pem", chain);
  Write("ca.pem", bundle);
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ((*files)->Get()->certificate_chain, chain);
  EXPECT_EQ((*files)->Get()->client_ca, bundle);
}

TEST_F(PemFilesTest, ErrorsNameTheFile) {
  const test::CertificateAndKey stranger = ca_.Issue();
  EXPECT_THAT(ErrorWith("key.pem", stranger.key),
              AllOf(HasSubstr("does not fit"), HasSubstr(Path("key.pem")),
                    HasSubstr(Path("cert.pem"))));
  EXPECT_THAT(ErrorWith("key.pem", own_.certificate),
              HasSubstr(Path("key.pem") + " has no PEM private key"));
  EXPECT_THAT(ErrorWith("key.pem", ""), HasSubstr(Path("key.pem")));
  Write("key.pem", own_.key);
  for (const char* name : {"cert.pem", "ca.pem"}) {
    const std::string good =
        name == std::string("ca.pem") ? ca_.certificate() : own_.certificate;
    EXPECT_THAT(ErrorWith(name, ""),
                HasSubstr(Path(name) + " has no PEM certificate"));
    EXPECT_THAT(ErrorWith(name, "no PEM\n"), HasSubstr(Path(name)));
    EXPECT_THAT(ErrorWith(name, good.substr(0, good.size() / 2)),
                HasSubstr(Path(name)));
    EXPECT_THAT(ErrorWith(name, good + good.substr(0, good.size() / 2)),
                HasSubstr(Path(name) + ": certificate 2"));
    EXPECT_THAT(ErrorWith(name, std::string(2 << 20, 'x')),
                HasSubstr(Path(name) + " is longer than"));
    EXPECT_EQ(ErrorWith(name, good), "");
  }
  for (const char* name : {"cert.pem", "key.pem", "ca.pem"}) {
    const std::string path = Path(name);
    std::filesystem::rename(path, path + ".away");
    EXPECT_THAT(std::string(Open().status().message()), HasSubstr(path));
    std::filesystem::create_directory(path);
    EXPECT_THAT(std::string(Open().status().message()), HasSubstr(path));
    std::filesystem::remove(path);
    std::filesystem::rename(path + ".away", path);
  }
  EXPECT_TRUE(Open().ok());
}

TEST_F(PemFilesTest, ErrorsDoNotQuoteTheKey) {
  const std::string body = own_.key.substr(40, 40);
  EXPECT_THAT(ErrorWith("key.pem", own_.key.substr(0, own_.key.size() / 2)),
              Not(HasSubstr(body)));
  Write("key.pem", own_.key);
  EXPECT_THAT(ErrorWith("cert.pem", own_.key), Not(HasSubstr(body)));
}

// gRPC's connections on this thread would find the error and take it for
// theirs.
TEST_F(PemFilesTest, LeavesNoErrorBehind) {
  ASSERT_NE(ErrorWith("key.pem", "garbage"), "");
  EXPECT_EQ(ERR_peek_error(), 0u);
  ASSERT_NE(ErrorWith("key.pem", ca_.Issue().key), "");
  EXPECT_EQ(ERR_peek_error(), 0u);
  ASSERT_EQ(ErrorWith("key.pem", own_.key), "");
  EXPECT_EQ(ERR_peek_error(), 0u);
}

TEST_F(PemFilesTest, TakesANewSetASecondLaterAtTheLatest) {
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  const test::CertificateAndKey renewed = ca_.Issue();
  Write("cert.pem", renewed.certificate);
  Write("key.pem", renewed.key);
  clock_.Advance(absl::Milliseconds(999));
  EXPECT_EQ((*files)->Get()->certificate_chain, own_.certificate);
  clock_.Advance(absl::Milliseconds(1));
  const std::shared_ptr<const PemContents> contents = (*files)->Get();
  EXPECT_EQ(contents->certificate_chain, renewed.certificate);
  EXPECT_EQ(contents->private_key, renewed.key);
  EXPECT_EQ(contents->version, 2u);
  LetTimePass();
  EXPECT_EQ((*files)->Get(), contents);
}

TEST_F(PemFilesTest, SeesAFileThatIsWrittenInPlace) {
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  const std::string bundle =
      ca_.certificate() + test::TestCa("another CA").certificate();
  std::ofstream(Path("ca.pem"), std::ios::binary) << bundle;
  LetTimePass();
  EXPECT_EQ((*files)->Get()->client_ca, bundle);
}

// As Kubernetes updates a mounted secret: the files are links through a folder
// that is itself a link.
TEST_F(PemFilesTest, SeesALinkThatPointsElsewhere) {
  namespace fs = std::filesystem;
  const test::CertificateAndKey renewed = ca_.Issue();
  test::WriteClusterTls(Path("v1"), ca_.certificate(), own_);
  test::WriteClusterTls(Path("v2"), ca_.certificate(), renewed);
  fs::create_directory_symlink(Path("v1"), Path("current"));
  const auto files = PemFiles::Open(ClusterPaths(Path("current")), &clock_);
  ASSERT_TRUE(files.ok()) << files.status();
  fs::create_directory_symlink(Path("v2"), Path("next"));
  fs::rename(Path("next"), Path("current"));
  LetTimePass();
  EXPECT_EQ((*files)->Get()->certificate_chain, renewed.certificate);
}

TEST_F(PemFilesTest, ABrokenOrHalfWrittenSetKeepsTheOldOne) {
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  const std::shared_ptr<const PemContents> before = (*files)->Get();
  const test::CertificateAndKey renewed = ca_.Issue();
  Write("cert.pem", renewed.certificate);  // without its key
  LetTimePass();
  EXPECT_EQ((*files)->Get(), before);
  Write("key.pem", renewed.key.substr(0, 100));
  LetTimePass();
  EXPECT_EQ((*files)->Get(), before);
  std::filesystem::remove(Path("ca.pem"));
  LetTimePass();
  EXPECT_EQ((*files)->Get(), before);
  Write("key.pem", renewed.key);
  Write("ca.pem", ca_.certificate());
  LetTimePass();
  EXPECT_EQ((*files)->Get()->certificate_chain, renewed.certificate);
}

TEST_F(PemFilesTest, ABrokenSetIsReadOnceAndNotWithEachLook) {
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  Write("key.pem", "garbage");
  testing::internal::CaptureStderr();
  for (int i = 0; i < 5; ++i) {
    LetTimePass();
    (*files)->Get();
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t first = log.find("keeping the certificate of before");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("keeping the certificate of before", first + 1),
            std::string::npos)
      << log;
  EXPECT_THAT(log, HasSubstr(Path("key.pem")));
}

TEST_F(PemFilesTest, AllThreadsGetAWholeSet) {
  const auto files = Open();
  ASSERT_TRUE(files.ok()) << files.status();
  const test::CertificateAndKey renewed = ca_.Issue();
  std::atomic<bool> done{false};
  std::atomic<int> torn{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!done) {
        const std::shared_ptr<const PemContents> c = (*files)->Get();
        const bool is_old = c->certificate_chain == own_.certificate;
        torn += c->private_key != (is_old ? own_.key : renewed.key);
      }
    });
  }
  for (int i = 0; i < 20; ++i) {
    const test::CertificateAndKey& next = i % 2 == 0 ? renewed : own_;
    Write("cert.pem", next.certificate);
    LetTimePass();
    (*files)->Get();
    Write("key.pem", next.key);
    LetTimePass();
    EXPECT_EQ((*files)->Get()->certificate_chain, next.certificate);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
}

}  // namespace
}  // namespace baton::tls
