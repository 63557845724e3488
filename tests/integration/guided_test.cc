// Answers that are to be something: a cluster samples what one engine would,
// token for token, wherever the sequence is and whatever happens to it, and
// what comes out is what was asked for.
#include <regex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/streams_fixture.h"

namespace baton::test {
namespace {

constexpr char kSchema[] = R"({
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 8},
    "size": {"enum": ["small", "large"]},
    "parts": {"type": "array", "items": {"type": "integer", "minimum": 0,
              "maximum": 99}, "minItems": 1, "maxItems": 3}
  },
  "required": ["name", "size", "parts"],
  "additionalProperties": false
})";

class GuidedTest : public StreamsTest {
 protected:
  // Each of another kind, half of them greedy.
  std::vector<v1::GenerateRequest> MakeGuided(int count) {
    std::vector<v1::GenerateRequest> requests;
    for (int i = 0; i < count; ++i) {
      std::vector<TokenId> prompt;
      for (int k = 0; k < 5 + 17 * (i % 7); ++k) {
        prompt.push_back((37 * i + 11 * k) % 256);
      }
      v1::GenerateRequest request = GreedyRequest(prompt, 380);
      request.set_ignore_eos(i % 3 == 0);
      if (i % 2 == 1) {
        request.mutable_sampling()->set_temperature(1.5f);
        request.mutable_sampling()->set_seed(1000 + i);
      }
      v1::ResponseFormat& format = *request.mutable_response_format();
      switch (i % 4) {
        case 0:
          format.set_json_schema(kSchema);
          break;
        case 1:
          // Some hundred tokens.
          format.set_regex("([a-z]{3,9} [0-9]{2}[.,;] ){12,14}[!?]");
          break;
        case 2:
          for (const char* text : {"yes", "no", "not at all", "perhaps"}) {
            format.mutable_choice()->add_texts(text);
          }
          break;
        case 3:
          format.mutable_json_object();
          break;
      }
      requests.push_back(request);
    }
    return requests;
  }

  // Of those that are whole; returns how many are.
  static int CheckFormats(const std::vector<Answer>& answers) {
    int whole = 0;
    for (size_t i = 0; i < answers.size(); ++i) {
      const std::string& text = answers[i].text;
      SCOPED_TRACE(absl::StrCat(i, ": ", text));
      if (answers[i].last.finish_reason() != v1::FINISH_REASON_STOP) {
        // A random model may talk for ever where it may.
        EXPECT_EQ(i % 4, 3u);
        continue;
      }
      ++whole;
      switch (i % 4) {
        case 0: {
          const auto json = nlohmann::json::parse(text, nullptr, false);
          EXPECT_TRUE(json.is_object());
          if (!json.is_object()) break;
          EXPECT_EQ(json.size(), 3u);
          EXPECT_TRUE(json.at("name").is_string());
          EXPECT_THAT(json.at("size"), testing::AnyOf("small", "large"));
          EXPECT_GE(json.at("parts").size(), 1u);
          EXPECT_LE(json.at("parts").size(), 3u);
          for (const auto& part : json.at("parts")) {
            EXPECT_TRUE(part.is_number_unsigned() && part <= 99) << part;
          }
          break;
        }
        case 1:
          EXPECT_TRUE(std::regex_match(
              text, std::regex("([a-z]{3,9} [0-9]{2}[.,;] ){12,14}[!?]")));
          break;
        case 2:
          EXPECT_THAT(text,
                      testing::AnyOf("yes", "no", "not at all", "perhaps"));
          break;
        case 3:
          EXPECT_TRUE(nlohmann::json::parse(text, nullptr, false).is_object());
          break;
      }
    }
    return whole;
  }
};

TEST_F(GuidedTest, AnswersAreWhatTheyAreToBe) {
  StartTwoPairs();
  const std::vector<v1::GenerateRequest> requests = MakeGuided(32);
  const std::vector<Answer> answers = RunAndInterrupt(requests, [] {});
  CheckAnswers(requests, answers);
  EXPECT_GE(CheckFormats(answers), 24);
}

// What a schema leaves no choice about is guessed, and so is what came before:
// several tokens come of a step, each of what may come behind those before it.
TEST_F(GuidedTest, GuessesChangeNothing) {
  StartCluster({.prefill = {{}},
                .decode = {{"--draft-tokens", "8", "--draft-when", "always"}}});
  const std::vector<v1::GenerateRequest> requests = MakeGuided(32);
  const std::vector<Answer> answers = RunAndInterrupt(requests, [] {});
  CheckAnswers(requests, answers);
  EXPECT_GE(CheckFormats(answers), 24);
  const auto page =
      HttpGet(cluster_->Address("decode-0", "metrics"), "/metrics");
  ASSERT_TRUE(page.ok()) << page.status();
  EXPECT_GT(MetricSum(*page, "baton_spec_decode_num_accepted_tokens_total", ""),
            100);
}

TEST_F(GuidedTest, AKilledDecodeWorkersAnswersGoOnElsewhere) {
  std::vector<v1::GenerateRequest> requests;
  for (const v1::GenerateRequest& request : MakeGuided(64)) {
    // The long ones.
    if (request.response_format().has_regex()) requests.push_back(request);
  }
  CheckKilledDecodeWorker(requests);
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-1"});
}

TEST_F(GuidedTest, AFormatThatIsNoneIsNamed) {
  StartCluster({.prefill = {{}}, .decode = {{}}});
  v1::GenerateRequest request = GreedyRequest({1, 2, 3}, 10);
  const auto why = [&] {
    const Answer answer = Generate(*stub_, request, kPatience);
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(answer.status.message());
  };
  request.mutable_response_format()->set_regex("a(b");
  EXPECT_EQ(why(), "regex has an unclosed group at byte 1");
  request.mutable_response_format()->set_json_schema(R"({"not": {}})");
  EXPECT_THAT(why(), testing::HasSubstr("\"not\" at #"));
  request.mutable_response_format()->mutable_choice();
  EXPECT_THAT(why(), testing::StartsWith("choice has 0 texts"));
  CheckServes();
}

// What is known only once it has been followed for some tokens is no failure of
// a worker's either.
TEST_F(GuidedTest, AFormatThatTakesTooLongIsNamed) {
  StartCluster({.prefill = {{}}, .decode = {{}}});
  v1::GenerateRequest request = GreedyRequest({1, 2, 3}, 400);
  request.set_ignore_eos(true);
  request.mutable_response_format()->set_regex("(?:(?:[abc]?){10000}){2}");
  const Answer answer = Generate(*stub_, request, kPatience);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answer.status.message()),
              testing::StartsWith("regex cannot be kept to: "));
  EXPECT_GT(answer.tokens.size(), 20u);
  CheckServes();
  AwaitBlocksFree({"prefill-0", "decode-0"});
}

}  // namespace
}  // namespace baton::test
