#include "tests/support/fake_worker.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "common/log.h"

namespace baton::test {

v1::WorkerHello FakeWorker::Hello(v1::WorkerRole role,
                                  const std::string& name) {
  static std::atomic<uint64_t> last_incarnation{1000};
  v1::WorkerHello hello;
  hello.set_role(role);
  hello.set_worker_name(name);
  hello.set_incarnation(++last_incarnation);
  v1::ModelFingerprint* fingerprint = hello.mutable_fingerprint();
  fingerprint->set_model_identity("stories-weights");
  fingerprint->set_architecture("LlamaForCausalLM");
  fingerprint->set_num_layers(6);
  fingerprint->set_num_kv_heads(3);
  fingerprint->set_head_dim(32);
  fingerprint->set_vocab_size(2048);
  fingerprint->set_kv_dtype("bf16");
  fingerprint->set_block_size(16);
  fingerprint->set_protocol_version(1);
  if (role == v1::WORKER_ROLE_DECODE) hello.set_data_address("127.0.0.1:9");
  hello.set_total_blocks(1000);
  hello.set_max_sequences(64);
  hello.set_max_context(512);
  hello.set_max_queued_tokens(100000);
  hello.set_takes_grammars(true);
  return hello;
}

FakeWorker::FakeWorker(Options options) : options_(std::move(options)) {
  absl::StatusOr<rpc::RunningServer> running =
      rpc::StartServer(options_.listen, {this});
  CHECK(running.ok()) << running.status();
  running_ = *std::move(running);
  address_ = rpc::WithPort(options_.listen, running_.port);
}

FakeWorker::~FakeWorker() { Die(); }

void FakeWorker::Break() {
  absl::MutexLock lock(&mu_);
  CHECK(context_ != nullptr) << "no router is connected";
  context_->TryCancel();
}

void FakeWorker::Die() {
  if (running_.server == nullptr) return;
  running_.server->Shutdown(absl::ToChronoTime(absl::Now()));
  running_.server->Wait();
  running_.server.reset();
}

grpc::Status FakeWorker::Connect(grpc::ServerContext* context, Stream* stream) {
  v1::RouterMessage message;
  if (!stream->Read(&message)) return grpc::Status::OK;
  EXPECT_TRUE(message.has_hello()) << "the router's hello comes first";
  {
    absl::MutexLock lock(&mu_);
    v1::WorkerMessage hello;
    *hello.mutable_hello() = options_.hello;
    stream->Write(hello);
    stream_ = stream;
    context_ = context;
  }
  while (stream->Read(&message)) Take(message);
  absl::MutexLock lock(&mu_);
  if (stream_ == stream) {
    stream_ = nullptr;
    context_ = nullptr;
  }
  return grpc::Status::OK;
}

void FakeWorker::Take(const v1::RouterMessage& message) {
  if (message.has_pair() && (options_.pair || !options_.pair_refusal.empty())) {
    v1::WorkerMessage answer;
    v1::PairReport* report = answer.mutable_pair();
    report->set_decode_incarnation(message.pair().decode_incarnation());
    report->set_paired(options_.pair_refusal.empty());
    report->set_reason(options_.pair_refusal);
    Send(answer);
  }
  if (options_.answer_heartbeats && message.heartbeat().answer()) {
    v1::WorkerMessage answer;
    answer.mutable_heartbeat();
    Send(answer);
  }
  absl::MutexLock lock(&mu_);
  received_.push_back(message);
}

bool FakeWorker::HasLocked(v1::RouterMessage::KindCase kind) const {
  return std::any_of(
      received_.begin(), received_.end(),
      [&](const v1::RouterMessage& m) { return m.kind_case() == kind; });
}

v1::RouterMessage FakeWorker::Next(v1::RouterMessage::KindCase kind) {
  absl::MutexLock lock(&mu_);
  const auto there = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return HasLocked(kind);
  };
  if (!mu_.AwaitWithTimeout(absl::Condition(&there), kPatience)) {
    ADD_FAILURE() << options_.hello.worker_name() << " waits in vain for kind "
                  << kind;
    return {};
  }
  const auto it = std::find_if(
      received_.begin(), received_.end(),
      [&](const v1::RouterMessage& m) { return m.kind_case() == kind; });
  v1::RouterMessage message = std::move(*it);
  received_.erase(it);
  return message;
}

bool FakeWorker::Has(v1::RouterMessage::KindCase kind) {
  absl::MutexLock lock(&mu_);
  return HasLocked(kind);
}

v1::Reserve FakeWorker::NextReserve() {
  return Next(v1::RouterMessage::kReserve).reserve();
}
v1::Prefill FakeWorker::NextPrefill() {
  return Next(v1::RouterMessage::kPrefill).prefill();
}
v1::Grant FakeWorker::NextGrant() {
  return Next(v1::RouterMessage::kGrant).grant();
}
v1::Cancel FakeWorker::NextCancel() {
  return Next(v1::RouterMessage::kCancel).cancel();
}
v1::Pair FakeWorker::NextPair() {
  return Next(v1::RouterMessage::kPair).pair();
}

v1::Heartbeat FakeWorker::NextHeartbeat() {
  return Next(v1::RouterMessage::kHeartbeat).heartbeat();
}
v1::Vocabulary FakeWorker::NextVocabulary() {
  return Next(v1::RouterMessage::kVocabulary).vocabulary();
}
bool FakeWorker::HasVocabulary() { return Has(v1::RouterMessage::kVocabulary); }
bool FakeWorker::HasReserve() { return Has(v1::RouterMessage::kReserve); }
bool FakeWorker::HasPrefill() { return Has(v1::RouterMessage::kPrefill); }
bool FakeWorker::HasCancel() { return Has(v1::RouterMessage::kCancel); }

void FakeWorker::Send(const v1::WorkerMessage& message) {
  absl::MutexLock lock(&mu_);
  const auto connected = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return stream_ != nullptr;
  };
  if (!mu_.AwaitWithTimeout(absl::Condition(&connected), kPatience)) {
    ADD_FAILURE() << options_.hello.worker_name() << " has no router";
    return;
  }
  stream_->Write(message);
}

void FakeWorker::SendGrant(uint64_t attempt) {
  v1::WorkerMessage message;
  v1::Grant* grant = message.mutable_grant();
  grant->set_attempt(attempt);
  grant->set_transfer_id(7000 + attempt);
  grant->set_generation(1);
  grant->set_decode_incarnation(options_.hello.incarnation());
  grant->set_data_address(options_.hello.data_address());
  Send(message);
}

void FakeWorker::SendRefusal(uint64_t attempt, v1::RefusalReason reason,
                             uint32_t retry_after_ms) {
  v1::WorkerMessage message;
  v1::Refusal* refusal = message.mutable_refusal();
  refusal->set_attempt(attempt);
  refusal->set_reason(reason);
  refusal->set_message("refused by the test");
  refusal->set_retry_after_ms(retry_after_ms);
  Send(message);
}

void FakeWorker::SendGrammarRefusal(uint64_t attempt) {
  v1::WorkerMessage message;
  v1::Refusal* refusal = message.mutable_refusal();
  refusal->set_attempt(attempt);
  refusal->set_reason(v1::REFUSAL_REASON_INVALID);
  refusal->set_message("refused by the test");
  refusal->set_of_grammar(true);
  Send(message);
}

void FakeWorker::SendToken(uint64_t attempt, uint32_t index, uint32_t id,
                           v1::FinishReason finish) {
  v1::WorkerMessage message;
  v1::Token* token = message.mutable_tokens()->add_tokens();
  token->set_attempt(attempt);
  token->set_index(index);
  token->set_id(id);
  token->set_finish_reason(finish);
  Send(message);
}

void FakeWorker::SendAdapters(
    const std::vector<std::pair<std::string, std::string>>& adapters) {
  v1::WorkerMessage message;
  message.mutable_adapters();
  for (const auto& [name, identity] : adapters) {
    v1::Adapter* const wire = message.mutable_adapters()->add_adapters();
    wire->set_name(name);
    wire->set_identity(identity);
  }
  Send(message);
}

void FakeWorker::SendPromptLogprobs(uint64_t attempt, uint32_t first,
                                    const std::vector<float>& logprobs,
                                    uint32_t top) {
  v1::WorkerMessage message;
  v1::PromptLogprobs* wire = message.mutable_tokens()->add_prompt_logprobs();
  wire->set_attempt(attempt);
  wire->set_first(first);
  wire->mutable_logprobs()->Add(logprobs.begin(), logprobs.end());
  wire->set_top(top);
  for (size_t i = 0; i < logprobs.size() * top; ++i) {
    wire->add_top_ids(100 + static_cast<uint32_t>(i) % 1000);
    wire->add_top_logprobs(-0.5f * static_cast<float>(i));
  }
  Send(message);
}

void FakeWorker::SendFirstToken(uint64_t attempt, uint32_t id,
                                const v1::PromptReport& prompt) {
  v1::WorkerMessage message;
  v1::Token* token = message.mutable_tokens()->add_tokens();
  token->set_attempt(attempt);
  token->set_id(id);
  *token->mutable_prompt() = prompt;
  Send(message);
}

void FakeWorker::SendOk(uint64_t attempt) {
  v1::Outcome outcome;
  outcome.set_attempt(attempt);
  outcome.set_ok(true);
  SendOutcome(outcome);
}

void FakeWorker::SendOutcome(const v1::Outcome& outcome) {
  v1::WorkerMessage message;
  *message.mutable_outcome() = outcome;
  Send(message);
}

void FakeWorker::SendFailure(uint64_t attempt, const std::string& error,
                             bool retryable) {
  v1::Outcome outcome;
  outcome.set_attempt(attempt);
  outcome.set_error(error);
  outcome.set_retryable(retryable);
  SendOutcome(outcome);
}

void FakeWorker::SendLoad(const v1::LoadReport& load) {
  v1::WorkerMessage message;
  *message.mutable_load() = load;
  Send(message);
}

void FakeWorker::SendPrefixes(const v1::PrefixNews& news) {
  v1::WorkerMessage message;
  *message.mutable_prefixes() = news;
  Send(message);
}

void FakeWorker::SendPaired(uint64_t decode_incarnation) {
  v1::WorkerMessage message;
  v1::PairReport* report = message.mutable_pair();
  report->set_decode_incarnation(decode_incarnation);
  report->set_paired(true);
  Send(message);
}

}  // namespace baton::test
