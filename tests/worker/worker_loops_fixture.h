// A prefill and a decode worker with a real engine, real UCX and real gRPC, and
// the test in the router's place.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"
#include "tests/worker/in_process_worker.h"

namespace baton::worker {

class WorkerLoopsTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    kv_transfer::PrepareUcxEnvironment();
    model_dir_ = new test::ScratchDir;
    ASSERT_TRUE(test::WriteTinyModel(model_dir_->path()).ok());
  }
  static void TearDownTestSuite() {
    delete model_dir_;
    model_dir_ = nullptr;
  }

  static WorkerOptions Options(const std::string& name) {
    WorkerOptions options;
    options.name = name;
    options.engine.model_dir = model_dir_->path();
    options.engine.num_threads = 1;
    options.engine.kv_memory_bytes = 4 << 20;
    options.engine.block_size = 16;
    options.token_budget = 16;
    options.max_sequences = 8;
    options.prefix_cache = false;
    return options;
  }

  void Start() { Start(Options("prefill-0"), Options("decode-0")); }

  void Start(const WorkerOptions& prefill, const WorkerOptions& decode) {
    prefill_worker_ =
        std::make_unique<InProcessWorker>(v1::WORKER_ROLE_PREFILL, prefill);
    decode_worker_ =
        std::make_unique<InProcessWorker>(v1::WORKER_ROLE_DECODE, decode);
    prefill_ = std::make_unique<RouterStream>(prefill_worker_->address());
    decode_ = std::make_unique<RouterStream>(decode_worker_->address());
    v1::RouterMessage message;
    message.mutable_pair()->set_decode_incarnation(
        decode_->hello().incarnation());
    message.mutable_pair()->set_data_address(decode_->hello().data_address());
    prefill_->Send(message);
    const v1::WorkerMessage answer = prefill_->Await(
        [](const v1::WorkerMessage& m) { return m.has_pair(); });
    ASSERT_TRUE(answer.pair().paired()) << answer.pair().reason();
  }

  static v1::SequenceSpec Spec(int prompt_length, uint32_t max_output = 12) {
    v1::SequenceSpec spec;
    spec.set_request_id("test");
    for (int i = 0; i < prompt_length; ++i) {
      spec.add_tokens(static_cast<uint32_t>((i * 37 + 11) % 256));
    }
    spec.set_prompt_length(static_cast<uint32_t>(prompt_length));
    spec.set_max_output_tokens(max_output);
    v1::ResolvedSampling* sampling = spec.mutable_sampling();
    sampling->set_temperature(0.8f);
    sampling->set_top_p(1);
    sampling->set_repetition_penalty(1);
    sampling->set_seed(42);
    return spec;
  }

  void SendReserve(uint64_t attempt, const v1::SequenceSpec& spec,
                   bool local = false) {
    v1::RouterMessage message;
    message.mutable_reserve()->set_attempt(attempt);
    *message.mutable_reserve()->mutable_sequence() = spec;
    message.mutable_reserve()->set_local_prefill(local);
    if (!local && prefill_ != nullptr) {
      message.mutable_reserve()->set_prefill_incarnation(
          prefill_->hello().incarnation());
    }
    decode_->Send(message);
  }

  void SendPrefill(uint64_t attempt, const v1::SequenceSpec& spec) {
    v1::RouterMessage message;
    message.mutable_prefill()->set_attempt(attempt);
    *message.mutable_prefill()->mutable_sequence() = spec;
    prefill_->Send(message);
  }

  void SendGrant(const v1::Grant& grant) {
    v1::RouterMessage message;
    *message.mutable_grant() = grant;
    prefill_->Send(message);
  }

  static void SendCancel(RouterStream* stream, uint64_t attempt) {
    v1::RouterMessage message;
    message.mutable_cancel()->set_attempt(attempt);
    stream->Send(message);
  }

  // What the decode worker alone says: local prefill, one sequence.
  std::vector<uint32_t> Expected(uint64_t attempt,
                                 const v1::SequenceSpec& spec) {
    SendReserve(attempt, spec, /*local=*/true);
    const size_t left =
        spec.max_output_tokens() - (spec.tokens_size() - spec.prompt_length());
    const auto tokens = decode_->AwaitTokens(attempt, left);
    EXPECT_TRUE(decode_->AwaitOutcome(attempt).ok());
    return Ids(tokens);
  }

  static std::vector<uint32_t> Ids(const std::vector<v1::Token>& tokens) {
    std::vector<uint32_t> ids;
    for (const v1::Token& token : tokens) ids.push_back(token.id());
    return ids;
  }

  void ExpectAllBlocksFree() {
    decode_->AwaitFreeBlocks(decode_->hello().total_blocks());
    prefill_->AwaitFreeBlocks(prefill_->hello().total_blocks());
  }

  inline static test::ScratchDir* model_dir_ = nullptr;
  std::unique_ptr<InProcessWorker> prefill_worker_, decode_worker_;
  std::unique_ptr<RouterStream> prefill_, decode_;
};

}  // namespace baton::worker
