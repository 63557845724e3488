#include "model_tools/synth_tokenizer.h"

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/text/tokenizer.h"
#include "tests/support/scratch_dir.h"

namespace baton::model_tools {
namespace {

class SynthTokenizerTest : public testing::Test {
 protected:
  void Load(int32_t vocab_size) {
    const std::string& dir = scratch_.path();
    std::ofstream(dir + "/tokenizer.json") << SynthTokenizerJson(vocab_size);
    std::ofstream(dir + "/tokenizer_config.json")
        << SynthTokenizerConfigJson(1024);
    auto tokenizer = router::Tokenizer::Load(dir);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  test::ScratchDir scratch_;
  std::unique_ptr<router::Tokenizer> tokenizer_;
};

TEST_F(SynthTokenizerTest, IsOneThatTheRouterReads) {
  ASSERT_NO_FATAL_FAILURE(Load(20000));
  EXPECT_EQ(tokenizer_->vocab_size(), 20000);
  EXPECT_EQ(tokenizer_->bos_id(), kSynthBos);
  EXPECT_EQ(tokenizer_->eos_id(), kSynthEos);
  EXPECT_TRUE(tokenizer_->IsSpecial(kSynthEos));
}

TEST_F(SynthTokenizerTest, WordsAreOneTokenAndOtherTextIsBytes) {
  ASSERT_NO_FATAL_FAILURE(Load(20000));
  const auto words =
      tokenizer_->Encode(absl::StrCat(SynthWord(258), SynthWord(19999)));
  ASSERT_TRUE(words.ok()) << words.status();
  EXPECT_THAT(*words, testing::ElementsAre(kSynthBos, 258, 19999));
  const std::string text = "Gr\xc3\xbc\xc3\x9f\x65, \x01 99";
  const auto bytes = tokenizer_->Encode(text);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_EQ(bytes->size(), text.size() + 1);
  EXPECT_EQ(tokenizer_->Decode(*bytes, /*skip_special_tokens=*/true).value(),
            text);
}

TEST(SynthWordTest, WordsDiffer) {
  EXPECT_EQ(SynthWord(258), " baba");
  EXPECT_EQ(SynthWord(259), " babe");
  EXPECT_EQ(SynthWord(258 + 9999), " zuzu");
  EXPECT_EQ(SynthWord(258 + 10000), " bababa");
  std::set<std::string> words;
  for (TokenId id = kSynthEos + 1; id < 151936; ++id) {
    EXPECT_TRUE(words.insert(SynthWord(id)).second) << id;
  }
}

TEST(SynthWordTest, SaysWhatIsPrintable) {
  EXPECT_TRUE(IsPrintableSynthToken(' '));
  EXPECT_TRUE(IsPrintableSynthToken('\n'));
  EXPECT_TRUE(IsPrintableSynthToken('~'));
  EXPECT_TRUE(IsPrintableSynthToken(258));
  EXPECT_FALSE(IsPrintableSynthToken(0));
  EXPECT_FALSE(IsPrintableSynthToken(0x7f));
  EXPECT_FALSE(IsPrintableSynthToken(255));
  EXPECT_FALSE(IsPrintableSynthToken(kSynthBos));
  EXPECT_FALSE(IsPrintableSynthToken(kSynthEos));
}

}  // namespace
}  // namespace baton::model_tools
