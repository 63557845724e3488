#include "router/text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "common/log.h"

namespace baton::router {
namespace {

std::vector<uint32_t> FailureFunction(const std::string& text) {
  std::vector<uint32_t> failure(text.size(), 0);
  for (size_t i = 1; i < text.size(); ++i) {
    uint32_t length = failure[i - 1];
    while (length > 0 && text[i] != text[length]) length = failure[length - 1];
    if (text[i] == text[length]) ++length;
    failure[i] = length;
  }
  return failure;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops) {
  stops_.reserve(stops.size());
  for (std::string& text : stops) {
    CHECK(!text.empty());
    std::vector<uint32_t> failure = FailureFunction(text);
    stops_.push_back({std::move(text), std::move(failure)});
  }
}

void StopMatcher::Advance(Stop* stop, char c) {
  while (stop->matched > 0 && stop->text[stop->matched] != c) {
    stop->matched = stop->failure[stop->matched - 1];
  }
  if (stop->text[stop->matched] == c) ++stop->matched;
}

std::string StopMatcher::Push(absl::string_view text) {
  if (stopped()) return "";
  if (stops_.empty()) return std::string(text);
  for (size_t i = 0; i < text.size(); ++i) {
    for (size_t s = 0; s < stops_.size(); ++s) {
      Stop& stop = stops_[s];
      Advance(&stop, text[i]);
      if (stop.matched < stop.text.size()) continue;
      if (!stopped() || stop.text.size() > stops_[matched_].text.size()) {
        matched_ = s;
      }
    }
    if (!stopped()) continue;
    held_.append(text.data(), i + 1);
    held_.resize(held_.size() - stops_[matched_].text.size());
    return std::exchange(held_, "");
  }
  held_.append(text.data(), text.size());
  size_t hold = 0;
  for (const Stop& stop : stops_) {
    hold = std::max<size_t>(hold, stop.matched);
  }
  std::string shown = held_.substr(0, held_.size() - hold);
  held_.erase(0, shown.size());
  return shown;
}

std::string StopMatcher::Finish() {
  for (Stop& stop : stops_) stop.matched = 0;
  return stopped() ? "" : std::exchange(held_, "");
}

}  // namespace baton::router
