#include "worker/output_guides.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton::worker {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

constexpr int32_t kVocabSize = 300;

// The first so many bytes, a token each.
std::shared_ptr<const scheduling::Vocabulary> Bytes(int count = 256) {
  v1::Vocabulary wire;
  for (int b = 0; b < count; ++b) wire.add_texts(std::string(1, char(b)));
  auto vocabulary = FromWire(wire, kVocabSize);
  EXPECT_TRUE(vocabulary.ok()) << vocabulary.status();
  return *std::move(vocabulary);
}

v1::SequenceSpec With(const std::string& literal) {
  v1::SequenceSpec spec;
  spec.mutable_grammar()->add_expressions()->set_literal(literal);
  spec.mutable_grammar()->add_rules(0);
  return spec;
}

class OutputGuidesTest : public testing::Test {
 protected:
  static std::unique_ptr<scheduling::Sequence> Make() {
    return std::make_unique<scheduling::Sequence>(
        SequenceId{1}, std::vector<TokenId>{1, 2}, 2,
        scheduling::SamplingParams(), scheduling::StopParams());
  }
  absl::Status Guide(const v1::SequenceSpec& spec, SessionId session = 1) {
    return guides_.Guide(session, spec, Make().get());
  }

  OutputGuides guides_{kVocabSize};
};

TEST_F(OutputGuidesTest, WithoutAGrammarNothingIsAskedFor) {
  const auto sequence = Make();
  EXPECT_TRUE(guides_.Guide(1, v1::SequenceSpec(), sequence.get()).ok());
  EXPECT_FALSE(sequence->guided());
}

TEST_F(OutputGuidesTest, AGrammarIsAboutItsRoutersVocabulary) {
  EXPECT_EQ(Guide(With("ab")).code(), absl::StatusCode::kFailedPrecondition);
  guides_.SetVocabulary(1, Bytes());
  const auto sequence = Make();
  ASSERT_TRUE(guides_.Guide(1, With("ab"), sequence.get()).ok());
  scheduling::StepPlan plan;
  sequence->AppendTo(&plan, 2);
  EXPECT_THAT(plan.sequences[0].allowed->Tokens(), testing::ElementsAre('a'));
  EXPECT_EQ(Guide(With("ab"), 2).code(), absl::StatusCode::kFailedPrecondition);
  guides_.Forget(1);
  EXPECT_EQ(Guide(With("ab")).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(OutputGuidesTest, AVocabularyThatIsNotTheModelsIsNamed) {
  const auto why = [](const v1::Vocabulary& wire) {
    return std::string(FromWire(wire, kVocabSize).status().message());
  };
  v1::Vocabulary wire;
  EXPECT_THAT(why(wire),
              StartsWith("vocabulary.texts has 0 tokens of 0 bytes"));
  for (int i = 0; i <= kVocabSize; ++i) wire.add_texts("x");
  EXPECT_THAT(why(wire), HasSubstr("must have 1 to 300"));
  v1::Vocabulary large;
  large.add_texts(std::string(kMaxVocabularyBytes + 1, 'x'));
  EXPECT_THAT(why(large), HasSubstr("of at most 8388608"));
  // One that was there before is not relied on.
  guides_.SetVocabulary(1, Bytes());
  EXPECT_TRUE(Guide(With("ab")).ok());
  guides_.SetVocabulary(1, nullptr);
  EXPECT_FALSE(Guide(With("ab")).ok());
}

TEST_F(OutputGuidesTest, MoreGrammarsThanAreKeptWork) {
  guides_.SetVocabulary(1, Bytes());
  guides_.SetVocabulary(2, Bytes());
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < 2 * OutputGuides::kMaxKept; ++i) {
      EXPECT_TRUE(Guide(With(absl::StrCat("text ", i)), 1 + i % 2).ok());
    }
  }
}

TEST_F(OutputGuidesTest, SaysWhatIsWrongWithAGrammar) {
  guides_.SetVocabulary(1, Bytes());
  const auto why = [&](const v1::SequenceSpec& spec) {
    const absl::Status status = Guide(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  v1::SequenceSpec spec;
  spec.mutable_grammar();
  EXPECT_EQ(why(spec), "sequence.grammar there is no rule");
  spec = With("a");
  spec.mutable_grammar()->add_expressions();
  EXPECT_EQ(why(spec),
            "sequence.grammar expression 1 is of no kind that is known");
  spec.mutable_grammar()->mutable_expressions(1)->set_byte_set("a");
  EXPECT_EQ(why(spec),
            "sequence.grammar expression 1 has a byte_set of 1 bytes, it must "
            "have 32");
  spec.mutable_grammar()->mutable_expressions(1)->set_rule(4);
  EXPECT_EQ(why(spec), "sequence.grammar expression 1 names rule 4 of 1");
  spec.mutable_grammar()->mutable_expressions(1)->mutable_choice();
  spec.mutable_grammar()->set_rules(0, 1);
  EXPECT_EQ(why(spec), "sequence.grammar has no answer that it describes");
  spec.mutable_grammar()->mutable_expressions(1)->mutable_sequence();
  EXPECT_EQ(why(spec),
            "sequence.grammar: the output is all that its grammar allows");
  v1::Grammar* const many = spec.mutable_grammar();
  for (uint32_t i = 0; i < scheduling::kMaxGrammarExpressions; ++i) {
    many->add_expressions()->set_literal("x");
  }
  EXPECT_THAT(why(spec), HasSubstr("65538 expressions"));
}

// Two routers, one that has half of the vocabulary.
TEST_F(OutputGuidesTest, RoutersMayDiffer) {
  guides_.SetVocabulary(1, Bytes());
  guides_.SetVocabulary(2, Bytes(98));
  EXPECT_TRUE(Guide(With("ab"), 1).ok());
  EXPECT_TRUE(Guide(With("ab"), 2).ok());
  EXPECT_TRUE(Guide(With("b"), 1).ok());
  EXPECT_THAT(std::string(Guide(With("b"), 2).message()),
              HasSubstr("no token that may come out"));
}

}  // namespace
}  // namespace baton::worker
