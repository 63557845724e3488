#include "scheduling/grammar_automaton.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::scheduling {
namespace {

// Of one automaton between two calls of Forget: states, numbers in their rows,
// and places in all of them.
constexpr size_t kMaxStates = 1u << 16;
constexpr size_t kMaxCells = 1u << 22;
constexpr size_t kMaxPlaces = 1u << 20;
constexpr size_t kMaxCalls = 1u << 18;
// To find the beginning.
constexpr size_t kFirstWork = 1u << 20;

// Nodes that all rules share.
constexpr uint32_t kReturnNode = 0;
constexpr uint32_t kNeverNode = 1;

uint64_t Pair(uint32_t high, uint32_t low) {
  return uint64_t{high} << 32 | low;
}

}  // namespace

// Writes the graph from its ends backwards: each part is told the node that
// comes behind it, and answers with the one that it begins with.
class GrammarAutomaton::Writer {
 public:
  Writer(const Grammar* grammar, GrammarAutomaton* to)
      : grammar_(*grammar), to_(*to) {
    Add(NodeKind::kReturn, 0, 0);
    Add(NodeKind::kNever, 0, 0);
  }

  // False: it is larger than it may be.
  bool Write() {
    for (const uint32_t expression : grammar_.rules) {
      to_.rules_.push_back(Part(expression, kReturnNode));
    }
    return !full_;
  }

 private:
  using Kind = GrammarExpression::Kind;

  uint32_t Add(NodeKind kind, uint32_t next, uint32_t with) {
    if (to_.nodes_.size() >= kMaxNodes) {
      full_ = true;
      return kNeverNode;
    }
    to_.nodes_.push_back({.kind = kind, .next = next, .with = with});
    return static_cast<uint32_t>(to_.nodes_.size() - 1);
  }

  uint32_t Part(uint32_t expression, uint32_t next) {
    // Parts without a node cost time, too.
    if (++parts_ > 4 * kMaxNodes) full_ = true;
    if (full_) return kNeverNode;
    const GrammarExpression& e = grammar_.expressions[expression];
    switch (e.kind) {
      case Kind::kLiteral:
        for (size_t i = e.literal.size(); i-- > 0;) {
          ByteSet one;
          one.set(static_cast<uint8_t>(e.literal[i]));
          next = Add(NodeKind::kByte, next, SetNumber(one));
        }
        return next;
      case Kind::kByte:
        return Add(NodeKind::kByte, next, SetNumber(e.bytes));
      case Kind::kSequence:
        for (size_t i = e.parts.size(); i-- > 0;) next = Part(e.parts[i], next);
        return next;
      case Kind::kChoice:
        return Choice(e, next);
      case Kind::kRepeat:
        return Repeat(e, next);
      case Kind::kRule:
        return Add(NodeKind::kCall, next, e.rule);
    }
    LOG(FATAL) << "not a kind";
  }

  uint32_t Choice(const GrammarExpression& e, uint32_t next) {
    if (e.parts.empty()) return kNeverNode;
    uint32_t ways = Part(e.parts.back(), next);
    for (size_t i = e.parts.size() - 1; i-- > 0;) {
      ways = Add(NodeKind::kSplit, Part(e.parts[i], next), ways);
    }
    return ways;
  }

  uint32_t Repeat(const GrammarExpression& e, uint32_t next) {
    const uint32_t part = e.parts[0];
    uint32_t least = e.least;
    if (e.most == kAnyNumber) {
      const uint32_t loop = Add(NodeKind::kSplit, kNeverNode, next);
      const uint32_t again = Part(part, loop);
      if (full_) return kNeverNode;
      to_.nodes_[loop].next = again;
      // The last one that must be is the first of those that may be more.
      next = least > 0 ? again : loop;
      if (least > 0) --least;
    } else {
      const uint32_t end = next;
      for (uint32_t i = e.least; i < e.most && !full_; ++i) {
        next = Add(NodeKind::kSplit, Part(part, next), end);
      }
    }
    for (uint32_t i = 0; i < least && !full_; ++i) next = Part(part, next);
    return next;
  }

  uint32_t SetNumber(const ByteSet& set) {
    const auto [it, is_new] =
        set_numbers_.try_emplace(set, static_cast<uint32_t>(to_.sets_.size()));
    if (is_new) to_.sets_.push_back(set);
    return it->second;
  }

  struct SetHash {
    size_t operator()(const ByteSet& set) const {
      return std::hash<ByteSet>()(set);
    }
  };

  const Grammar& grammar_;
  GrammarAutomaton& to_;
  absl::flat_hash_map<ByteSet, uint32_t, SetHash> set_numbers_;
  uint32_t parts_ = 0;
  bool full_ = false;
};

absl::StatusOr<std::unique_ptr<GrammarAutomaton>> GrammarAutomaton::Make(
    const Grammar& grammar) {
  if (absl::Status valid = Validate(grammar); !valid.ok()) return valid;
  std::unique_ptr<GrammarAutomaton> automaton(new GrammarAutomaton);
  if (!Writer(&grammar, automaton.get()).Write()) {
    return absl::InvalidArgumentError(
        absl::StrCat("has more parts, once they are repeated, than the ",
                     kMaxNodes, " that it may have"));
  }
  automaton->FindClasses();
  automaton->FindDepths();
  if (automaton->depths_[automaton->rules_[0]] == kDead) {
    return absl::InvalidArgumentError("has no answer that it describes");
  }
  automaton->Forget();
  if (automaton->exhausted()) {
    return absl::InvalidArgumentError(
        "has more ways to begin than can be told apart");
  }
  automaton->StartWork(SIZE_MAX);
  return automaton;
}

void GrammarAutomaton::FindClasses() {
  // Split by one set after another.
  num_classes_ = 1;
  for (const ByteSet& set : sets_) {
    std::array<int, 256> inside;  // the class of those in the set, of each
    inside.fill(-1);
    std::array<int, 256> members{};  // of each class
    std::array<int, 256> hit{};
    for (size_t b = 0; b < 256; ++b) {
      ++members[classes_[b]];
      if (set.test(b)) ++hit[classes_[b]];
    }
    for (size_t b = 0; b < 256; ++b) {
      const uint8_t c = classes_[b];
      if (!set.test(b) || hit[c] == members[c]) continue;
      if (inside[c] < 0) inside[c] = static_cast<int>(num_classes_++);
      classes_[b] = static_cast<uint8_t>(inside[c]);
    }
  }
}

// As the shortest derivations of a grammar are found (Knuth, "A generalization
// of Dijkstra's algorithm", 1977): nodes in the order of what they need.
void GrammarAutomaton::FindDepths() {
  const size_t n = nodes_.size();
  depths_.assign(n, kDead);
  const auto targets = [this](uint32_t i) -> std::pair<uint32_t, uint32_t> {
    const Node& node = nodes_[i];
    switch (node.kind) {
      case NodeKind::kByte:
        return {node.next, kDead};
      case NodeKind::kSplit:
        return {node.next, node.with};
      case NodeKind::kCall:
        return {node.next, rules_[node.with]};
      case NodeKind::kReturn:
      case NodeKind::kNever:
        break;
    }
    return {kDead, kDead};
  };
  // From whom each node is reached, one run after another.
  std::vector<uint32_t> first(n + 1, 0);
  for (uint32_t i = 0; i < n; ++i) {
    const auto [a, b] = targets(i);
    if (a != kDead) ++first[a + 1];
    if (b != kDead) ++first[b + 1];
  }
  for (size_t i = 0; i < n; ++i) first[i + 1] += first[i];
  std::vector<uint32_t> from(first[n]);
  std::vector<uint32_t> filled(first.begin(), first.end() - 1);
  for (uint32_t i = 0; i < n; ++i) {
    const auto [a, b] = targets(i);
    if (a != kDead) from[filled[a]++] = i;
    if (b != kDead) from[filled[b]++] = i;
  }
  std::vector<std::vector<uint32_t>> by_depth(kMaxDepth + 1);
  by_depth[0].push_back(kReturnNode);
  for (uint32_t depth = 0; depth <= kMaxDepth; ++depth) {
    for (size_t k = 0; k < by_depth[depth].size(); ++k) {
      const uint32_t done = by_depth[depth][k];
      if (depths_[done] != kDead) continue;
      depths_[done] = depth;
      for (uint32_t j = first[done]; j < first[done + 1]; ++j) {
        const Node& node = nodes_[from[j]];
        uint32_t needs = depth;
        if (node.kind == NodeKind::kCall) {
          const uint32_t called = depths_[rules_[node.with]];
          const uint32_t behind = depths_[node.next];
          if (called == kDead || behind == kDead) continue;
          const bool last = nodes_[node.next].kind == NodeKind::kReturn;
          needs = std::max(called + (last ? 0 : 1), behind);
        }
        if (needs <= kMaxDepth) by_depth[needs].push_back(from[j]);
      }
    }
    by_depth[depth] = {};
  }
}

size_t GrammarAutomaton::MaxStates() const {
  return std::min(kMaxStates, kMaxCells / num_classes_);
}

bool GrammarAutomaton::crowded() const {
  const auto many = [](size_t number, size_t kept, size_t most) {
    return kept < most && number - kept > (most - kept) / 2;
  };
  return many(states_.size(), kept_states_, MaxStates()) ||
         many(num_places_, kept_places_, kMaxPlaces) ||
         many(calls_.size(), kept_calls_, kMaxCalls);
}

std::optional<char> GrammarAutomaton::OnlyKnownByte(State state) const {
  size_t only = num_classes_;
  for (size_t c = 0; c < num_classes_; ++c) {
    if (rows_[RowOf(state) + c] < 0) continue;
    if (only < num_classes_) return std::nullopt;
    only = c;
  }
  const auto first = std::find(classes_.begin(), classes_.end(), only);
  if (first == classes_.end() ||
      std::find(first + 1, classes_.end(), only) != classes_.end()) {
    return std::nullopt;
  }
  return static_cast<char>(first - classes_.begin());
}

void GrammarAutomaton::StartWork(size_t work) {
  work_ = 0;
  most_work_ = work;
  out_of_work_ = false;
}

void GrammarAutomaton::Forget() {
  std::vector<Saved> saved(pinned_.size());
  for (size_t i = 0; i < pinned_.size(); ++i) {
    if (pinned_[i] != kNone) saved[i] = Save(pinned_[i]);
  }
  ++generation_;
  out_of_room_ = false;
  states_.clear();
  num_places_ = 0;
  rows_.clear();
  numbers_.clear();
  call_numbers_.clear();
  calls_.assign(1, Call{});
  // What is known to be possible counts for nobody.
  const size_t work = std::exchange(work_, 0);
  const size_t most_work = std::exchange(most_work_, kFirstWork);
  StateOf begin;
  seen_.clear();
  Reach(rules_[0], kNoCall, &begin);
  NumberOf(std::move(begin));
  for (size_t i = 0; i < pinned_.size(); ++i) {
    if (pinned_[i] == kNone) continue;
    pinned_[i] = Restore(saved[i]);
    if (std::exchange(out_of_room_, false)) pinned_[i] = kNone;
  }
  work_ = work;
  most_work_ = most_work;
  kept_states_ = states_.size();
  kept_places_ = num_places_;
  kept_calls_ = calls_.size();
}

GrammarAutomaton::Saved GrammarAutomaton::Save(State state) const {
  const StateOf& of = states_[Index(state)];
  Saved saved{.places = {}, .may_end = of.may_end};
  saved.places.reserve(of.places.size());
  for (const Place& place : of.places) {
    saved.places.emplace_back(place.node, std::vector<uint32_t>());
    for (uint32_t call = place.call; call != kNoCall;
         call = calls_[call].within) {
      saved.places.back().second.push_back(calls_[call].returns_to);
    }
  }
  return saved;
}

GrammarAutomaton::State GrammarAutomaton::Restore(const Saved& saved) {
  StateOf state;
  state.may_end = saved.may_end;
  for (const auto& [node, returns] : saved.places) {
    uint32_t call = kNoCall;
    for (size_t i = returns.size(); i-- > 0;) call = CallOf(returns[i], call);
    state.places.push_back({.node = node, .call = call});
  }
  return NumberOf(std::move(state));
}

GrammarAutomaton::Pin GrammarAutomaton::AddPin(State state) {
  if (!free_pins_.empty()) {
    const Pin pin = free_pins_.back();
    free_pins_.pop_back();
    pinned_[pin] = state;
    return pin;
  }
  pinned_.push_back(state);
  return static_cast<Pin>(pinned_.size() - 1);
}

void GrammarAutomaton::RemovePin(Pin pin) {
  pinned_[pin] = kNone;
  free_pins_.push_back(pin);
}

GrammarAutomaton::State GrammarAutomaton::Find(State state, uint8_t byte) {
  StateOf next;
  seen_.clear();
  // To ask a place is little beside what follows from a yes.
  work_ += states_[Index(state)].places.size() / 8;
  if (work_ > most_work_) out_of_work_ = true;
  if (exhausted()) return kNone;
  for (const Place& place : states_[Index(state)].places) {
    const Node& node = nodes_[place.node];
    if (sets_[node.with].test(byte)) Reach(node.next, place.call, &next);
    if (exhausted()) return kNone;
  }
  const State number =
      next.places.empty() && !next.may_end ? kNone : NumberOf(std::move(next));
  if (!exhausted()) rows_[RowOf(state) + classes_[byte]] = number;
  return number;
}

void GrammarAutomaton::Reach(uint32_t node, uint32_t call, StateOf* to) {
  open_.assign(1, {.node = node, .call = call});
  while (!open_.empty()) {
    const Place at = open_.back();
    open_.pop_back();
    const uint32_t needs = depths_[at.node];
    if (needs == kDead || calls_[at.call].depth + needs > kMaxDepth) continue;
    if (!seen_.insert(Pair(at.node, at.call)).second) continue;
    if (++work_ > most_work_) {
      out_of_work_ = true;
      return;
    }
    const Node& here = nodes_[at.node];
    switch (here.kind) {
      case NodeKind::kByte:
        to->places.push_back(at);
        break;
      case NodeKind::kSplit:
        open_.push_back({.node = here.next, .call = at.call});
        open_.push_back({.node = here.with, .call = at.call});
        break;
      case NodeKind::kCall: {
        const bool last = nodes_[here.next].kind == NodeKind::kReturn;
        open_.push_back({.node = rules_[here.with],
                         .call = last ? at.call : CallOf(here.next, at.call)});
        break;
      }
      case NodeKind::kReturn:
        if (at.call == kNoCall) {
          to->may_end = true;
        } else {
          const Call& made = calls_[at.call];
          open_.push_back({.node = made.returns_to, .call = made.within});
        }
        break;
      case NodeKind::kNever:
        break;
    }
  }
}

uint32_t GrammarAutomaton::CallOf(uint32_t returns_to, uint32_t within) {
  const auto [it, is_new] = call_numbers_.try_emplace(
      Pair(returns_to, within), static_cast<uint32_t>(calls_.size()));
  if (is_new) {
    calls_.push_back({.returns_to = returns_to,
                      .within = within,
                      .depth = calls_[within].depth + 1});
    if (calls_.size() > kMaxCalls) out_of_room_ = true;
  }
  return it->second;
}

GrammarAutomaton::State GrammarAutomaton::NumberOf(StateOf state) {
  std::sort(state.places.begin(), state.places.end());
  const auto key = [](const StateOf& of) {
    return absl::string_view(reinterpret_cast<const char*>(of.places.data()),
                             of.places.size() * sizeof(Place));
  };
  if (const auto found = numbers_.find(key(state));
      found != numbers_.end() && found->second[state.may_end] != kNone) {
    return found->second[state.may_end];
  }
  if (states_.size() >= MaxStates() ||
      num_places_ + state.places.size() > kMaxPlaces) {
    out_of_room_ = true;
    return kNone;
  }
  const State number = static_cast<State>(states_.size());
  num_places_ += state.places.size();
  const bool may_end = state.may_end;
  states_.push_back(std::move(state));
  numbers_.try_emplace(key(states_.back()), std::array{kNone, kNone})
      .first->second[may_end] = number;
  rows_.resize(rows_.size() + num_classes_, kUnknown);
  return number;
}

absl::StatusOr<bool> Matches(const Grammar& grammar, absl::string_view text) {
  auto automaton = GrammarAutomaton::Make(grammar);
  if (!automaton.ok()) return automaton.status();
  (*automaton)->StartWork(SIZE_MAX);
  const GrammarAutomaton::State end =
      (*automaton)->Next((*automaton)->start(), text);
  if ((*automaton)->exhausted()) {
    return absl::ResourceExhaustedError("has too many states");
  }
  return end != GrammarAutomaton::kNone && (*automaton)->MayEnd(end);
}

}  // namespace baton::scheduling
