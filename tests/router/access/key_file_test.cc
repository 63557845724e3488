#include "router/access/key_file.h"

#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton::router::key_file_test {
namespace {

using ::testing::HasSubstr;

// SHA-256 of "abc" (FIPS 180-2).
constexpr char kHashOfAbc[] =
    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kOtherHash[] =
    "0000000000000000000000000000000000000000000000000000000000000001";

std::string ErrorOf(const std::string& text) {
  const auto entries = ParseKeyFile(text, "keys");
  return entries.ok() ? "" : std::string(entries.status().message());
}

std::string Line(const std::string& rest) {
  return absl::StrCat("alice sha256:", kHashOfAbc, rest);
}

TEST(KeyFileTest, ReadsNamesHashesAndLimits) {
  const std::string text =
      absl::StrCat("# who may\n\n  alice\tsha256:", kHashOfAbc,
                   "   # until May\r\nbob-2.x_y sha256:", kOtherHash,
                   " tokens-per-minute=100000 max-concurrent=4 max-tokens=512 "
                   "requests-per-minute=60 weight=3");
  const auto entries = ParseKeyFile(text, "keys");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2u);
  EXPECT_EQ((*entries)[0].name, "alice");
  EXPECT_EQ((*entries)[0].hash, HashKey("abc"));
  EXPECT_EQ((*entries)[0].limits, KeyLimits());
  EXPECT_EQ((*entries)[1].name, "bob-2.x_y");
  EXPECT_EQ((*entries)[1].limits, (KeyLimits{.max_concurrent = 4,
                                             .requests_per_minute = 60,
                                             .tokens_per_minute = 100000,
                                             .max_tokens = 512,
                                             .weight = 3}));
}

TEST(KeyFileTest, ReadsUpperCaseHexadecimalDigits) {
  std::string upper = kHashOfAbc;
  for (char& c : upper) c = static_cast<char>(std::toupper(c));
  const auto entries = ParseKeyFile("alice sha256:" + upper, "keys");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ((*entries)[0].hash, HashKey("abc"));
}

TEST(KeyFileTest, WritesWhatItReads) {
  KeyEntry entry;
  entry.name = "team.a";
  entry.hash = HashKey(NewKey());
  for (const KeyLimits& limits : {KeyLimits(), KeyLimits{.max_concurrent = 1},
                                  KeyLimits{.max_concurrent = 2,
                                  .requests_per_minute = 3,
                                  .tokens_per_minute = 4'000'000'000,
                                  .max_tokens = 5,
                                  .weight = 1000}}) {
    entry.limits = limits;
    const auto entries = ParseKeyFile(FormatKeyLine(entry), "keys");
    ASSERT_TRUE(entries.ok()) << entries.status();
    ASSERT_EQ(entries->size(), 1u);
    EXPECT_EQ((*entries)[0].name, entry.name);
    EXPECT_EQ((*entries)[0].hash, entry.hash);
    EXPECT_EQ((*entries)[0].limits, limits);
  }
}

TEST(KeyFileTest, ErrorsNameFileLineAndField) {
  EXPECT_THAT(ErrorOf("# comment\n\nalice\n"),
              AllOf(HasSubstr("keys:3: hash"), HasSubstr("64 hexadecimal")));
  EXPECT_THAT(ErrorOf("al/ice sha256:00"),
              HasSubstr("keys:1: name: \"al/ice\""));
  EXPECT_THAT(ErrorOf(std::string(65, 'a') + " sha256:00"),
              HasSubstr("keys:1: name"));
  EXPECT_THAT(ErrorOf("alice md5:00"), HasSubstr("keys:1: hash"));
  EXPECT_THAT(ErrorOf(absl::StrCat("alice ", kHashOfAbc)), HasSubstr("hash"));
  EXPECT_THAT(ErrorOf(Line("0")), HasSubstr("keys:1: hash"));
  EXPECT_THAT(ErrorOf(Line(" max-requests=4")), HasSubstr("keys:1: field 3"));
  EXPECT_THAT(ErrorOf(Line(" max-concurrent")),
              HasSubstr("keys:1: max-concurrent: \"\""));
  for (const char* value :
       {"", "0", "-1", "1.5", "many", "4x", "0x10", "99999999999999999999"}) {
    for (const char* field : {"max-concurrent", "requests-per-minute",
                              "tokens-per-minute", "max-tokens", "weight"}) {
      EXPECT_THAT(ErrorOf(Line(absl::StrCat(" ", field, "=", value))),
                  HasSubstr(absl::StrCat("keys:1: ", field, ": \"", value)));
    }
  }
  EXPECT_THAT(ErrorOf(Line(" max-tokens=2147483648")), HasSubstr("max-tokens"));
  EXPECT_THAT(ErrorOf(Line(" weight=1001")),
              HasSubstr("not a whole number from 1 to 1000"));
  EXPECT_THAT(ErrorOf(Line(" max-tokens=1 max-tokens=2")),
              HasSubstr("keys:1: max-tokens: is given twice"));
  EXPECT_THAT(ErrorOf(Line(absl::StrCat("\nalice sha256:", kOtherHash))),
              HasSubstr("keys:2: name: \"alice\" is also in line 1"));
  EXPECT_THAT(ErrorOf(Line(absl::StrCat("\nbob sha256:", kHashOfAbc))),
              HasSubstr("keys:2: hash: is the same as in line 1"));
}

TEST(KeyFileTest, KeysOfATenant) {
  const auto entries =
      ParseKeyFile(absl::StrCat(Line(" tenant=team-1 weight=2\n"),
                                "bob sha256:", kOtherHash),
                   "keys");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ(TenantOf((*entries)[0]), "team-1");
  EXPECT_EQ((*entries)[0].limits.weight, 2);
  EXPECT_EQ(TenantOf((*entries)[1]), "bob");
  EXPECT_THAT(FormatKeyLine((*entries)[0]), HasSubstr(" tenant=team-1"));
  EXPECT_EQ(FormatKeyLine((*entries)[1]).find("tenant"), std::string::npos);
  EXPECT_THAT(ErrorOf(Line(" tenant=")), HasSubstr("keys:1: tenant: \"\""));
  EXPECT_THAT(ErrorOf(Line(" tenant=a/b")), HasSubstr("keys:1: tenant: \"a/b"));
  EXPECT_THAT(ErrorOf(Line(" tenant=a tenant=a")),
              HasSubstr("keys:1: tenant: is given twice"));
  // Not quoted: it may be a key.
  EXPECT_EQ(ErrorOf(Line(" tenant=sk-baton-x")),
            "keys:1: tenant: begins with \"sk-\", as keys do");
}

TEST(KeyFileTest, WhatRequestsMayAskFor) {
  const auto entries = ParseKeyFile(
      absl::StrCat(Line(" class=batch max-priority=-5 models=sql,org/a:b,sql"),
                   "\nbob sha256:", kOtherHash, " max-priority=100"),
      "keys");
  ASSERT_TRUE(entries.ok()) << entries.status();
  const KeyRights& alice = (*entries)[0].rights;
  EXPECT_EQ(alice, (KeyRights{.max_priority = -5,
                              .batch_only = true,
                              .models = {"org/a:b", "sql"}}));
  EXPECT_TRUE(alice.HasModel("sql"));
  EXPECT_TRUE(alice.HasModel("org/a:b"));
  EXPECT_FALSE(alice.HasModel("org/a"));
  EXPECT_FALSE(alice.HasModel(""));
  EXPECT_THAT(FormatKeyLine((*entries)[0]),
              HasSubstr(" max-priority=-5 class=batch models=org/a:b,sql"));
  const auto again = ParseKeyFile(FormatKeyLine((*entries)[0]), "keys");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)[0].rights, alice);
  const KeyRights& bob = (*entries)[1].rights;
  EXPECT_EQ(bob, (KeyRights{.max_priority = 100}));
  EXPECT_TRUE(bob.HasModel("anything"));
}

TEST(KeyFileTest, RightsThatAreNoneAreNamed) {
  for (const char* value : {"", "101", "-101", "high", "1.5"}) {
    EXPECT_THAT(ErrorOf(Line(absl::StrCat(" max-priority=", value))),
                HasSubstr(absl::StrCat("keys:1: max-priority: \"", value)));
  }
  EXPECT_EQ(ErrorOf(Line(" class=interactive")),
            "keys:1: class: \"interactive\" is not batch");
  for (const char* value : {"", "a,", ",a", "a,,b"}) {
    EXPECT_THAT(ErrorOf(Line(absl::StrCat(" models=", value))),
                HasSubstr("keys:1: models: \"\""));
  }
  EXPECT_THAT(ErrorOf(Line(" models=\x01")),
              HasSubstr("keys:1: models: \"\\x01\""));
  std::string many = " models=a0";
  for (int i = 1; i <= 100; ++i) absl::StrAppend(&many, ",a", i);
  EXPECT_THAT(ErrorOf(Line(many)), HasSubstr("more than 100 names"));
  for (const char* twice : {"class=batch", "max-priority=1", "models=a"}) {
    EXPECT_THAT(ErrorOf(Line(absl::StrCat(" ", twice, " ", twice))),
                HasSubstr(": is given twice"));
  }
}

TEST(KeyFileTest, AFileWithoutAKeyIsAnError) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("keys has no key"));
  EXPECT_THAT(ErrorOf("# none\n"), HasSubstr("baton key"));
}

TEST(KeyFileTest, HasABound) {
  std::string text;
  for (size_t i = 0; i <= kMaxKeys; ++i) {
    KeyEntry entry;
    entry.name = absl::StrCat("k", i);
    entry.hash = HashKey(entry.name);
    absl::StrAppend(&text, FormatKeyLine(entry), "\n");
  }
  EXPECT_THAT(ErrorOf(text), HasSubstr("keys:1001: more than 1000 keys"));
}

// Somebody pastes the key where its hash, or its name, belongs.
TEST(KeyFileTest, ErrorsDoNotQuoteKeys) {
  const std::string key = NewKey();
  for (const std::string& text :
       {key, key + " sha256:" + kHashOfAbc, "alice " + key,
        "alice sha256:" + key, Line(" " + key)}) {
    const std::string error = ErrorOf(text);
    EXPECT_NE(error, "");
    EXPECT_THAT(error, Not(HasSubstr(key.substr(12, 8)))) << text;
  }
}

TEST(NewKeyTest, HasTwoHundredFiftySixBitsThatDiffer) {
  std::set<std::string> keys;
  std::set<char> characters;
  for (int i = 0; i < 200; ++i) {
    const std::string key = NewKey();
    EXPECT_TRUE(absl::StartsWith(key, "sk-baton-")) << key;
    EXPECT_EQ(key.size(), 9u + 43u);
    EXPECT_LE(key.size(), kMaxKeyBytes);
    characters.insert(key.begin() + 9, key.end());
    keys.insert(key);
  }
  EXPECT_EQ(keys.size(), 200u);
  EXPECT_EQ(characters.size(), 64u);  // and none that a URL would escape
  EXPECT_EQ(characters.count('='), 0u);
}

}  // namespace
}  // namespace baton::router::key_file_test
