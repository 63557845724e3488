// The loops with an engine whose steps take as long as a cost model says, by a
// clock that it moves: how much of a prompt a step computes, and of which.
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "decode_worker/decode_loop.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prefill_worker/prefill_loop.h"
#include "scheduling/step_cost.h"
#include "tests/support/fake_transport.h"
#include "tests/support/manual_clock.h"
#include "worker/worker_process.h"

namespace baton::worker {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Le;
using ::testing::Pair;

constexpr SessionId kSession = 1;
constexpr TokenId kSampled = 99;

// What a step did of a sequence: its prompt's token, and how many.
using Part = std::pair<TokenId, int64_t>;

class TimedEngine final : public engine::Engine {
 public:
  TimedEngine(test::ManualClock* clock, bool on_device)
      : clock_(clock), on_device_(on_device) {
    layout_.num_layers = 1;
    layout_.num_blocks = 1000;
    layout_.block_size = 16;
    layout_.num_kv_heads = 1;
    layout_.head_dim = 16;
    model_.num_layers = 1;
    model_.num_kv_heads = 1;
    model_.head_dim = 16;
    model_.vocab_size = 100;
    model_.max_position = 8192;
    memory_.resize(static_cast<size_t>(layout_.total_bytes()));
  }

  const engine::ModelConfig& model() const override { return model_; }
  const std::string& model_identity() const override { return name_; }
  const std::string& backend_name() const override { return name_; }
  const engine::KvLayout& kv_layout() const override { return layout_; }
  absl::Span<std::byte> kv_memory() override { return absl::MakeSpan(memory_); }

  scheduling::StepResult Execute(const scheduling::StepPlan& plan,
                                 LayerHook on_layer_done) override {
    // 8 ms, and 1 ms for each token.
    const scheduling::StepCost cost = {.fixed = 0.008, .per_token = 0.001};
    clock_->Advance(absl::Seconds(cost.Seconds(scheduling::ShapeOf(plan))));
    on_layer_done(0);
    scheduling::StepResult result;
    step.clear();
    for (const scheduling::PlannedSequence& s : plan.sequences) {
      step.emplace_back(s.tokens.front(), s.tokens.size());
      if (!s.sample) continue;
      result.sampled.push_back({.sequence = s.sequence, .token = kSampled});
    }
    return result;
  }

  bool runs_on_device() const override { return on_device_; }

  std::vector<Part> step;  // the last one

 private:
  test::ManualClock* const clock_;
  const bool on_device_;
  engine::KvLayout layout_;
  engine::ModelConfig model_;
  const std::string name_ = "timed";
  std::vector<std::byte> memory_;
};

// What the worker said last.
class LastWord final : public ControlOutbox {
 public:
  void Send(SessionId session, v1::WorkerMessage message) override {
    EXPECT_EQ(session, kSession);
    EXPECT_FALSE(message.has_refusal()) << message.refusal().message();
    if (message.has_grant()) grant = message.grant();
    for (const v1::Token& token : message.tokens().tokens()) {
      tokens.push_back(token.index());
    }
    finished |= message.has_outcome();
  }
  v1::Grant grant;
  std::vector<uint32_t> tokens;  // their places in the answer
  bool finished = false;
  v1::LoadReport load;

  void SendToAll(const v1::WorkerMessage& message) override {
    if (message.has_load()) load = message.load();
  }
  bool Backlogged(SessionId) override { return false; }
};

// A loop, and the test in the router's place.
class TimedWorker final {
 public:
  TimedWorker(v1::WorkerRole role, const WorkerOptions& options,
              bool on_device = false)
      : engine_(&clock_, on_device), leases_(&clock_) {
    transport_ = network_.CreateTransport(role == v1::WORKER_ROLE_DECODE);
    WorkerParts parts;
    parts.engine = &engine_;
    parts.transport = transport_.get();
    parts.handoff.self = MakePeerHello(role, "worker", engine_);
    parts.handoff.kv = Geometry(&engine_);
    parts.handoff.clock = &clock_;
    parts.handoff.wake = [] {};
    parts.handoff.lease_until = [this](uint64_t session) {
      return leases_.Until(session);
    };
    parts.inbox = &inbox_;
    parts.outbox = &outbox_;
    parts.leases = &leases_;
    registry_ = std::make_unique<metrics::Metrics>(metrics::Labels());
    metrics_ = std::make_unique<WorkerMetrics>(registry_.get(), engine_);
    parts.metrics = metrics_.get();
    leases_.Open(kSession, /*lease_ms=*/600'000);
    if (role == v1::WORKER_ROLE_DECODE) {
      auto receiver =
          kv_transfer::HandoffReceiver::Create(parts.transport, parts.handoff);
      CHECK(receiver.ok()) << receiver.status();
      loop_ = std::make_unique<decode_worker::DecodeLoop>(
          options, parts, *std::move(receiver), &clock_);
    } else {
      auto sender =
          kv_transfer::HandoffSender::Create(parts.transport, parts.handoff);
      CHECK(sender.ok()) << sender.status();
      loop_ = std::make_unique<prefill_worker::PrefillLoop>(
          options, parts, *std::move(sender), &clock_);
    }
  }
  ~TimedWorker() { transport_->Stop(); }

  // `length` tokens that are all `token`, which also names the attempt.
  static v1::SequenceSpec Spec(TokenId token, int length) {
    v1::SequenceSpec spec;
    spec.set_request_id("test");
    for (int i = 0; i < length; ++i) {
      spec.add_tokens(static_cast<uint32_t>(token));
    }
    spec.set_prompt_length(static_cast<uint32_t>(length));
    spec.set_max_output_tokens(2000);
    spec.mutable_sampling()->set_top_p(1);
    spec.mutable_sampling()->set_repetition_penalty(1);
    return spec;
  }
  void SendLocal(const v1::SequenceSpec& spec) { SendReserve(spec, true); }
  // Its KV comes from elsewhere.
  void SendReserve(const v1::SequenceSpec& spec, bool local = false) {
    v1::RouterMessage message;
    message.mutable_reserve()->set_attempt(spec.tokens(0));
    *message.mutable_reserve()->mutable_sequence() = spec;
    message.mutable_reserve()->set_local_prefill(local);
    Send(std::move(message));
  }
  void SendPrefill(const v1::SequenceSpec& spec) {
    v1::RouterMessage message;
    message.mutable_prefill()->set_attempt(spec.tokens(0));
    *message.mutable_prefill()->mutable_sequence() = spec;
    Send(std::move(message));
  }
  void Cancel(TokenId token, bool abandoned = false) {
    v1::RouterMessage message;
    message.mutable_cancel()->set_attempt(static_cast<uint64_t>(token));
    message.mutable_cancel()->set_abandoned(abandoned);
    Send(std::move(message));
  }

  // One turn of the loop: what its step did.
  std::vector<Part> Turn() {
    engine_.step.clear();
    EXPECT_TRUE(loop_->Turn(absl::ZeroDuration()));
    return engine_.step;
  }
  // The loop's last turn, when it was told to end and nothing is left.
  void LastTurn() {
    loop_->RequestDrain();
    EXPECT_FALSE(loop_->Turn(absl::ZeroDuration()));
  }
  absl::Duration TimeOfTurn() {
    const absl::Time before = clock_.Now();
    Turn();
    return clock_.Now() - before;
  }
  const WorkerMetrics& metrics() const { return *metrics_; }
  const LastWord& said() const { return outbox_; }
  test::ManualClock& clock() { return clock_; }
  kv_transfer::FakeNetwork& network() { return network_; }
  // Of messages from now on; what has none is received when the loop sees it.
  void ReceivedAt(absl::Time at) { received_at_ = at; }

  // The other end of hand-offs to this worker.
  std::unique_ptr<kv_transfer::HandoffSender> PairedSender() {
    sending_ = network_.CreateTransport(/*listen=*/false);
    kv_transfer::HandoffOptions options;
    options.self = MakePeerHello(v1::WORKER_ROLE_PREFILL, "prefill", engine_);
    options.kv = Geometry(&engine_);
    options.clock = &clock_;
    options.wake = [] {};
    auto sender = kv_transfer::HandoffSender::Create(sending_.get(), options);
    CHECK(sender.ok()) << sender.status();
    CHECK((*sender)->Pair(transport_->properties().address).ok());
    network_.RunUntilIdle();
    return *std::move(sender);
  }

 private:
  void Send(v1::RouterMessage message) {
    RouterEvent event;
    event.session = kSession;
    event.received_at = received_at_;
    event.message = std::move(message);
    CHECK(inbox_.TryPush(std::move(event)));
  }

  test::ManualClock clock_;
  TimedEngine engine_;
  kv_transfer::FakeNetwork network_;
  std::unique_ptr<kv_transfer::Transport> transport_;
  std::unique_ptr<kv_transfer::Transport> sending_;
  SessionLeases leases_;
  Inbox inbox_{64};
  LastWord outbox_;
  absl::Time received_at_ = absl::InfiniteFuture();
  std::unique_ptr<metrics::Metrics> registry_;
  std::unique_ptr<WorkerMetrics> metrics_;
  std::unique_ptr<WorkerLoop> loop_;
};

WorkerOptions Options(double itl_target_ms) {
  WorkerOptions options;
  options.itl_target_ms = itl_target_ms;
  options.prefix_cache = false;
  return options;
}

TEST(StepTimeLoopsTest, ChunksKeepTheTargetOfTheStreams) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/100));
  worker.SendLocal(TimedWorker::Spec(1, 5));
  // The loop learns what steps of the stream alone take.
  for (int i = 0; i < 50; ++i) worker.Turn();
  worker.SendLocal(TimedWorker::Spec(2, 6000));
  std::vector<int64_t> chunks;
  std::vector<double> times;
  for (int i = 0; i < 40; ++i) {
    const double before = worker.metrics().mixed_steps->Value();
    times.push_back(absl::ToDoubleMilliseconds(worker.TimeOfTurn()));
    EXPECT_EQ(worker.metrics().mixed_steps->Value(), before + 1);
    chunks.push_back(static_cast<int64_t>(times.back() - 8.5));
  }
  EXPECT_THAT(times, Each(Le(100)));
  // 90 ms hold the stream's token and 81 more.
  chunks.erase(chunks.begin(), chunks.begin() + 5);
  EXPECT_THAT(chunks, Each(AllOf(Ge(75), Le(85))));
  EXPECT_EQ(worker.metrics().mixed_steps_time_bound->Value(), 40);
  EXPECT_NEAR(worker.metrics().mixed_step_predicted->Value(), 1, 0.05);

  worker.Cancel(1);
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 512)));
  EXPECT_EQ(worker.metrics().mixed_steps->Value(), 40);
  worker.SendLocal(TimedWorker::Spec(3, 1));
  EXPECT_LE(worker.TimeOfTurn(), absl::Milliseconds(100));
}

TEST(StepTimeLoopsTest, WhatAStepGaveIsPublishedBesideADevicesNextOne) {
  for (const bool on_device : {false, true}) {
    TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0),
                       on_device);
    v1::SequenceSpec spec = TimedWorker::Spec(1, 5);
    spec.set_max_output_tokens(3);
    worker.SendLocal(spec);
    std::vector<uint32_t> told;
    for (uint32_t i = 0; i < 3; ++i) {
      EXPECT_EQ(worker.Turn().size(), 1u);
      if (!on_device || i > 0) told.push_back(on_device ? i - 1 : i);
      EXPECT_EQ(worker.said().tokens, told) << on_device;
    }
    EXPECT_EQ(worker.said().finished, !on_device);
    // No step comes: nothing is waited for.
    worker.Turn();
    EXPECT_THAT(worker.said().tokens, ElementsAre(0, 1, 2));
    EXPECT_TRUE(worker.said().finished);
  }
}

TEST(StepTimeLoopsTest, TheLastStepsTokensComeBeforeTheEnd) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0),
                     /*on_device=*/true);
  v1::SequenceSpec spec = TimedWorker::Spec(1, 5);
  spec.set_max_output_tokens(1);
  worker.SendLocal(spec);
  worker.Turn();
  EXPECT_FALSE(worker.said().finished);
  worker.LastTurn();
  EXPECT_THAT(worker.said().tokens, ElementsAre(0));
  EXPECT_TRUE(worker.said().finished);
}

TEST(StepTimeLoopsTest, ARequestsOwnTargetIsHeeded) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0));
  v1::SequenceSpec stream = TimedWorker::Spec(1, 5);
  stream.mutable_target()->set_itl_ms(50);
  worker.SendLocal(stream);
  for (int i = 0; i < 10; ++i) worker.Turn();
  worker.SendLocal(TimedWorker::Spec(2, 6000));
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(worker.TimeOfTurn(), absl::Milliseconds(50));
  }
  // Without it, nobody minds.
  worker.Cancel(1);
  worker.SendLocal(TimedWorker::Spec(3, 1));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(3, 1), Pair(2, 511)));
}

TEST(StepTimeLoopsTest, InteractivePromptsGoBeforeBatchOnesHere) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/0));
  v1::SequenceSpec batch = TimedWorker::Spec(1, 2000);
  batch.set_request_class(v1::REQUEST_CLASS_BATCH);
  worker.SendLocal(batch);
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(1, 512)));
  worker.SendLocal(TimedWorker::Spec(2, 100));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 100), Pair(1, 412)));
}

TEST(StepTimeLoopsTest, PrefillWorkersTakeTheUrgentFirst) {
  TimedWorker worker(v1::WORKER_ROLE_PREFILL, Options(/*itl_target_ms=*/0));
  v1::SequenceSpec batch = TimedWorker::Spec(1, 2000);
  batch.set_request_class(v1::REQUEST_CLASS_BATCH);
  worker.SendPrefill(batch);
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(worker.Turn(), ElementsAre(Pair(1, 512)));
  }
  // 464 tokens are left of it. Of the others, the first one cannot be in time:
  // 700 tokens take more than 700 ms.
  v1::SequenceSpec late = TimedWorker::Spec(2, 700);
  late.mutable_target()->set_ttft_ms(600);
  v1::SequenceSpec low = TimedWorker::Spec(3, 300);
  low.set_priority(-1);
  low.mutable_target()->set_ttft_ms(600);
  worker.SendPrefill(late);
  worker.SendPrefill(low);
  worker.SendPrefill(TimedWorker::Spec(4, 100));
  // None waits for the end of another: steps cost little.
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(4, 100)));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(3, 300)));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 512)));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 188)));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(1, 464)));
}

TEST(StepTimeLoopsTest, PrefillWorkersCountWhatNobodyWants) {
  TimedWorker worker(v1::WORKER_ROLE_PREFILL, Options(/*itl_target_ms=*/0));
  const auto wasted = [&worker] {
    return std::pair(worker.metrics().wasted_prompt_tokens->Value(),
                     worker.metrics().wasted_output_tokens->Value());
  };
  worker.SendPrefill(TimedWorker::Spec(1, 2000));
  worker.Turn();
  worker.Cancel(1);  // its other leg failed
  worker.Turn();
  EXPECT_THAT(wasted(), Pair(0, 0));
  worker.SendPrefill(TimedWorker::Spec(2, 2000));
  worker.Turn();
  worker.Turn();
  worker.Cancel(2, /*abandoned=*/true);
  worker.Turn();
  EXPECT_THAT(wasted(), Pair(1024, 0));
  // All of it computed, and the first token sampled; it waits for a grant.
  worker.SendPrefill(TimedWorker::Spec(3, 100));
  worker.Turn();
  worker.Cancel(3, /*abandoned=*/true);
  worker.Turn();
  EXPECT_THAT(wasted(), Pair(1124, 1));
  // Nothing was computed of one whose turn had not come.
  v1::SequenceSpec late = TimedWorker::Spec(4, 100);
  late.set_deadline_ms(1);
  worker.SendPrefill(TimedWorker::Spec(5, 512));
  worker.SendPrefill(late);
  worker.Turn();
  worker.Turn();
  EXPECT_THAT(wasted(), Pair(1124, 1));
}

TEST(StepTimeLoopsTest, WhatCameDuringAStepHasWaitedSince) {
  for (const auto role : {v1::WORKER_ROLE_DECODE, v1::WORKER_ROLE_PREFILL}) {
    TimedWorker worker(role, Options(/*itl_target_ms=*/100));
    worker.ReceivedAt(worker.clock().Now() - absl::Milliseconds(40));
    if (role == v1::WORKER_ROLE_DECODE) {
      worker.SendLocal(TimedWorker::Spec(1, 5));
    } else {
      worker.SendPrefill(TimedWorker::Spec(1, 5));
    }
    worker.Turn();
    const auto queued = worker.metrics().queue_seconds->Collect().histogram;
    EXPECT_EQ(queued.sample_count, 1u);
    EXPECT_NEAR(queued.sample_sum, 0.04, 1e-9);
  }
}

TEST(StepTimeLoopsTest, AHandOffThatNearsItsEndFindsAShortStep) {
  TimedWorker worker(v1::WORKER_ROLE_DECODE, Options(/*itl_target_ms=*/100));
  const auto sender = worker.PairedSender();
  // The loop learns what steps take.
  worker.SendLocal(TimedWorker::Spec(1, 5));
  for (int i = 0; i < 50; ++i) worker.Turn();
  worker.SendLocal(TimedWorker::Spec(2, 6000));
  for (int i = 0; i < 10; ++i) worker.Turn();
  worker.Cancel(1);
  worker.SendReserve(TimedWorker::Spec(3, 32));
  // Reserved: it may be long until it comes.
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 512)));
  const v1::Grant& grant = worker.said().grant;
  const TransferId transfer{grant.transfer_id()};
  ASSERT_TRUE(sender
                  ->Start({.transfer = transfer,
                           .generation = grant.generation(),
                           .receiver = Incarnation{grant.decode_incarnation()},
                           .num_tokens = 32},
                          {900, 901}, worker.clock().Now() + absl::Seconds(10))
                  .ok());
  sender->SendLayer(transfer, 0, 1);
  worker.network().RunUntilIdle();
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 512)));
  sender->SendLayer(transfer, 0, 2);
  worker.network().RunUntilIdle();
  const absl::Duration took = worker.TimeOfTurn();
  EXPECT_GT(took, absl::Milliseconds(80));
  EXPECT_LT(took, absl::Milliseconds(100));
  // It landed 60 ms ago: the first step beside it has what is left of 95.
  sender->Commit(transfer,
                 {.first_token = 5, .next_token_index = 1, .num_tokens = 32});
  worker.network().RunUntilIdle();
  worker.clock().Advance(absl::Milliseconds(60));
  EXPECT_LT(worker.TimeOfTurn(), absl::Milliseconds(36));
  EXPECT_EQ(worker.said().load.queued_prompts(), 1u);
}

}  // namespace
}  // namespace baton::worker
