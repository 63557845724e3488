#include "router/request_validation.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "router/invalid_field.h"
#include "router/text/chat_template.h"
#include "scheduling/grammar_automaton.h"

namespace baton::router {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

class RequestValidationTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto model =
        LoadServedModel(absl::StrCat(BATON_SOURCE_DIR, "/models/stories"), "");
    ASSERT_TRUE(model.ok()) << model.status();
    model_ = new ServedModel(*std::move(model));
  }
  static void TearDownTestSuite() {
    delete model_;
    model_ = nullptr;
  }

  RequestValidationTest() {
    for (uint32_t id : {1u, 2u, 3u}) request_.mutable_token_ids()->add_ids(id);
  }

  absl::StatusOr<PreparedRequest> Prepare() {
    return PrepareRequest(request_, *model_, limits_,
                          [this] { return ++draws_; });
  }
  absl::StatusOr<scheduling::RequestSpec> Make() {
    absl::StatusOr<PreparedRequest> prepared = Prepare();
    if (!prepared.ok()) return prepared.status();
    return prepared->spec;
  }
  // The message of the error; the code must be InvalidArgument, and the field
  // that programs read the one that people do.
  std::string Error() {
    const absl::Status status = Make().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(FieldOf(status)));
    EXPECT_NE(FieldOf(status), "") << status;
    return std::string(status.message());
  }

  static ServedModel* model_;
  v1::GenerateRequest request_;
  RequestLimits limits_ = {.max_context = 512, .max_output_tokens = 0};
  uint64_t draws_ = 0;
};

ServedModel* RequestValidationTest::model_ = nullptr;

TEST_F(RequestValidationTest, AFormatBecomesAGrammar) {
  EXPECT_EQ(Make()->grammar, nullptr);
  request_.mutable_response_format()->set_regex("[ab]{3}");
  const auto spec = Make();
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_NE(spec->grammar, nullptr);
  EXPECT_TRUE(*scheduling::Matches(*spec->grammar, "aba"));
  EXPECT_FALSE(*scheduling::Matches(*spec->grammar, "ab"));
  request_.mutable_response_format()->mutable_choice()->add_texts("yes");
  EXPECT_TRUE(*scheduling::Matches(*Make()->grammar, "yes"));
  request_.mutable_response_format()->set_json_schema(R"({"type": "null"})");
  EXPECT_TRUE(*scheduling::Matches(*Make()->grammar, "null"));
  request_.mutable_response_format()->mutable_json_object();
  EXPECT_TRUE(*scheduling::Matches(*Make()->grammar, R"({"a": [1, {}]})"));
  EXPECT_FALSE(*scheduling::Matches(*Make()->grammar, "[]"));
}

TEST_F(RequestValidationTest, GrammarsAreKept) {
  ResponseGrammars grammars;
  limits_.grammars = &grammars;
  request_.mutable_response_format()->set_regex("a");
  const auto first = Make()->grammar;
  EXPECT_EQ(Make()->grammar, first);
  for (size_t i = 0; i < ResponseGrammars::kMaxKept; ++i) {
    request_.mutable_response_format()->set_regex(absl::StrCat("b", i));
    ASSERT_TRUE(Make().ok());
  }
  request_.mutable_response_format()->set_regex("a");
  EXPECT_NE(Make()->grammar, first);
  request_.mutable_response_format()->set_regex("a(");
  EXPECT_FALSE(Make().ok());
  EXPECT_FALSE(Make().ok());
}

TEST_F(RequestValidationTest, FormatsThatNoAnswerHasAreNamed) {
  request_.mutable_response_format()->set_regex("x*?[^\\s\\S]");
  EXPECT_EQ(Error(), "regex has no answer that it describes");
  request_.mutable_response_format()->set_regex("");
  EXPECT_EQ(Error(), "regex allows the empty answer alone");
  request_.mutable_response_format()->set_regex("(a{1000}){1000}");
  EXPECT_THAT(Error(), StartsWith("regex has more parts"));
  request_.mutable_response_format()->set_json_schema("{");
  EXPECT_THAT(Error(), StartsWith("json_schema is not valid JSON"));
  request_.mutable_response_format()->mutable_choice()->add_texts("");
  EXPECT_EQ(Error(),
            "choice has a text of 0 bytes at index 0, it must have 1 to 65536");
  request_.mutable_response_format()->Clear();
  EXPECT_EQ(Error(), "response_format is of no kind");
}

TEST_F(RequestValidationTest, EarlierWorkersKeepToNoFormat) {
  limits_.takes_grammars = false;
  EXPECT_TRUE(Make().ok());
  request_.mutable_response_format()->set_regex("a");
  EXPECT_EQ(Make().status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(FieldOf(Make().status()), "response_format");
}

TEST_F(RequestValidationTest, DefaultsComeFromTheModel) {
  const auto spec = Make();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->id, "gen-0000000000000001");
  EXPECT_THAT(spec->prompt, ElementsAre(1, 2, 3));
  EXPECT_FLOAT_EQ(spec->sampling.temperature, 0.7f);
  EXPECT_FLOAT_EQ(spec->sampling.top_p, 0.9f);
  EXPECT_EQ(spec->sampling.top_k, 0);
  EXPECT_EQ(spec->sampling.seed, 2u);
  EXPECT_EQ(spec->stop.max_output_tokens, 509);
  EXPECT_THAT(spec->stop.stop_token_ids, ElementsAre(2044));
}

TEST_F(RequestValidationTest, GivenValuesAreTaken) {
  request_.set_request_id("abc");
  request_.set_model("stories");
  request_.set_max_tokens(7);
  request_.set_ignore_eos(true);
  v1::SamplingParams* sampling = request_.mutable_sampling();
  sampling->set_temperature(0);
  sampling->set_top_k(4);
  sampling->set_top_p(0.5);
  sampling->set_min_p(0.25);
  sampling->set_repetition_penalty(1.5);
  sampling->set_presence_penalty(-1);
  sampling->set_frequency_penalty(2);
  sampling->set_seed(0);
  const auto spec = Make();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->id, "abc");
  EXPECT_EQ(spec->stop.max_output_tokens, 7);
  EXPECT_TRUE(spec->stop.stop_token_ids.empty());
  EXPECT_EQ(spec->sampling.temperature, 0);
  EXPECT_EQ(spec->sampling.top_k, 4);
  EXPECT_EQ(spec->sampling.top_p, 0.5);
  EXPECT_EQ(spec->sampling.min_p, 0.25);
  EXPECT_EQ(spec->sampling.repetition_penalty, 1.5);
  EXPECT_EQ(spec->sampling.presence_penalty, -1);
  EXPECT_EQ(spec->sampling.frequency_penalty, 2);
  EXPECT_EQ(spec->sampling.seed, 0u);  // given: not drawn
  EXPECT_EQ(draws_, 0u);
}

TEST_F(RequestValidationTest, TextIsTokenizedWithTheBeginOfText) {
  request_.set_text("Once");
  const auto spec = Make();
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_THAT(spec->prompt,
              testing::ElementsAreArray(*model_->tokenizer->Encode("Once")));
}

TEST_F(RequestValidationTest, PromptMustBeThere) {
  request_.set_text("");
  EXPECT_THAT(Error(), StartsWith("text is empty"));
  request_.mutable_token_ids()->Clear();
  EXPECT_THAT(Error(), StartsWith("token_ids is empty"));
  request_.clear_prompt();
  EXPECT_THAT(Error(), StartsWith("prompt is missing"));
}

TEST_F(RequestValidationTest, TokenIdsMustBeInTheVocabulary) {
  request_.mutable_token_ids()->add_ids(2047);
  EXPECT_TRUE(Make().ok());
  request_.mutable_token_ids()->add_ids(2048);
  EXPECT_THAT(Error(), StartsWith("token_ids has 2048 at index 4"));
  request_.mutable_token_ids()->set_ids(0, 0xffffffffu);
  EXPECT_THAT(Error(), StartsWith("token_ids has 4294967295 at index 0"));
}

TEST_F(RequestValidationTest, ContextMustHaveRoomForAnAnswer) {
  limits_.max_context = 4;
  ASSERT_TRUE(Make().ok());
  EXPECT_EQ(Make()->stop.max_output_tokens, 1);
  limits_.max_context = 3;
  EXPECT_THAT(Error(), StartsWith("prompt has 3 tokens; the context is 3"));
}

TEST_F(RequestValidationTest, MaxTokensIsCutToTheRoom) {
  request_.set_max_tokens(std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(Make()->stop.max_output_tokens, 509);
  limits_.max_output_tokens = 100;
  EXPECT_EQ(Make()->stop.max_output_tokens, 100);
  request_.clear_max_tokens();
  EXPECT_EQ(Make()->stop.max_output_tokens, 100);
  request_.set_max_tokens(99);
  EXPECT_EQ(Make()->stop.max_output_tokens, 99);
}

TEST_F(RequestValidationTest, NoTokensAreThePromptAlone) {
  EXPECT_FALSE(Prepare()->answer.prompt_only);
  request_.set_max_tokens(0);
  EXPECT_TRUE(Prepare()->answer.prompt_only);
  EXPECT_EQ(Make()->stop.max_output_tokens, 1);
  request_.set_min_tokens(1);
  EXPECT_THAT(Error(), StartsWith("min_tokens is 1"));
  request_.clear_min_tokens();
  // It may take all of the context.
  limits_.max_context = static_cast<int32_t>(Make()->prompt.size());
  EXPECT_TRUE(Prepare().ok());
  request_.set_max_tokens(1);
  EXPECT_THAT(Error(), StartsWith("prompt has"));
  --limits_.max_context;
  request_.set_max_tokens(0);
  EXPECT_THAT(Error(), StartsWith("prompt has"));
}

TEST_F(RequestValidationTest, SamplingRangesNameTheField) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  v1::SamplingParams* s = request_.mutable_sampling();
  s->set_temperature(-1);
  EXPECT_THAT(Error(), StartsWith("temperature"));
  s->set_temperature(nan);
  EXPECT_THAT(Error(), StartsWith("temperature"));
  s->set_temperature(1);
  s->set_top_p(0);
  EXPECT_THAT(Error(), StartsWith("top_p"));
  s->set_top_p(1);
  s->set_min_p(2);
  EXPECT_THAT(Error(), StartsWith("min_p"));
  s->set_min_p(0);
  s->set_repetition_penalty(0);
  EXPECT_THAT(Error(), StartsWith("repetition_penalty"));
  s->set_repetition_penalty(1);
  s->set_presence_penalty(3);
  EXPECT_THAT(Error(), StartsWith("presence_penalty"));
  s->set_presence_penalty(0);
  s->set_frequency_penalty(-3);
  EXPECT_THAT(Error(), StartsWith("frequency_penalty"));
  s->set_frequency_penalty(0);
  s->set_top_k(0x80000000u);
  EXPECT_THAT(Error(), StartsWith("top_k"));
  s->set_top_k(0x7fffffffu);
  EXPECT_TRUE(Make().ok());
}

TEST_F(RequestValidationTest, RequestIdIsBoundedAndPrintable) {
  request_.set_request_id(std::string(128, 'x'));
  EXPECT_TRUE(Make().ok());
  request_.set_request_id(std::string(129, 'x'));
  EXPECT_THAT(Error(), StartsWith("request_id has 129"));
  for (const char* bad : {"a\nb", "a\x7f", "\xc3\xa4"}) {
    request_.set_request_id(bad);
    EXPECT_THAT(Error(), StartsWith("request_id"));
  }
}

TEST_F(RequestValidationTest, OtherModelIsNotFound) {
  request_.set_model("llama");
  const absl::Status status = Make().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("\"llama\""));
  EXPECT_THAT(status.message(), HasSubstr("\"stories\""));
}

TEST_F(RequestValidationTest, StopRules) {
  request_.set_max_tokens(9);
  request_.add_stop("END");
  request_.add_stop("\n\n");
  request_.add_stop_token_ids(17);
  request_.set_min_tokens(3);
  const auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_THAT(prepared->answer.stop, ElementsAre("END", "\n\n"));
  EXPECT_THAT(prepared->spec.stop.stop_token_ids, ElementsAre(2044, 17));
  EXPECT_EQ(prepared->spec.stop.min_output_tokens, 3);

  request_.set_min_tokens(10);
  EXPECT_THAT(Error(),
              HasSubstr("min_tokens is 10, the answer has room for 9"));
  request_.set_min_tokens(0);
  request_.add_stop("");
  EXPECT_THAT(Error(), StartsWith("stop has a string of 0 bytes at index 2"));
  request_.set_stop(2, std::string(1025, 'x'));
  EXPECT_THAT(Error(), StartsWith("stop has a string of 1025 bytes"));
  request_.set_stop(2, "x");
  for (int i = 3; i < 17; ++i) request_.add_stop("x");
  EXPECT_THAT(Error(), StartsWith("stop has 17 strings"));
  request_.clear_stop();
  request_.add_stop_token_ids(2048);
  EXPECT_THAT(Error(), StartsWith("stop_token_ids has 2048"));
}

TEST_F(RequestValidationTest, LogprobsAndBias) {
  request_.set_top_logprobs(5);
  (*request_.mutable_sampling()->mutable_logit_bias())[9] = -100;
  (*request_.mutable_sampling()->mutable_logit_bias())[4] = 2.5;
  const auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_TRUE(prepared->answer.logprobs);
  EXPECT_EQ(prepared->spec.top_logprobs, 5);
  ASSERT_EQ(prepared->spec.sampling.logit_bias.size(), 2u);
  EXPECT_EQ(prepared->spec.sampling.logit_bias[0].token, 4);
  EXPECT_EQ(prepared->spec.sampling.logit_bias[1].bias, -100);

  request_.set_top_logprobs(21);
  EXPECT_THAT(Error(), StartsWith("top_logprobs is 21"));
  request_.set_top_logprobs(0);
  (*request_.mutable_sampling()->mutable_logit_bias())[9] = -101;
  EXPECT_THAT(Error(), StartsWith("logit_bias"));
  (*request_.mutable_sampling()->mutable_logit_bias())[9] = 0;
  (*request_.mutable_sampling()->mutable_logit_bias())[5000] = 0;
  EXPECT_THAT(Error(), StartsWith("logit_bias has token 5000"));
}

TEST_F(RequestValidationTest, LogprobsOfThePrompt) {
  EXPECT_FALSE(Prepare()->spec.prompt_logprobs.has_value());
  EXPECT_EQ(NumPromptLogprobs(Prepare()->spec), 0);
  request_.set_prompt_logprobs(0);
  const auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->spec.prompt_logprobs, 0);
  EXPECT_FALSE(prepared->answer.logprobs);
  const auto others = static_cast<int64_t>(prepared->spec.prompt.size()) - 1;
  EXPECT_EQ(NumPromptLogprobs(prepared->spec), others);
  request_.set_prompt_logprobs(20);
  EXPECT_EQ(NumPromptLogprobs(Prepare()->spec), 21 * others);
  request_.set_prompt_logprobs(21);
  EXPECT_THAT(Error(), StartsWith("prompt_logprobs is 21"));
  // Long prompts may ask for few.
  limits_.max_context = 20000;
  request_.clear_prompt();
  for (int i = 0; i < 13000; ++i) request_.mutable_token_ids()->add_ids(7);
  request_.set_prompt_logprobs(20);
  EXPECT_THAT(Error(), StartsWith("prompt_logprobs of a prompt of 13000"));
  request_.set_prompt_logprobs(19);
  EXPECT_TRUE(Prepare().ok());
}

TEST_F(RequestValidationTest, AllowedTokens) {
  for (const uint32_t id : {9u, 4u, 9u}) {
    request_.mutable_sampling()->add_allowed_token_ids(id);
  }
  auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  ASSERT_NE(prepared->spec.sampling.allowed, nullptr);
  EXPECT_THAT(prepared->spec.sampling.allowed->Tokens(), ElementsAre(4, 9));

  // One that does not end the answer must be left.
  request_.add_stop_token_ids(4);
  request_.set_min_tokens(1);
  EXPECT_TRUE(Prepare().ok());
  request_.add_stop_token_ids(9);
  EXPECT_THAT(Error(), StartsWith("allowed_token_ids has none but"));
  EXPECT_EQ(FieldOf(Prepare().status()), "allowed_token_ids");
  request_.set_min_tokens(0);
  EXPECT_TRUE(Prepare().ok());

  request_.mutable_sampling()->add_allowed_token_ids(2048);
  EXPECT_THAT(Error(), StartsWith("allowed_token_ids has 2048 at index 3"));
  request_.mutable_sampling()->clear_allowed_token_ids();
  prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->spec.sampling.allowed, nullptr);
}

TEST_F(RequestValidationTest, TargetsClassAndPriority) {
  request_.mutable_target()->set_ttft_ms(200);
  request_.mutable_target()->set_itl_ms(20);
  request_.set_request_class(v1::REQUEST_CLASS_BATCH);
  request_.set_priority(-7);
  request_.set_user("anna");
  const auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->answer.ttft_target, absl::Milliseconds(200));
  EXPECT_EQ(prepared->answer.itl_target, absl::Milliseconds(20));
  EXPECT_EQ(prepared->answer.request_class, RequestClass::kBatch);
  EXPECT_EQ(prepared->answer.priority, -7);
  EXPECT_EQ(prepared->answer.user, "anna");

  request_.set_priority(101);
  EXPECT_THAT(Error(), StartsWith("priority is 101"));
  request_.set_priority(0);
  request_.set_request_class(static_cast<v1::RequestClass>(9));
  EXPECT_THAT(Error(), StartsWith("request_class is 9"));
}

TEST_F(RequestValidationTest, ASaltHasABound) {
  request_.set_cache_salt(std::string(256, 's'));
  const auto prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->prefix.salt, std::string(256, 's'));
  request_.set_cache_salt(std::string(257, 's'));
  EXPECT_THAT(Error(), StartsWith("cache_salt has 257 bytes, at most 256"));
}

TEST_F(RequestValidationTest, AConversationNeedsATemplate) {
  request_.mutable_chat()->set_messages(
      R"([{"role": "user", "content": "Hi"}])");
  ServedModel model = *model_;
  model.chat_template = nullptr;
  const absl::Status status = PrepareRequest(request_, model, limits_, [this] {
                                return ++draws_;
                              }).status();
  EXPECT_EQ(FieldOf(status), "messages");
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no chat template"));
}

TEST_F(RequestValidationTest, ConversationsAreRendered) {
  auto chat_template = ChatTemplate::Parse(
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}>{% endif %}",
      nlohmann::ordered_json::object());
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  ServedModel model = *model_;
  model.chat_template = *std::move(chat_template);
  const auto prepare = [&] {
    return PrepareRequest(request_, model, limits_,
                          [this] { return ++draws_; });
  };
  v1::ChatPrompt* chat = request_.mutable_chat();
  chat->set_messages(R"([{"role": "user", "content": "Hi"}])");
  const auto prepared = prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const auto expected =
      model.tokenizer->Encode("[user]Hi>", {.add_special_tokens = false});
  EXPECT_EQ(prepared->spec.prompt, *expected);

  const auto error = [&](const std::string& messages) {
    chat->set_messages(messages);
    const absl::Status status = prepare().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error("[]"), "messages is empty");
  EXPECT_EQ(error("{"), "messages is not JSON");
  EXPECT_EQ(error("[3]"), "messages[0] is not an object");
  EXPECT_EQ(error("[{}]"), "messages[0].role must be a string");
  EXPECT_THAT(error(R"([{"role": "user", "content": 3}])"),
              StartsWith("messages[0].content must be a string"));
  EXPECT_THAT(
      error(R"([{"role": "user", "content": [{"type": "image_url"}]}])"),
      StartsWith("messages[0].content[0].type is \"image_url\""));
  EXPECT_THAT(error(std::string(100, '[') + std::string(100, ']')),
              HasSubstr("nested deeper"));
  // Neither takes long to refuse: an object's keys are looked for one by one.
  std::string members;
  for (int i = 0; i < 200'000; ++i) {
    absl::StrAppend(&members, i == 0 ? "" : ",", "\"k", i, "\":0");
  }
  EXPECT_THAT(error(absl::StrCat("[{", members, "}]")),
              HasSubstr("has an object with more than 1024 members"));
  std::string values = "[{}";
  for (int i = 0; i < 200'000; ++i) values.append(",{}");
  EXPECT_THAT(error(values + "]"), HasSubstr("values"));
  // What the client wrote is quoted, but not at any length.
  const std::string quoted =
      error(absl::StrCat(R"([{"role": "user", "content": [{"type": ")",
                         std::string(20'000, 'x'), R"("}]}])"));
  EXPECT_THAT(quoted, StartsWith("messages[0].content[0].type is \"xxx"));
  EXPECT_LE(quoted.size(), 1000u);
}

// It is no matter of load, so a client need not try again.
TEST_F(RequestValidationTest, ARenderingBeyondItsBoundsIsInvalid) {
  auto chat_template = ChatTemplate::Parse(
      "{% for a in range(100000) %}{% for b in range(100000) %}"
      "{% endfor %}{% endfor %}",
      nlohmann::ordered_json::object());
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  ServedModel model = *model_;
  model.chat_template = *std::move(chat_template);
  request_.mutable_chat()->set_messages(
      R"([{"role": "user", "content": "Hi"}])");
  const absl::Status status = PrepareRequest(request_, model, limits_, [this] {
                                return ++draws_;
                              }).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(FieldOf(status), "messages");
}

}  // namespace
}  // namespace baton::router
