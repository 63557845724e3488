// A decode worker whose blocks run out, turn by turn: who gets the next one,
// who waits in the host's memory, and what comes before what; and what its
// metrics say of blocks and of work for nobody. The engine's
// tokens depend on every token in the KV that it reads.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "decode_worker/decode_loop.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kv_transfer/handoff_sender.h"
#include "tests/support/fake_transport.h"
#include "tests/support/manual_clock.h"
#include "worker/worker_hello.h"
#include "worker/worker_process.h"

namespace baton::worker {
namespace {

using ::testing::ElementsAre;

constexpr SessionId kRouter = 1;

class SummingEngine final : public engine::Engine {
 public:
  explicit SummingEngine(int32_t num_blocks) {
    layout_.num_layers = 2;
    layout_.num_blocks = num_blocks;
    layout_.num_kv_heads = 1;
    layout_.head_dim = 16;
    model_.num_layers = 2;
    model_.num_kv_heads = 1;
    model_.head_dim = 16;
    model_.vocab_size = 100;
    model_.max_position = 4096;
    memory_.resize(static_cast<size_t>(layout_.total_bytes()));
  }

  const engine::ModelConfig& model() const override { return model_; }
  const std::string& model_identity() const override { return name_; }
  const std::string& backend_name() const override { return name_; }
  const engine::KvLayout& kv_layout() const override { return layout_; }
  absl::Span<std::byte> kv_memory() override { return absl::MakeSpan(memory_); }

  scheduling::StepResult Execute(const scheduling::StepPlan& plan,
                                 LayerHook on_layer_done) override {
    scheduling::StepResult result;
    for (const scheduling::PlannedSequence& s : plan.sequences) {
      for (size_t i = 0; i < s.tokens.size(); ++i) {
        for (int32_t layer = 0; layer < 2; ++layer) {
          Slot(s, layer, s.first_position + static_cast<int32_t>(i)) =
              static_cast<std::byte>(s.tokens[i] + layer);
        }
      }
      if (!s.sample) continue;
      int64_t sum = 0;
      const auto count =
          s.first_position + static_cast<int32_t>(s.tokens.size());
      for (int32_t position = 0; position < count; ++position) {
        for (int32_t layer = 0; layer < 2; ++layer) {
          sum += (position + 1) * static_cast<int>(Slot(s, layer, position));
        }
      }
      result.sampled.push_back(
          {.sequence = s.sequence, .token = static_cast<TokenId>(sum % 97)});
    }
    for (int32_t layer = 0; layer < 2; ++layer) on_layer_done(layer);
    return result;
  }

 private:
  std::byte& Slot(const scheduling::PlannedSequence& s, int32_t layer,
                  int32_t position) {
    const BlockId block =
        s.blocks[static_cast<size_t>(position / layout_.block_size)];
    return memory_[static_cast<size_t>(layout_.PageOffset(layer, block) +
                                       position % layout_.block_size)];
  }

  engine::KvLayout layout_;
  engine::ModelConfig model_;
  const std::string name_ = "summing";
  std::vector<std::byte> memory_;
};

// What the worker said, by attempt.
struct Said final : ControlOutbox {
  void Send(SessionId, v1::WorkerMessage message) override {
    for (const v1::Token& token : message.tokens().tokens()) {
      tokens[token.attempt()].push_back(token.id());
    }
    if (message.has_grant()) {
      granted.push_back(message.grant().attempt());
      grants[message.grant().attempt()] = message.grant();
    }
    if (message.has_refusal()) refused.push_back(message.refusal().attempt());
    if (message.has_outcome()) {
      outcomes[message.outcome().attempt()] = message.outcome();
    }
  }
  void SendToAll(const v1::WorkerMessage& message) override {
    if (message.has_load()) load = message.load();
  }
  bool Backlogged(SessionId) override { return false; }

  std::map<uint64_t, std::vector<uint32_t>> tokens;
  std::vector<uint64_t> granted, refused;
  std::map<uint64_t, v1::Grant> grants;
  std::map<uint64_t, v1::Outcome> outcomes;
  v1::LoadReport load;
};

class SmallWorker final {
 public:
  SmallWorker(int32_t num_blocks, int64_t swap_blocks,
              int32_t output_reserve = 4, int32_t token_budget = 512)
      : engine_(num_blocks), leases_(&clock_) {
    WorkerOptions options;
    options.output_reserve = output_reserve;
    options.token_budget = token_budget;
    options.swap_memory_bytes = swap_blocks * engine_.kv_layout().block_bytes();
    options.swap_seconds = 5;
    transport_ = network_.CreateTransport(/*listen=*/true);
    WorkerParts parts;
    parts.engine = &engine_;
    parts.transport = transport_.get();
    parts.handoff.self =
        MakePeerHello(v1::WORKER_ROLE_DECODE, "worker", engine_);
    parts.handoff.kv = Geometry(&engine_);
    parts.handoff.clock = &clock_;
    parts.handoff.wake = [] {};
    parts.handoff.lease_until = [this](uint64_t session) {
      return leases_.Until(session);
    };
    parts.inbox = &inbox_;
    parts.outbox = &said;
    parts.leases = &leases_;
    registry_ = std::make_unique<metrics::Metrics>(metrics::Labels());
    metrics_ = std::make_unique<WorkerMetrics>(registry_.get(), engine_);
    parts.metrics = metrics_.get();
    leases_.Open(kRouter, /*lease_ms=*/600'000);
    auto receiver =
        kv_transfer::HandoffReceiver::Create(parts.transport, parts.handoff);
    CHECK(receiver.ok()) << receiver.status();
    loop_ = std::make_unique<decode_worker::DecodeLoop>(
        options, parts, *std::move(receiver), &clock_);
  }
  ~SmallWorker() { transport_->Stop(); }

  void Reserve(uint64_t attempt, int prompt, uint32_t output, bool local = true,
               v1::RequestClass request_class = v1::REQUEST_CLASS_INTERACTIVE,
               uint64_t deadline_ms = 0) {
    v1::RouterMessage message;
    v1::Reserve* reserve = message.mutable_reserve();
    reserve->set_attempt(attempt);
    reserve->set_local_prefill(local);
    v1::SequenceSpec* spec = reserve->mutable_sequence();
    spec->set_request_id("test");
    for (int i = 0; i < prompt; ++i) {
      spec->add_tokens(static_cast<uint32_t>(attempt + i) % 97);
    }
    spec->set_prompt_length(static_cast<uint32_t>(prompt));
    spec->set_max_output_tokens(output);
    spec->set_request_class(request_class);
    spec->set_deadline_ms(deadline_ms);
    spec->mutable_sampling()->set_top_p(1);
    spec->mutable_sampling()->set_repetition_penalty(1);
    Send(std::move(message));
  }
  void Cancel(uint64_t attempt, bool abandoned = false) {
    v1::RouterMessage message;
    message.mutable_cancel()->set_attempt(attempt);
    message.mutable_cancel()->set_abandoned(abandoned);
    Send(std::move(message));
  }
  void Turn(int times = 1) {
    for (int i = 0; i < times; ++i) {
      EXPECT_TRUE(loop_->Turn(absl::ZeroDuration()));
      network_.RunUntilIdle();
      clock_.Advance(absl::Milliseconds(1));
    }
  }
  // Until a report tells how it is now.
  v1::LoadReport Report() {
    clock_.Advance(absl::Milliseconds(1100));
    Turn();
    return said.load;
  }
  // The sending end of hand-offs to this worker, paired with it.
  std::unique_ptr<kv_transfer::HandoffSender> PairedSender(
      kv_transfer::Transport* transport, engine::Engine* engine) {
    kv_transfer::HandoffOptions options;
    options.self = MakePeerHello(v1::WORKER_ROLE_PREFILL, "prefill", *engine);
    options.kv = Geometry(engine);
    options.clock = &clock_;
    options.wake = [] {};
    auto sender = kv_transfer::HandoffSender::Create(transport, options);
    CHECK(sender.ok()) << sender.status();
    CHECK((*sender)->Pair(transport_->properties().address).ok());
    network_.RunUntilIdle();
    return *std::move(sender);
  }
  kv_transfer::FakeNetwork& network() { return network_; }
  test::ManualClock& clock() { return clock_; }
  const WorkerMetrics& metrics() const { return *metrics_; }
  int swapped() const {
    return static_cast<int>(metrics_->swapped_sequences->Value());
  }

  Said said;

 private:
  void Send(v1::RouterMessage message) {
    RouterEvent event;
    event.session = kRouter;
    event.message = std::move(message);
    CHECK(inbox_.TryPush(std::move(event)));
  }

  test::ManualClock clock_;
  SummingEngine engine_;
  kv_transfer::FakeNetwork network_;
  std::unique_ptr<kv_transfer::Transport> transport_;
  SessionLeases leases_;
  Inbox inbox_{64};
  std::unique_ptr<metrics::Metrics> registry_;
  std::unique_ptr<WorkerMetrics> metrics_;
  std::unique_ptr<WorkerLoop> loop_;
};

// What the attempt gives where there are blocks for all.
std::vector<uint32_t> Undisturbed(uint64_t attempt, int prompt,
                                  uint32_t output) {
  SmallWorker worker(100, 0, /*output_reserve=*/0);
  worker.Reserve(attempt, prompt, output);
  worker.Turn(static_cast<int>(output) + 2);
  EXPECT_TRUE(worker.said.outcomes[attempt].ok());
  return worker.said.tokens[attempt];
}

// Prompts of 30 tokens and 60 of output take six blocks in the end, three to
// begin with: of seven, one is left for the first that grows.
TEST(BlockGrowthLoopsTest, WhoWasSwappedGoesOnBeforeNewcomers) {
  SmallWorker worker(7, /*swap_blocks=*/10);
  worker.Reserve(1, 30, 60);
  worker.Turn();
  worker.Reserve(2, 30, 60);
  worker.Turn(30);
  ASSERT_EQ(worker.swapped(), 1);
  EXPECT_EQ(worker.Report().free_blocks(), 0u);
  // There are blocks, but they are not for newcomers.
  worker.Reserve(3, 1, 2);
  worker.Turn();
  EXPECT_THAT(worker.said.refused, ElementsAre(3));
  worker.Turn(28);
  EXPECT_TRUE(worker.said.outcomes[1].ok());
  EXPECT_EQ(worker.swapped(), 0);
  EXPECT_EQ(worker.metrics().swap_seconds->Collect().histogram.sample_count,
            2u);
  worker.Reserve(4, 1, 2);
  worker.Turn(60);
  EXPECT_TRUE(worker.said.outcomes[2].ok());
  EXPECT_TRUE(worker.said.outcomes[4].ok());
  EXPECT_THAT(worker.said.refused, ElementsAre(3));
  for (const uint64_t attempt : {1, 2}) {
    EXPECT_EQ(worker.said.tokens[attempt], Undisturbed(attempt, 30, 60));
  }
  EXPECT_EQ(worker.Report().free_blocks(), 7u);
  EXPECT_EQ(worker.metrics().swapped_bytes->Value(), 0);
}

TEST(BlockGrowthLoopsTest, WhoWaitsTooLongGoesBackToTheRouter) {
  SmallWorker worker(7, /*swap_blocks=*/10);
  worker.Reserve(1, 30, 60);
  worker.Turn();
  worker.Reserve(2, 30, 60);
  worker.Turn(30);
  ASSERT_EQ(worker.swapped(), 1);
  worker.clock().Advance(absl::Seconds(5));
  worker.Turn();
  EXPECT_EQ(worker.swapped(), 0);
  EXPECT_EQ(worker.said.outcomes[2].failure(), v1::FAILURE_KIND_PREEMPTED);
  EXPECT_TRUE(worker.said.outcomes[2].retryable());
  EXPECT_EQ(worker.metrics().swaps_given_up->Value(), 1);
  worker.Turn(40);
  EXPECT_TRUE(worker.said.outcomes[1].ok());
  EXPECT_EQ(worker.Report().free_blocks(), 7u);
}

TEST(BlockGrowthLoopsTest, WithoutRoomThereItGoesBackAtOnce) {
  SmallWorker worker(7, /*swap_blocks=*/2);
  worker.Reserve(1, 30, 60);
  worker.Turn();
  worker.Reserve(2, 30, 60);
  worker.Turn(30);
  EXPECT_EQ(worker.swapped(), 0);
  EXPECT_EQ(worker.said.outcomes[2].failure(), v1::FAILURE_KIND_PREEMPTED);
  // What it gave so far is right.
  std::vector<uint32_t> whole = Undisturbed(2, 30, 60);
  const std::vector<uint32_t>& given = worker.said.tokens[2];
  ASSERT_LT(given.size(), whole.size());
  whole.resize(given.size());
  EXPECT_EQ(given, whole);
}

TEST(BlockGrowthLoopsTest, ACancelGivesTheHostsMemoryBack) {
  SmallWorker worker(7, /*swap_blocks=*/10);
  worker.Reserve(1, 30, 60);
  worker.Turn();
  worker.Reserve(2, 30, 60);
  worker.Turn(30);
  ASSERT_EQ(worker.swapped(), 1);
  worker.Cancel(2);
  worker.Turn();
  EXPECT_EQ(worker.swapped(), 0);
  EXPECT_EQ(worker.metrics().swapped_bytes->Value(), 0);
  EXPECT_FALSE(worker.said.outcomes.contains(2));
}

// What it was swapped out of stays in the prefix cache, and once it has entered
// a block of its own behind that, it holds both: with its own copies more than
// there is. It is alone, so nobody else can give way.
TEST(BlockGrowthLoopsTest, WhoIsAloneIsNotHeldUpByTheCache) {
  SmallWorker worker(8, /*swap_blocks=*/10);
  // Three blocks for KV that does not come.
  worker.Reserve(3, 44, 1, /*local=*/false);
  worker.Reserve(1, 1, 60);
  worker.Turn();
  worker.Reserve(2, 30, 60);
  worker.Turn(25);
  ASSERT_EQ(worker.swapped(), 1);
  worker.Cancel(1);
  worker.Cancel(3);
  worker.Turn(70);
  EXPECT_EQ(worker.swapped(), 0);
  EXPECT_TRUE(worker.said.outcomes[2].ok());
  EXPECT_EQ(worker.said.tokens[2], Undisturbed(2, 30, 60));
  EXPECT_EQ(worker.Report().free_blocks(), 8u);
}

TEST(BlockGrowthLoopsTest, BatchGivesWayFirstHoweverOld) {
  SmallWorker worker(7, 0);
  worker.Reserve(1, 30, 60, /*local=*/true, v1::REQUEST_CLASS_BATCH);
  worker.Turn();
  worker.Reserve(2, 30, 60);
  worker.Turn(80);
  EXPECT_EQ(worker.said.outcomes[1].failure(), v1::FAILURE_KIND_PREEMPTED);
  EXPECT_TRUE(worker.said.outcomes[2].ok());
  EXPECT_EQ(worker.said.tokens[2], Undisturbed(2, 30, 60));
}

// A newcomer must leave a block for each that may grow.
TEST(BlockGrowthLoopsTest, ABlockIsKeptForWhoGrows) {
  SmallWorker worker(7, 0);
  worker.Reserve(1, 30, 60);
  worker.Turn();
  EXPECT_EQ(worker.Report().free_blocks(), 3u);
  worker.Reserve(2, 47, 4);  // four blocks, as many as there are
  worker.Turn();
  EXPECT_THAT(worker.said.refused, ElementsAre(2));
  worker.Reserve(3, 31, 4);
  worker.Turn();
  EXPECT_THAT(worker.said.refused, ElementsAre(2));
}

// The first one keeps its blocks and sits out; what KV is coming for is no
// victim.
TEST(BlockGrowthLoopsTest, TheFirstOneWaitsForWhatIsOnItsWay) {
  SmallWorker worker(7, 0);
  worker.Reserve(1, 30, 60);
  worker.Turn();
  worker.Reserve(2, 30, 60, /*local=*/false);
  worker.Turn(60);
  EXPECT_THAT(worker.said.granted, ElementsAre(1, 2));
  // 64 tokens have four blocks; the last one's KV is not there yet.
  EXPECT_EQ(worker.said.tokens[1].size(), 35u);
  EXPECT_TRUE(worker.said.outcomes.empty());
  worker.Cancel(2);
  worker.Turn(60);
  EXPECT_TRUE(worker.said.outcomes[1].ok());
  EXPECT_EQ(worker.said.tokens[1], Undisturbed(1, 30, 60));
  EXPECT_EQ(worker.Report().free_blocks(), 7u);
}

// From the reservation to the first step, which the budget puts off.
TEST(BlockGrowthLoopsTest, BlocksOfHandOffsAreSeenByState) {
  SmallWorker worker(20, 0, /*output_reserve=*/4, /*token_budget=*/1);
  const auto reserved = [&worker] {
    const WorkerMetrics& m = worker.metrics();
    return std::vector<double>{m.reserved_granted->Value(),
                               m.reserved_filling->Value(),
                               m.reserved_committed->Value()};
  };
  SummingEngine sending(20);
  const auto transport = worker.network().CreateTransport(/*listen=*/false);
  const auto sender = worker.PairedSender(transport.get(), &sending);
  worker.Reserve(1, 1, 60);  // a stream beside
  worker.Reserve(2, 30, 60, /*local=*/false);
  worker.Turn(2);
  EXPECT_THAT(reserved(), ElementsAre(2, 0, 0));  // of three; one is for output
  const v1::Grant& grant = worker.said.grants[2];
  const TransferId transfer{grant.transfer_id()};
  ASSERT_TRUE(sender
                  ->Start({.transfer = transfer,
                           .generation = grant.generation(),
                           .receiver = Incarnation{grant.decode_incarnation()},
                           .num_tokens = 30},
                          {3, 4}, worker.clock().Now() + absl::Seconds(10))
                  .ok());
  sender->SendLayer(transfer, 0, 2);
  worker.Turn(2);
  EXPECT_THAT(reserved(), ElementsAre(0, 2, 0));
  sender->SendLayer(transfer, 1, 2);
  sender->Commit(transfer,
                 {.first_token = 5, .next_token_index = 1, .num_tokens = 30});
  worker.network().RunUntilIdle();
  worker.Turn();
  EXPECT_THAT(reserved(), ElementsAre(0, 0, 2));
  worker.Turn();
  EXPECT_THAT(reserved(), ElementsAre(0, 0, 0));
  EXPECT_EQ(worker.said.tokens[2].size(), 1u);
}

TEST(BlockGrowthLoopsTest, WhatNobodyWantsIsCounted) {
  SmallWorker worker(100, 0);
  const auto wasted = [&worker] {
    const WorkerMetrics& m = worker.metrics();
    return std::vector<double>{m.wasted_prompt_tokens->Value(),
                               m.wasted_output_tokens->Value()};
  };
  // Another attempt goes on with it: its leg elsewhere failed.
  worker.Reserve(1, 30, 60);
  worker.Turn(3);
  worker.Cancel(1);
  worker.Turn();
  EXPECT_THAT(wasted(), ElementsAre(0, 0));
  // The client left. Of 40 tokens of prompt none is in the cache.
  worker.Reserve(2, 40, 60);
  worker.Turn(3);
  worker.Cancel(2, /*abandoned=*/true);
  worker.Turn();
  EXPECT_THAT(wasted(), ElementsAre(40, 3));
  // One that ended well meanwhile cost nothing in vain.
  worker.Reserve(3, 50, 2);
  worker.Turn(3);
  worker.Cancel(3, /*abandoned=*/true);
  worker.Turn();
  EXPECT_THAT(wasted(), ElementsAre(40, 3));
  // The deadline passed.
  worker.Reserve(4, 60, 60, /*local=*/true, v1::REQUEST_CLASS_INTERACTIVE,
                 /*deadline_ms=*/1000);
  worker.Turn(2);
  worker.clock().Advance(absl::Seconds(1));
  worker.Turn();
  EXPECT_FALSE(worker.said.outcomes[4].ok());
  EXPECT_THAT(wasted(), ElementsAre(100, 5));
}

}  // namespace
}  // namespace baton::worker
