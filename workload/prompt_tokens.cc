#include "workload/prompt_tokens.h"

#include <algorithm>
#include <iterator>

#include "common/log.h"
#include "workload/random.h"

namespace baton::workload {
namespace {

constexpr const char* kWords[] = {
    "time",    "year",    "people", "way",   "day",     "man",    "thing",
    "woman",   "life",    "child",  "world", "school",  "state",  "family",
    "group",   "country", "hand",   "part",  "place",   "case",   "week",
    "company", "system",  "number", "night", "point",   "home",   "water",
    "room",    "mother",  "area",   "money", "story",   "fact",   "month",
    "lot",     "right",   "study",  "book",  "eye",     "job",    "word",
    "side",    "kind",    "head",   "house", "service", "friend", "father",
    "power",   "hour",    "game",   "line",  "end",     "member", "law",
    "car",     "city",    "name",   "team",  "minute",  "idea",   "body",
    "back"};

// Calls `put` with a number for each token of the prompt.
template <typename Put>
void ForEachToken(const PlannedRequest& request, uint64_t number, uint64_t seed,
                  Put put) {
  int32_t left = request.prompt_tokens;
  for (const uint64_t block : request.prefix) {
    // A block's tokens depend on its id alone.
    uint64_t state = seed ^ (block * 0x2545F4914F6CDD1D + 1);
    const int32_t count = std::min(left, request.prefix_block);
    for (int32_t i = 0; i < count; ++i) put(NextRandom(&state));
    left -= count;
  }
  uint64_t state = ~seed ^ (number * 0x9E6C63D0876A9A47 + 1);
  for (; left > 0; --left) put(NextRandom(&state));
}

}  // namespace

std::vector<uint32_t> PromptTokens(const PlannedRequest& request,
                                   uint64_t number, uint64_t seed,
                                   const TokenRange& range) {
  CHECK_GT(range.count, 0u);
  std::vector<uint32_t> tokens;
  tokens.reserve(static_cast<size_t>(request.prompt_tokens));
  ForEachToken(request, number, seed, [&](uint64_t random) {
    tokens.push_back(range.first +
                     static_cast<uint32_t>((random >> 32) % range.count));
  });
  return tokens;
}

std::string PromptText(const PlannedRequest& request, uint64_t number,
                       uint64_t seed) {
  std::string text;
  ForEachToken(request, number, seed, [&](uint64_t random) {
    if (!text.empty()) text.push_back(' ');
    text.append(kWords[(random >> 32) % std::size(kWords)]);
  });
  return text;
}

}  // namespace baton::workload
