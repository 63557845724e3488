#include "scheduling/output_guide.h"

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log.h"

namespace baton::scheduling {
namespace {

using State = GrammarAutomaton::State;

// Of all masks that a guide keeps; and states that have one.
constexpr size_t kMaxMaskBytes = 8u << 20;
constexpr size_t kMaxMasks = 1u << 16;

absl::Status TooMuch() {
  return absl::ResourceExhaustedError(
      "what the answer may be is described in a way that takes too long to "
      "follow");
}

// What the grammar allows, with tokens that end the answer where that may be
// over, and not while it must go on; of these, only those that `among` has
// (null: all). Null: nothing.
std::shared_ptr<const TokenMask> AllowedAmong(
    std::shared_ptr<const TokenMask> of_grammar, bool may_end,
    absl::Span<const TokenId> stop, bool may_stop, const TokenMask* among) {
  const bool changes_stop = !stop.empty() && (may_end || !may_stop);
  if (of_grammar == nullptr || (!changes_stop && among == nullptr)) {
    return of_grammar;
  }
  TokenMask changed = *of_grammar;
  if (may_end && may_stop) changed.Add(stop);
  if (among != nullptr) changed.KeepOnly(*among);
  if (!may_stop) changed.Remove(stop);
  if (changed.num_tokens() == 0) return nullptr;
  return std::make_shared<const TokenMask>(std::move(changed));
}

}  // namespace

absl::StatusOr<std::unique_ptr<OutputGuide>> OutputGuide::Make(
    const Grammar& grammar, std::shared_ptr<const Vocabulary> vocabulary,
    int32_t vocab_size) {
  CHECK_LE(vocabulary->size(), vocab_size);
  auto automaton = GrammarAutomaton::Make(grammar);
  if (!automaton.ok()) return automaton.status();
  std::unique_ptr<OutputGuide> guide(new OutputGuide);
  guide->automaton_ = *std::move(automaton);
  guide->vocabulary_ = std::move(vocabulary);
  guide->vocab_size_ = vocab_size;
  guide->path_.resize(Vocabulary::kMaxTokenBytes + 1);
  return guide;
}

absl::StatusOr<std::shared_ptr<const TokenMask>> OutputGuide::Allowed(
    State state) {
  if (const auto found = masks_.find(state); found != masks_.end()) {
    return found->second;
  }
  ++masks_found_;
  std::vector<uint32_t> words((static_cast<size_t>(vocab_size_) + 31) / 32);
  bool any = false;
  const absl::Span<const Vocabulary::Node> nodes = vocabulary_->nodes();
  const absl::Span<const TokenId> tokens = vocabulary_->tokens();
  path_[0] = state;
  for (size_t i = 0; i + 1 < nodes.size();) {
    const Vocabulary::Node& node = nodes[i];
    const State next = automaton_->Next(path_[node.depth], node.byte);
    if (next == GrammarAutomaton::kNone) {
      if (automaton_->exhausted()) return TooMuch();
      i = node.end;
      continue;
    }
    path_[node.depth + 1u] = next;
    for (uint32_t t = node.first_token; t < nodes[i + 1].first_token; ++t) {
      const auto token = static_cast<uint32_t>(tokens[t]);
      words[token / 32] |= 1u << (token % 32);
      any = true;
    }
    ++i;
  }
  std::shared_ptr<const TokenMask> mask;
  if (any) {
    std::shared_ptr<const TokenMask>& same =
        distinct_[StableHash(std::as_bytes(std::span(words)))];
    if (same == nullptr) {
      same = std::make_shared<const TokenMask>(
          TokenMask::FromWords(vocab_size_, std::move(words)));
    }
    mask = same;
  }
  masks_.emplace(state, mask);
  return mask;
}

std::shared_ptr<const TokenMask> OutputGuide::Known(State state) const {
  const auto found = masks_.find(state);
  return found == masks_.end() ? nullptr : found->second;
}

void OutputGuide::MakeRoom() {
  const size_t mask_bytes = static_cast<size_t>(vocab_size_) / 8;
  if (automaton_->crowded() || distinct_.size() * mask_bytes > kMaxMaskBytes ||
      masks_.size() > kMaxMasks) {
    Forget();
  }
}

void OutputGuide::Forget() {
  automaton_->Forget();
  masks_.clear();
  distinct_.clear();
}

GuidedOutput::GuidedOutput(std::shared_ptr<OutputGuide> guide)
    : guide_(std::move(guide)),
      place_(guide_->automaton().AddPin(guide_->automaton().start())) {}

GuidedOutput::~GuidedOutput() { guide_->automaton().RemovePin(place_); }

void GuidedOutput::StartWork() {
  guide_->automaton().StartWork(std::min(work_left_, kMostWork));
}

void GuidedOutput::EndWork() {
  // The last look may have gone beyond what was left.
  work_left_ -= std::min(work_left_, guide_->automaton().work_done());
}

absl::Status GuidedOutput::TakeToken(TokenId token) {
  GrammarAutomaton& automaton = guide_->automaton();
  // One without text is not part of any answer.
  const bool has_text = token < guide_->vocabulary().size() &&
                        !guide_->vocabulary().text(token).empty();
  for (const bool again : {false, true}) {
    if (automaton.Pinned(place_) == GrammarAutomaton::kNone) return TooMuch();
    if (!has_text) break;
    StartWork();
    const State next = automaton.Next(automaton.Pinned(place_),
                                      guide_->vocabulary().text(token));
    EndWork();
    if (automaton.out_of_work() || (automaton.out_of_room() && again)) {
      return TooMuch();
    }
    if (!automaton.out_of_room()) {
      if (next == GrammarAutomaton::kNone) break;
      automaton.MovePin(place_, next);
      return absl::OkStatus();
    }
    guide_->Forget();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the output has token ", token, " at index ", taken_,
                   ", which its grammar does not allow"));
}

absl::Status GuidedOutput::Take(absl::Span<const TokenId> output) {
  guide_->MakeRoom();
  CHECK_LE(taken_, output.size());
  for (; taken_ < output.size(); ++taken_) {
    work_left_ += kWorkPerToken;
    if (absl::Status taken = TakeToken(output[taken_]); !taken.ok()) {
      return taken;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const TokenMask>> GuidedOutput::FindAllowed() {
  GrammarAutomaton& automaton = guide_->automaton();
  StartWork();
  auto allowed = guide_->Allowed(automaton.Pinned(place_));
  EndWork();
  if (allowed.ok() || !automaton.out_of_room()) return allowed;
  // Others had the room: what may come next depends on this output alone.
  guide_->Forget();
  if (automaton.Pinned(place_) == GrammarAutomaton::kNone) return TooMuch();
  StartWork();
  allowed = guide_->Allowed(automaton.Pinned(place_));
  EndWork();
  if (automaton.out_of_room()) guide_->Forget();
  return allowed;
}

absl::StatusOr<GuidedOutput::Next> GuidedOutput::Follow(
    absl::Span<const TokenId> output, absl::Span<const TokenId> stop,
    bool may_stop, const TokenMask* among) {
  allowed_.reset();
  if (absl::Status taken = Take(output); !taken.ok()) return taken;
  const GrammarAutomaton& automaton = guide_->automaton();
  if (automaton.Pinned(place_) == GrammarAutomaton::kNone) return TooMuch();
  if (automaton.MustEnd(automaton.Pinned(place_))) return Next::kComplete;
  auto of_grammar = FindAllowed();
  if (!of_grammar.ok()) return of_grammar.status();
  const bool may_end = automaton.MayEnd(automaton.Pinned(place_));
  std::shared_ptr<const TokenMask> allowed =
      AllowedAmong(*std::move(of_grammar), may_end, stop, may_stop, among);
  if (allowed == nullptr) {
    if (may_end) return Next::kComplete;
    return absl::FailedPreconditionError(
        "no token that may come out is one that the grammar allows next");
  }
  allowed_ = std::move(allowed);
  return Next::kGoesOn;
}

std::vector<TokenId> GuidedOutput::Forced(int32_t most) const {
  // More than tokens are mostly long.
  const size_t most_bytes = 8 * static_cast<size_t>(most);
  const GrammarAutomaton& automaton = guide_->automaton();
  std::string text;
  for (State state = automaton.Pinned(place_);
       state != GrammarAutomaton::kNone && !automaton.MayEnd(state) &&
       text.size() < most_bytes;) {
    const std::optional<char> byte = automaton.OnlyKnownByte(state);
    if (!byte.has_value()) break;
    text += *byte;
    state = automaton.KnownNext(state, absl::string_view(&*byte, 1));
  }
  std::vector<TokenId> tokens;
  absl::string_view rest = text;
  while (!rest.empty() && static_cast<int32_t>(tokens.size()) < most) {
    const std::optional<TokenId> token = guide_->vocabulary().Longest(rest);
    if (!token.has_value()) break;
    tokens.push_back(*token);
    rest.remove_prefix(guide_->vocabulary().text(*token).size());
  }
  return tokens;
}

std::vector<std::shared_ptr<const TokenMask>> GuidedOutput::LookAhead(
    absl::Span<const TokenId> guess, absl::Span<const TokenId> stop,
    const TokenMask* among) const {
  const GrammarAutomaton& automaton = guide_->automaton();
  const Vocabulary& vocabulary = guide_->vocabulary();
  std::vector<std::shared_ptr<const TokenMask>> masks;
  const TokenMask* allowed = allowed_.get();
  State state = automaton.Pinned(place_);
  for (const TokenId token : guess) {
    // What has no text is none of the grammar's.
    if (token >= vocabulary.size() || !allowed->Has(token) ||
        std::find(stop.begin(), stop.end(), token) != stop.end()) {
      break;
    }
    state = automaton.KnownNext(state, vocabulary.text(token));
    if (state == GrammarAutomaton::kNone || automaton.MustEnd(state)) break;
    std::shared_ptr<const TokenMask> next =
        AllowedAmong(guide_->Known(state), automaton.MayEnd(state), stop,
                     /*may_stop=*/true, among);
    if (next == nullptr) break;
    allowed = next.get();
    masks.push_back(std::move(next));
  }
  return masks;
}

}  // namespace baton::scheduling
