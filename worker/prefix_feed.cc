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

PrefixFeed::PrefixFeed(scheduling::PrefixCache* cache, ControlOutbox* outbox)
    : cache_(cache), outbox_(outbox), journal_(kMaxChanges) {
  cache_->AddJournal(&journal_);
}

PrefixFeed::~PrefixFeed() { cache_->RemoveJournal(&journal_); }

void PrefixFeed::AddRouter(SessionId session) {
  if (cache_->enabled()) routers_[session] = Router();
}

bool PrefixFeed::ToldAll() const {
  return std::all_of(routers_.begin(), routers_.end(), [&](const auto& entry) {
    return !entry.second.reset && entry.second.next >= cache_->pool_size();
  });
}

bool PrefixFeed::Due(absl::Time now) const {
  if (journal_.size() >= kMany) return true;
  return now - last_told_at_ >= kInterval && !(journal_.empty() && ToldAll());
}

void PrefixFeed::Flush(absl::Time now) {
  if (!Due(now)) return;
  last_told_at_ = now;
  const scheduling::PrefixJournal::Changes changes = journal_.Take();
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
    if (!router->reset && router->next >= cache_->pool_size()) return;
    names.clear();
    router->next = cache_->AppendNames(router->next, kMaxNames, &names);
    if (names.empty() && !router->reset) continue;
    v1::WorkerMessage message;
    v1::PrefixNews* const news = message.mutable_prefixes();
    news->set_reset(std::exchange(router->reset, false));
    Append(names, news->mutable_stored());
    outbox_->Send(session, std::move(message));
  }
}

}  // namespace baton::worker
