#include "tests/router/output_format/grammar_walker.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace baton::router {
namespace {

using scheduling::GrammarAutomaton;

constexpr size_t kFreeBytes = 60;
constexpr size_t kMaxBytes = 4000;

// How much of `ending` there is at the end of `text`.
size_t BegunOf(absl::string_view ending, absl::string_view text) {
  size_t begun = ending.size() - 1;
  while (!absl::EndsWith(text, ending.substr(0, begun))) --begun;
  return begun;
}

}  // namespace

std::string GrammarWalker::Walk(GrammarAutomaton* automaton) {
  std::string text;
  GrammarAutomaton::State state = automaton->start();
  while (!automaton->MustEnd(state)) {
    const bool may_end = automaton->MayEnd(state);
    if (may_end && (text.size() > kFreeBytes || Chance(4))) break;
    if (text.size() > kMaxBytes) return "";
    const uint8_t byte = Pick(automaton, state, text);
    text.push_back(static_cast<char>(byte));
    state = automaton->Next(state, byte);
  }
  return text;
}

bool GrammarWalker::Chance(int of) {
  return std::uniform_int_distribution<int>(0, of - 1)(random_) == 0;
}

uint8_t GrammarWalker::Pick(GrammarAutomaton* automaton,
                            GrammarAutomaton::State state,
                            const std::string& text) {
  std::vector<uint8_t> all;
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    if (automaton->Next(state, byte) != GrammarAutomaton::kNone) {
      all.push_back(byte);
    }
  }
  EXPECT_FALSE(all.empty()) << "a dead end behind " << text;
  if (all.empty()) return 0;
  // Those that have begun come first.
  std::vector<uint8_t> ending;
  size_t most = 0;
  for (const std::string& end : endings_) {
    const size_t begun = BegunOf(end, text);
    const auto byte = static_cast<uint8_t>(end[begun]);
    if (begun < most || std::find(all.begin(), all.end(), byte) == all.end()) {
      continue;
    }
    if (begun > most) ending.clear();
    most = begun;
    ending.push_back(byte);
  }
  const bool hurry = text.size() > kFreeBytes || Chance(3);
  const std::vector<uint8_t>& from = hurry && !ending.empty() ? ending : all;
  return from[std::uniform_int_distribution<size_t>(0,
                                                    from.size() - 1)(random_)];
}

}  // namespace baton::router
