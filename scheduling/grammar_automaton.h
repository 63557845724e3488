// What may come next in an answer that a grammar describes: an automaton over
// its bytes, made as far as answers get.
//
// A grammar becomes a graph, as of a regular expression (Thompson 1968), whose
// edges may also call a rule and return from it. A state is all places of the
// graph that an answer may be at, each with the calls that it has to return
// from; states that are the same have one number, and what comes after each for
// each byte is found once. What can never come to an end is left out from the
// beginning, so every state can be completed.
//
// Used by one thread at a time (a worker's loop).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduling/grammar.h"

namespace baton::scheduling {

class GrammarAutomaton final {
 public:
  // Numbers of states, from 0.
  using State = int32_t;
  // No answer goes on so.
  static constexpr State kNone = -1;
  // Calls that an answer may be in at a time: how deep it may be nested. A call
  // that comes last in its rule does not count.
  static constexpr uint32_t kMaxDepth = 512;
  // Of the graph.
  static constexpr uint32_t kMaxNodes = 1u << 19;

  // InvalidArgument for a grammar that is malformed, larger than the bounds, or
  // that no answer matches. The message is about the grammar, "has ...".
  static absl::StatusOr<std::unique_ptr<GrammarAutomaton>> Make(
      const Grammar& grammar);

  GrammarAutomaton(const GrammarAutomaton&) = delete;
  GrammarAutomaton& operator=(const GrammarAutomaton&) = delete;

  State start() const { return 0; }
  // The state behind `byte`; kNone also when it could not be found (exhausted).
  // REQUIRES: `state` is one of this generation.
  State Next(State state, uint8_t byte) {
    const State next = rows_[RowOf(state) + classes_[byte]];
    return next == kUnknown ? Find(state, byte) : next;
  }
  // The state behind all of `bytes`.
  State Next(State state, absl::string_view bytes) {
    for (const char c : bytes) {
      if (state == kNone) break;
      state = Next(state, static_cast<uint8_t>(c));
    }
    return state;
  }
  // The same as far as it was found before; kNone where it was not.
  State KnownNext(State state, absl::string_view bytes) const {
    for (const char c : bytes) {
      if (state < 0) break;
      state = rows_[RowOf(state) + classes_[static_cast<uint8_t>(c)]];
    }
    return state < 0 ? kNone : state;
  }
  // The one byte behind which the answer goes on, of those that were looked at;
  // none where none or several were found.
  std::optional<char> OnlyKnownByte(State state) const;
  // Whether the answer may be over.
  bool MayEnd(State state) const { return states_[Index(state)].may_end; }
  // Whether it has to be: nothing can follow.
  bool MustEnd(State state) const {
    return states_[Index(state)].places.empty();
  }

  // Nodes may be looked at `work` times from now on; some 40 ns each.
  void StartWork(size_t work);
  // How often they were since then.
  size_t work_done() const { return work_; }
  // More were needed for the last state that was not found.
  bool out_of_work() const { return out_of_work_; }
  // Or more states than there is room for: Forget makes some. Nothing that came
  // of it counts.
  bool out_of_room() const { return out_of_room_; }
  bool exhausted() const { return out_of_work_ || out_of_room_; }
  // Many states are there: the next Forget is better soon.
  bool crowded() const;
  // Forgets all states but the start and those that are pinned: others mean
  // nothing any more, and their numbers come again.
  void Forget();
  // Rises with each Forget.
  uint64_t generation() const { return generation_; }

  // A state that outlives Forget, under another number, perhaps; kNone for one
  // that there was no room for.
  using Pin = uint32_t;
  Pin AddPin(State state);
  void MovePin(Pin pin, State state) { pinned_[pin] = state; }
  State Pinned(Pin pin) const { return pinned_[pin]; }
  void RemovePin(Pin pin);

  int32_t num_states() const { return static_cast<int32_t>(states_.size()); }

 private:
  static constexpr State kUnknown = -2;
  static constexpr uint32_t kDead = UINT32_MAX;
  static constexpr uint32_t kNoCall = 0;  // the bottom of each stack

  enum class NodeKind : uint8_t { kByte, kSplit, kCall, kReturn, kNever };
  struct Node {
    NodeKind kind = NodeKind::kNever;
    uint32_t next = 0;
    // kByte: a set; kSplit: the other way; kCall: a rule.
    uint32_t with = 0;
  };
  // A call under way: where it returns to, and the one that it is within.
  struct Call {
    uint32_t returns_to = 0;
    uint32_t within = 0;
    uint32_t depth = 0;
  };
  // A node that takes a byte, and the call that it is in.
  struct Place {
    uint32_t node = 0;
    uint32_t call = 0;
    friend auto operator<=>(const Place&, const Place&) = default;
  };
  struct StateOf {
    std::vector<Place> places;  // rising
    bool may_end = false;
  };
  class Writer;
  // A state without numbers: places, each with what it returns to, the
  // innermost call first.
  struct Saved {
    std::vector<std::pair<uint32_t, std::vector<uint32_t>>> places;
    bool may_end = false;
  };

  GrammarAutomaton() = default;

  static size_t Index(State state) { return static_cast<size_t>(state); }
  size_t RowOf(State state) const { return Index(state) * num_classes_; }
  void FindClasses();
  void FindDepths();
  State Find(State state, uint8_t byte);
  // Adds all places that are reached from a node without a byte.
  void Reach(uint32_t node, uint32_t call, StateOf* to);
  State NumberOf(StateOf state);
  uint32_t CallOf(uint32_t returns_to, uint32_t within);
  size_t MaxStates() const;
  Saved Save(State state) const;
  State Restore(const Saved& saved);

  std::vector<Node> nodes_;
  std::vector<ByteSet> sets_;
  std::vector<uint32_t> rules_;  // where each begins
  // Of each node: the calls that are to be made, one within the other, before
  // its rule returns, at least; kDead: it never does.
  std::vector<uint32_t> depths_;
  // Bytes that all sets treat alike are of one class.
  std::array<uint8_t, 256> classes_{};
  size_t num_classes_ = 0;

  uint64_t generation_ = 0;
  bool out_of_work_ = false;
  bool out_of_room_ = false;
  size_t work_ = 0;
  size_t most_work_ = 0;
  std::vector<State> pinned_;  // kNone: nobody's
  std::vector<Pin> free_pins_;
  std::deque<StateOf> states_;
  size_t num_places_ = 0;  // in all states
  // What is left behind Forget.
  size_t kept_states_ = 0;
  size_t kept_places_ = 0;
  size_t kept_calls_ = 0;
  std::vector<State> rows_;  // for each state, one per class
  // By the bytes of its places and whether it may end.
  absl::flat_hash_map<absl::string_view, std::array<State, 2>> numbers_;
  std::vector<Call> calls_;
  absl::flat_hash_map<uint64_t, uint32_t> call_numbers_;
  // Reach's own, kept for their memory.
  std::vector<Place> open_;
  absl::flat_hash_set<uint64_t> seen_;
};

// Whether all of `text` is an answer that the grammar describes. For tests and
// tools: makes an automaton each time.
absl::StatusOr<bool> Matches(const Grammar& grammar, absl::string_view text);

}  // namespace baton::scheduling
