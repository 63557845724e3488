// How many bytes of requests' bodies the process holds: of those that are being
// read, and of those that a handler has not let go of. Any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <utility>

namespace baton::router::http {

class BodyBudget final {
 public:
  explicit BodyBudget(size_t max_bytes) : max_bytes_(max_bytes) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;

  // False when that is more than there is: then nothing is taken.
  bool Take(size_t bytes) {
    if (taken_.fetch_add(bytes) + bytes <= max_bytes_) return true;
    taken_.fetch_sub(bytes);
    return false;
  }
  void GiveBack(size_t bytes) { taken_.fetch_sub(bytes); }

  size_t taken() const { return taken_.load(); }

 private:
  const size_t max_bytes_;
  std::atomic<size_t> taken_{0};
};

// One body's part of it, which is given back when this is gone. Of one thread
// at a time.
class BodyShare final {
 public:
  explicit BodyShare(std::shared_ptr<BodyBudget> budget)
      : budget_(std::move(budget)) {}
  ~BodyShare() { budget_->GiveBack(bytes_); }
  BodyShare(const BodyShare&) = delete;
  BodyShare& operator=(const BodyShare&) = delete;

  // The body has so many bytes now, no fewer than before. False when they are
  // too many.
  bool GrowTo(size_t bytes) {
    if (!budget_->Take(bytes - bytes_)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  const std::shared_ptr<BodyBudget> budget_;
  size_t bytes_ = 0;
};

}  // namespace baton::router::http
