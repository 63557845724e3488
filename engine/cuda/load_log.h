// Tells the log how far loading is. One thread.
#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "common/log.h"

namespace baton::engine::cuda {

// Logs how far loading is, a line per second.
class LoadLog final {
 public:
  explicit LoadLog(std::string what) : what_(std::move(what)) {}
  void operator()(double share) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_ || share >= 1.0) return;
    next_ = now + std::chrono::seconds(1);
    LOG(INFO) << "loading " << what_ << ": " << static_cast<int>(100 * share)
              << " %";
  }

 private:
  const std::string what_;
  std::chrono::steady_clock::time_point next_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(1);
};

}  // namespace baton::engine::cuda
