#include "tests/sim/expected_answer.h"

#include <algorithm>
#include <cstddef>

#include "router/text/detokenizer.h"
#include "tests/sim/sim_engine.h"
#include "tests/sim/sim_model.h"

namespace baton::sim {
namespace {

// A stop string in a text.
struct Match {
  size_t begin = 0;
  size_t end = std::string::npos;
  std::string stop;
};

// The one that is complete first, the longest of several.
Match FirstMatch(const std::string& text,
                 const std::vector<std::string>& stops) {
  Match first;
  for (const std::string& stop : stops) {
    const size_t begin = text.find(stop);
    if (begin == std::string::npos) continue;
    const size_t end = begin + stop.size();
    if (end > first.end || (end == first.end && begin >= first.begin)) continue;
    first = {begin, end, stop};
  }
  return first;
}

}  // namespace

ExpectedAnswer ExpectAnswer(const scheduling::RequestSpec& spec,
                            const router::AnswerOptions& options) {
  ExpectedAnswer answer;
  answer.tokens = ReferenceOutput(spec);
  const int32_t count = static_cast<int32_t>(answer.tokens.size());
  answer.reason =
      *scheduling::CheckFinished(spec.stop, count, answer.tokens.back());

  router::Detokenizer detokenizer(*SimModel().tokenizer);
  // Where stop strings count, and how long it is with each of its tokens.
  std::string searched;
  std::vector<size_t> sizes;
  for (int32_t i = 0; i < count; ++i) {
    const std::string piece = detokenizer.Push(answer.tokens[i]);
    const bool counts = i + 1 >= spec.stop.min_output_tokens;
    (counts ? searched : answer.text) += piece;
    sizes.push_back(searched.size());
  }
  searched += detokenizer.Finish();

  const Match match = FirstMatch(searched, options.stop);
  answer.text += searched.substr(0, match.begin);
  if (match.stop.empty()) {
    answer.text += searched;
    return answer;
  }
  answer.reason = scheduling::FinishReason::kStop;
  answer.stop = match.stop;
  // Up to the token that completes it; behind the last one comes only what the
  // detokenizer had held back.
  const auto last = std::find_if(sizes.begin(), sizes.end(),
                                 [&](size_t n) { return n >= match.end; });
  if (last != sizes.end()) {
    answer.tokens.resize(static_cast<size_t>(last - sizes.begin()) + 1);
  }
  return answer;
}

}  // namespace baton::sim
