#include "worker/prefix_feed.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "baton/v1/worker.pb.h"
#include "common/stable_hash.h"

namespace baton::worker {
namespace {

constexpr absl::Duration kInterval = absl::Milliseconds(100);
// So many changes go out without waiting for the interval.
constexpr size_t kMany = 2048;
// More than come in one turn of any loop.
constexpr size_t kMaxChanges = 16384;
// Of what is told first, in one turn.
constexpr int kMessagesAtOnce = 4;

using Names = google::protobuf::RepeatedField<uint64_t>;

void Append(absl::Span<const Hash128> names, Names* words) {
  words->Reserve(words->size() + 2 * static_cast<int>(names.size()));
  for (const Hash128& name : names) {
    words->Add(name.low);
    words->Add(name.high);
  }
}

// Takes as many names as a message may have still from the front of `names`.
void Fill(absl::Span<const Hash128>* names, int* room, Names* words) {
  const size_t count = std::min(names->size(), static_cast<size_t>(*room));
  Append(names->subspan(0, count), words);
  names->remove_prefix(count);
  *room -= static_cast<int>(count);
}

}  // namespace

PrefixFeed::PrefixFeed(scheduling::PrefixCache* cache, ControlOutbox* outbox,
                       scheduling::PrefixCache* stored)
    : cache_(cache),
      stored_(stored),
      outbox_(outbox),
      journal_(kMaxChanges),
      stored_journal_(kMaxChanges) {
  cache_->AddJournal(&journal_);
  if (stored_ != nullptr) stored_->AddJournal(&stored_journal_);
}

PrefixFeed::~PrefixFeed() {
  cache_->RemoveJournal(&journal_);
  if (stored_ != nullptr) stored_->RemoveJournal(&stored_journal_);
}

scheduling::PrefixJournal::Changes PrefixFeed::TakeChanges() {
  scheduling::PrefixJournal::Changes changes = journal_.Take();
  if (stored_ == nullptr) return changes;
  scheduling::PrefixJournal::Changes more = stored_journal_.Take();
  changes.lost = changes.lost || more.lost;
  std::erase_if(changes.removed,
                [this](const auto& name) { return stored_->Contains(name); });
  std::erase_if(more.removed,
                [this](const auto& name) { return cache_->Contains(name); });
  const auto append = [](const std::vector<Hash128>& from,
                         std::vector<Hash128>* to) {
    to->insert(to->end(), from.begin(), from.end());
  };
  append(more.removed, &changes.removed);
  append(more.stored, &changes.stored);
  if (changes.lost) {
    changes.removed.clear();
    changes.stored.clear();
  }
  return changes;
}

BlockId PrefixFeed::AppendNames(BlockId from,
                                std::vector<Hash128>* names) const {
  const BlockId in_cache = cache_->pool_size();
  if (from < in_cache) return cache_->AppendNames(from, kMaxNames, names);
  return in_cache + stored_->AppendNames(from - in_cache, kMaxNames, names);
}

void PrefixFeed::AddRouter(SessionId session) {
  if (cache_->enabled()) routers_[session] = Router();
}

bool PrefixFeed::ToldAll() const {
  return std::all_of(routers_.begin(), routers_.end(), [&](const auto& entry) {
    return !entry.second.reset && entry.second.next >= end();
  });
}

bool PrefixFeed::Due(absl::Time now) const {
  if (journal_.size() + stored_journal_.size() >= kMany) return true;
  return now - last_told_at_ >= kInterval &&
         !(journal_.empty() && stored_journal_.empty() && ToldAll());
}

void PrefixFeed::Flush(absl::Time now) {
  if (!Due(now)) return;
  last_told_at_ = now;
  const scheduling::PrefixJournal::Changes changes = TakeChanges();
  for (auto& [session, router] : routers_) {
    const bool backlogged = outbox_->Backlogged(session);
    if (changes.lost || (backlogged && !changes.empty())) router = Router();
    if (backlogged) continue;
    if (!router.reset) Tell(session, changes);
    TellMore(session, &router);
  }
}

void PrefixFeed::Tell(SessionId session,
                      const scheduling::PrefixJournal::Changes& changes) {
  absl::Span<const Hash128> removed = changes.removed;
  absl::Span<const Hash128> stored = changes.stored;
  while (!removed.empty() || !stored.empty()) {
    v1::WorkerMessage message;
    int room = kMaxNames;
    Fill(&removed, &room, message.mutable_prefixes()->mutable_removed());
    Fill(&stored, &room, message.mutable_prefixes()->mutable_stored());
    outbox_->Send(session, std::move(message));
  }
}

void PrefixFeed::TellMore(SessionId session, Router* router) {
  // What comes and goes before `next` is told with the changes; what does
  // behind it is told when it is reached, as it is then.
  std::vector<Hash128> names;
  for (int i = 0; i < kMessagesAtOnce; ++i) {
    if (!router->reset && router->next >= end()) return;
    names.clear();
    router->next = AppendNames(router->next, &names);
    if (names.empty() && !router->reset) continue;
    v1::WorkerMessage message;
    v1::PrefixNews* const news = message.mutable_prefixes();
    news->set_reset(std::exchange(router->reset, false));
    Append(names, news->mutable_stored());
    outbox_->Send(session, std::move(message));
  }
}

}  // namespace baton::worker
