// One call of the completion endpoints, or of those for responses and messages:
// one request of the cluster for each of its answers (prompts times n), put
// together into one body or one stream.
//
// Threads: made by the HTTP server's threads (or the intake's); answers come on
// the router's loop thread. Nothing blocks. Lives as long as any of its
// requests, or the HTTP answer, does.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/ids.h"
#include "router/client_stream.h"
#include "router/front_door.h"
#include "router/http/answer_items.h"
#include "router/http/answer_reader.h"
#include "router/http/endpoint.h"
#include "router/http/http_message.h"
#include "router/http/openai_request.h"
#include "router/http/openai_writer.h"

namespace baton::router::http {

class CompletionCall final
    : public std::enable_shared_from_this<CompletionCall> {
 public:
  // Checks, tokenizes and starts what `request` asks for; answers by
  // `responder`, errors included.
  static void Start(FrontDoor* door, const Request& request, Endpoint endpoint,
                    std::shared_ptr<Responder> responder);

 private:
  class AnswerStream;
  using Logprobs = google::protobuf::RepeatedPtrField<v1::TokenLogprobs>;

  // One of the answers.
  struct Answer {
    RequestKey key = 0;
    // Which prompt, and whether it counts that prompt's usage.
    size_t prompt = 0;
    bool first_of_prompt = false;
    int64_t prompt_tokens = 0;
    // Where the log-probabilities of the prompt's tokens are wanted, the first
    // one, which has none, until it was said.
    std::optional<TokenId> first_token;
    // Of these tokens, none was said yet that has a place in the text.
    bool begins_text = false;
    Choice choice;
    // The stop string that ended it.
    std::string stop;
    // Null: all that the model writes is text.
    std::unique_ptr<AnswerReader> reader;
    bool spoke = false;
    bool over = false;
  };

  CompletionCall(FrontDoor* door, ApiRequest api, Endpoint endpoint,
                 std::string id, std::shared_ptr<Responder> responder);

  absl::Status Prepare(const Request& request,
                       const FrontDoor::Admission& admission,
                       std::vector<PreparedRequest>* prepared);
  // The text of the prompt, where it is echoed.
  absl::StatusOr<std::string> EchoOf(const v1::GenerateRequest& prompt,
                                     const PreparedRequest& prepared) const;
  void Enter(const Request& request, const FrontDoor::Admission& admission,
             std::vector<PreparedRequest> prepared);

  // False when the client reads too slowly or is gone.
  bool Take(size_t index, const v1::GenerateResponse& response)
      ABSL_LOCKS_EXCLUDED(mu_);
  void End(size_t index, const absl::Status& status,
           std::optional<absl::Duration> retry_after) ABSL_LOCKS_EXCLUDED(mu_);
  void ClientGone() ABSL_LOCKS_EXCLUDED(mu_);

  // What is said of the answer's prompt by now.
  Logprobs PromptLogprobsOf(const v1::GenerateResponse& response,
                            Answer* answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Says it, and the prompt itself when it is the first.
  void AppendPrompt(size_t index, const v1::GenerateResponse& response,
                    std::string* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AppendChunks(size_t index, const v1::GenerateResponse& response,
                    std::string* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // With an AnswerReader.
  void AppendEvents(size_t index, const v1::GenerateResponse& response,
                    std::string* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same, to items_, of the one answer that there is.
  void AppendItems(const v1::GenerateResponse& response, std::string* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string CallId(size_t index, size_t call) const;
  bool Show(const std::string& events) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Collect(size_t index, const v1::GenerateResponse& response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fail(const absl::Status& status,
            std::optional<absl::Duration> retry_after)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the whole answer.
  std::string Body() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the stream, without a body.
  Response StreamHead() const;
  Headers AnswerHeaders(const char* content_type) const;

  FrontDoor* const door_;
  const ApiRequest api_;
  const Endpoint endpoint_;
  const std::shared_ptr<Responder> responder_;
  const AnswerHead head_;
  const ChunkWriter writer_;

  absl::Mutex mu_;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mu_);
  // In the place of writer_, and of what answers say; null: of neither.
  const std::unique_ptr<AnswerItems> items_ ABSL_PT_GUARDED_BY(mu_);
  // Of tokens whose text is not yet known to be said.
  AnswerItems::Logprobs waiting_logprobs_ ABSL_GUARDED_BY(mu_);
  size_t num_open_ ABSL_GUARDED_BY(mu_) = 0;
  AnswerUsage usage_ ABSL_GUARDED_BY(mu_);
  bool started_ ABSL_GUARDED_BY(mu_) = false;  // the stream has begun
  bool over_ ABSL_GUARDED_BY(mu_) = false;     // nothing more is said
  std::string events_ ABSL_GUARDED_BY(mu_);    // room to write in
};

}  // namespace baton::router::http
