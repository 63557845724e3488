#include "load_generator/runner.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/clock.h"

namespace baton::load_generator {
namespace {

constexpr absl::Duration kProgressInterval = absl::Seconds(1);
// Beyond a request's own timeout: targets end each one by it.
constexpr absl::Duration kEndGrace = absl::Seconds(30);

// Of all requests of a run. Outlives it as long as the target calls.
struct Counts {
  absl::Mutex mu;
  int64_t open ABSL_GUARDED_BY(mu) = 0;
  int64_t finished ABSL_GUARDED_BY(mu) = 0;
  int64_t not_finished ABSL_GUARDED_BY(mu) = 0;
  int64_t output_events ABSL_GUARDED_BY(mu) = 0;
};

class Recorder final : public TargetListener {
 public:
  Recorder(RequestRecord record, absl::Time start,
           std::shared_ptr<Counts> counts)
      : start_(start), counts_(std::move(counts)), record_(std::move(record)) {}

  void OnTokens(absl::Time now) override {
    {
      absl::MutexLock lock(&mu_);
      const absl::Duration at = now - start_;
      if (record_.has_output()) {
        record_.gaps_ms.push_back(static_cast<float>(
            absl::ToDoubleMilliseconds(at - record_.last_at)));
      } else {
        record_.first_at = at;
      }
      record_.last_at = at;
    }
    absl::MutexLock lock(&counts_->mu);
    ++counts_->output_events;
  }

  void OnEnd(absl::Time now, const TargetEnd& end) override {
    {
      absl::MutexLock lock(&mu_);
      record_.ended_at = now - start_;
      record_.end = end;
      ended_ = true;
    }
    absl::MutexLock lock(&counts_->mu);
    --counts_->open;
    if (end.kind == OutcomeKind::kFinished) {
      ++counts_->finished;
    } else {
      ++counts_->not_finished;
    }
  }

  // What is known; one that has not ended has failed.
  RequestRecord Take(absl::Duration now) {
    absl::MutexLock lock(&mu_);
    RequestRecord record = std::move(record_);
    if (!ended_) {
      record.ended_at = now;
      record.end.kind = OutcomeKind::kFailed;
      record.end.error = "open when the run ended";
    }
    return record;
  }

 private:
  const absl::Time start_;
  const std::shared_ptr<Counts> counts_;
  absl::Mutex mu_;
  RequestRecord record_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
};

class Runner final {
 public:
  Runner(const std::vector<workload::PlannedRequest>& requests, Target* target,
         const RunOptions& options)
      : requests_(requests),
        target_(target),
        options_(options),
        start_(Clock::Monotonic()->Now()) {}

  std::vector<RequestRecord> Run() {
    for (size_t i = 0; i < requests_.size(); ++i) {
      TargetRequest next = Make(i);
      if (!AwaitTurn(requests_[i].at)) break;
      Send(i, std::move(next));
    }
    const absl::Duration last = Elapsed();
    AwaitUntil(last + options_.timeout + kEndGrace,
               [&](const Counts& counts)
                   ABSL_NO_THREAD_SAFETY_ANALYSIS { return counts.open == 0; });
    std::vector<RequestRecord> records;
    records.reserve(recorders_.size());
    for (const auto& recorder : recorders_) {
      records.push_back(recorder->Take(Elapsed()));
    }
    return records;
  }

 private:
  absl::Duration Elapsed() const { return Clock::Monotonic()->Now() - start_; }

  TargetRequest Make(size_t index) const {
    const workload::PlannedRequest& planned = requests_[index];
    TargetRequest request;
    if (options_.text) {
      request.text = workload::PromptText(planned, index, options_.seed);
    } else {
      request.tokens = workload::PromptTokens(planned, index, options_.seed,
                                              options_.token_range);
    }
    request.output_tokens = planned.output_tokens;
    request.timeout = options_.timeout;
    return request;
  }

  void Send(size_t index, TargetRequest request) {
    RequestRecord record;
    record.sent_at = Elapsed();
    record.planned_at =
        options_.concurrency > 0 ? record.sent_at : requests_[index].at;
    record.prompt_tokens = requests_[index].prompt_tokens;
    record.output_tokens = requests_[index].output_tokens;
    auto recorder =
        std::make_shared<Recorder>(std::move(record), start_, counts_);
    recorders_.push_back(recorder);
    {
      absl::MutexLock lock(&counts_->mu);
      ++counts_->open;
    }
    target_->Send(std::move(request), std::move(recorder));
  }

  // False when the run is to end.
  bool AwaitTurn(absl::Duration at) {
    if (options_.concurrency == 0) {
      AwaitUntil(at, [](const Counts&) { return false; });
    } else {
      AwaitUntil(absl::InfiniteDuration(),
                 [&](const Counts& counts) ABSL_NO_THREAD_SAFETY_ANALYSIS {
                   return counts.open < options_.concurrency;
                 });
    }
    return !ending_;
  }

  // Until it is so late, `done` (which reads under the lock) holds, or the run
  // is to end; says how things go meanwhile.
  template <typename Done>
  void AwaitUntil(absl::Duration until, Done done) {
    while (!ending_) {
      const absl::Duration now = Elapsed();
      if (now >= next_progress_) {
        next_progress_ = now + kProgressInterval;
        if (options_.on_progress && !options_.on_progress(Look(now))) {
          ending_ = true;
          return;
        }
      }
      if (now >= until) return;
      const auto condition = [&] { return done(*counts_); };
      absl::MutexLock lock(&counts_->mu);
      if (counts_->mu.AwaitWithTimeout(absl::Condition(&condition),
                                       std::min(until, next_progress_) - now)) {
        return;
      }
    }
  }

  Progress Look(absl::Duration now) {
    Progress progress;
    progress.elapsed = now;
    progress.planned = static_cast<int64_t>(requests_.size());
    progress.sent = static_cast<int64_t>(recorders_.size());
    absl::MutexLock lock(&counts_->mu);
    progress.open = counts_->open;
    progress.finished = counts_->finished;
    progress.not_finished = counts_->not_finished;
    progress.output_events = counts_->output_events;
    return progress;
  }

  const std::vector<workload::PlannedRequest>& requests_;
  Target* const target_;
  const RunOptions& options_;
  const absl::Time start_;
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
  std::vector<std::shared_ptr<Recorder>> recorders_;
  absl::Duration next_progress_ = kProgressInterval;
  bool ending_ = false;
};

}  // namespace

absl::Duration RequestRecord::tpot() const {
  if (!has_output() || tokens() < 2) return absl::ZeroDuration();
  return (last_at - first_at) / (tokens() - 1);
}

int32_t RequestRecord::tokens() const {
  if (end.output_tokens > 0) return end.output_tokens;
  return has_output() ? static_cast<int32_t>(gaps_ms.size()) + 1 : 0;
}

std::vector<RequestRecord> RunWorkload(
    const std::vector<workload::PlannedRequest>& requests, Target* target,
    const RunOptions& options) {
  return Runner(requests, target, options).Run();
}

}  // namespace baton::load_generator
