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
  explicit TimedEngine(test::ManualClock* clock) : clock_(clock) {
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

  std::vector<Part> step;  // the last one

 private:
  test::ManualClock* const clock_;
  engine::KvLayout layout_;
  engine::ModelConfig model_;
  const std::string name_ = "timed";
  std::vector<std::byte> memory_;
};

class NoOutbox final : public ControlOutbox {
 public:
  void Send(SessionId session, v1::WorkerMessage message) override {
    EXPECT_EQ(session, kSession);
    EXPECT_FALSE(message.has_refusal()) << message.refusal().message();
  }
  void SendToAll(const v1::WorkerMessage&) override {}
  bool Backlogged(SessionId) override { return false; }
};

// A loop, and the test in the router's place.
class TimedWorker final {
 public:
  TimedWorker(v1::WorkerRole role, const WorkerOptions& options)
      : engine_(&clock_), leases_(&clock_) {
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
  void SendLocal(const v1::SequenceSpec& spec) {
    v1::RouterMessage message;
    message.mutable_reserve()->set_attempt(spec.tokens(0));
    *message.mutable_reserve()->mutable_sequence() = spec;
    message.mutable_reserve()->set_local_prefill(true);
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
  absl::Duration TimeOfTurn() {
    const absl::Time before = clock_.Now();
    Turn();
    return clock_.Now() - before;
  }
  const WorkerMetrics& metrics() const { return *metrics_; }

 private:
  void Send(v1::RouterMessage message) {
    RouterEvent event;
    event.session = kSession;
    event.message = std::move(message);
    CHECK(inbox_.TryPush(std::move(event)));
  }

  test::ManualClock clock_;
  TimedEngine engine_;
  kv_transfer::FakeNetwork network_;
  std::unique_ptr<kv_transfer::Transport> transport_;
  SessionLeases leases_;
  Inbox inbox_{64};
  NoOutbox outbox_;
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
  EXPECT_THAT(worker.Turn(),
              ElementsAre(Pair(4, 100), Pair(3, 300), Pair(2, 112)));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 512)));
  EXPECT_THAT(worker.Turn(), ElementsAre(Pair(2, 76), Pair(1, 436)));
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

}  // namespace
}  // namespace baton::worker
