#include "tests/stress/stress_worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "kv_transfer/transports/host_aware/create_transport.h"

namespace baton::stress {

using kv_transfer::TransferOutcome;

bool MayFailWith(TransferOutcome outcome) {
  switch (outcome) {
    case TransferOutcome::kCancelled:
    case TransferOutcome::kDeadlineExceeded:
    case TransferOutcome::kUnknownTransfer:
    case TransferOutcome::kChecksumMismatch:
    case TransferOutcome::kTransportFailed:
    case TransferOutcome::kPeerLost:
    case TransferOutcome::kLeaseExpired:
      return true;
    case TransferOutcome::kOk:
    case TransferOutcome::kWrongPeer:
    case TransferOutcome::kOutOfRange:
    case TransferOutcome::kCountsDiffer:
      return false;
  }
  return false;
}

StressWorker::StressWorker(const WorkerOptions& options)
    : options_(options),
      socket_(ScopedFd(options.notes_fd)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      random_(options.seed) {
  PCHECK(wake_.valid());
}

int StressWorker::Run() {
  while (!quit_) {
    TakeNotes();
    OnEvents();
    const bool busy = Work();
    socket_.Flush();
    if (socket_.closed()) return 0;
    if (!quit_) Sleep(busy);
  }
  return 0;
}

void StressWorker::TakeNotes() {
  while (std::optional<Note> note = socket_.Receive()) {
    if (note->word == "quit") {
      quit_ = true;
    } else if (note->word == "lease") {
      absl::MutexLock lock(&mu_);
      leases_[note->numbers.at(0)] =
          Clock::Monotonic()->Now() + absl::Milliseconds(note->numbers.at(1));
    } else {
      OnNote(*note);
    }
  }
}

void StressWorker::Sleep(bool busy) {
  pollfd fds[] = {
      {socket_.fd(),
       static_cast<short>(POLLIN | (socket_.has_unsent() ? POLLOUT : 0)), 0},
      {wake_.get(), POLLIN, 0}};
  poll(fds, std::size(fds), busy ? 1 : 50);
  uint64_t count = 0;
  if (read(wake_.get(), &count, sizeof(count)) < 0) {
    PCHECK(errno == EAGAIN || errno == EINTR);
  }
}

std::unique_ptr<kv_transfer::Transport> StressWorker::MakeTransport(
    bool listen) const {
  kv_transfer::UcxOptions ucx;
  ucx.listen = listen;
  ucx.connect_timeout = absl::Seconds(2);
  ucx.tick_interval = absl::Milliseconds(5);
  auto transport = kv_transfer::CreateTransport(options_.transport, ucx);
  CHECK(transport.ok()) << transport.status();
  return *std::move(transport);
}

kv_transfer::HandoffOptions StressWorker::MakeHandoffOptions(
    v1::WorkerRole role) {
  kv_transfer::HandoffOptions handoff;
  handoff.self = kv_transfer::MakeHello(
      role, options_.incarnation,
      absl::StrCat(v1::WorkerRole_Name(role), "-", getpid()));
  handoff.kv = blocks_.memory().geometry();
  handoff.wake = [this] {
    const uint64_t one = 1;
    PCHECK(write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  };
  handoff.lease_until = [this](uint64_t holder) { return LeaseUntil(holder); };
  handoff.hello_timeout = absl::Seconds(2);
  handoff.quarantine_timeout = absl::Milliseconds(500);
  handoff.stall_timeout = absl::Seconds(1);
  handoff.removed_fence = options_.removed_fence;
  return handoff;
}

absl::Time StressWorker::LeaseUntil(uint64_t holder) {
  absl::MutexLock lock(&mu_);
  const auto lease = leases_.find(holder);
  return lease == leases_.end() ? absl::InfinitePast() : lease->second;
}

}  // namespace baton::stress
