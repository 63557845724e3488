#include "planner/profile.h"

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::planner {
namespace {

using testing::HasSubstr;

constexpr char kSmall[] = R"({
  "kind": "baton_profile", "version": 1,
  "kv_bytes_per_token": 1000, "num_layers": 4,
  "link_bytes_per_second": 1e9,
  "decode": {"fixed_seconds": 0.01, "seconds_per_token": 0.001,
             "seconds_per_context_token": 1e-6, "total_blocks": 99}})";

std::string ErrorOf(const std::string& text) {
  return std::string(ParseProfile(text, "p.json").status().message());
}

std::string With(const std::string& from, const std::string& to) {
  std::string text = kSmall;
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ProfileTest, PrefillWorkersAreAsTheOthersUnlessTheFileSaysMore) {
  const auto profile = ParseProfile(kSmall, "p.json");
  ASSERT_TRUE(profile.ok()) << profile.status();
  EXPECT_EQ(profile->decode.total_blocks, 99);
  EXPECT_EQ(profile->prefill.total_blocks, 99);
  EXPECT_EQ(profile->decode.token_budget, 512);
  EXPECT_EQ(profile->decode.cost.per_prompt_context_token, 1e-6);
  EXPECT_EQ(profile->num_layers, 4);
}

TEST(ProfileTest, ComesBackAsItWasWritten) {
  auto profile = ParseProfile(kSmall, "p.json");
  ASSERT_TRUE(profile.ok());
  profile->source = "a test";
  profile->prefill.token_budget = 77;
  profile->decode.cost.per_prompt_context_token = 3e-9;
  profile->link_latency_seconds = 1e-4;
  const std::string text = ProfileJson(*profile).dump();
  const auto again = ParseProfile(text, "p.json");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(ProfileJson(*again).dump(), text);
  EXPECT_EQ(again->decode.cost.per_prompt_context_token, 3e-9);
}

TEST(ProfileTest, NamesFileAndField) {
  EXPECT_EQ(ErrorOf("{"), "p.json is no JSON");
  EXPECT_EQ(ErrorOf("[]"), "p.json is no object");
  EXPECT_THAT(ErrorOf(With("\"version\": 1", "\"version\": 2")),
              HasSubstr("version"));
  EXPECT_THAT(ErrorOf(With("99", "0")),
              HasSubstr("p.json: .decode.total_blocks"));
  EXPECT_THAT(ErrorOf(With("99", "\"many\"")),
              HasSubstr("p.json: .decode.total_blocks"));
  EXPECT_THAT(ErrorOf(With("0.01", "-1")),
              HasSubstr("p.json: .decode.fixed_seconds"));
  EXPECT_THAT(ErrorOf(With("total_blocks", "total_blokcs")),
              HasSubstr("total_blokcs is not known"));
  EXPECT_THAT(ErrorOf(With("\"decode\"", "\"decoder\"")),
              HasSubstr("decoder is not known"));
  EXPECT_THAT(ErrorOf("{\"kind\": \"baton_profile\", \"version\": 1}"),
              HasSubstr("has no .decode"));
  EXPECT_THAT(ErrorOf(With("\"fixed_seconds\": 0.01, "
                           "\"seconds_per_token\": 0.001",
                           "\"fixed_seconds\": 0")),
              HasSubstr("must be above 0"));
  EXPECT_THAT(ErrorOf(With("\"total_blocks\": 99", "\"max_sequences\": 600")),
              HasSubstr("at most 496"));
}

TEST(ProfileTest, ReadsAFile) {
  const std::string path = testing::TempDir() + "/profile_test.json";
  std::ofstream(path) << kSmall;
  EXPECT_TRUE(ReadProfile(path).ok());
  const auto missing = ReadProfile(path + ".not");
  EXPECT_TRUE(absl::IsNotFound(missing.status()));
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(".not"));
}

}  // namespace
}  // namespace baton::planner
