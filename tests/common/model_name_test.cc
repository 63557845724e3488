#include "common/model_name.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(ModelNameTest, IsTheLastPartOfThePath) {
  EXPECT_EQ(ModelName("models/stories"), "stories");
  EXPECT_EQ(ModelName("models/stories/"), "stories");
  EXPECT_EQ(ModelName("/stories"), "stories");
  EXPECT_EQ(ModelName("stories"), "stories");
  // The part after a dot belongs to the name.
  EXPECT_EQ(ModelName("models/Llama-3.2-1B"), "Llama-3.2-1B");
}

TEST(ModelNameTest, LeavesOutTheEndOfAGgufFile) {
  EXPECT_EQ(ModelName("models/stories.gguf"), "stories");
  EXPECT_EQ(ModelName("stories.gguf"), "stories");
  EXPECT_EQ(ModelName("Llama-3.2-1B.Q4_K_M.gguf"), "Llama-3.2-1B.Q4_K_M");
  EXPECT_EQ(ModelName("models/gguf"), "gguf");
  EXPECT_EQ(ModelName("models/.gguf"), ".gguf");
  EXPECT_EQ(ModelName("models/stories.gguf.old"), "stories.gguf.old");
}

}  // namespace
}  // namespace baton
