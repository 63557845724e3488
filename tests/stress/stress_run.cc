#include "tests/stress/stress_run.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/clock.h"
#include "common/log.h"
#include "tests/stress/ledger.h"
#include "tests/stress/notes.h"
#include "tests/stress/worker_process.h"

namespace baton::stress {
namespace {

constexpr int kSenders = 2, kReceivers = 2;
constexpr uint64_t kHolders = 3;
constexpr absl::Duration kLease = absl::Milliseconds(700);
constexpr absl::Duration kRenewEvery = absl::Milliseconds(150);
constexpr absl::Duration kCheckEvery = absl::Seconds(1);
// For a worker to come up, to end, and for the run to become quiet.
constexpr absl::Duration kPatience = absl::Seconds(60);
// How much slower than usual a run becomes at most.
constexpr double kSlowest = 6;

enum class Mishap {
  kAbort,
  kStarveHolder,
  kKill,
  kStandStill,
  kRestart,
};
constexpr size_t kNumMishaps = 5;

class Run final {
 public:
  explicit Run(const StressOptions& options)
      : options_(options), random_(options.seed) {
    starved_until_.fill(absl::InfinitePast());
  }

  StressReport Go();

 private:
  // A place that always has a worker, one life after the other.
  struct Place {
    Role role;
    std::unique_ptr<WorkerProcess> worker;
  };
  struct State {
    uint64_t open = 0, quarantined = 0, blocks_in_use = 0;
  };

  absl::Time Now() const { return Clock::Monotonic()->Now(); }
  // In [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % (high - low + 1));
  }
  bool Chance(int percent) { return Between(0, 99) < percent; }
  // A factor of the times between mishaps and of deadlines: a machine that has
  // other things to do may end no transfer and start no worker in the usual
  // ones. 1 for as long as the run was to last, and more the longer it goes on.
  double Slowness() const {
    return std::clamp(absl::FDivDuration(Now() - began_, options_.duration),
                      1.0, kSlowest);
  }

  void Launch(Place& place);
  void Turn();
  void Poll();
  void Hear(Place& place);
  void Take(Place& place, const Note& note);
  void Start(uint64_t tag, const Note& opened);
  void Pair();
  void Renew();
  void BeginTransfers();
  void Begin(WorkerProcess& receiver);
  void Disturb();
  void Happen(Mishap mishap);
  void AbortOne();
  void EndStandstills();
  void CheckNothingHangs();
  void AwaitQuiet();
  void CheckNothingIsLeft();
  // Whether enough happened for the run to mean anything.
  bool Covered() const;
  StressReport Report(absl::Duration lasted) const;
  WorkerProcess* Find(Role role, uint64_t incarnation);
  template <typename Done>
  void TurnUntil(Done done, const char* what);

  const StressOptions options_;
  std::mt19937_64 random_;
  std::vector<Place> places_;
  Ledger ledger_;
  bool quiet_ = false;   // nothing is begun nor disturbed any more
  bool ending_ = false;  // who ends is not replaced
  absl::Time began_;
  std::deque<Mishap> mishaps_;
  absl::Time next_mishap_, next_renewal_, next_check_;
  std::array<absl::Time, kHolders + 1> starved_until_;
  std::vector<State> states_;
  uint64_t late_writes_ = 0;
  std::array<uint64_t, kNumMishaps> num_mishaps_ = {};
};

void Run::Launch(Place& place) {
  WorkerOptions worker;
  worker.incarnation = random_();
  worker.seed = random_();
  worker.transport = options_.transport;
  if (options_.transport == "mixed") {
    // Receivers take each of them.
    worker.transport = place.role == Role::kReceiver ? "auto"
                       : Chance(33)                  ? "ucx"
                       : Chance(50)                  ? "tcp"
                                                     : "auto";
  }
  worker.late_writes = place.role == Role::kReceiver && Chance(60);
  if (options_.removed_fence != kv_transfer::Fence::kNone) {
    worker.removed_fence = options_.removed_fence;
    worker.late_writes = place.role == Role::kReceiver;
  }
  place.worker =
      std::make_unique<WorkerProcess>(place.role, worker, options_.log);
}

StressReport Run::Go() {
  for (int i = 0; i < kSenders; ++i) places_.push_back({Role::kSender, {}});
  for (int i = 0; i < kReceivers; ++i) places_.push_back({Role::kReceiver, {}});
  for (Place& place : places_) Launch(place);
  began_ = Now();
  const absl::Time end = began_ + options_.duration;
  const absl::Time last_end = began_ + options_.longest;
  // A run without a fence ends with the violation that it is there for.
  const bool fenced = options_.removed_fence == kv_transfer::Fence::kNone;
  while (Now() < end || (Now() < last_end && !(fenced && Covered()))) Turn();
  const absl::Duration lasted = Now() - began_;
  AwaitQuiet();
  CheckNothingIsLeft();
  return Report(lasted);
}

void Run::Turn() {
  Poll();
  for (Place& place : places_) Hear(place);
  Renew();
  EndStandstills();
  if (!quiet_) {
    BeginTransfers();
    Disturb();
  }
  CheckNothingHangs();
}

void Run::Poll() {
  std::vector<pollfd> fds;
  for (Place& place : places_) {
    if (place.worker->reaped()) continue;
    NoteSocket& socket = place.worker->socket();
    socket.Flush();
    fds.push_back(
        {socket.fd(),
         static_cast<short>(POLLIN | (socket.has_unsent() ? POLLOUT : 0)), 0});
  }
  poll(fds.data(), fds.size(), 5);
}

void Run::Hear(Place& place) {
  if (place.worker->reaped()) return;
  while (std::optional<Note> note = place.worker->socket().Receive()) {
    Take(place, *note);
  }
  if (!place.worker->socket().closed()) return;
  const std::optional<std::string> trouble = place.worker->Reap();
  if (trouble.has_value()) Violate(*trouble);
  ledger_.Gone(place.role, place.worker->incarnation());
  if (!ending_) Launch(place);
}

void Run::Take(Place& place, const Note& note) {
  WorkerProcess& worker = *place.worker;
  if (ledger_.Take(place.role, note)) {
    if (note.word == "opened") Start(note.numbers.at(0), note);
  } else if (note.word == "up") {
    worker.port = static_cast<uint16_t>(note.numbers.at(0));
    next_renewal_ = absl::InfinitePast();  // it has no leases yet
  } else if (note.word == "ready") {
    worker.ready.insert(note.numbers.at(0));
  } else if (note.word == "lost") {
    worker.ready.erase(note.numbers.at(0));
  } else if (note.word == "state") {
    states_.push_back(
        {note.numbers.at(0), note.numbers.at(1), note.numbers.at(2)});
    late_writes_ += note.numbers.at(3);
  } else {
    LOG(FATAL) << "a worker says " << FormatNote(note);
  }
}

// The receiver has opened it. Now and then nobody starts it.
void Run::Start(uint64_t tag, const Note& opened) {
  Ledger::Transfer& transfer = *ledger_.Find(tag);
  WorkerProcess* sender = Find(Role::kSender, transfer.sender.worker);
  if (sender == nullptr || !sender->is_up() || Chance(2)) return;
  ledger_.Started(tag);
  sender->socket().Send(
      {"start",
       {tag, opened.numbers.at(1), opened.numbers.at(2),
        transfer.receiver.worker, static_cast<uint64_t>(transfer.num_blocks),
        static_cast<uint64_t>(transfer.deadline_ms), transfer.holder}});
}

void Run::Renew() {
  const absl::Time now = Now();
  if (now < next_renewal_) return;
  next_renewal_ = now + kRenewEvery;
  for (Place& place : places_) {
    if (!place.worker->is_up()) continue;
    for (uint64_t holder = 1; holder <= kHolders; ++holder) {
      if (now < starved_until_[holder]) continue;
      place.worker->socket().Send(
          {"lease",
           {holder, static_cast<uint64_t>(absl::ToInt64Milliseconds(kLease))}});
    }
  }
  Pair();
}

// A sender that is connected already takes no notice.
void Run::Pair() {
  for (Place& sender : places_) {
    if (sender.role != Role::kSender || !sender.worker->is_up()) continue;
    for (Place& receiver : places_) {
      if (receiver.role != Role::kReceiver || !receiver.worker->is_up() ||
          sender.worker->ready.contains(receiver.worker->incarnation())) {
        continue;
      }
      sender.worker->socket().Send({"pair", {*receiver.worker->port}});
    }
  }
}

void Run::BeginTransfers() {
  for (Place& place : places_) {
    if (place.role != Role::kReceiver || !place.worker->is_up() ||
        place.worker->stands_still()) {
      continue;
    }
    if (ledger_.CountOf(place.worker->incarnation()) < options_.max_open) {
      Begin(*place.worker);
    }
  }
}

void Run::Begin(WorkerProcess& receiver) {
  WorkerProcess& sender = *places_[Between(0, kSenders - 1)].worker;
  if (!sender.is_up() || !sender.ready.contains(receiver.incarnation())) return;
  Ledger::Transfer transfer;
  transfer.receiver.worker = receiver.incarnation();
  transfer.sender.worker = sender.incarnation();
  transfer.num_blocks = static_cast<int32_t>(Between(1, kMaxBlocks));
  transfer.holder = Between(0, kHolders);
  transfer.deadline_ms =
      Chance(10) ? Between(1, 100)
                 : static_cast<int64_t>(
                       Slowness() * static_cast<double>(Between(2000, 5000)));
  transfer.deadline = Now() + absl::Milliseconds(transfer.deadline_ms);
  const std::vector<uint64_t> shape = {
      sender.incarnation(), static_cast<uint64_t>(transfer.num_blocks),
      static_cast<uint64_t>(transfer.deadline_ms), transfer.holder};
  Note open{"open", {ledger_.Add(std::move(transfer))}};
  open.numbers.insert(open.numbers.end(), shape.begin(), shape.end());
  receiver.socket().Send(open);
}

// Mishaps come from a deck, so that a short run has some of each.
void Run::Disturb() {
  const absl::Time now = Now();
  if (now < next_mishap_) return;
  next_mishap_ = now + Slowness() * absl::Milliseconds(Between(10, 70));
  if (mishaps_.empty()) {
    mishaps_.assign(40, Mishap::kAbort);
    std::fill_n(mishaps_.begin(), 2, Mishap::kKill);
    std::fill_n(mishaps_.begin() + 2, 2, Mishap::kStandStill);
    mishaps_[4] = Mishap::kRestart;
    mishaps_[5] = Mishap::kStarveHolder;
    std::shuffle(mishaps_.begin(), mishaps_.end(), random_);
  }
  Happen(mishaps_.front());
  mishaps_.pop_front();
}

void Run::Happen(Mishap mishap) {
  const absl::Time now = Now();
  WorkerProcess& worker = *places_[Between(0, places_.size() - 1)].worker;
  switch (mishap) {
    case Mishap::kAbort:
      if (ledger_.num_open() == 0) return;
      AbortOne();
      break;
    case Mishap::kStarveHolder:
      starved_until_[Between(1, kHolders)] = now + kLease + kRenewEvery;
      break;
    case Mishap::kKill:
      worker.Kill();
      break;
    case Mishap::kStandStill:
      if (!worker.is_up() || worker.stands_still()) return;
      worker.StandStill(now + absl::Milliseconds(Between(20, 2500)));
      break;
    case Mishap::kRestart:
      if (!worker.is_up() || worker.stands_still()) return;
      worker.Quit(now);
      break;
  }
  ++num_mishaps_[static_cast<size_t>(mishap)];
}

void Run::AbortOne() {
  const uint64_t tag = ledger_.Pick(random_());
  const Ledger::Transfer& transfer = *ledger_.Find(tag);
  const Role role = Chance(50) ? Role::kReceiver : Role::kSender;
  WorkerProcess* worker =
      Find(role, role == Role::kReceiver ? transfer.receiver.worker
                                         : transfer.sender.worker);
  if (worker == nullptr || !worker->is_up()) return;
  worker->socket().Send({"abort", {tag}});
}

void Run::EndStandstills() {
  const absl::Time now = Now();
  for (Place& place : places_) {
    if (quiet_ || now >= place.worker->still_until()) {
      place.worker->Continue(now);
    }
  }
}

WorkerProcess* Run::Find(Role role, uint64_t incarnation) {
  for (Place& place : places_) {
    if (place.role == role && place.worker->incarnation() == incarnation) {
      return place.worker.get();
    }
  }
  return nullptr;
}

void Run::CheckNothingHangs() {
  const absl::Time now = Now();
  if (now < next_check_) return;
  next_check_ = now + kCheckEvery;
  ledger_.CheckNothingHangs(now, [&](Role role, uint64_t incarnation) {
    const WorkerProcess* worker = Find(role, incarnation);
    CHECK(worker != nullptr);
    return worker->stands_still() ? absl::InfiniteFuture()
                                  : worker->undisturbed_since();
  });
  for (const Place& place : places_) {
    const WorkerProcess& worker = *place.worker;
    if (!worker.reaped() && !worker.is_up() && !worker.stands_still() &&
        now > worker.undisturbed_since() + kPatience) {
      Violate("a worker neither comes up nor ends");
    }
  }
}

template <typename Done>
void Run::TurnUntil(Done done, const char* what) {
  const absl::Time deadline = Now() + kPatience;
  while (!done()) {
    if (Now() > deadline) Violate(what);
    Turn();
  }
}

// Nothing is begun nor disturbed any more; all that is open ends by itself.
void Run::AwaitQuiet() {
  quiet_ = true;
  TurnUntil(
      [&] {
        return ledger_.num_open() == 0 &&
               std::all_of(places_.begin(), places_.end(),
                           [](const Place& p) { return p.worker->is_up(); });
      },
      "the run does not become quiet");
}

void Run::CheckNothingIsLeft() {
  // Sequences that landed are decoded for a moment yet.
  const auto nothing_left = [&] {
    for (const State& state : states_) {
      if (state.blocks_in_use > 0) return false;
    }
    return true;
  };
  TurnUntil(
      [&] {
        states_.clear();
        late_writes_ = 0;
        for (Place& place : places_)
          place.worker->socket().Send({"report", {}});
        TurnUntil([&] { return states_.size() == places_.size(); },
                  "a worker does not answer");
        return nothing_left();
      },
      "blocks are in use and nothing is open");
  for (const State& state : states_) {
    if (state.open > 0 || state.quarantined > 0) {
      Violate(absl::StrCat(state.open, " transfers are open and ",
                           state.quarantined, " in quarantine at the end"));
    }
  }
  ending_ = true;
  for (Place& place : places_) place.worker->Quit(Now());
  TurnUntil(
      [&] {
        return std::all_of(places_.begin(), places_.end(),
                           [](const Place& p) { return p.worker->reaped(); });
      },
      "a worker does not end");
}

bool Run::Covered() const {
  const Ledger::Counts& counts = ledger_.counts();
  const auto failed = [&](kv_transfer::TransferOutcome outcome) {
    return counts.failed[static_cast<size_t>(outcome)] > 0;
  };
  const auto happened = [&](Mishap mishap) {
    return num_mishaps_[static_cast<size_t>(mishap)] > 0;
  };
  return counts.landed > 20 && counts.acked > 20 &&
         failed(kv_transfer::TransferOutcome::kCancelled) &&
         failed(kv_transfer::TransferOutcome::kDeadlineExceeded) &&
         failed(kv_transfer::TransferOutcome::kPeerLost) &&
         happened(Mishap::kKill) && happened(Mishap::kStandStill);
}

StressReport Run::Report(absl::Duration lasted) const {
  const Ledger::Counts& counts = ledger_.counts();
  std::string failures;
  for (size_t i = 0; i < counts.failed.size(); ++i) {
    if (counts.failed[i] == 0) continue;
    absl::StrAppend(
        &failures, " ",
        TransferOutcomeName(static_cast<kv_transfer::TransferOutcome>(i)), " ",
        counts.failed[i]);
  }
  const auto happened = [&](Mishap mishap) {
    return num_mishaps_[static_cast<size_t>(mishap)];
  };
  StressReport report;
  report.text = absl::StrFormat(
      "seed %d, %s: %d transfers, %d landed, %d acknowledged; failed, either "
      "side:%s; %d aborts, %d leases not renewed, %d kills, %d standstills, %d "
      "restarts; %d late writes after their peer was down, at receivers that "
      "lived to the end; nothing is left",
      options_.seed,
      absl::FormatDuration(absl::Trunc(lasted, absl::Seconds(1))), counts.begun,
      counts.landed, counts.acked, failures, happened(Mishap::kAbort),
      happened(Mishap::kStarveHolder), happened(Mishap::kKill),
      happened(Mishap::kStandStill), happened(Mishap::kRestart), late_writes_);
  report.covered = Covered();
  return report;
}

}  // namespace

StressReport RunStress(const StressOptions& options) {
  return Run(options).Go();
}

}  // namespace baton::stress
