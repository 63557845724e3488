#include "tests/stress/ledger.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::stress {
namespace {

// How long after its deadline a transfer may still be open, or in quarantine,
// on a machine that has other things to do.
constexpr absl::Duration kEntryPatience = absl::Seconds(30);

bool IsAboutATransfer(const std::string& word) {
  return word == "opened" || word == "full" || word == "landed" ||
         word == "refused" || word == "acked" || word == "failed" ||
         word == "quiesced";
}

}  // namespace

uint64_t Ledger::Add(Transfer transfer) {
  transfer.receiver.begun = true;
  // Until it is told to start.
  transfer.sender.over = true;
  transfers_[next_tag_] = std::move(transfer);
  return next_tag_++;
}

Ledger::Transfer* Ledger::Find(uint64_t tag) {
  const auto it = transfers_.find(tag);
  return it == transfers_.end() ? nullptr : &it->second;
}

void Ledger::Started(uint64_t tag) {
  Transfer& transfer = transfers_.at(tag);
  transfer.sender.begun = true;
  transfer.sender.over = false;
}

bool Ledger::Take(Role role, const Note& note) {
  if (!IsAboutATransfer(note.word)) return false;
  const uint64_t tag = note.numbers.at(0);
  Transfer* transfer = Find(tag);
  if (transfer == nullptr) {
    Violate(
        absl::StrCat("'", FormatNote(note), "' of a transfer that is over"));
  }
  const bool receives = role == Role::kReceiver;
  Transfer::Side& side = receives ? transfer->receiver : transfer->sender;
  if (side.over || !side.begun) {
    Violate(absl::StrCat("'", FormatNote(note), "' of a ",
                         receives ? "receiver" : "sender",
                         " that has no part in it"));
  }
  if (note.word == "opened") {
    ++counts_.begun;
  } else if (note.word == "full" || note.word == "refused") {
    side.over = true;
  } else if (note.word == "landed") {
    ++counts_.landed;
    Succeeded(tag, side);
    side.over = true;
  } else if (note.word == "acked") {
    ++counts_.acked;
    Succeeded(tag, side);
  } else if (note.word == "failed") {
    if (side.succeeded || std::exchange(side.failed, true)) {
      Violate(absl::StrCat("transfer ", tag, " failed after it had ended"));
    }
    ++counts_.failed.at(note.numbers.at(1));
  } else {
    side.over = true;  // quiesced
  }
  EraseIfOver(tag);
  return true;
}

void Ledger::Succeeded(uint64_t tag, Transfer::Side& side) {
  if (side.failed || std::exchange(side.succeeded, true)) {
    Violate(absl::StrCat("transfer ", tag, " succeeded after it had ended"));
  }
}

void Ledger::EraseIfOver(uint64_t tag) {
  const auto it = transfers_.find(tag);
  const Transfer& transfer = it->second;
  if (!transfer.receiver.over || !transfer.sender.over) return;
  if (transfer.sender.succeeded && !transfer.receiver.succeeded &&
      !transfer.receiver.gone) {
    Violate(
        absl::StrCat("transfer ", tag, " was acknowledged, and did not land"));
  }
  transfers_.erase(it);
}

void Ledger::Gone(Role role, uint64_t incarnation) {
  std::vector<uint64_t> theirs;
  for (auto& [tag, transfer] : transfers_) {
    Transfer::Side& side =
        role == Role::kReceiver ? transfer.receiver : transfer.sender;
    if (side.worker != incarnation) continue;
    side.over = side.gone = true;
    theirs.push_back(tag);
  }
  for (uint64_t tag : theirs) EraseIfOver(tag);
}

void Ledger::CheckNothingHangs(
    absl::Time now,
    const std::function<absl::Time(Role, uint64_t)>& undisturbed_since) const {
  for (const auto& [tag, transfer] : transfers_) {
    for (Role role : {Role::kReceiver, Role::kSender}) {
      const Transfer::Side& side =
          role == Role::kReceiver ? transfer.receiver : transfer.sender;
      if (side.over) continue;
      const absl::Time since =
          std::max(transfer.deadline, undisturbed_since(role, side.worker));
      if (now <= since + kEntryPatience) continue;
      Violate(absl::StrCat("transfer ", tag, " has not ended at its ",
                           role == Role::kReceiver ? "receiver" : "sender", " ",
                           absl::FormatDuration(now - transfer.deadline),
                           " after its deadline"));
    }
  }
}

int Ledger::CountOf(uint64_t receiver) const {
  return static_cast<int>(std::count_if(
      transfers_.begin(), transfers_.end(), [&](const auto& entry) {
        return entry.second.receiver.worker == receiver;
      }));
}

uint64_t Ledger::Pick(uint64_t draw) const {
  CHECK(!transfers_.empty());
  return std::next(transfers_.begin(),
                   static_cast<ptrdiff_t>(draw % transfers_.size()))
      ->first;
}

}  // namespace baton::stress
