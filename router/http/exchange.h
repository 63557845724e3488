// One request's way out: between the handler, which answers from any thread,
// and the connection, which sends from its io thread.
//
// The handler's side only appends to a string under a small lock, and puts the
// exchange on its io thread's list once until that thread takes the bytes. So a
// thread that writes to thousands of streams in one turn makes no system call
// but the one that wakes the io thread.
//
//   kWaiting -> kStreaming -> kEnded          the answer is whole
//   kWaiting, kStreaming -> kAborted          by the handler
//   kStreaming -> kGivenUp                    the client reads too slowly
//   kWaiting, kStreaming, kGivenUp -> kGone   the connection is closed
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "router/http/answer_text.h"
#include "router/http/http_message.h"

namespace baton::router::http {

class Connection;
class Exchange;

// The exchanges of one io thread that have something for their connections.
// Holds each exchange a few times at most, so it is as bounded as they are.
class AnswerQueue final {
 public:
  // `wake` makes the io thread call Take until there is nothing, soon; called
  // from any thread, and only when that is not to come anyway.
  explicit AnswerQueue(std::function<void()> wake) : wake_(std::move(wake)) {}

  // Any thread.
  void Add(std::shared_ptr<Exchange> exchange) ABSL_LOCKS_EXCLUDED(mu_);

  // The io thread: swaps the queue with `empty`, which is. False when there is
  // nothing: the next Add wakes.
  bool Take(std::vector<std::shared_ptr<Exchange>>* empty)
      ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::function<void()> wake_;
  absl::Mutex mu_;
  bool is_awake_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::shared_ptr<Exchange>> ready_ ABSL_GUARDED_BY(mu_);
};

class Exchange final : public std::enable_shared_from_this<Exchange> {
 public:
  // What the connection does when the bytes it took are sent.
  enum class Next {
    kMore,       // waits for more
    kKeepAlive,  // the answer is whole; the next request
    kClose,      // the answer is whole, and the last one
    kAbort,      // closes without ending the body
    kGiveUp,     // closes: the client reads too slowly
  };

  struct Output {
    Next next = Next::kMore;
    int status = 0;  // of the answer, when its head is in these bytes
  };

  // `queue` and `connection` live until Detach.
  Exchange(AnswerShape shape, size_t max_pending_bytes, AnswerQueue* queue,
           Connection* connection);

  // The handler's side, any thread. See Responder.
  void Send(Response response) ABSL_LOCKS_EXCLUDED(mu_);
  void Start(Response head) ABSL_LOCKS_EXCLUDED(mu_);
  void KeepAlive(Response head, std::string text) ABSL_LOCKS_EXCLUDED(mu_);
  bool SendUnlessBegun(Response response) ABSL_LOCKS_EXCLUDED(mu_);
  bool Write(absl::string_view bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void AllowPending(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void End() ABSL_LOCKS_EXCLUDED(mu_);
  void Abort() ABSL_LOCKS_EXCLUDED(mu_);
  void OnGone(std::function<void()> gone) ABSL_LOCKS_EXCLUDED(mu_);
  // The handler let go of its responder. An answer that is not whole never will
  // be: the client is told so.
  void LetGo() ABSL_LOCKS_EXCLUDED(mu_);

  // The connection's side, on its io thread.
  Connection* connection() const { return connection_; }
  // Says what keeps the answer alive, if the handler has given that.
  void SayAlive() ABSL_LOCKS_EXCLUDED(mu_);
  // Appends what is to be sent now.
  Output Take(std::string* out) ABSL_LOCKS_EXCLUDED(mu_);
  // How many of the bytes that Take gave are not sent yet. While there are any,
  // what is written counts against the client.
  void SetUnsent(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // What Take would give.
  Next next() const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether there is an answer, or the beginning of one.
  bool begun() const ABSL_LOCKS_EXCLUDED(mu_);
  // The connection is done with this exchange. Calls `gone` unless the answer
  // has ended.
  void Detach() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class Phase { kWaiting, kStreaming, kEnded, kAborted, kGivenUp, kGone };

  // Whether an answer can begin now.
  bool MayBegin() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Begin(Response response, Framing framing)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginStream(Response head) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool WriteLocked(absl::string_view bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Counts bytes that are to be written; false when too many would wait.
  bool MayWait(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Schedule() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // For an end that does not wait until the bytes before it are sent. Once.
  void ScheduleAnyway() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Next NextLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const AnswerShape shape_;

  // The io thread's.
  Connection* connection_;

  mutable absl::Mutex mu_;
  AnswerQueue* queue_ ABSL_GUARDED_BY(mu_);  // null once detached
  Phase phase_ ABSL_GUARDED_BY(mu_) = Phase::kWaiting;
  bool scheduled_ ABSL_GUARDED_BY(mu_) = false;  // since the last Take
  bool keep_alive_ ABSL_GUARDED_BY(mu_);
  Framing framing_ ABSL_GUARDED_BY(mu_) = Framing::kLength;
  int status_ ABSL_GUARDED_BY(mu_) = 0;
  std::string pending_ ABSL_GUARDED_BY(mu_);  // of the body, not taken yet
  size_t unsent_ ABSL_GUARDED_BY(mu_) = 0;    // taken, not sent yet
  // Of pending_: written while bytes were unsent.
  size_t late_ ABSL_GUARDED_BY(mu_) = 0;
  size_t max_late_ ABSL_GUARDED_BY(mu_);
  size_t max_pending_ ABSL_GUARDED_BY(mu_);
  // Above is what Write touches.
  std::string head_ ABSL_GUARDED_BY(mu_);  // until it is taken
  std::function<void()> gone_ ABSL_GUARDED_BY(mu_);
  // What KeepAlive gave; null: nothing, or the answer was not to be kept alive.
  struct Quiet {
    Response head;
    std::string text;
    bool begun = false;  // the answer, by it alone
  };
  std::unique_ptr<Quiet> quiet_ ABSL_GUARDED_BY(mu_);
};

// The handler's end of `exchange`.
std::shared_ptr<Responder> MakeResponder(std::shared_ptr<Exchange> exchange);

}  // namespace baton::router::http
