#include "router/prefix_salt.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "router/access/key_file.h"
#include "router/adapter_names.h"
#include "scheduling/request.h"

namespace baton::router {
namespace {

// What a client may give.
constexpr size_t kLongestClientSalt = 256;

std::string OfTenant(const std::string& tenant, const std::string& salt) {
  return MakePrefixSalt(PrefixScope::kTenant, tenant, salt);
}

TEST(PrefixSaltTest, NoTwoPairsAreAlike) {
  const std::string texts[] = {"",
                               "a",
                               "b",
                               "ab",
                               "aa",
                               std::string("\0", 1),
                               std::string("\1a", 2),
                               std::string("\0a", 2)};
  std::set<std::string> salts;
  for (const std::string& tenant : texts) {
    for (const std::string& salt : texts) {
      EXPECT_TRUE(salts.insert(OfTenant(tenant, salt)).second)
          << "tenant of " << tenant.size() << ", salt of " << salt.size();
    }
  }
}

TEST(PrefixSaltTest, NoTwoAdaptersAreAlike) {
  // As long as those of workers, and others.
  const std::string adapters[] = {"", "a", "ab", std::string(32, 'a'),
                                  std::string(32, 'b')};
  const std::string texts[] = {"",
                               "a",
                               "aa",
                               "\xff",
                               std::string("\xff\1a\0", 4),
                               std::string("\1a\0", 3)};
  std::set<std::string> salts;
  for (const std::string& adapter : adapters) {
    for (const std::string& tenant : texts) {
      for (const std::string& salt : texts) {
        EXPECT_TRUE(salts
                        .insert(MakePrefixSalt(PrefixScope::kTenant, tenant,
                                               salt, adapter))
                        .second)
            << adapter << ", tenant of " << tenant.size() << ", salt of "
            << salt.size();
      }
    }
  }
}

// Caches outlive routers: this may not change from release to release.
TEST(PrefixSaltTest, IsTheSameForEver) {
  EXPECT_EQ(OfTenant("", ""), "");
  EXPECT_EQ(OfTenant("", "x"), std::string("\0x", 2));
  EXPECT_EQ(OfTenant("alice", ""), "\5alice");
  EXPECT_EQ(OfTenant("alice", "x"), "\5alicex");
  EXPECT_EQ(MakePrefixSalt(PrefixScope::kTenant, "alice", "x", "A1"),
            "\xff\2A1\5alicex");
}

TEST(PrefixSaltTest, SharedIsWithoutTheTenant) {
  for (const char* salt : {"", "x"}) {
    EXPECT_EQ(MakePrefixSalt(PrefixScope::kShared, "alice", salt),
              MakePrefixSalt(PrefixScope::kShared, "bob", salt));
  }
  EXPECT_NE(MakePrefixSalt(PrefixScope::kShared, "alice", "x"),
            MakePrefixSalt(PrefixScope::kShared, "alice", ""));
}

TEST(PrefixSaltTest, WorkersTakeTheLongest) {
  EXPECT_LE(OfTenant(std::string(kMaxKeyNameBytes, 'a'),
                     std::string(kLongestClientSalt, 'x'))
                .size(),
            scheduling::kMaxCacheSaltBytes);
  EXPECT_LE(
      MakePrefixSalt(PrefixScope::kTenant, std::string(kMaxKeyNameBytes, 'a'),
                     std::string(kLongestClientSalt, 'x'),
                     std::string(kMaxAdapterIdentityBytes, 'b'))
          .size(),
      scheduling::kMaxCacheSaltBytes);
}

}  // namespace
}  // namespace baton::router
