// A decode worker's side of a stress run.
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/clock.h"
#include "common/log.h"
#include "decode_worker/transfer_slots.h"
#include "kv_transfer/handoff_receiver.h"
#include "kv_transfer/wire.h"
#include "tests/stress/stress_worker.h"
#include "tests/support/late_write_transport.h"

namespace baton::stress {
namespace {

using decode_worker::TransferSlots;
using kv_transfer::HandoffReceiver;
using kv_transfer::LateWriteTransport;
using scheduling::PooledBlocks;

// Few, so that their names are soon used again.
constexpr uint32_t kSlots = 16;

uint16_t PortOf(const std::string& address) {
  uint32_t port = 0;
  CHECK(absl::SimpleAtoi(
      absl::string_view(address).substr(address.rfind(':') + 1), &port))
      << address;
  return static_cast<uint16_t>(port);
}

class StressReceiver final : public StressWorker {
 public:
  explicit StressReceiver(const WorkerOptions& options)
      : StressWorker(options),
        late_random_(options.seed + 1),
        slots_(options.incarnation, kSlots) {
    transport_ = MakeTransport(/*listen=*/true);
    if (options.late_writes) transport_ = WriteLate(std::move(transport_));
    auto receiver = HandoffReceiver::Create(
        transport_.get(), MakeHandoffOptions(v1::WORKER_ROLE_DECODE));
    CHECK(receiver.ok()) << receiver.status();
    receiver_ = *std::move(receiver);
    Say("up", {PortOf(transport_->properties().address)});
  }

 private:
  // Open or in quarantine.
  struct Transfer {
    uint64_t tag = 0;
    uint32_t generation = 0;
    PooledBlocks blocks;
    bool failed = false;
  };
  // Landed, and decoded for a while.
  struct Sequence {
    uint64_t tag = 0;
    PooledBlocks blocks;
    absl::Time until;
  };

  void OnNote(const Note& note) override;
  void OnEvents() override;
  bool Work() override;

  std::unique_ptr<kv_transfer::Transport> WriteLate(
      std::unique_ptr<kv_transfer::Transport> inside);
  void Open(const std::vector<uint64_t>& numbers);
  void Report();
  // Of an event, which must be about the use of the slot that is under way.
  Transfer& Find(TransferId id, uint32_t generation);
  void OnLanded(const HandoffReceiver::Landed& landed);
  void OnFailed(const HandoffReceiver::Failed& failed);
  void OnQuiesced(const HandoffReceiver::Quiesced& quiesced);
  void CheckContent(uint64_t tag, const PooledBlocks& blocks);

  std::mt19937_64 late_random_;  // where the transport calls
  TransferSlots slots_;
  std::map<TransferId, Transfer> transfers_;
  std::map<uint64_t, TransferId> by_tag_;
  std::vector<Sequence> sequences_;
  // Set when it is the transport.
  LateWriteTransport* late_ = nullptr;
  std::unique_ptr<kv_transfer::Transport> transport_;
  std::unique_ptr<HandoffReceiver> receiver_;
};

std::unique_ptr<kv_transfer::Transport> StressReceiver::WriteLate(
    std::unique_ptr<kv_transfer::Transport> inside) {
  LateWriteTransport::Options late;
  late.max_held_bytes = kMaxBlocks * kPageBytes;
  late.judge = [this](kv_transfer::ByteSpan) {
    LateWriteTransport::Hold hold;
    const auto draw = static_cast<int>(late_random_() % 1000);
    if (draw >= 700) hold.ticks = draw % 20;
    hold.until_peer_down = draw == 0;
    hold.show = draw % 2 == 0;
    return hold;
  };
  late.on_write = [this](kv_transfer::ByteSpan header,
                         const LateWriteTransport::Spans& memory) {
    const auto message = kv_transfer::wire::Decode(header);
    CHECK(message.ok()) << message.status();
    const auto& kv = std::get<kv_transfer::wire::Kv>(message->body);
    for (absl::Span<const std::byte> span : memory) {
      blocks_.CheckWrite({static_cast<uint64_t>(kv.transfer), kv.generation},
                         span);
    }
  };
  auto wrapped =
      std::make_unique<LateWriteTransport>(std::move(inside), std::move(late));
  late_ = wrapped.get();
  return wrapped;
}

void StressReceiver::OnNote(const Note& note) {
  if (note.word == "open") {
    Open(note.numbers);
  } else if (note.word == "abort") {
    const auto it = by_tag_.find(note.numbers.at(0));
    if (it != by_tag_.end()) receiver_->Abort(it->second);
  } else if (note.word == "report") {
    Report();
  } else {
    LOG(FATAL) << "a receiver is told " << FormatNote(note);
  }
}

void StressReceiver::Open(const std::vector<uint64_t>& numbers) {
  const uint64_t tag = numbers.at(0);
  const auto name = slots_.Take();
  if (!name.has_value()) {
    Say("full", {tag});
    return;
  }
  const auto id = static_cast<uint64_t>(name->transfer);
  auto blocks =
      blocks_.Take({id, name->generation}, static_cast<int32_t>(numbers.at(2)));
  if (!blocks.has_value()) {
    slots_.Return(name->transfer);
    Say("full", {tag});
    return;
  }
  HandoffReceiver::OpenTransfer open;
  open.transfer = name->transfer;
  open.generation = name->generation;
  open.blocks = {blocks->ids().begin(), blocks->ids().end()};
  open.sender = Incarnation{numbers.at(1)};
  open.deadline = Clock::Monotonic()->Now() + absl::Milliseconds(numbers.at(3));
  if (numbers.at(4) != 0) open.holder = numbers.at(4);
  const absl::Status opened = receiver_->Open(std::move(open));
  CHECK(opened.ok()) << opened;
  by_tag_[tag] = name->transfer;
  transfers_[name->transfer] = {tag, name->generation, *std::move(blocks)};
  Say("opened", {tag, id, name->generation});
}

void StressReceiver::Report() {
  const HandoffReceiver::Stats stats = receiver_->stats();
  uint64_t late = 0;
  if (late_ != nullptr) late = late_->stats().written_after_peer_down;
  Say("state", {stats.transfers_open, stats.transfers_quarantined,
                static_cast<uint64_t>(blocks_.num_in_use()), late});
}

void StressReceiver::OnEvents() {
  for (const HandoffReceiver::Event& event : receiver_->Poll()) {
    if (const auto* landed = std::get_if<HandoffReceiver::Landed>(&event)) {
      OnLanded(*landed);
    } else if (const auto* failed =
                   std::get_if<HandoffReceiver::Failed>(&event)) {
      OnFailed(*failed);
    } else if (const auto* quiet =
                   std::get_if<HandoffReceiver::Quiesced>(&event)) {
      OnQuiesced(*quiet);
    }
  }
}

StressReceiver::Transfer& StressReceiver::Find(TransferId id,
                                               uint32_t generation) {
  const auto it = transfers_.find(id);
  if (it == transfers_.end() || it->second.generation != generation) {
    Violate(absl::StrCat("an event of transfer ", static_cast<uint64_t>(id),
                         " generation ", generation, ", which is over"));
  }
  return it->second;
}

void StressReceiver::OnLanded(const HandoffReceiver::Landed& landed) {
  Transfer& transfer = Find(landed.transfer, landed.generation);
  if (transfer.failed) Violate("a transfer landed after it had failed");
  CheckContent(transfer.tag, transfer.blocks);
  Say("landed", {transfer.tag});
  sequences_.push_back(
      {transfer.tag, std::move(transfer.blocks),
       Clock::Monotonic()->Now() + absl::Milliseconds(Below(40))});
  by_tag_.erase(transfer.tag);
  transfers_.erase(landed.transfer);
  slots_.Return(landed.transfer);
}

void StressReceiver::OnFailed(const HandoffReceiver::Failed& failed) {
  Transfer& transfer = Find(failed.transfer, failed.generation);
  if (std::exchange(transfer.failed, true)) Violate("a transfer failed twice");
  if (!MayFailWith(failed.outcome)) {
    Violate(absl::StrCat("a transfer failed with ",
                         TransferOutcomeName(failed.outcome), ": ",
                         failed.detail));
  }
  Say("failed", {transfer.tag, static_cast<uint64_t>(failed.outcome)});
}

void StressReceiver::OnQuiesced(const HandoffReceiver::Quiesced& quiesced) {
  Transfer& transfer = Find(quiesced.transfer, quiesced.generation);
  Say("quiesced", {transfer.tag});
  blocks_.Give(std::move(transfer.blocks));
  by_tag_.erase(transfer.tag);
  transfers_.erase(quiesced.transfer);
  slots_.Return(quiesced.transfer);
}

bool StressReceiver::Work() {
  const absl::Time now = Clock::Monotonic()->Now();
  for (size_t i = 0; i < sequences_.size();) {
    if (now < sequences_[i].until) {
      ++i;
      continue;
    }
    Sequence done = std::move(sequences_[i]);
    sequences_.erase(sequences_.begin() + static_cast<ptrdiff_t>(i));
    CheckContent(done.tag, done.blocks);
    blocks_.Give(std::move(done.blocks));
  }
  return !sequences_.empty();
}

void StressReceiver::CheckContent(uint64_t tag, const PooledBlocks& blocks) {
  if (!blocks_.memory().HoldsAll(tag, 0,
                                 {blocks.ids().begin(), blocks.ids().end()})) {
    Violate(absl::StrCat("transfer ", tag,
                         " landed, and its blocks hold something else"));
  }
}

}  // namespace

std::unique_ptr<StressWorker> MakeStressReceiver(const WorkerOptions& options) {
  return std::make_unique<StressReceiver>(options);
}

}  // namespace baton::stress
