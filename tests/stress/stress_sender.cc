// A prefill worker's side of a stress run.
#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "kv_transfer/handoff_sender.h"
#include "tests/stress/stress_worker.h"

namespace baton::stress {
namespace {

using kv_transfer::HandoffSender;
using scheduling::PooledBlocks;

HandoffSender::Grant MakeGrant(const std::vector<uint64_t>& numbers) {
  HandoffSender::Grant grant;
  grant.transfer = TransferId{numbers.at(1)};
  grant.generation = static_cast<uint32_t>(numbers.at(2));
  grant.receiver = Incarnation{numbers.at(3)};
  grant.num_tokens =
      static_cast<int32_t>(numbers.at(4)) * kv_transfer::kBlockTokens;
  if (numbers.at(6) != 0) grant.holder = numbers.at(6);
  return grant;
}

class StressSender final : public StressWorker {
 public:
  explicit StressSender(const WorkerOptions& options) : StressWorker(options) {
    transport_ = MakeTransport(/*listen=*/false);
    auto sender = HandoffSender::Create(
        transport_.get(), MakeHandoffOptions(v1::WORKER_ROLE_PREFILL));
    CHECK(sender.ok()) << sender.status();
    sender_ = *std::move(sender);
    Say("up", {0});
  }

 private:
  struct Transfer {
    uint64_t tag = 0;
    uint32_t generation = 0;
    PooledBlocks blocks;
    // A prompt in chunks: of each the layers one after another.
    int32_t chunk_begin = 0, chunk_end = 0, layer = 0;
    bool committed = false;
    // Nothing more is to be passed on.
    bool ended = false;
  };

  void OnNote(const Note& note) override;
  void OnEvents() override;
  bool Work() override;

  void Start(const std::vector<uint64_t>& numbers);
  void Compute(TransferId id, Transfer& transfer);
  Transfer& Find(TransferId id, uint32_t generation);

  std::map<TransferId, Transfer> transfers_;
  std::map<uint64_t, TransferId> by_tag_;
  std::unique_ptr<kv_transfer::Transport> transport_;
  std::unique_ptr<HandoffSender> sender_;
};

void StressSender::OnNote(const Note& note) {
  if (note.word == "pair") {
    const absl::Status asked =
        sender_->Pair(absl::StrCat("127.0.0.1:", note.numbers.at(0)));
    CHECK(asked.ok() || absl::IsResourceExhausted(asked)) << asked;
  } else if (note.word == "start") {
    Start(note.numbers);
  } else if (note.word == "abort") {
    const auto it = by_tag_.find(note.numbers.at(0));
    if (it == by_tag_.end()) return;
    sender_->Abort(it->second);
    transfers_.at(it->second).ended = true;
  } else if (note.word == "report") {
    const HandoffSender::Stats stats = sender_->stats();
    Say("state", {stats.transfers_open, stats.transfers_quarantined,
                  static_cast<uint64_t>(blocks_.num_in_use()), 0});
  } else {
    LOG(FATAL) << "a sender is told " << FormatNote(note);
  }
}

void StressSender::Start(const std::vector<uint64_t>& numbers) {
  const uint64_t tag = numbers.at(0);
  const HandoffSender::Grant grant = MakeGrant(numbers);
  // The slot of its name may have a use that is not over here.
  std::optional<PooledBlocks> blocks;
  if (!transfers_.contains(grant.transfer)) {
    blocks = blocks_.Take({tag, 0}, static_cast<int32_t>(numbers.at(4)));
  }
  if (!blocks.has_value()) {
    Say("refused", {tag});
    return;
  }
  const absl::Status started = sender_->Start(
      grant, blocks->ids(),
      Clock::Monotonic()->Now() + absl::Milliseconds(numbers.at(5)));
  if (!started.ok()) {
    // Not paired any more.
    CHECK(absl::IsFailedPrecondition(started)) << started;
    blocks_.Give(*std::move(blocks));
    Say("refused", {tag});
    return;
  }
  by_tag_[tag] = grant.transfer;
  transfers_[grant.transfer] = {tag, grant.generation, *std::move(blocks)};
}

void StressSender::Compute(TransferId id, Transfer& transfer) {
  const int32_t n = transfer.blocks.size();
  if (transfer.layer == 0) {
    transfer.chunk_end = std::min(n, transfer.chunk_begin + 1 + Below(n));
  }
  for (int32_t i = transfer.chunk_begin; i < transfer.chunk_end; ++i) {
    blocks_.memory().Write(transfer.tag, transfer.layer, i,
                           transfer.blocks.ids()[i]);
  }
  sender_->SendLayer(id, transfer.layer, transfer.chunk_end);
  if (++transfer.layer < kLayers) return;
  transfer.layer = 0;
  transfer.chunk_begin = transfer.chunk_end;
  if (transfer.chunk_begin < n) return;
  sender_->Commit(id, {.first_token = 1});
  transfer.committed = true;
}

bool StressSender::Work() {
  bool more = false;
  for (auto& [id, transfer] : transfers_) {
    if (transfer.committed || transfer.ended) continue;
    if (Below(3) == 0) Compute(id, transfer);
    more = true;
  }
  return more;
}

StressSender::Transfer& StressSender::Find(TransferId id, uint32_t generation) {
  const auto it = transfers_.find(id);
  if (it == transfers_.end() || it->second.generation != generation) {
    Violate(absl::StrCat("an event of outgoing transfer ",
                         static_cast<uint64_t>(id), " generation ", generation,
                         ", which is over"));
  }
  return it->second;
}

void StressSender::OnEvents() {
  for (const HandoffSender::Event& event : sender_->Poll()) {
    if (const auto* ready = std::get_if<kv_transfer::PeerReady>(&event)) {
      Say("ready", {static_cast<uint64_t>(ready->incarnation)});
    } else if (const auto* lost = std::get_if<kv_transfer::PeerLost>(&event)) {
      Say("lost", {static_cast<uint64_t>(lost->incarnation)});
    } else if (const auto* acked = std::get_if<HandoffSender::Acked>(&event)) {
      Transfer& transfer = Find(acked->transfer, acked->generation);
      if (!transfer.committed) Violate("acknowledged before its commit");
      transfer.ended = true;
      Say("acked", {transfer.tag});
    } else if (const auto* failed =
                   std::get_if<HandoffSender::Failed>(&event)) {
      Transfer& transfer = Find(failed->transfer, failed->generation);
      if (!MayFailWith(failed->outcome)) {
        Violate(absl::StrCat("an outgoing transfer failed with ",
                             TransferOutcomeName(failed->outcome), ": ",
                             failed->detail));
      }
      transfer.ended = true;
      Say("failed", {transfer.tag, static_cast<uint64_t>(failed->outcome)});
    } else if (const auto* quiet =
                   std::get_if<HandoffSender::Quiesced>(&event)) {
      Transfer& transfer = Find(quiet->transfer, quiet->generation);
      Say("quiesced", {transfer.tag});
      blocks_.Give(std::move(transfer.blocks));
      by_tag_.erase(transfer.tag);
      transfers_.erase(quiet->transfer);
    }
  }
}

}  // namespace

std::unique_ptr<StressWorker> MakeStressSender(const WorkerOptions& options) {
  return std::make_unique<StressSender>(options);
}

}  // namespace baton::stress
