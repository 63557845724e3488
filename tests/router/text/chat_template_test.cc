// Chat templates against what Hugging Face's own rendering gives for them.

#include "router/text/chat_template.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/time/civil_time.h"
#include "tests/router/text/tokenizer_files.h"

namespace baton::router::chat_template_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

const std::string kData =
    absl::StrCat(BATON_SOURCE_DIR, "/tests/data/chat_templates/");

std::string ReadText(const std::string& file) {
  std::ifstream in(kData + file, std::ios::binary);
  EXPECT_TRUE(in) << file;
  std::stringstream bytes;
  bytes << in.rdbuf();
  return bytes.str();
}

Json ReadJson(const std::string& file) { return Json::parse(ReadText(file)); }

// The time that make_expected.py says it is.
absl::Time Now() {
  return absl::FromCivil(absl::CivilSecond(2025, 3, 7, 9, 5, 2),
                         absl::LocalTimeZone()) +
         absl::Microseconds(1234);
}

ChatInput InputOf(Json variables) {
  ChatInput input;
  input.now = Now();
  input.messages = Json::array();
  const auto take = [&](const char* name, Json* out) {
    const auto it = variables.find(name);
    if (it == variables.end()) return;
    *out = *it;
    variables.erase(it);
  };
  take("messages", &input.messages);
  take("tools", &input.tools);
  take("documents", &input.documents);
  Json prompt = true;
  take("add_generation_prompt", &prompt);
  input.add_generation_prompt = prompt.get<bool>();
  input.arguments = std::move(variables);
  return input;
}

absl::StatusOr<std::string> Render(const std::string& source,
                                   const ChatInput& input,
                                   const Json& special_tokens = {}) {
  const auto chat_template = ChatTemplate::Parse(source, special_tokens);
  if (!chat_template.ok()) return chat_template.status();
  return (*chat_template)->Render(input);
}

Json Message(const std::string& role, const Json& content) {
  return {{"role", role}, {"content", content}};
}

// The files of the models' own templates.
class ModelTemplateTest : public testing::TestWithParam<std::string> {};

TEST_P(ModelTemplateTest, RendersEveryCaseExactly) {
  const Json file = ReadJson(GetParam() + ".json");
  const auto chat_template = ChatTemplate::Parse(
      file["template"].get<std::string>(),
      {{"bos_token", file["bos_token"]}, {"eos_token", file["eos_token"]}});
  ASSERT_TRUE(chat_template.ok()) << chat_template.status();
  ASSERT_FALSE(file["cases"].empty());
  for (const Json& each : file["cases"]) {
    ChatInput input;
    input.messages = each["messages"];
    input.add_generation_prompt = each["add_generation_prompt"];
    const auto text = (*chat_template)->Render(input);
    if (each["error"].is_null()) {
      ASSERT_TRUE(text.ok()) << each["name"] << ": " << text.status();
      EXPECT_EQ(*text, each["expected"].get<std::string>()) << each["name"];
      continue;
    }
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(text.status().message(),
              absl::StrCat("chat template: ", each["error"].get<std::string>()))
        << each["name"];
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModelTemplateTest,
                         testing::Values("gemma-2", "llama-3.1", "mistral-nemo",
                                         "phi-3.5", "qwen2.5", "qwen3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '-' || c == '.'; },
                               '_');
                           return name;
                         });

TEST(ChatTemplateTest, RendersTheLanguageAsJinja2) {
  const Json variables = ReadJson("inputs.json")["language"];
  const Json cases = ReadJson("language.json");
  ASSERT_GT(cases.size(), 200u);
  for (const Json& each : cases) {
    const auto text =
        Render(each["template"].get<std::string>(), InputOf(variables));
    if (each["expected"].is_null()) {
      EXPECT_FALSE(text.ok())
          << each["name"] << " should fail, and gives " << *text;
      EXPECT_THAT(std::string(text.status().message()),
                  StartsWith("chat template: "));
      continue;
    }
    ASSERT_TRUE(text.ok()) << each["name"] << ": " << text.status();
    EXPECT_EQ(*text, each["expected"].get<std::string>()) << each["name"];
  }
}

std::string SourceOf(const std::string& family) {
  for (const char* model : {"gemma-2", "llama-3.1", "mistral-nemo", "phi-3.5",
                            "qwen2.5", "qwen3"}) {
    if (family == model) return ReadJson(family + ".json")["template"];
  }
  return ReadText("families/" + family + ".jinja");
}

TEST(ChatTemplateTest, RendersFamiliesAsJinja2) {
  const Json conversations = ReadJson("inputs.json")["conversations"];
  const Json cases = ReadJson("families.json");
  ASSERT_GT(cases.size(), 100u);
  for (const Json& each : cases) {
    const std::string family = each["family"];
    const std::string conversation = each["conversation"];
    SCOPED_TRACE(absl::StrCat(family, " ", conversation));
    const ChatInput input = InputOf(conversations[conversation]);
    const std::string source = SourceOf(family);
    const auto text = Render(source, input);
    if (!each["expected"].is_null()) {
      ASSERT_TRUE(text.ok()) << text.status();
      // Where a template knows nothing of parts, it gets their text instead.
      if (conversation != "parts" ||
          (*ChatTemplate::Parse(source, {}))->takes_content_parts()) {
        EXPECT_EQ(*text, each["expected"].get<std::string>());
      }
      continue;
    }
    if (conversation == "parts") {
      EXPECT_TRUE(text.ok()) << text.status();
      continue;
    }
    const std::string error = each["error"];
    EXPECT_FALSE(text.ok());
    constexpr absl::string_view kRaised = "TemplateError: ";
    ASSERT_THAT(error, StartsWith(std::string(kRaised)));
    EXPECT_EQ(text.status().message(),
              absl::StrCat("chat template: ", error.substr(kRaised.size())));
  }
}

TEST(ChatTemplateTest, ErrorsNameTheLine) {
  ChatInput input;
  input.messages = {Message("user", "x")};
  const auto status = [&](const std::string& source) {
    return Render(source, input).status();
  };
  EXPECT_EQ(status("a\n{{ 1 + }}").message(),
            "chat template: line 2: unexpected the end of the print "
            "statement, expected an expression");
  EXPECT_EQ(status("a\n\n{{ nope.x }}").message(),
            "chat template: line 3: 'nope' is undefined");
  EXPECT_EQ(status("{% macro m() %}\n{{ 1 / 0 }}\n{% endmacro %}\n{{ m() }}")
                .message(),
            "chat template: line 2: division by zero");
  EXPECT_EQ(
      status("{% for m in messages %}\n\n{{ m.nope.x }}{% endfor %}").message(),
      "chat template: line 3: 'dict object' has no attribute 'nope'");
  EXPECT_EQ(status("{% include 'x' %}").code(),
            absl::StatusCode::kUnimplemented);
}

TEST(ChatTemplateTest, RaisedMessagesAreTheirOwn) {
  const absl::Status status =
      Render("\n{{ raise_exception('Only ' ~ 2 ~ ' roles') }}", InputOf({}))
          .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "chat template: Only 2 roles");
}

TEST(ChatTemplateTest, VariablesAreWhatHuggingFacePasses) {
  const std::string source =
      "{{ tools is defined }} {{ tools }} {{ documents }} "
      "{{ tool_choice is defined }} {{ add_generation_prompt }} "
      "{{ bos_token }} {{ unk_token is defined }} {{ thinking }}";
  const Json tokens = {{"bos_token", "<s>"}};
  ChatInput input = InputOf({{"thinking", false}});
  EXPECT_EQ(*Render(source, input, tokens),
            "True None None False True <s> False False");
  input.tools = Json::array({1});
  input.tool_choice = "auto";
  input.add_generation_prompt = false;
  input.arguments["bos_token"] = "<b>";
  EXPECT_EQ(*Render(source, input, tokens),
            "True [1] None True False <b> False False");
}

TEST(ChatTemplateTest, RefusesInputsOfOtherKinds) {
  ChatInput input;
  input.messages = "text";
  EXPECT_EQ(Render("x", input).status().message(),
            "chat template: messages is not an array");
  input.messages = Json::array();
  input.arguments = Json::array();
  EXPECT_FALSE(Render("x", input).ok());
  input.arguments = {{"messages", 1}};
  EXPECT_FALSE(Render("x", input).ok());
}

TEST(ChatTemplateTest, TheToolTemplateIsForMessagesWithTools) {
  const auto chat_template =
      ChatTemplate::Parse("plain", "tools: {{ tools | length }}", {});
  ASSERT_TRUE(chat_template.ok());
  ChatInput input = InputOf({});
  EXPECT_EQ(*(*chat_template)->Render(input), "plain");
  input.tools = Json::array({1, 2});
  EXPECT_EQ(*(*chat_template)->Render(input), "tools: 2");
}

TEST(ChatTemplateTest, FlattensTextForTemplatesThatKnowNoParts) {
  const Json parts = {{{"type", "text"}, {"text", "a"}},
                      {{"type", "text"}, {"text", "b"}}};
  ChatInput input;
  input.messages = {Message("user", parts), Message("user", "c")};
  EXPECT_EQ(
      *Render("{% for m in messages %}[{{ m.content }}]{% endfor %}", input),
      "[a\nb][c]");
  EXPECT_EQ(*Render("{% for m in messages %}{% if m.content is string %}"
                    "{{ m.content }}{% else %}{% for p in m['content'] %}"
                    "<{{ p.text }}>{% endfor %}{% endif %}{% endfor %}",
                    input),
            "<a><b>c");
}

TEST(ChatTemplateTest, FindsLoopsOverContent) {
  const auto takes = [](const std::string& body) {
    return (*ChatTemplate::Parse(
                absl::StrCat("{% for m in messages %}", body, "{% endfor %}"),
                {}))
        ->takes_content_parts();
  };
  EXPECT_FALSE(takes("{{ m.content }}"));
  EXPECT_FALSE(takes("{% for x in m.tool_calls %}{% endfor %}"));
  EXPECT_TRUE(takes("{% for x in m.content %}{% endfor %}"));
  EXPECT_TRUE(takes("{% for x in m['content'] | list %}{% endfor %}"));
  EXPECT_TRUE(
      takes("{% set c = m.content %}{% if c is iterable %}"
            "{% for x in c[1:] %}{% endfor %}{% endif %}"));
  EXPECT_TRUE(
      takes("{% macro f(x) %}{% for y in x.content %}{% endfor %}"
            "{% endmacro %}"));
}

TEST(FlattenTextPartsTest, LeavesWhatIsNotText) {
  const Json image = {{"type", "image_url"}, {"image_url", {{"url", "u"}}}};
  const Json text = {{"type", "text"}, {"text", "t"}};
  const Json messages = {
      Message("user", Json::array({text, image})),
      Message("user", Json::array({text, "s"})),
      Message("user", Json::array()),
      Message("user", nullptr),
      {{"role", "assistant"}},
      "no message",
  };
  const Json flat = FlattenTextParts(messages);
  EXPECT_EQ(flat[0], messages[0]);
  EXPECT_EQ(flat[1]["content"], "t\ns");
  EXPECT_EQ(flat[2]["content"], "");
  for (const int i : {3, 4, 5}) EXPECT_EQ(flat[i], messages[i]);
  EXPECT_EQ(FlattenTextParts(nullptr), nullptr);
}

TEST(ChatTemplateTest, ManyThreadsMayRenderAtOnce) {
  const auto chat_template = ChatTemplate::Parse(
      ReadJson("llama-3.1.json")["template"].get<std::string>(),
      {{"bos_token", "<s>"}});
  ChatInput input;
  input.messages = {Message("system", "s"), Message("user", "u")};
  input.tools = Json::array({{{"function", {{"name", "f"}}}}});
  const std::string expected = *(*chat_template)->Render(input);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j) {
        EXPECT_EQ(*(*chat_template)->Render(input), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class LoadChatTemplateTest : public testing::Test {
 protected:
  LoadChatTemplateTest() {
    dir_.Write("tokenizer.json", TokenizerJson("stories").dump());
  }

  absl::StatusOr<std::string> LoadAndRender(const ChatInput& input) {
    const auto tokenizer = Tokenizer::Load(dir_.path());
    if (!tokenizer.ok()) return tokenizer.status();
    const auto chat_template = LoadChatTemplate(**tokenizer);
    if (!chat_template.ok()) return chat_template.status();
    return (*chat_template)->Render(input);
  }

  const ModelDir dir_;
};

TEST_F(LoadChatTemplateTest, NotFoundWithoutOne) {
  EXPECT_EQ(LoadAndRender(InputOf({})).status().code(),
            absl::StatusCode::kNotFound);
}

TEST_F(LoadChatTemplateTest, SpecialTokensAreVariables) {
  dir_.Write("tokenizer_config.json",
             R"({"bos_token": {"content": "<|bos|>"}, "eos_token": null,
                 "unk_token": "<u>",
                 "chat_template":
                 "{{ bos_token }}{{ unk_token }}{{ eos_token is defined }}"})");
  EXPECT_EQ(*LoadAndRender(InputOf({})), "<|bos|><u>False");
}

TEST_F(LoadChatTemplateTest, ANamedTemplateIsForTools) {
  dir_.Write("tokenizer_config.json",
             R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                   {"name": "default", "template": "d"}]})");
  ChatInput input = InputOf({});
  EXPECT_EQ(*LoadAndRender(input), "d");
  input.tools = Json::array();
  EXPECT_EQ(*LoadAndRender(input), "t");
}

TEST_F(LoadChatTemplateTest, FilesOfTheirOwnHold) {
  dir_.Write("tokenizer_config.json",
             R"({"chat_template": [{"name": "tool_use", "template": "t"},
                                   {"name": "default", "template": "d"}]})");
  dir_.Write("chat_template.jinja", "own {{ messages | length }}\n");
  ChatInput input = InputOf({});
  EXPECT_EQ(*LoadAndRender(input), "own 0");
  input.tools = Json::array();
  EXPECT_EQ(*LoadAndRender(input), "own 0");
}

TEST_F(LoadChatTemplateTest, ABrokenOneIsAnError) {
  dir_.Write("chat_template.jinja", "{% if %}");
  const absl::Status status = LoadAndRender(InputOf({})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("line 1"));
}

}  // namespace
}  // namespace baton::router::chat_template_test
