#include "workload/goodput.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace baton::workload {

bool Targets::Met(absl::Duration request_ttft,
                  absl::Duration request_tpot) const {
  return (ttft <= absl::ZeroDuration() || request_ttft <= ttft) &&
         (itl <= absl::ZeroDuration() || request_tpot <= itl);
}

Percentiles PercentilesOf(std::vector<double> milliseconds) {
  Percentiles p;
  if (milliseconds.empty()) {
    p.mean = p.p50 = p.p90 = p.p99 = p.max =
        std::numeric_limits<double>::quiet_NaN();
    return p;
  }
  std::sort(milliseconds.begin(), milliseconds.end());
  const auto rank = [&](double share) {
    const double at =
        std::ceil(share * static_cast<double>(milliseconds.size()));
    return milliseconds[static_cast<size_t>(std::max(at, 1.0)) - 1];
  };
  for (const double value : milliseconds) p.mean += value;
  p.mean /= static_cast<double>(milliseconds.size());
  p.p50 = rank(0.5);
  p.p90 = rank(0.9);
  p.p99 = rank(0.99);
  p.max = milliseconds.back();
  return p;
}

nlohmann::ordered_json PercentilesJson(const Percentiles& percentiles) {
  using nlohmann::ordered_json;
  const auto number = [](double value) {
    return std::isnan(value) ? ordered_json(nullptr) : ordered_json(value);
  };
  return {{"mean", number(percentiles.mean)},
          {"p50", number(percentiles.p50)},
          {"p90", number(percentiles.p90)},
          {"p99", number(percentiles.p99)},
          {"max", number(percentiles.max)}};
}

}  // namespace baton::workload
