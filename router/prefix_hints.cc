#include "router/prefix_hints.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace baton::router {
namespace {

using scheduling::WorkerId;

// Names that are applied in one turn, about: half a millisecond.
constexpr int kNamesPerTurn = 4096;
// A request that waits asks again after this.
constexpr absl::Duration kLookEvery = absl::Milliseconds(50);

using Words = google::protobuf::RepeatedField<uint64_t>;

void ReadNames(const Words& words, std::vector<Hash128>* names) {
  names->clear();
  for (int i = 0; i + 1 < words.size(); i += 2) {
    names->push_back({.high = words[i + 1], .low = words[i]});
  }
}

}  // namespace

PrefixHints::PrefixHints(const Options& options, PrefixMetrics* metrics)
    : options_(options), metrics_(metrics), index_(options.index) {}

bool PrefixHints::Take(int link, WorkerId worker, v1::PrefixNews news) {
  if (!options_.enabled || worker == scheduling::kNoWorker) return false;
  if (news.removed_size() % 2 != 0 || news.stored_size() % 2 != 0) {
    LOG_EVERY_N(WARNING, 1000)
        << "news of a worker's prefix cache with half a name are ignored";
    metrics_->CountInvalid();
    return false;
  }
  news_.push_back({link, worker, std::move(news)});
  return true;
}

void PrefixHints::Forget(WorkerId worker) {
  std::erase_if(news_, [&](const News& n) { return n.worker == worker; });
  index_.Forget(worker);
}

std::vector<int> PrefixHints::ApplySome() {
  std::vector<int> consumed;
  for (int names = 0; !news_.empty() && names < kNamesPerTurn;) {
    const News& next = news_.front();
    names += (next.news.removed_size() + next.news.stored_size()) / 2;
    Apply(next);
    consumed.push_back(next.link);
    news_.pop_front();
  }
  index_.Clean();
  metrics_->Observe(index_);
  return consumed;
}

void PrefixHints::Apply(const News& news) {
  if (news.news.reset()) index_.Forget(news.worker);
  ReadNames(news.news.removed(), &names_);
  index_.Remove(news.worker, names_);
  metrics_->CountNews(news.news.reset(), names_.size(),
                      static_cast<size_t>(news.news.stored_size()) / 2);
  ReadNames(news.news.stored(), &names_);
  index_.Store(news.worker, names_);
}

absl::Span<const scheduling::CachedPrompt> PrefixHints::Look(
    PromptPrefix* prefix, int32_t most_tokens, absl::Time now) {
  if (!options_.enabled || prefix->names.empty() || most_tokens <= 0) return {};
  if (now - prefix->looked_at < kLookEvery) return prefix->cached;
  prefix->looked_at = now;
  prefix->cached.clear();
  index_.Match(prefix->names, &matches_);
  for (const scheduling::PrefixMatch& match : matches_) {
    prefix->cached.push_back(
        {.worker = match.worker,
         .tokens = std::min(match.blocks * prefix->block_size, most_tokens)});
  }
  return prefix->cached;
}

}  // namespace baton::router
