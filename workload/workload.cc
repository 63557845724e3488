#include "workload/workload.h"

#include <algorithm>
#include <cmath>

#include "common/log.h"
#include "workload/random.h"

namespace baton::workload {
namespace {

// The block that all synthetic prompts with a shared prefix begin with.
constexpr uint64_t kSharedBlock = 0;

int32_t Draw(const LengthRange& range, uint64_t* state) {
  CHECK_GE(range.least, 1);
  CHECK_LE(range.least, range.most);
  const auto width = static_cast<uint64_t>(range.most - range.least) + 1;
  return range.least + static_cast<int32_t>((NextRandom(state) >> 32) % width);
}

int32_t Scaled(int32_t length, double scale) {
  const double scaled = std::round(static_cast<double>(length) * scale);
  return static_cast<int32_t>(std::clamp(scaled, 1.0, 1e9));
}

}  // namespace

std::vector<PlannedRequest> MakeSynthetic(const SyntheticOptions& options) {
  std::vector<PlannedRequest> requests;
  Arrivals arrivals(options.arrivals);
  uint64_t state = ~options.seed;
  while (true) {
    PlannedRequest request;
    request.at = arrivals.Next();
    if (request.at >= options.duration) return requests;
    request.prompt_tokens = Draw(options.prompt, &state);
    request.output_tokens = Draw(options.output, &state);
    if (options.shared_prefix > 0) {
      request.prefix = {kSharedBlock};
      request.prefix_block = options.shared_prefix;
    }
    requests.push_back(std::move(request));
  }
}

Fitted Fit(const std::vector<PlannedRequest>& requests,
           const Fitting& fitting) {
  CHECK_GT(fitting.time_scale, 0);
  CHECK_GT(fitting.length_scale, 0);
  Fitted fitted;
  for (const PlannedRequest& original : requests) {
    if (fitted.requests.size() == fitting.max_requests) break;
    PlannedRequest request = original;
    request.at = original.at * fitting.time_scale;
    if (request.at >= fitting.duration) break;
    request.prompt_tokens =
        Scaled(original.prompt_tokens, fitting.length_scale);
    request.output_tokens =
        Scaled(original.output_tokens, fitting.length_scale);
    if (request.prefix_block > 0) {
      request.prefix_block =
          Scaled(original.prefix_block, fitting.length_scale);
    }
    if (int64_t{request.prompt_tokens} + request.output_tokens >
        fitting.max_context) {
      ++fitted.too_long;
      continue;
    }
    fitted.requests.push_back(std::move(request));
  }
  return fitted;
}

std::vector<PlannedRequest> AtRate(const std::vector<PlannedRequest>& requests,
                                   double rate) {
  CHECK_GT(rate, 0);
  std::vector<PlannedRequest> scaled = requests;
  if (requests.empty() || requests.back().at <= absl::ZeroDuration()) {
    return scaled;
  }
  const double now = static_cast<double>(requests.size()) /
                     absl::ToDoubleSeconds(requests.back().at);
  for (PlannedRequest& request : scaled) request.at *= now / rate;
  return scaled;
}

}  // namespace baton::workload
