// Conversations whose last message the answer goes on with, as models' own
// templates render them.
#include "router/chat_prompt.h"

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "router/invalid_field.h"
#include "router/text/chat_template.h"

namespace baton::router {
namespace {

using Json = nlohmann::ordered_json;
using testing::EndsWith;
using testing::HasSubstr;

ServedModel WithTemplate(const std::string& text) {
  auto chat_template =
      ChatTemplate::Parse(text, {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  ServedModel model;
  model.name = "m";
  model.chat_template = *std::move(chat_template);
  return model;
}

ServedModel WithTemplateOf(const std::string& name) {
  std::ifstream file(std::string(BATON_SOURCE_DIR) +
                     "/tests/data/chat_templates/" + name + ".json");
  return WithTemplate(Json::parse(file).at("template"));
}

v1::ChatPrompt ChatOfTwo(const Json& last, bool goes_on) {
  v1::ChatPrompt chat;
  chat.set_messages(Json({{{"role", "user"}, {"content", "Tell me a story."}},
                          {{"role", "assistant"}, {"content", last}}})
                        .dump());
  chat.set_omit_generation_prompt(!goes_on);
  chat.set_continue_final_message(goes_on);
  return chat;
}

TEST(ChatPromptTest, EndsWhereTheLastMessageDoes) {
  for (const char* name : {"gemma-2", "llama-3.1", "mistral-nemo", "phi-3.5",
                           "qwen2.5", "qwen3"}) {
    SCOPED_TRACE(name);
    const ServedModel model = WithTemplateOf(name);
    const auto begun = RenderChat(ChatOfTwo("Once there was a", true), model,
                                  absl::UnixEpoch());
    ASSERT_TRUE(begun.ok()) << begun.status();
    EXPECT_THAT(*begun, EndsWith("Once there was a"));
    // It is the beginning of what the whole message would have been.
    const auto whole = RenderChat(ChatOfTwo("Once there was a cat.", false),
                                  model, absl::UnixEpoch());
    ASSERT_TRUE(whole.ok()) << whole.status();
    EXPECT_TRUE(absl::StartsWith(*whole, *begun)) << *whole;
    EXPECT_GT(whole->size(), begun->size() + 5);
  }
}

TEST(ChatPromptTest, TheEndIsAsItStands) {
  const ServedModel model = WithTemplate(
      "{% for m in messages %}[{{ m.role }}]{{ m.content | trim }};{% endfor %}"
      "{% if add_generation_prompt %}>{% endif %}");
  const auto rendered = [&](const Json& last) {
    return *RenderChat(ChatOfTwo(last, true), model, absl::UnixEpoch());
  };
  EXPECT_EQ(rendered("Once \n"), "[user]Tell me a story.;[assistant]Once \n");
  EXPECT_EQ(rendered(""), "[user]Tell me a story.;[assistant]");
  EXPECT_EQ(rendered({{{"type", "text"}, {"text", "Once "}},
                      {{"type", "text"}, {"text", "there"}}}),
            "[user]Tell me a story.;[assistant]Once \nthere");
}

// As a client wrote them, but where the code beside a model sorts them.
TEST(ChatPromptTest, KimisToolsAreSortedByName) {
  ServedModel model =
      WithTemplate("{{ tools | tojson(separators=(',', ':')) }}");
  v1::ChatPrompt chat;
  chat.set_messages(R"([{"role":"user","content":"a"}])");
  const std::string tools =
      R"([{"type":"function","function":{"name":"f","é":1,"description":)"
      R"([{"b":1,"Z":null}]}},{"b":1,"a":"c"}])";
  chat.set_tools(tools);
  EXPECT_EQ(*RenderChat(chat, model, absl::UnixEpoch()), tools);
  model.tool_calls = ToolCallFormat::kKimi;
  EXPECT_EQ(*RenderChat(chat, model, absl::UnixEpoch()),
            R"([{"function":{"description":[{"Z":null,"b":1}],"name":"f",)"
            R"("é":1},"type":"function"},{"a":"c","b":1}])");
  chat.clear_tools();
  EXPECT_EQ(*RenderChat(chat, model, absl::UnixEpoch()), "null");
}

TEST(ChatPromptTest, WhatIsShownTwiceEndsTheSecondTime) {
  const ServedModel model = WithTemplate(
      "{% for m in messages %}{{ m.content }}, {{ m.content }}; {% endfor %}");
  EXPECT_EQ(*RenderChat(ChatOfTwo("a", true), model, absl::UnixEpoch()),
            "Tell me a story., Tell me a story.; a, a");
}

TEST(ChatPromptTest, SaysWhyItCannotGoOn) {
  const auto error = [](const Json& last, const std::string& text) {
    const absl::Status status =
        RenderChat(ChatOfTwo(last, true), WithTemplate(text), absl::UnixEpoch())
            .status();
    EXPECT_EQ(FieldOf(status), "continue_final_message");
    return std::string(status.message());
  };
  constexpr char kShows[] = "{{ messages[-1].content }}";
  EXPECT_THAT(error(nullptr, kShows), HasSubstr("has no text"));
  EXPECT_THAT(error(Json::array(), kShows), HasSubstr("has no text"));
  EXPECT_THAT(error("a", "{{ messages[0].content }}"),
              HasSubstr("does not show"));
}

TEST(ChatPromptTest, HarmonysTemplatesCallThoughtsThinking) {
  ServedModel model = WithTemplate(
      "{% for m in messages %}[{{ m.role }}:{{ m.thinking }}:{{ m.content }}]"
      "{% endfor %}");
  const auto rendered = [&](const Json& message) {
    v1::ChatPrompt chat;
    chat.set_messages(Json({message}).dump());
    return *RenderChat(chat, model, absl::UnixEpoch());
  };
  const Json thought = {{"role", "assistant"}, {"reasoning_content", "Hm."}};
  EXPECT_EQ(rendered(thought), "[assistant::]");
  model.harmony = true;
  EXPECT_EQ(rendered(thought), "[assistant:Hm.:]");
  Json message = {
      {"role", "assistant"}, {"content", "a"}, {"reasoning", "Hm."}};
  EXPECT_EQ(rendered(message), "[assistant:Hm.:a]");
  // Before a call there may be one of the two.
  message["tool_calls"] = Json::array({Json::object()});
  EXPECT_EQ(rendered(message), "[assistant::a]");
  message["content"] = "";
  EXPECT_EQ(rendered(message), "[assistant:Hm.:]");
  message["thinking"] = "So.";
  EXPECT_EQ(rendered(message), "[assistant:So.:]");
  EXPECT_EQ(rendered({{"role", "user"}, {"reasoning", "Hm."}}), "[user::]");
  // What clients send back of a call, whose content is null.
  model = WithTemplate(
      "{% for m in messages %}{{ 'content' in m }} {{ 'tool_calls' in m }} "
      "{{ 'thinking' in m }} {{ m.content }}{% endfor %}");
  model.harmony = true;
  EXPECT_EQ(rendered({{"role", "assistant"},
                      {"content", nullptr},
                      {"thinking", nullptr},
                      {"tool_calls", Json::array({Json::object()})}}),
            "False True False ");
  for (const Json& none : {Json(nullptr), Json::array()}) {
    EXPECT_EQ(
        rendered(
            {{"role", "assistant"}, {"content", "a"}, {"tool_calls", none}}),
        "True False False a");
  }
  // Of text in parts one text is made.
  const Json parts = Json::array(
      {{{"type", "text"}, {"text", "a"}}, {{"type", "text"}, {"text", "b"}}});
  EXPECT_EQ(rendered({{"role", "user"}, {"content", parts}}),
            "True False False a\nb");
}

// As objects, unless a template adds them to its own texts: then as they came.
TEST(ChatPromptTest, TemplatesHaveArgumentsAsTheyWantThem) {
  const std::string text = R"({"b":  1})";
  const auto call = [](const Json& arguments) {
    return Json{{"type", "function"},
                {"function", {{"name", "f"}, {"arguments", arguments}}}};
  };
  const auto rendered = [&](const std::string& shown,
                            const std::vector<Json>& calls) {
    v1::ChatPrompt chat;
    chat.set_messages(
        Json::array({{{"role", "assistant"}, {"tool_calls", calls}}}).dump());
    return RenderChat(chat,
                      WithTemplate("{% for c in messages[0].tool_calls %}{{ " +
                                   shown + " }};{% endfor %}"),
                      absl::UnixEpoch());
  };
  const std::string added = "'<' + c.function.arguments + '>'";
  EXPECT_EQ(*rendered("c.function.arguments.b", {call(text), call(text)}),
            "1;1;");
  EXPECT_EQ(*rendered(added, {call(text), call("none")}),
            "<" + text + ">;<none>;");
  // What came as an object is one, and what is wrong is said of objects.
  const Json object = {{"b", 1}};
  for (const auto& calls : std::vector<std::vector<Json>>{
           {call(object)}, {call(text), call(object)}}) {
    EXPECT_THAT(std::string(rendered(added, calls).status().message()),
                HasSubstr("can only concatenate str (not \"dict\")"));
  }
}

TEST(ChatPromptTest, HarmonyHasOneCallAMessage) {
  ServedModel model = WithTemplate(
      "{% set last = namespace(name='nobody') %}{% for m in messages %}"
      "{% if m.tool_calls %}{% set last.name = m.tool_calls[0].function.name %}"
      "[{{ m.thinking }}>{{ last.name }}]"
      "{% elif m.role == 'tool' %}[{{ last.name }}:{{ m.content }}]"
      "{% else %}[{{ m.content }}]{% endif %}{% endfor %}");
  model.harmony = true;
  const auto rendered = [&](const std::vector<Json>& messages) {
    v1::ChatPrompt chat;
    chat.set_messages(Json(messages).dump());
    return *RenderChat(chat, model, absl::UnixEpoch());
  };
  const auto call = [](const std::string& name) {
    return Json{{"id", "call-" + name},
                {"type", "function"},
                {"function", {{"name", name}, {"arguments", "{}"}}}};
  };
  const auto result = [](const std::string& of) {
    return Json{{"role", "tool"},
                {"tool_call_id", "call-" + of},
                {"content", "of " + of}};
  };
  const Json calls = {{"role", "assistant"},
                      {"reasoning", "Hm."},
                      {"tool_calls", {call("a"), call("b"), call("c")}}};
  const Json user = {{"role", "user"}, {"content", "So?"}};
  // In any order, all there or not; one of no call comes last.
  EXPECT_EQ(rendered({user, calls, result("c"), result("a"), user}),
            "[So?][Hm.>a][a:of a][>b][>c][c:of c][So?]");
  EXPECT_EQ(rendered({calls, result("x"), result("b"), result("b")}),
            "[Hm.>a][>b][b:of b][b:of b][>c][c:of x]");
  EXPECT_EQ(rendered({calls}), "[Hm.>a][>b][>c]");
  // Without ids, by their places.
  Json first = result("a");
  Json second = result("b");
  first.erase("tool_call_id");
  second.erase("tool_call_id");
  EXPECT_EQ(rendered({calls, first, second}),
            "[Hm.>a][a:of a][>b][b:of b][>c]");
  // Other templates show all calls of a message themselves.
  model.harmony = false;
  EXPECT_EQ(rendered({calls, result("a"), result("b")}),
            "[>a][a:of a][a:of b]");
}

TEST(ChatPromptTest, HarmonyIsToldApartWhereItComesBack) {
  ServedModel model = WithTemplate(
      "{% for m in messages %}[{{ m.role }}:{{ m.thinking }}:{{ m.content }}]"
      "{% endfor %}");
  model.harmony = true;
  const auto rendered = [&](const Json& message) {
    v1::ChatPrompt chat;
    chat.set_messages(Json({message}).dump());
    return *RenderChat(chat, model, absl::UnixEpoch());
  };
  Json message = {{"role", "assistant"},
                  {"content",
                   "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
                   "<|channel|>final<|message|>Yes."}};
  EXPECT_EQ(rendered(message), "[assistant:Hm.:Yes.]");
  message["role"] = "user";
  EXPECT_EQ(
      rendered(message),
      absl::StrCat("[user::", message["content"].get<std::string>(), "]"));
}

}  // namespace
}  // namespace baton::router
