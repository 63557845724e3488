// CompletionCall: prompts that are said again before what comes after them.
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "router/answer_logprobs.h"
#include "router/http/completion_call.h"

namespace baton::router::http {

absl::StatusOr<std::string> CompletionCall::EchoOf(
    const v1::GenerateRequest& prompt, const PreparedRequest& prepared) const {
  if (!api_.echo) return "";
  if (prompt.has_text()) return prompt.text();
  return door_->model().tokenizer->Decode(prepared.spec.prompt,
                                          /*skip_special_tokens=*/true);
}

CompletionCall::Logprobs CompletionCall::PromptLogprobsOf(
    const v1::GenerateResponse& response, Answer* answer) {
  const Tokenizer& tokenizer = *door_->model().tokenizer;
  Logprobs all;
  if (answer->first_token.has_value()) {
    SetLogprobs(*answer->first_token, std::numeric_limits<float>::quiet_NaN(),
                {}, tokenizer, all.Add());
    answer->first_token.reset();
  }
  all.MergeFrom(response.prompt_logprobs());
  for (v1::TokenLogprobs& token : all) {
    if (!answer->begins_text) break;
    v1::TokenLogprob* const chosen = token.mutable_chosen();
    if (tokenizer.IsSpecial(static_cast<TokenId>(chosen->id()))) continue;
    answer->begins_text = false;
    // In the middle of a text it would begin with a space.
    if (absl::StartsWith(chosen->token(), " ") &&
        !absl::StartsWith(answer->choice.text, " ")) {
      chosen->mutable_token()->erase(0, 1);
    }
  }
  return all;
}

void CompletionCall::AppendPrompt(size_t index,
                                  const v1::GenerateResponse& response,
                                  std::string* out) {
  Answer& answer = answers_[index];
  const bool first = !std::exchange(answer.spoke, true);
  const int number = static_cast<int>(index);
  if (first && api_.chat) writer_.Role(number, out);
  const size_t before = out->size();
  const Logprobs logprobs = PromptLogprobsOf(response, &answer);
  const std::string& echo = answer.choice.text;
  if (!logprobs.empty() || (first && !echo.empty())) {
    writer_.Text(number, first ? echo : "",
                 logprobs.empty() ? nullptr : &logprobs,
                 &answer.choice.text_offset, out);
  }
  // All of a call's may come at once, and no client can be so fast.
  responder_->AllowPending(out->size() - before);
}

}  // namespace baton::router::http
