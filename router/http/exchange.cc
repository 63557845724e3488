#include "router/http/exchange.h"

#include <memory>
#include <utility>

#include "common/log.h"

namespace baton::router::http {
namespace {

// A stream's string is kept for its next bytes up to this size.
constexpr size_t kMaxIdleBytes = 1024;
// What may be written before the io thread has had its turn: so many times what
// may wait for a slow client.
constexpr size_t kMaxBurst = 64;

class ExchangeResponder final : public Responder {
 public:
  explicit ExchangeResponder(std::shared_ptr<Exchange> exchange)
      : exchange_(std::move(exchange)) {}
  ~ExchangeResponder() override { exchange_->LetGo(); }

  void Send(Response response) override {
    exchange_->Send(std::move(response));
  }
  void Start(Response head) override { exchange_->Start(std::move(head)); }
  void KeepAlive(Response head, std::string text) override {
    exchange_->KeepAlive(std::move(head), std::move(text));
  }
  bool SendUnlessBegun(Response response) override {
    return exchange_->SendUnlessBegun(std::move(response));
  }
  bool Write(absl::string_view bytes) override {
    return exchange_->Write(bytes);
  }
  void AllowPending(size_t bytes) override { exchange_->AllowPending(bytes); }
  void End() override { exchange_->End(); }
  void Abort() override { exchange_->Abort(); }
  void OnGone(std::function<void()> gone) override {
    exchange_->OnGone(std::move(gone));
  }

 private:
  const std::shared_ptr<Exchange> exchange_;
};

void Release(std::string* text) { std::string().swap(*text); }

}  // namespace

void AnswerQueue::Add(std::shared_ptr<Exchange> exchange) {
  bool was_awake;
  {
    absl::MutexLock lock(&mu_);
    was_awake = std::exchange(is_awake_, true);
    ready_.push_back(std::move(exchange));
  }
  if (!was_awake) wake_();
}

bool AnswerQueue::Take(std::vector<std::shared_ptr<Exchange>>* empty) {
  CHECK(empty->empty());
  absl::MutexLock lock(&mu_);
  is_awake_ = !ready_.empty();
  ready_.swap(*empty);
  return is_awake_;
}

Exchange::Exchange(AnswerShape shape, size_t max_pending_bytes,
                   AnswerQueue* queue, Connection* connection)
    : shape_(shape),
      connection_(connection),
      queue_(queue),
      keep_alive_(shape.keep_alive),
      max_late_(max_pending_bytes),
      max_pending_(kMaxBurst * max_pending_bytes) {}

bool Exchange::MayBegin() const {
  if (phase_ == Phase::kStreaming || phase_ == Phase::kEnded) {
    LOG(DFATAL) << "a request was answered twice";
  }
  return phase_ == Phase::kWaiting;
}

void Exchange::Begin(Response response, Framing framing) {
  framing_ = framing;
  status_ = response.status;
  if (framing == Framing::kClose) keep_alive_ = false;
  AppendHead(response, shape_, framing, keep_alive_, &head_);
  if (!shape_.head && HasBody(status_)) pending_ = std::move(response.body);
}

void Exchange::Send(Response response) {
  absl::MutexLock lock(&mu_);
  if (!MayBegin()) return;
  Begin(std::move(response), Framing::kLength);
  phase_ = Phase::kEnded;
  Schedule();
}

bool Exchange::SendUnlessBegun(Response response) {
  {
    absl::MutexLock lock(&mu_);
    if (quiet_ != nullptr && quiet_->begun) return false;
    // It is not begun by that any more, whatever happens before Send.
    quiet_.reset();
  }
  Send(std::move(response));
  return true;
}

void Exchange::BeginStream(Response head) {
  Begin(std::move(head), shape_.http11 ? Framing::kChunked : Framing::kClose);
  phase_ = Phase::kStreaming;
  Schedule();
}

void Exchange::Start(Response head) {
  absl::MutexLock lock(&mu_);
  if (quiet_ != nullptr && std::exchange(quiet_->begun, false)) {
    WriteLocked(head.body);
    return;
  }
  if (MayBegin()) BeginStream(std::move(head));
}

void Exchange::KeepAlive(Response head, std::string text) {
  absl::MutexLock lock(&mu_);
  if (phase_ != Phase::kWaiting || text.empty()) return;
  quiet_ = std::make_unique<Quiet>(
      Quiet{.head = std::move(head), .text = std::move(text)});
}

void Exchange::SayAlive() {
  absl::MutexLock lock(&mu_);
  if (quiet_ == nullptr) return;
  if (phase_ == Phase::kWaiting) {
    quiet_->begun = true;
    quiet_->head.body = quiet_->text;
    BeginStream(std::move(quiet_->head));
  } else if (phase_ == Phase::kStreaming) {
    WriteLocked(quiet_->text);
  }
}

bool Exchange::Write(absl::string_view bytes) {
  absl::MutexLock lock(&mu_);
  return WriteLocked(bytes);
}

bool Exchange::WriteLocked(absl::string_view bytes) {
  if (phase_ != Phase::kStreaming) return false;
  // An empty chunk would end the body.
  if (bytes.empty() || shape_.head || !HasBody(status_)) return true;
  if (!MayWait(bytes.size())) {
    phase_ = Phase::kGivenUp;
    Release(&pending_);
    ScheduleAnyway();
    return false;
  }
  pending_.append(bytes.data(), bytes.size());
  Schedule();
  return true;
}

bool Exchange::MayWait(size_t bytes) {
  if (pending_.size() + bytes > max_pending_) return false;
  // The client took all that it was given.
  if (unsent_ == 0) return true;
  late_ += bytes;
  return late_ <= max_late_;
}

void Exchange::AllowPending(size_t bytes) {
  absl::MutexLock lock(&mu_);
  max_late_ += bytes;
  max_pending_ += bytes;
}

void Exchange::End() {
  absl::MutexLock lock(&mu_);
  if (phase_ != Phase::kStreaming) return;
  phase_ = Phase::kEnded;
  Schedule();
}

void Exchange::Abort() {
  absl::MutexLock lock(&mu_);
  if (phase_ != Phase::kWaiting && phase_ != Phase::kStreaming) return;
  phase_ = Phase::kAborted;
  ScheduleAnyway();
}

void Exchange::OnGone(std::function<void()> gone) {
  {
    absl::MutexLock lock(&mu_);
    if (phase_ != Phase::kGone) {
      if (phase_ != Phase::kEnded && phase_ != Phase::kAborted) {
        gone_.swap(gone);
      }
      return;
    }
  }
  gone();
}

void Exchange::LetGo() {
  bool unanswered;
  {
    absl::MutexLock lock(&mu_);
    unanswered = phase_ == Phase::kWaiting;
  }
  if (unanswered) {
    LOG_EVERY_N(ERROR, 100) << "a handler let go of a request unanswered";
    Send(ErrorResponse(500, "The server has no answer."));
  } else {
    Abort();  // Does nothing to an answer that has ended.
  }
}

void Exchange::Schedule() {
  if (scheduled_) return;
  scheduled_ = true;
  queue_->Add(shared_from_this());
}

void Exchange::ScheduleAnyway() {
  // While bytes are unsent the connection takes nothing, and may have seen this
  // exchange on the list before.
  scheduled_ = true;
  queue_->Add(shared_from_this());
}

Exchange::Next Exchange::NextLocked() const {
  switch (phase_) {
    case Phase::kWaiting:
    case Phase::kStreaming:
      return Next::kMore;
    case Phase::kEnded:
      return keep_alive_ ? Next::kKeepAlive : Next::kClose;
    case Phase::kAborted:
      return Next::kAbort;
    case Phase::kGivenUp:
    case Phase::kGone:
      return Next::kGiveUp;
  }
  LOG(FATAL) << "unknown phase";
}

Exchange::Next Exchange::next() const {
  absl::MutexLock lock(&mu_);
  return NextLocked();
}

Exchange::Output Exchange::Take(std::string* out) {
  absl::MutexLock lock(&mu_);
  scheduled_ = false;
  Output output;
  output.next = NextLocked();
  if (!head_.empty()) {
    output.status = status_;
    out->append(head_);
    Release(&head_);
  }
  if (!pending_.empty()) {
    if (framing_ == Framing::kChunked) {
      AppendChunk(pending_, out);
    } else {
      out->append(pending_);
    }
    pending_.clear();
    late_ = 0;
    if (pending_.capacity() > kMaxIdleBytes) Release(&pending_);
  }
  if (phase_ == Phase::kEnded && framing_ == Framing::kChunked &&
      !shape_.head && HasBody(status_)) {
    out->append(kLastChunk.data(), kLastChunk.size());
  }
  return output;
}

void Exchange::SetUnsent(size_t bytes) {
  absl::MutexLock lock(&mu_);
  unsent_ = bytes;
}

bool Exchange::begun() const {
  absl::MutexLock lock(&mu_);
  return phase_ != Phase::kWaiting;
}

void Exchange::Detach() {
  connection_ = nullptr;
  // Whatever it holds dies here, and not under the lock.
  std::function<void()> gone;
  bool was_open;
  {
    absl::MutexLock lock(&mu_);
    queue_ = nullptr;
    // Nothing schedules an exchange that is not open.
    was_open = phase_ != Phase::kEnded && phase_ != Phase::kAborted;
    if (was_open) phase_ = Phase::kGone;
    gone.swap(gone_);
    Release(&head_);
    Release(&pending_);
  }
  if (was_open && gone) gone();
}

std::shared_ptr<Responder> MakeResponder(std::shared_ptr<Exchange> exchange) {
  return std::make_shared<ExchangeResponder>(std::move(exchange));
}

}  // namespace baton::router::http
