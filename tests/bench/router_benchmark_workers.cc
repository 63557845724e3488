#include "tests/bench/router_benchmark_workers.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/log.h"
#include "common/rpc/grpc_setup.h"

namespace baton::bench {
namespace {

constexpr uint32_t kTotalBlocks = 50'000'000;
constexpr uint32_t kMaxSequences = 100'000;
// Steps of a worker between two of its load reports.
constexpr int64_t kReportNs = 500'000'000;
constexpr int64_t kLateNs = 5'000'000;
// A stepper that is later than this begins anew.
constexpr int64_t kGiveUpNs = 200'000'000;

}  // namespace

// One worker as one router sees it.
class ReplayWorkers::Session final
    : public grpc::ServerBidiReactor<v1::RouterMessage, v1::WorkerMessage>,
      public std::enable_shared_from_this<Session> {
 public:
  explicit Session(ReplayWorkers* workers) : workers_(workers) {}

  // gRPC's reference is `self`, until OnDone.
  void Start(std::shared_ptr<Session> self) {
    self_ = std::move(self);
    StartRead(&incoming_);
  }

  void Step(int64_t now) {
    absl::MutexLock lock(&mu_);
    if (ended_ || sequences_.empty()) return;
    if (now >= next_report_) {
      next_report_ = now + kReportNs;
      v1::WorkerMessage report;
      v1::LoadReport* load = report.mutable_load();
      load->set_running(static_cast<uint32_t>(sequences_.size()));
      load->set_free_blocks(kTotalBlocks -
                            static_cast<uint32_t>(sequences_.size()));
      load->set_steps(++steps_);
      control_.push_back(std::move(report));
    }
    if (steps_due_ < kMaxLateSteps) {
      ++steps_due_;
    } else {
      ++workers_->lost_;
    }
    Pump();
  }

  int NumSequences() const {
    absl::MutexLock lock(&mu_);
    return static_cast<int>(sequences_.size());
  }

 private:
  struct Sequence {
    uint64_t attempt = 0;
    int stream = -1;
    uint32_t next = 0;
    uint32_t max_tokens = 0;
  };

  void OnReadDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    if (!ok) {
      ended_ = true;
      if (!writing_) Finish(grpc::Status::OK);
      return;
    }
    Take(incoming_);
    incoming_.Clear();
    StartRead(&incoming_);
    Pump();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (ended_) {
      Finish(grpc::Status::OK);
    } else if (ok) {
      Pump();
    }
  }

  void OnDone() override {
    workers_->Leave(this);
    self_.reset();
  }

  void Take(const v1::RouterMessage& message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (message.has_hello()) {
      v1::WorkerMessage hello;
      *hello.mutable_hello() = workers_->MakeHello();
      control_.push_back(std::move(hello));
    } else if (message.has_reserve()) {
      Accept(message.reserve());
    } else if (message.has_cancel()) {
      Cancel(message.cancel().attempt());
    }
  }

  void Accept(const v1::Reserve& reserve) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    CHECK(reserve.local_prefill());
    Sequence sequence;
    sequence.attempt = reserve.attempt();
    sequence.stream = StreamOfName(reserve.sequence().request_id());
    CHECK_GE(sequence.stream, 0) << reserve.sequence().request_id();
    sequence.max_tokens = reserve.sequence().max_output_tokens();
    workers_->board_->Reserved(sequence.stream, NowNs());
    places_[sequence.attempt] = sequences_.size();
    sequences_.push_back(sequence);
    v1::WorkerMessage message;
    v1::Grant* grant = message.mutable_grant();
    grant->set_attempt(sequence.attempt);
    grant->set_transfer_id(sequence.attempt);
    grant->set_generation(1);
    control_.push_back(std::move(message));
  }

  void Cancel(uint64_t attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto place = places_.find(attempt);
    if (place == places_.end()) return;
    workers_->board_->Cancelled(sequences_[place->second].stream, NowNs());
    Remove(place->second);
  }

  void Remove(size_t place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    places_.erase(sequences_[place].attempt);
    if (place + 1 < sequences_.size()) {
      sequences_[place] = sequences_.back();
      places_[sequences_[place].attempt] = place;
    }
    sequences_.pop_back();
  }

  // Writes what is next when nothing is being written.
  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (writing_ || ended_) return;
    if (!control_.empty()) {
      outgoing_ = std::move(control_.front());
      control_.pop_front();
      writing_ = true;
      StartWrite(&outgoing_);
      return;
    }
    while (steps_due_ > 0) {
      --steps_due_;
      if (!FillFrame()) continue;
      writing_ = true;
      StartWrite(&frame_);
      return;
    }
  }

  // The next token of each sequence; false when no sequence has one.
  bool FillFrame() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool first_token_only = workers_->first_token_only_;
    v1::TokenFrame* frame = frame_.mutable_tokens();
    frame->Clear();
    const int64_t now = NowNs();
    for (size_t i = sequences_.size(); i-- > 0;) {
      Sequence& sequence = sequences_[i];
      if (first_token_only && sequence.next > 0) continue;
      v1::Token* token = frame->add_tokens();
      token->set_attempt(sequence.attempt);
      token->set_index(sequence.next);
      token->set_id(static_cast<uint32_t>(workers_->token_));
      token->set_logprob(-0.5F);
      workers_->board_->Sent(sequence.stream, sequence.next, now);
      if (++sequence.next < sequence.max_tokens) continue;
      token->set_finish_reason(v1::FINISH_REASON_LENGTH);
      v1::WorkerMessage done;
      done.mutable_outcome()->set_attempt(sequence.attempt);
      done.mutable_outcome()->set_ok(true);
      control_.push_back(std::move(done));
      Remove(i);
    }
    if (frame->tokens_size() == 0) return false;
    workers_->tokens_ += frame->tokens_size();
    ++workers_->frames_;
    return true;
  }

  ReplayWorkers* const workers_;
  std::shared_ptr<Session> self_;
  v1::RouterMessage incoming_;  // the read under way

  mutable absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  v1::WorkerMessage outgoing_ ABSL_GUARDED_BY(mu_);
  v1::WorkerMessage frame_ ABSL_GUARDED_BY(mu_);
  std::deque<v1::WorkerMessage> control_ ABSL_GUARDED_BY(mu_);
  int steps_due_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t steps_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t next_report_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<Sequence> sequences_ ABSL_GUARDED_BY(mu_);
  // Of an attempt in sequences_.
  absl::flat_hash_map<uint64_t, size_t> places_ ABSL_GUARDED_BY(mu_);
};

ReplayWorkers::ReplayWorkers(int count, TokenId token,
                             const v1::ModelFingerprint& fingerprint,
                             TokenBoard* board)
    : count_(count), token_(token), fingerprint_(fingerprint), board_(board) {
  grpc::ServerBuilder builder;
  builder.SetMaxReceiveMessageSize(rpc::kMaxMessageBytes);
  // Routers ping often.
  builder.AddChannelArgument(
      GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 100);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  std::vector<int> ports(count);
  for (int& port : ports) {
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                             &port);
  }
  builder.RegisterService(this);
  server_ = builder.BuildAndStart();
  CHECK(server_ != nullptr) << "cannot listen";
  for (int port : ports) addresses_.push_back(absl::StrCat("127.0.0.1:", port));
  stepper_ = std::thread([this] { RunSteps(); });
}

ReplayWorkers::~ReplayWorkers() {
  stop_ = true;
  stepper_.join();
  server_->Shutdown(absl::ToChronoTime(absl::Now()));
  server_->Wait();
}

grpc::ServerBidiReactor<v1::RouterMessage, v1::WorkerMessage>*
ReplayWorkers::Connect(grpc::CallbackServerContext* context) {
  const auto session = std::make_shared<Session>(this);
  {
    absl::MutexLock lock(&mu_);
    const auto free = std::find(sessions_.begin(), sessions_.end(), nullptr);
    if (free != sessions_.end()) {
      *free = session;
    } else {
      sessions_.push_back(session);
    }
  }
  session->Start(session);
  return session.get();
}

void ReplayWorkers::Leave(const Session* session) {
  absl::MutexLock lock(&mu_);
  for (std::shared_ptr<Session>& known : sessions_) {
    if (known.get() == session) known.reset();
  }
}

v1::WorkerHello ReplayWorkers::MakeHello() {
  v1::WorkerHello hello;
  hello.set_role(v1::WORKER_ROLE_DECODE);
  hello.set_incarnation(++last_incarnation_);
  hello.set_worker_name(absl::StrCat("replay-", hello.incarnation()));
  *hello.mutable_fingerprint() = fingerprint_;
  hello.set_data_address("127.0.0.1:9");
  hello.set_total_blocks(kTotalBlocks);
  hello.set_max_sequences(kMaxSequences);
  hello.set_max_context(kMaxContext);
  return hello;
}

void ReplayWorkers::SetPlan(const Plan& plan) {
  first_token_only_ = plan.first_token_only;
  absl::MutexLock lock(&mu_);
  tokens_per_second_ = plan.tokens_per_second;
}

ReplayWorkers::Counts ReplayWorkers::counts() const {
  return {tokens_, frames_, lost_, late_};
}

int ReplayWorkers::NumSequences() const {
  int count = 0;
  for (size_t slot = 0; slot < static_cast<size_t>(count_); ++slot) {
    const std::shared_ptr<Session> session = SessionAt(slot);
    if (session != nullptr) count += session->NumSequences();
  }
  return count;
}

int ReplayWorkers::NumConnected() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int>(sessions_.size()) -
         static_cast<int>(
             std::count(sessions_.begin(), sessions_.end(), nullptr));
}

std::shared_ptr<ReplayWorkers::Session> ReplayWorkers::SessionAt(
    size_t slot) const {
  absl::MutexLock lock(&mu_);
  return slot < sessions_.size() ? sessions_[slot] : nullptr;
}

void ReplayWorkers::RunSteps() {
  int64_t due = NowNs();
  for (size_t turn = 0; !stop_; ++turn) {
    double tokens_per_second;
    {
      absl::MutexLock lock(&mu_);
      tokens_per_second = tokens_per_second_;
    }
    due += static_cast<int64_t>(1e9 / tokens_per_second / count_);
    int64_t now = NowNs();
    if (now < due) {
      SleepUntil(due);
      now = NowNs();
    }
    if (now - due > kLateNs) ++late_;
    if (now - due > kGiveUpNs) due = now;
    const std::shared_ptr<Session> session = SessionAt(turn % count_);
    if (session != nullptr) session->Step(now);
  }
}

}  // namespace baton::bench
