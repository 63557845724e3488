#include "engine/cuda/rank_threads.h"

#include <algorithm>
#include <utility>

namespace baton::engine::cuda {

RankThreads::RankThreads(int32_t ranks, void (*use_device)(int32_t rank))
    : use_device_(use_device) {
  for (int32_t rank = 1; rank < ranks; ++rank) {
    threads_.emplace_back([this, rank] { RunThread(rank); });
  }
}

RankThreads::~RankThreads() {
  {
    absl::MutexLock lock(&mu_);
    ends_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void RankThreads::Run(absl::FunctionRef<void(int32_t rank)> run) {
  {
    absl::MutexLock lock(&mu_);
    call_ = &run;
    ++calls_;
    running_ = static_cast<int32_t>(threads_.size());
  }
  use_device_(0);
  run(0);
  const auto all_returned = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return running_ == 0;
  };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&all_returned));
  call_ = nullptr;
}

void RankThreads::RunThread(int32_t rank) {
  use_device_(rank);
  uint64_t done = 0;
  for (;;) {
    const absl::FunctionRef<void(int32_t)>* call;
    {
      const auto has_news = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
        return ends_ || calls_ > done;
      };
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_news));
      if (ends_) return;
      done = calls_;
      call = call_;
    }
    (*call)(rank);
    absl::MutexLock lock(&mu_);
    --running_;
  }
}

bool RankMeeting::Meet(bool yes) {
  absl::MutexLock lock(&mu_);
  const uint64_t mine = meetings_;
  yes_ = yes_ && yes;
  if (++there_ == ranks_) {
    there_ = 0;
    ++meetings_;
    all_said_yes_ = std::exchange(yes_, true);
    return all_said_yes_;
  }
  const auto is_over = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return meetings_ > mine;
  };
  mu_.Await(absl::Condition(&is_over));
  // The next one cannot be over before all have left this one.
  return all_said_yes_;
}

void StepRelay::Begin() {
  absl::MutexLock lock(&mu_);
  plan_ = nullptr;
  taken_ = 0;
  ended_ = false;
}

void StepRelay::Give(const scheduling::StepPlan& plan) {
  const auto all_took = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return taken_ + 1 == ranks_;
  };
  absl::MutexLock lock(&mu_);
  plan_ = &plan;
  mu_.Await(absl::Condition(&all_took));
}

void StepRelay::End() {
  absl::MutexLock lock(&mu_);
  ended_ = true;
}

void StepRelay::Take(
    absl::FunctionRef<void(const scheduling::StepPlan&)> take) {
  const scheduling::StepPlan* plan;
  {
    const auto has_news = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
      return ended_ || plan_ != nullptr;
    };
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&has_news));
    plan = plan_;
  }
  if (plan == nullptr) return;
  take(*plan);
  absl::MutexLock lock(&mu_);
  ++taken_;
}

void LayerGate::Await(int32_t layer) {
  const auto all_passed = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) {
    return std::all_of(layers_.begin() + 1, layers_.end(),
                       [&](int32_t done) { return done > layer; });
  };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&all_passed));
}

}  // namespace baton::engine::cuda
