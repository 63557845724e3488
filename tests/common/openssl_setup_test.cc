#include "common/tls/openssl_setup.h"

#include <openssl/crypto.h>

#include <cstdio>
#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::tls {
namespace {

// In a process of its own: says what OpenSSL does when it exits.
[[noreturn]] void Exit(bool keep) {
  if (keep) KeepOpenSslAtExit();
  std::fputs("exits", stderr);
  // As whoever uses it for the first time.
  if (OPENSSL_init_crypto(OPENSSL_INIT_LOAD_CRYPTO_STRINGS, nullptr) != 1)
    std::abort();
  if (OPENSSL_atexit([] { std::fputs(", frees", stderr); }) != 1) std::abort();
  std::exit(0);
}

TEST(OpenSslSetupTest, NothingIsFreedAtExit) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(Exit(true), ::testing::ExitedWithCode(0), "exits$");
}

TEST(OpenSslSetupTest, WithoutItAllIs) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(Exit(false), ::testing::ExitedWithCode(0), "exits, frees$");
}

}  // namespace
}  // namespace baton::tls
