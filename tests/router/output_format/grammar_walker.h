// Random answers that a grammar allows.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "scheduling/grammar_automaton.h"

namespace baton::router {

class GrammarWalker final {
 public:
  // `endings`: texts that end things. A walk that prefers them comes to its
  // end.
  GrammarWalker(uint32_t seed, std::vector<std::string> endings)
      : random_(seed), endings_(std::move(endings)) {}

  // An answer; empty if it got too long. Fails the test at a dead end.
  std::string Walk(scheduling::GrammarAutomaton* automaton);

 private:
  bool Chance(int of);
  uint8_t Pick(scheduling::GrammarAutomaton* automaton,
               scheduling::GrammarAutomaton::State state,
               const std::string& text);

  std::mt19937 random_;
  const std::vector<std::string> endings_;
};

}  // namespace baton::router
