#include "worker/kv_encryption.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_certificates.h"

namespace baton::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class KvEncryptionTest : public testing::Test {
 protected:
  static WorkerOptions Options(const std::string& encryption,
                               const std::string& transport,
                               const std::string& ucx_tls = "tcp") {
    WorkerOptions options;
    options.kv_encryption = encryption;
    options.transport = transport;
    options.ucx_tls = ucx_tls;
    return options;
  }
  bool Required(const WorkerOptions& options,
                const char* ucx_environment = nullptr) {
    const auto tls = KvEncryption(options, files_, ucx_environment);
    EXPECT_TRUE(tls.ok()) << tls.status();
    if (!tls.ok()) return false;
    EXPECT_EQ(tls->files, files_);
    return tls->is_required();
  }
  std::string Error(const WorkerOptions& options,
                    const char* ucx_environment = nullptr) {
    return std::string(
        KvEncryption(options, files_, ucx_environment).status().message());
  }

  test::ClusterMembers members_;
  std::shared_ptr<tls::PemFiles> files_ = members_.Files();
};

TEST_F(KvEncryptionTest, AutoEncryptsWhatGoesByTcp) {
  EXPECT_TRUE(Required(Options("auto", "auto")));
  EXPECT_TRUE(Required(Options("auto", "tcp")));
  EXPECT_FALSE(Required(Options("auto", "ucx")));
  EXPECT_FALSE(Required(Options("auto", "nccl")));
  EXPECT_FALSE(Required(Options("auto", "local")));
  EXPECT_FALSE(Required(Options("auto", "auto", "rc_x,tcp")));
  EXPECT_FALSE(Required(Options("auto", "auto"), "rc_x,tcp"));
  EXPECT_TRUE(Required(Options("auto", "auto", "rc_x,tcp"), "tcp"));
}

TEST_F(KvEncryptionTest, OffTakesWhatComesEncrypted) {
  EXPECT_FALSE(Required(Options("off", "auto")));
  EXPECT_FALSE(Required(Options("off", "tcp")));
}

TEST_F(KvEncryptionTest, NothingIsEncryptedWithoutCertificates) {
  for (const char* encryption : {"auto", "off"}) {
    const auto tls =
        KvEncryption(Options(encryption, "auto"), nullptr, nullptr);
    ASSERT_TRUE(tls.ok()) << tls.status();
    EXPECT_FALSE(tls->is_required());
    EXPECT_EQ(tls->files, nullptr);
  }
}

TEST_F(KvEncryptionTest, TlsIsHadOrAnError) {
  EXPECT_TRUE(Required(Options("tls", "auto")));
  EXPECT_TRUE(Required(Options("tls", "tcp")));
  EXPECT_TRUE(Required(Options("tls", "local")));
  EXPECT_THAT(Error(Options("tls", "ucx")),
              AllOf(HasSubstr("--kv-encryption tls"),
                    HasSubstr("--transport auto or tcp, not ucx")));
  EXPECT_THAT(Error(Options("tls", "nccl")), HasSubstr("not nccl"));
  EXPECT_THAT(Error(Options("tls", "auto", "rc_x,tcp")),
              HasSubstr("--ucx-tls tcp, not rc_x,tcp"));
  EXPECT_THAT(Error(Options("tls", "auto"), "rc"),
              HasSubstr("not rc of UCX_TLS in the environment"));
  files_ = nullptr;
  EXPECT_THAT(Error(Options("tls", "auto")),
              HasSubstr("--kv-encryption tls needs --cluster-tls"));
}

}  // namespace
}  // namespace baton::worker
