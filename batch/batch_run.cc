#include "batch/batch_run.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/json.h"
#include "common/status_macros.h"

namespace baton::batch {
namespace {

constexpr absl::Duration kFirstPause = absl::Seconds(1);
constexpr absl::Duration kLongestPause = absl::Seconds(60);
// A call that has been open for so long was taken: refusals come sooner, and no
// attempt to connect lasts longer.
constexpr absl::Duration kTaken = absl::Seconds(15);
// From this part of what was refused on, the limit grows by this part only.
constexpr double kCareful = 0.8;
constexpr double kCarefulGrowth = 0.1;
constexpr absl::Duration kLongestWish = absl::Minutes(10);

bool RefusedForNow(const CallEnd& end) {
  if (end.kind == CallEndKind::kBroke) return true;
  const int status = end.answer.status;
  return end.kind == CallEndKind::kAnswered &&
         (status == 429 || status == 502 || status == 503);
}

// A token count of either API's "usage"; 0 when it is not there.
int64_t TokensOf(const nlohmann::json& usage, const char* name,
                 const char* other) {
  for (const char* key : {name, other}) {
    const auto found = usage.find(key);
    if (found != usage.end() && found->is_number_integer()) {
      return found->get<int64_t>();
    }
  }
  return 0;
}

class Run final {
 public:
  Run(RequestFile* requests, ResultFile* results, Calls* calls,
      const Clock* clock, const BatchOptions& options)
      : requests_(*requests),
        results_(*results),
        calls_(*calls),
        clock_(*clock),
        options_(options),
        random_(options.seed),
        limit_(options.max_in_flight),
        began_(clock->Now()) {
    progress_.requests = requests->size();
    for (const std::string& id : results->answered()) {
      if (requests->Has(id)) ++progress_.earlier;
    }
  }

  absl::StatusOr<BatchEnd> All() {
    absl::Time next_look = began_;
    while (true) {
      BATON_RETURN_IF_ERROR(StartMore());
      if (open_.empty() && waiting_.empty()) break;
      const absl::Time now = clock_.Now();
      if (now >= next_look) {
        next_look = now + options_.look;
        if (!options_.on_progress(Progress())) {
          interrupted_ = true;
          stopped_ = "interrupted";
          break;
        }
      }
      if (IsHopeless(now)) {
        stopped_ =
            absl::StrCat("no answer for ", absl::FormatDuration(Patience()),
                         "; the last: ", last_refusal_);
        break;
      }
      for (CallEnd& end : calls_.Wait(TimeToWait(next_look - now))) {
        BATON_RETURN_IF_ERROR(Take(std::move(end)));
      }
      if (!stopped_.empty()) break;
    }
    return BatchEnd{Progress(), stopped_, interrupted_};
  }

 private:
  struct Try {
    BatchRequest request;
    int refusals = 0;
    absl::Time began;  // the last try
  };

  absl::Duration Patience() const {
    return heard_ ? options_.patience : options_.connect_patience;
  }

  bool IsHopeless(absl::Time now) const {
    if (now - refused_since_ <= Patience()) return false;
    return std::none_of(open_.begin(), open_.end(), [&](const auto& open) {
      return now - open.second.began >= kTaken;
    });
  }

  BatchProgress Progress() const {
    BatchProgress progress = progress_;
    progress.elapsed = clock_.Now() - began_;
    progress.open = static_cast<int64_t>(open_.size());
    progress.waiting = static_cast<int64_t>(waiting_.size());
    return progress;
  }

  // As long as nothing has to be started or shown.
  absl::Duration TimeToWait(absl::Duration until_look) const {
    absl::Duration wait = std::min(until_look, options_.look);
    if (!waiting_.empty() && HasRoom()) {
      wait = std::min(wait, waiting_.begin()->first - clock_.Now());
    }
    return std::max(wait, absl::Milliseconds(1));
  }

  bool HasRoom() const {
    return static_cast<double>(open_.size() + 1) <= limit_;
  }

  absl::Status StartMore() {
    while (HasRoom()) {
      if (!waiting_.empty() && waiting_.begin()->first <= clock_.Now()) {
        Try again = std::move(waiting_.begin()->second);
        waiting_.erase(waiting_.begin());
        ++progress_.again;
        Start(std::move(again));
        continue;
      }
      // Not ever more of those that wait: a server that refuses all gets no
      // new ones.
      if (at_end_ || static_cast<int64_t>(waiting_.size()) >=
                         int64_t{options_.max_in_flight}) {
        break;
      }
      BATON_ASSIGN_OR_RETURN(auto request, requests_.Next());
      if (!request.has_value()) {
        at_end_ = true;
        break;
      }
      if (results_.answered().contains(request->custom_id)) continue;
      Start({.request = *std::move(request)});
    }
    return absl::OkStatus();
  }

  void Start(Try started) {
    const int64_t call = next_call_++;
    calls_.Start(call, started.request);
    started.began = clock_.Now();
    open_.emplace(call, std::move(started));
  }

  absl::Status Take(CallEnd end) {
    const auto found = open_.find(end.call);
    Try tried = std::move(found->second);
    open_.erase(found);
    if (end.kind == CallEndKind::kAnswered) heard_ = true;
    if (end.kind == CallEndKind::kRefusedUs) {
      stopped_ = end.answer.error;
      return absl::OkStatus();
    }
    if (end.answer.status == 401) {
      stopped_ = "the server does not take the API key (401)";
      return absl::OkStatus();
    }
    if (RefusedForNow(end)) {
      PutOff(std::move(tried), end);
      return absl::OkStatus();
    }
    refused_since_ = absl::InfiniteFuture();
    GrowLimit();
    const BatchAnswer answer = CheckedAnswer(std::move(end.answer));
    Count(answer);
    return results_.Write(ResultLine(tried.request, answer));
  }

  // By one when as many have been answered as are open; carefully where it was
  // too much before.
  void GrowLimit() {
    const bool careful =
        limit_ > kCareful * refused_at_ && limit_ < refused_at_ + 1;
    limit_ = std::min(limit_ + (careful ? kCarefulGrowth : 1.0) / limit_,
                      static_cast<double>(options_.max_in_flight));
  }

  void PutOff(Try tried, const CallEnd& end) {
    last_refusal_ = end.answer.status > 0
                        ? absl::StrCat("status ", end.answer.status)
                        : end.answer.error;
    const absl::Time now = clock_.Now();
    refused_since_ = std::min(refused_since_, now);
    // Those that are refused together count once.
    if (tried.began >= last_cut_) {
      last_cut_ = now;
      refused_at_ = static_cast<double>(open_.size() + 1);
      limit_ = std::max(1.0, refused_at_ / 2);
    }
    absl::Duration pause = kFirstPause;
    for (int i = 0; i < tried.refusals && pause < kLongestPause; ++i)
      pause *= 2;
    pause = std::min(pause, kLongestPause);
    ++tried.refusals;
    // Neither all at once, nor before the server's time.
    const double drawn = std::uniform_real_distribution<double>(0, 1)(random_);
    pause = end.retry_after.has_value()
                ? std::min(*end.retry_after, kLongestWish) + pause * drawn
                : pause * (0.5 + 0.5 * drawn);
    waiting_.emplace(now + pause, std::move(tried));
  }

  void Count(const BatchAnswer& answer) {
    if (answer.status != 200) {
      ++progress_.failed;
      ++progress_.failed_by_status[answer.status];
      return;
    }
    ++progress_.answered;
    const nlohmann::json json =
        nlohmann::json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) return;
    const auto usage = json.find("usage");
    if (usage == json.end() || !usage->is_object()) return;
    progress_.prompt_tokens +=
        TokensOf(*usage, "prompt_tokens", "input_tokens");
    progress_.output_tokens +=
        TokensOf(*usage, "completion_tokens", "output_tokens");
  }

  RequestFile& requests_;
  ResultFile& results_;
  Calls& calls_;
  const Clock& clock_;
  const BatchOptions& options_;
  std::mt19937_64 random_;
  // Requests that may be open.
  double limit_;
  double refused_at_ = -1;  // that were open at the last cut
  const absl::Time began_;
  // The first refusal since the last answer.
  absl::Time refused_since_ = absl::InfiniteFuture();
  absl::Time last_cut_ = absl::InfinitePast();
  std::string last_refusal_;
  BatchProgress progress_;
  absl::flat_hash_map<int64_t, Try> open_;
  // By when they are asked again.
  std::multimap<absl::Time, Try> waiting_;
  int64_t next_call_ = 1;
  bool at_end_ = false;
  bool heard_ = false;
  bool interrupted_ = false;
  std::string stopped_;
};

}  // namespace

absl::StatusOr<BatchEnd> RunBatch(RequestFile* requests, ResultFile* results,
                                  Calls* calls, const Clock* clock,
                                  const BatchOptions& options) {
  return Run(requests, results, calls, clock, options).All();
}

}  // namespace baton::batch
