// A worker's loop with an engine whose steps take as long as a cost model says,
// by a clock that it moves, and a test in the router's place.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/log.h"
#include "decode_worker/decode_loop.h"
#include "dual_worker/dual_loop.h"
#include "gtest/gtest.h"
#include "prefill_worker/prefill_loop.h"
#include "scheduling/step_cost.h"
#include "tests/support/fake_transport.h"
#include "tests/support/manual_clock.h"
#include "worker/kv_blocks.h"
#include "worker/role_switch.h"
#include "worker/worker_hello.h"
#include "worker/worker_process.h"

namespace baton::worker::timed {

inline constexpr SessionId kSession = 1;
inline constexpr TokenId kSampled = 99;
// In place of a token that nobody knew when its step was given.
inline constexpr TokenId kAhead = -1;

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
    EXPECT_FALSE(ahead_.has_value());
    on_layer_done(0);
    return Run(plan);
  }

  int32_t max_drafts() const override { return engine::kMaxDrafts; }
  bool has_draft_weights() const override { return guessed != nullptr; }
  bool runs_on_device() const override { return on_device_; }

  scheduling::StepResult ExecuteBeside(
      const scheduling::StepPlan& plan, LayerHook on_layer_done,
      absl::FunctionRef<void()> meanwhile) override {
    scheduling::StepResult result = Execute(plan, on_layer_done);
    while_running();
    meanwhile();
    return result;
  }
  bool runs_ahead() const override { return on_device_; }
  bool RunAhead(const scheduling::StepPlan& plan) override {
    EXPECT_FALSE(ahead_.has_value());
    if (refuses) return false;
    ahead_ = plan;
    return true;
  }
  scheduling::StepResult Await(absl::FunctionRef<void()> meanwhile) override {
    const scheduling::StepPlan plan = *std::exchange(ahead_, std::nullopt);
    scheduling::StepResult result = Run(plan);
    while_running();
    meanwhile();
    return result;
  }

  std::vector<Part> step;  // the last one
  // What comes out at that place of an output.
  std::function<TokenId(int32_t)> sampled = [](int32_t) { return kSampled; };
  // And what it guesses there, with weights of fewer bits, if it has such.
  std::function<TokenId(int32_t)> guessed;
  // What happens meanwhile.
  std::function<void()> while_running = [] {};
  bool refuses = false;  // to run ahead
  // It has a step that was not awaited.
  bool has_ahead() const { return ahead_.has_value(); }

 private:
  scheduling::StepResult Run(const scheduling::StepPlan& plan) {
    // 8 ms, and 1 ms for each token; a quarter of it to guess.
    scheduling::StepCost cost = {.fixed = 0.008, .per_token = 0.001};
    if (plan.draft) cost = {.fixed = 0.002, .per_token = 0.00025};
    const auto& token_at = plan.draft ? guessed : sampled;
    clock_->Advance(absl::Seconds(cost.Seconds(scheduling::ShapeOf(plan))));
    scheduling::StepResult result;
    step.clear();
    for (const scheduling::PlannedSequence& s : plan.sequences) {
      step.emplace_back(s.follows ? kAhead : s.tokens.front(), s.tokens.size());
      for (int32_t i = 0; i < s.num_samples(); ++i) {
        result.sampled.push_back(
            {.sequence = s.sequence, .token = token_at(s.sample_index() + i)});
      }
    }
    return result;
  }

  std::optional<scheduling::StepPlan> ahead_;
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
      values.push_back(static_cast<TokenId>(token.id()));
    }
    finished |= message.has_outcome();
  }
  v1::Grant grant;
  std::vector<uint32_t> tokens;  // their places in the answer
  std::vector<TokenId> values;   // and what they are
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
  // `role` is 0 of one that has both.
  TimedWorker(v1::WorkerRole role, const WorkerOptions& options,
              bool on_device = false)
      : engine_(&clock_, on_device),
        registry_(metrics::Labels()),
        metrics_(&registry_, engine_),
        leases_(&clock_) {
    leases_.Open(kSession, /*lease_ms=*/600'000);
    if (role == v1::WORKER_ROLE_UNSPECIFIED) {
      roles_.emplace(v1::WORKER_ROLE_DECODE, &registry_, &clock_);
      blocks_ = std::make_shared<KvBlocks>(&engine_, options.prefix_cache,
                                           /*num_loops=*/2);
      auto prefill = MakePrefill(options);
      loop_ = std::make_unique<dual_worker::DualLoop>(
          std::move(prefill), MakeDecode(options), &*roles_);
    } else if (role == v1::WORKER_ROLE_DECODE) {
      loop_ = MakeDecode(options);
    } else {
      loop_ = MakePrefill(options);
    }
  }
  ~TimedWorker() {
    for (const auto& side : sides_) side->transport->Stop();
  }

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
  // From a decode worker that it is not paired with.
  void SendGrant(TokenId token, uint32_t num_tokens) {
    v1::RouterMessage message;
    message.mutable_grant()->set_attempt(static_cast<uint64_t>(token));
    message.mutable_grant()->set_transfer_id(static_cast<uint64_t>(token));
    message.mutable_grant()->set_num_tokens(num_tokens);
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
  void RequestDrain() { loop_->RequestDrain(); }
  void LastTurn() {
    RequestDrain();
    EXPECT_FALSE(loop_->Turn(absl::ZeroDuration()));
  }
  absl::Duration TimeOfTurn() {
    const absl::Time before = clock_.Now();
    Turn();
    return clock_.Now() - before;
  }
  const WorkerMetrics& metrics() const { return metrics_; }
  const LastWord& said() const { return outbox_; }
  TimedEngine& engine() { return engine_; }
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
    CHECK((*sender)->Pair(sides_[0]->transport->properties().address).ok());
    network_.RunUntilIdle();
    return *std::move(sender);
  }

 private:
  // What it has of each of its roles.
  struct Side {
    std::unique_ptr<kv_transfer::Transport> transport;
    Inbox inbox{64};
  };

  WorkerParts AddSide(v1::WorkerRole role) {
    sides_.push_back(std::make_unique<Side>());
    Side* const side = sides_.back().get();
    side->transport = network_.CreateTransport(role == v1::WORKER_ROLE_DECODE);
    WorkerParts parts;
    parts.engine = &engine_;
    parts.transport = side->transport.get();
    parts.handoff.self = MakePeerHello(role, "worker", engine_);
    parts.handoff.kv = Geometry(&engine_);
    parts.handoff.clock = &clock_;
    parts.handoff.wake = [] {};
    parts.handoff.lease_until = [this](uint64_t session) {
      return leases_.Until(session);
    };
    parts.inbox = &side->inbox;
    parts.outbox = &outbox_;
    parts.leases = &leases_;
    parts.metrics = &metrics_;
    parts.blocks = blocks_;
    parts.roles = roles_.has_value() ? &*roles_ : nullptr;
    return parts;
  }
  std::unique_ptr<prefill_worker::PrefillLoop> MakePrefill(
      const WorkerOptions& options) {
    const WorkerParts parts = AddSide(v1::WORKER_ROLE_PREFILL);
    auto sender =
        kv_transfer::HandoffSender::Create(parts.transport, parts.handoff);
    CHECK(sender.ok()) << sender.status();
    return std::make_unique<prefill_worker::PrefillLoop>(
        options, parts, *std::move(sender), &clock_);
  }
  std::unique_ptr<decode_worker::DecodeLoop> MakeDecode(
      const WorkerOptions& options) {
    const WorkerParts parts = AddSide(v1::WORKER_ROLE_DECODE);
    auto receiver =
        kv_transfer::HandoffReceiver::Create(parts.transport, parts.handoff);
    CHECK(receiver.ok()) << receiver.status();
    return std::make_unique<decode_worker::DecodeLoop>(
        options, parts, *std::move(receiver), &clock_);
  }

  // To the decode side, if there is one, but for prompts and their grants.
  void Send(v1::RouterMessage message) {
    Side& side = message.has_prefill() || message.has_grant() ? *sides_.front()
                                                              : *sides_.back();
    RouterEvent event;
    event.session = kSession;
    event.received_at = received_at_;
    event.message = std::move(message);
    CHECK(side.inbox.TryPush(std::move(event)));
  }

  test::ManualClock clock_;
  TimedEngine engine_;
  kv_transfer::FakeNetwork network_;
  metrics::Metrics registry_;
  WorkerMetrics metrics_;  // of all sides
  std::unique_ptr<kv_transfer::Transport> sending_;
  SessionLeases leases_;
  LastWord outbox_;
  absl::Time received_at_ = absl::InfiniteFuture();
  std::optional<RoleSwitch> roles_;   // of one that has both
  std::shared_ptr<KvBlocks> blocks_;  // the same
  std::vector<std::unique_ptr<Side>> sides_;
  std::unique_ptr<WorkerLoop> loop_;
};

inline WorkerOptions Options(double itl_target_ms) {
  WorkerOptions options;
  options.itl_target_ms = itl_target_ms;
  options.prefix_cache = false;
  return options;
}

}  // namespace baton::worker::timed
