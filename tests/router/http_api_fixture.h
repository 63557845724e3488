// The OpenAI API of a real router between a prefill and a decode worker that
// the test plays.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/json.h"
#include "tests/router/router_fixture.h"
#include "tests/support/fake_worker.h"
#include "tests/support/http_client.h"
#include "tests/support/scratch_dir.h"

namespace baton::router {

// For UseTemplate: of a model that may think, and call.
inline constexpr char kThinkAndCallTemplate[] =
    R"({%- for tool in tools or [] %}{"name": "{{ tool.function.name }}", )"
    R"("arguments": ...} in <tool_call>{% endfor -%}
{%- for m in messages %}[{{ m.role }}] )"
    R"({{ (m.content or "").split('</think>')[-1] }}
{%- for call in m.tool_calls or [] %} calls {{ call.function.name }}
{%- endfor %}
{% endfor %}[assistant] {% if tools %}<think>
{% endif %})";

class HttpApiTest : public RouterTest {
 protected:
  HttpApiTest() : prefill_(AddPrefill("p0")), decode_(AddDecode("d0")) {
    options_.http.listen = "127.0.0.1:0";
  }

  // Before Start: the same model with another chat template.
  void UseTemplate(const std::string& text) {
    const std::string copy = scratch_.path() + "/model";
    std::filesystem::create_directory(copy);
    for (const auto& file :
         std::filesystem::directory_iterator(options_.model_dir)) {
      std::filesystem::create_symlink(file.path(),
                                      copy / file.path().filename());
    }
    std::ofstream(copy + "/chat_template.jinja") << text;
    options_.model_dir = copy;
    options_.served_model_name = "stories";
  }

  void Start() {
    StartRouter();
    AwaitServing(true);
    client_ = Connect();
  }
  std::unique_ptr<test::HttpClient> Connect() {
    return std::make_unique<test::HttpClient>(router_->http_address());
  }

  // The ids of a text, without what the tokenizer adds.
  std::vector<uint32_t> Ids(const std::string& text) {
    const nlohmann::json reply = nlohmann::json::parse(
        Connect()
            ->Post("/tokenize", nlohmann::json({{"prompt", text},
                                                {"add_special_tokens", false}})
                                    .dump())
            .body);
    return reply.at("tokens").get<std::vector<uint32_t>>();
  }

  // Takes the next request of both workers; returns the attempt.
  uint64_t Accept() {
    const uint64_t attempt = decode_->NextReserve().attempt();
    sequence_ = prefill_->NextPrefill().sequence();
    decode_->SendGrant(attempt);
    prefill_->NextGrant();
    return attempt;
  }
  // Tokens of a whole answer; the last one ends it. At least two: the decode
  // worker's end must not overtake the prefill worker's only token.
  void Answer(uint64_t attempt, const std::vector<uint32_t>& ids,
              v1::FinishReason finish) {
    ASSERT_GE(ids.size(), 2u);
    for (size_t i = 0; i < ids.size(); ++i) {
      (i == 0 ? prefill_ : decode_)
          ->SendToken(
              attempt, static_cast<uint32_t>(i), ids[i],
              i + 1 == ids.size() ? finish : v1::FINISH_REASON_UNSPECIFIED);
    }
    prefill_->SendOk(attempt);
    decode_->SendOk(attempt);
  }

  // All events of the stream but [DONE], which must be last.
  std::vector<nlohmann::json> ReadChunks() {
    std::vector<nlohmann::json> chunks;
    bool done = false;
    while (const auto event = client_->ReadEvent()) {
      EXPECT_FALSE(done) << *event;
      done = *event == "[DONE]";
      if (!done) chunks.push_back(nlohmann::json::parse(*event));
    }
    EXPECT_TRUE(done);
    return chunks;
  }

  const test::ScratchDir scratch_;
  test::FakeWorker* const prefill_;
  test::FakeWorker* const decode_;
  v1::SequenceSpec sequence_;
  std::unique_ptr<test::HttpClient> client_;
};

}  // namespace baton::router
