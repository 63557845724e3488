#include "router/http/completion_call.h"

#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/log.h"
#include "common/stable_hash.h"
#include "common/status_macros.h"
#include "common/trace_context.h"
#include "router/http/openai_error.h"
#include "router/invalid_field.h"
#include "router/request_validation.h"
#include "router/tool_calls/tagged_tool_call.h"

namespace baton::router::http {

// Where the loop puts one of the answers.
class CompletionCall::AnswerStream final : public ClientStream {
 public:
  AnswerStream(std::shared_ptr<CompletionCall> call, size_t index)
      : call_(std::move(call)), index_(index) {}

  bool Send(v1::GenerateResponse response) override {
    return call_->Take(index_, response);
  }
  void Finish(const absl::Status& status,
              std::optional<absl::Duration> retry_after) override {
    call_->End(index_, status, retry_after);
  }

 private:
  const std::shared_ptr<CompletionCall> call_;
  const size_t index_;
};

CompletionCall::CompletionCall(FrontDoor* door, ApiRequest api,
                               Endpoint endpoint, std::string id,
                               std::shared_ptr<Responder> responder)
    : door_(door),
      api_(std::move(api)),
      endpoint_(endpoint),
      responder_(std::move(responder)),
      head_({.chat = api_.chat,
             .id = std::move(id),
             .created_unix_seconds = absl::ToUnixSeconds(absl::Now()),
             .model = api_.ModelOr(door->model().name),
             .tokenizer = door->model().tokenizer.get()}),
      writer_(head_, api_.include_usage),
      items_(ItemsOf(endpoint, head_, api_)) {}

void CompletionCall::Start(FrontDoor* door, const Request& request,
                           Endpoint endpoint,
                           std::shared_ptr<Responder> responder) {
  std::string id(request.Header("x-request-id"));
  if (id.empty()) {
    id = absl::StrFormat("%s%016x", IdPrefix(endpoint), DrawNumber());
  }
  absl::Duration retry_after = absl::ZeroDuration();
  const auto refuse = [&](const absl::Status& status) {
    responder->Send(ErrorOf(endpoint, status,
                            retry_after > absl::ZeroDuration()
                                ? std::optional(retry_after)
                                : std::nullopt,
                            id));
  };
  const absl::StatusOr<FrontDoor::Admission> admission =
      door->Admit(AuthorizationOf(request), &retry_after);
  if (!admission.ok()) return refuse(admission.status());
  absl::StatusOr<ApiRequest> api = ParseRequest(endpoint, request.body);
  if (api.ok()) {
    const absl::Status applied = ApplyHeaders(request, &*api);
    if (!applied.ok()) api = applied;
  }
  if (!api.ok()) {
    door->CountInvalid(id);
    return refuse(api.status());
  }
  const auto answers = static_cast<int32_t>(api->prompts.size()) * api->n;
  const absl::Status admitted =
      door->AdmitMore(*admission, answers - 1, &retry_after);
  if (absl::IsInvalidArgument(admitted)) {
    return refuse(WithField(api->n > 1 ? "n" : "prompt", admitted));
  }
  if (!admitted.ok()) return refuse(admitted);
  const std::shared_ptr<CompletionCall> call(
      new CompletionCall(door, *std::move(api), endpoint, id, responder));
  std::vector<PreparedRequest> prepared;
  const absl::Status status = call->Prepare(request, *admission, &prepared);
  if (!status.ok()) return refuse(WithApiField(status, endpoint));
  door->CountCall(EndpointName(endpoint));
  call->Enter(request, *admission, std::move(prepared));
}

absl::Status CompletionCall::Prepare(const Request& request,
                                     const FrontDoor::Admission& admission,
                                     std::vector<PreparedRequest>* prepared) {
  const bool alone = api_.prompts.size() * api_.n == 1;
  const auto calls = api_.tools.wanted ? door_->model().tool_calls
                                       : std::optional<ToolCallFormat>();
  const TextsOfTools texts = calls.has_value() && SyntaxOf(*calls) != nullptr
                                 ? TextsOf(api_.tools)
                                 : TextsOfTools();
  int64_t prompt_logprobs = 0;
  absl::MutexLock lock(&mu_);
  for (size_t p = 0; p < api_.prompts.size(); ++p) {
    v1::GenerateRequest prompt = api_.prompts[p];
    prompt.set_request_id(head_.id);
    BATON_ASSIGN_OR_RETURN(
        PreparedRequest one,
        door_->Prepare(prompt, admission, request.Header("traceparent")));
    BATON_ASSIGN_OR_RETURN(const std::string echo, EchoOf(prompt, one));
    prompt_logprobs += api_.n * NumPromptLogprobs(one.spec);
    if (prompt_logprobs > scheduling::kMaxPromptLogprobs) {
      return InvalidField(
          "logprobs",
          absl::StrCat("of the tokens of all prompts, with the likeliest of "
                       "each, are more than ",
                       scheduling::kMaxPromptLogprobs));
    }
    for (int i = 0; i < api_.n; ++i) {
      Answer answer;
      answer.key = door_->NewKey();
      answer.prompt = p;
      answer.first_of_prompt = i == 0;
      answer.prompt_tokens = static_cast<int64_t>(one.spec.prompt.size());
      answer.choice.text = echo;
      if (one.spec.prompt_logprobs.has_value()) {
        answer.first_token = one.spec.prompt.front();
        answer.begins_text = true;
      } else {
        answer.choice.text_offset.Add(echo);
      }
      answer.choice.has_logprobs = prompt.has_top_logprobs();
      const ReasoningStart reasoning =
          api_.separate_reasoning ? one.reasoning : ReasoningStart::kNone;
      if (one.harmony_opening.has_value()) {
        if (api_.separate_reasoning) {
          answer.reader = std::make_unique<AnswerReader>(*one.harmony_opening,
                                                         api_.tools.names);
        }
      } else if (calls.has_value() || reasoning != ReasoningStart::kNone) {
        answer.reader = std::make_unique<AnswerReader>(reasoning, calls,
                                                       api_.tools.names, texts);
      }
      PreparedRequest mine = one;
      if (!alone) absl::StrAppend(&mine.spec.id, "-", answers_.size());
      // A span of its own, in the same trace.
      const auto span = ParseTraceparent(mine.spec.traceparent);
      if (i > 0 && span.has_value()) {
        mine.spec.traceparent = FormatTraceparent(
            PartSpan(*span, "answer", static_cast<uint64_t>(i)));
      }
      // Equal seeds would give n equal answers.
      mine.spec.sampling.seed += static_cast<uint64_t>(i);
      answers_.push_back(std::move(answer));
      prepared->push_back(std::move(mine));
    }
  }
  num_open_ = answers_.size();
  return absl::OkStatus();
}

void CompletionCall::Enter(const Request& request,
                           const FrontDoor::Admission& admission,
                           std::vector<PreparedRequest> prepared) {
  responder_->OnGone([call = weak_from_this()] {
    if (const auto alive = call.lock()) alive->ClientGone();
  });
  if (api_.stream) {
    responder_->KeepAlive(StreamHead(), std::string(QuietText(endpoint_)));
  }
  std::vector<RequestKey> keys;
  {
    absl::MutexLock lock(&mu_);
    for (const Answer& answer : answers_) keys.push_back(answer.key);
  }
  for (size_t i = 0; i < prepared.size(); ++i) {
    const absl::Status entered =
        door_->Enter(keys[i], std::move(prepared[i]), admission,
                     request.received_at, absl::InfiniteDuration(),
                     std::make_shared<AnswerStream>(shared_from_this(), i));
    if (entered.ok()) continue;
    End(i, entered, absl::Seconds(1));
    return;
  }
  // The client may have left while they went in.
  absl::MutexLock lock(&mu_);
  if (over_) LeaveAll();
}

// The same when it is asked for again, and no other call's.
std::string CompletionCall::CallId(size_t index, size_t call) const {
  const std::string name = absl::StrCat(head_.id, "/", index, "/", call);
  const Hash128 hash = StableHash(std::as_bytes(std::span(name)));
  return absl::StrFormat("%s_%016x%08x",
                         endpoint_ == Endpoint::kMessages ? "toolu" : "call",
                         hash.high, static_cast<uint32_t>(hash.low));
}

void CompletionCall::AppendEvents(size_t index,
                                  const v1::GenerateResponse& response,
                                  std::string* out) {
  Answer& answer = answers_[index];
  const int number = static_cast<int>(index);
  TextOffset& offset = answer.choice.text_offset;
  // They go with the first text there is.
  const auto* logprobs =
      answer.choice.has_logprobs && response.logprobs_size() > 0
          ? &response.logprobs()
          : nullptr;
  for (const AnswerEvent& event : answer.reader->Read(response)) {
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning:
        if (!api_.include_reasoning) break;
        writer_.Reasoning(number, event.text, std::exchange(logprobs, nullptr),
                          out);
        break;
      case AnswerEvent::Kind::kContent:
        writer_.Text(number, event.text, std::exchange(logprobs, nullptr),
                     &offset, out);
        break;
      case AnswerEvent::Kind::kCallBegun:
        writer_.ToolCallBegun(number, event.call, CallId(index, event.call),
                              event.text, out);
        break;
      case AnswerEvent::Kind::kArguments:
        writer_.ToolCallArguments(number, event.call, event.text, out);
        break;
    }
  }
  if (logprobs != nullptr) writer_.Text(number, "", logprobs, &offset, out);
}

void CompletionCall::AppendChunks(size_t index,
                                  const v1::GenerateResponse& response,
                                  std::string* out) {
  Answer& answer = answers_[index];
  const int number = static_cast<int>(index);
  TextOffset& offset = answer.choice.text_offset;
  AppendPrompt(index, response, out);
  const bool logprobs =
      answer.choice.has_logprobs && response.logprobs_size() > 0;
  if (answer.reader != nullptr) {
    AppendEvents(index, response, out);
  } else if (!response.text().empty() || logprobs) {
    writer_.Text(number, response.text(),
                 logprobs ? &response.logprobs() : nullptr, &offset, out);
  }
  if (response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
    const bool called = answer.reader != nullptr &&
                        answer.reader->calls() > 0 && !answer.reader->cut();
    writer_.Finish(number, response.finish_reason(), called, out);
  }
}

void CompletionCall::AppendItems(const v1::GenerateResponse& response,
                                 std::string* out) {
  Answer& answer = answers_[0];
  if (!answer.spoke) {
    answer.spoke = true;
    items_->Begin(answer.prompt_tokens, out);
    // They repeat much of the request.
    if (out != nullptr) responder_->AllowPending(out->size());
  }
  if (answer.choice.has_logprobs) {
    waiting_logprobs_.MergeFrom(response.logprobs());
  }
  const auto say = [&](absl::string_view text)
                       ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    items_->Text(text, std::exchange(waiting_logprobs_, {}), out);
  };
  if (answer.reader == nullptr) {
    if (!response.text().empty() || !waiting_logprobs_.empty()) {
      say(response.text());
    }
    return;
  }
  for (const AnswerEvent& event : answer.reader->Read(response)) {
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning:
        if (api_.include_reasoning) items_->Reasoning(event.text, out);
        waiting_logprobs_.Clear();
        break;
      case AnswerEvent::Kind::kContent:
        say(event.text);
        break;
      case AnswerEvent::Kind::kCallBegun:
        items_->CallBegun(CallId(0, event.call), event.text, out);
        break;
      case AnswerEvent::Kind::kArguments:
        items_->CallArguments(event.text, out);
        break;
    }
  }
  // Of tokens without a text, such as the one that ended the message.
  const bool last = response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  if (last && !waiting_logprobs_.empty() && answer.reader->calls() == 0) {
    say("");
  }
}

bool CompletionCall::Show(const std::string& events) {
  if (events.empty()) return true;
  if (started_) return responder_->Write(events);
  started_ = true;
  Response head = StreamHead();
  head.body = events;
  responder_->Start(std::move(head));
  return true;
}

Response CompletionCall::StreamHead() const {
  Response head;
  head.headers = AnswerHeaders("text/event-stream; charset=utf-8");
  head.headers.emplace_back("cache-control", "no-cache");
  // Proxies pass each event on.
  head.headers.emplace_back("x-accel-buffering", "no");
  return head;
}

void CompletionCall::Collect(size_t index,
                             const v1::GenerateResponse& response) {
  Choice& choice = answers_[index].choice;
  for (v1::TokenLogprobs& token :
       PromptLogprobsOf(response, &answers_[index])) {
    choice.logprobs.push_back(std::move(token));
  }
  for (const v1::TokenLogprobs& token : response.logprobs()) {
    choice.logprobs.push_back(token);
  }
  AnswerReader* const reader = answers_[index].reader.get();
  if (reader == nullptr) {
    choice.text.append(response.text());
    return;
  }
  for (AnswerEvent& event : reader->Read(response)) {
    switch (event.kind) {
      case AnswerEvent::Kind::kReasoning:
        if (api_.include_reasoning) choice.reasoning.append(event.text);
        break;
      case AnswerEvent::Kind::kContent:
        choice.text.append(event.text);
        break;
      case AnswerEvent::Kind::kCallBegun:
        choice.tool_calls.push_back(
            {.id = CallId(index, event.call), .name = std::move(event.text)});
        break;
      case AnswerEvent::Kind::kArguments:
        choice.tool_calls.back().arguments.append(event.text);
        break;
    }
  }
  choice.cut = reader->cut();
}

bool CompletionCall::Take(size_t index, const v1::GenerateResponse& response) {
  absl::MutexLock lock(&mu_);
  if (over_) return false;
  Answer& answer = answers_[index];
  const bool last = response.finish_reason() != v1::FINISH_REASON_UNSPECIFIED;
  if (last) {
    answer.choice.finish_reason = response.finish_reason();
    answer.stop = response.stop();
    usage_.output_tokens += response.usage().output_tokens();
    if (answer.first_of_prompt) {
      usage_.prompt_tokens += response.usage().prompt_tokens();
      usage_.cached_prompt_tokens += response.usage().cached_prompt_tokens();
    }
  }
  events_.clear();
  if (items_ != nullptr) {
    AppendItems(response, api_.stream ? &events_ : nullptr);
  } else if (api_.stream) {
    AppendChunks(index, response, &events_);
  } else {
    Collect(index, response);
  }
  if (last && door_->model().reasoning && answer.reader != nullptr) {
    const int64_t tokens = answer.reader->reasoning_tokens();
    usage_.reasoning_tokens = usage_.reasoning_tokens.value_or(0) + tokens;
    door_->CountReasoning(tokens);
  }
  return !api_.stream || Show(events_);
}

void CompletionCall::End(size_t index, const absl::Status& status,
                         std::optional<absl::Duration> retry_after) {
  absl::MutexLock lock(&mu_);
  Answer& answer = answers_[index];
  if (answer.over) return;
  answer.over = true;
  --num_open_;
  if (over_) return;
  if (!status.ok()) {
    Fail(WithApiField(status, endpoint_), retry_after);
  } else if (num_open_ == 0) {
    Complete();
  }
}

void CompletionCall::Fail(const absl::Status& status,
                          std::optional<absl::Duration> retry_after) {
  over_ = true;
  LeaveAll();
  if (!started_ && responder_->SendUnlessBegun(
                       ErrorOf(endpoint_, status, retry_after, head_.id))) {
    return;
  }
  std::string events;
  if (items_ != nullptr) {
    Answer& answer = answers_[0];
    if (!std::exchange(answer.spoke, true)) {
      items_->Begin(answer.prompt_tokens, &events);
    }
    items_->Fail(status, &events);
  } else {
    ChunkWriter::Error(ErrorJson(status), &events);
    ChunkWriter::Done(&events);
  }
  if (responder_->Write(events)) responder_->End();
}

void CompletionCall::Complete() {
  over_ = true;
  std::string events;
  if (items_ != nullptr) {
    const Answer& answer = answers_[0];
    items_->Finish({.reason = answer.choice.finish_reason,
                    .stop = answer.stop,
                    .cut = answer.reader != nullptr && answer.reader->cut(),
                    .usage = usage_},
                   api_.stream ? &events : nullptr);
    // All that was said, again, and again.
    responder_->AllowPending(events.size());
  }
  if (!api_.stream) {
    Response response = JsonResponse(Body());
    response.headers = AnswerHeaders("application/json");
    responder_->Send(std::move(response));
    return;
  }
  if (items_ == nullptr) {
    if (api_.include_usage) writer_.Usage(usage_, &events);
    ChunkWriter::Done(&events);
  }
  if (Show(events)) responder_->End();
}

std::string CompletionCall::Body() {
  if (items_ != nullptr) return items_->Body();
  std::vector<Choice> choices;
  choices.reserve(answers_.size());
  for (Answer& answer : answers_) choices.push_back(std::move(answer.choice));
  return WholeBody(head_, choices, usage_);
}

void CompletionCall::ClientGone() {
  absl::MutexLock lock(&mu_);
  over_ = true;
  LeaveAll();
}

void CompletionCall::LeaveAll() {
  for (const Answer& answer : answers_) {
    if (!answer.over) door_->Leave(answer.key);
  }
}

Headers CompletionCall::AnswerHeaders(const char* content_type) const {
  Headers headers = {{"content-type", content_type},
                     {"x-request-id", head_.id}};
  if (endpoint_ == Endpoint::kMessages) {
    headers.emplace_back("request-id", head_.id);
  }
  return headers;
}

}  // namespace baton::router::http
