#include "worker/options.h"

#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <CLI/CLI.hpp>

namespace baton::worker {
namespace {

using ::testing::HasSubstr;

// What a command line with `flags` makes; nothing when it is refused.
std::optional<WorkerOptions> Parse(const std::string& flags) {
  WorkerOptions options;
  CLI::App app;
  AddFlags(&app, &options);
  try {
    app.parse("--model m " + flags, /*program_name_included=*/false);
  } catch (const CLI::ParseError&) {
    return std::nullopt;
  }
  return options;
}

TEST(OptionsTest, KvMemoryIsASizeOrAShare) {
  EXPECT_EQ(Parse("")->engine.kv_memory_bytes, 256 << 20);
  EXPECT_EQ(Parse("--kv-memory 8MiB")->engine.kv_memory_bytes, 8 << 20);
  EXPECT_EQ(Parse("--kv-memory 1000")->engine.kv_memory_bytes, 1000);
  EXPECT_EQ(Parse("--kv-memory 8MiB")->engine.kv_memory_share, 0);
  EXPECT_EQ(Parse("--kv-memory 25%")->engine.kv_memory_share, 0.25);
  EXPECT_EQ(Parse("--kv-memory 12.5%")->engine.kv_memory_share, 0.125);
  EXPECT_EQ(Parse("--kv-memory 100%")->engine.kv_memory_share, 1);
  for (const char* bad : {"lots", "0%", "-5%", "101%", "%", "nan%", "5%%", "-1",
                          "8 parsecs", "99999999999999999999"}) {
    EXPECT_FALSE(Parse("--kv-memory=" + std::string(bad)).has_value()) << bad;
  }
  engine::EngineOptions ignored;
  EXPECT_THAT(std::string(ParseKvMemory("x%", &ignored).message()),
              HasSubstr("\"x%\" is not a share"));
}

TEST(OptionsTest, AFolderOfAdaptersIsAFolder) {
  EXPECT_EQ(Parse("")->adapter_dir, "");
  EXPECT_EQ(Parse("--adapter-dir /tmp")->adapter_dir, "/tmp");
  EXPECT_FALSE(Parse("--adapter-dir /gone").has_value());
}

TEST(OptionsTest, AdaptersHaveNames) {
  EXPECT_TRUE(Parse("")->engine.adapters.empty());
  const auto options =
      Parse("--adapter sql=/a/b --adapter /c/chat/ --adapter x=y=z");
  ASSERT_TRUE(options.has_value());
  const auto& adapters = options->engine.adapters;
  ASSERT_EQ(adapters.size(), 3u);
  EXPECT_EQ(adapters[0].name, "sql");
  EXPECT_EQ(adapters[0].dir, "/a/b");
  EXPECT_EQ(adapters[1].name, "chat");
  EXPECT_EQ(adapters[1].dir, "/c/chat/");
  EXPECT_EQ(adapters[2].name, "x");
  EXPECT_EQ(adapters[2].dir, "y=z");
  for (const std::string& bad :
       {std::string("=dir"), std::string("name="),
        std::string(129, 'a') + "=dir", std::string("\"a b=dir\"")}) {
    EXPECT_FALSE(Parse("--adapter " + bad).has_value()) << bad;
  }
  // Each takes one.
  EXPECT_FALSE(Parse("--adapter a=b c=d").has_value());
  EXPECT_THAT(std::string(ParseAdapter("=dir").status().message()),
              HasSubstr("\"=dir\" is not NAME=DIR"));
}

TEST(OptionsTest, DevicesThatShareTheModel) {
  EXPECT_EQ(Parse("")->engine.tensor_parallel, 1);
  EXPECT_EQ(Parse("--tensor-parallel 8")->engine.tensor_parallel, 8);
  EXPECT_FALSE(Parse("--tensor-parallel 0").has_value());
  EXPECT_FALSE(Parse("--tensor-parallel 65").has_value());
}

TEST(OptionsTest, StepsOfAGpuHaveMoreTokens) {
  EXPECT_EQ(Parse("")->token_budget, 512);
  EXPECT_EQ(Parse("--device cuda")->token_budget, 2048);
  EXPECT_EQ(Parse("--device cuda --token-budget 512")->token_budget, 512);
  EXPECT_EQ(Parse("--token-budget 37")->token_budget, 37);
  EXPECT_FALSE(Parse("--token-budget 0").has_value());
}

TEST(OptionsTest, PrefixCacheIsOnUnlessItIsOff) {
  EXPECT_TRUE(Parse("")->prefix_cache);
  EXPECT_TRUE(Parse("--prefix-cache on")->prefix_cache);
  EXPECT_FALSE(Parse("--prefix-cache off")->prefix_cache);
  EXPECT_FALSE(Parse("--prefix-cache perhaps").has_value());
}

TEST(OptionsTest, StepsRunAheadUnlessTheyAreNotTo) {
  EXPECT_TRUE(Parse("")->run_ahead);
  EXPECT_FALSE(Parse("--run-ahead off")->run_ahead);
  EXPECT_FALSE(Parse("--run-ahead perhaps").has_value());
}

TEST(OptionsTest, BlocksAreSetAsideForSomeOfTheOutput) {
  EXPECT_EQ(Parse("")->output_reserve, 512);
  EXPECT_EQ(Parse("--output-reserve 0")->output_reserve, 0);
  EXPECT_FALSE(Parse("--output-reserve=-1").has_value());
  EXPECT_EQ(Parse("")->swap_memory_bytes, 0);
  EXPECT_EQ(Parse("--swap-memory 2GiB")->swap_memory_bytes, int64_t{2} << 30);
  EXPECT_FALSE(Parse("--swap-memory lots").has_value());
  EXPECT_FALSE(Parse("--swap-memory=-1").has_value());
  EXPECT_EQ(Parse("--swap-seconds 0.5")->swap_seconds, 0.5);
  EXPECT_FALSE(Parse("--swap-seconds nan").has_value());
  EXPECT_FALSE(Parse("--swap-seconds=-1").has_value());
}

TEST(OptionsTest, TheTargetOfStreamsIsATime) {
  EXPECT_EQ(Parse("")->itl_target_ms, 100);
  EXPECT_EQ(Parse("--itl-target-ms 0")->itl_target_ms, 0);
  EXPECT_EQ(Parse("--itl-target-ms 12.5")->itl_target_ms, 12.5);
  EXPECT_FALSE(Parse("--itl-target-ms=-1").has_value());
  EXPECT_FALSE(Parse("--itl-target-ms nan").has_value());
}

TEST(OptionsTest, Dtypes) {
  EXPECT_EQ(Parse("")->engine.weights, "auto");
  EXPECT_EQ(Parse("--weights int4")->engine.weights, "int4");
  EXPECT_EQ(Parse("--weights fp8")->engine.weights, "fp8");
  EXPECT_EQ(Parse("--weights mxfp4")->engine.weights, "mxfp4");
  EXPECT_EQ(Parse("--kv-dtype int8")->engine.kv_dtype, "int8");
  EXPECT_EQ(Parse("--kv-dtype fp8")->engine.kv_dtype, "fp8");
  EXPECT_FALSE(Parse("--weights int5").has_value());
  EXPECT_FALSE(Parse("--kv-dtype int4").has_value());
}

}  // namespace
}  // namespace baton::worker
