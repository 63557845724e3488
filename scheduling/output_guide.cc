#include "scheduling/output_guide.h"

#include <span>
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
  automaton_->StartWork();
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

void OutputGuide::MakeRoom() {
  const size_t mask_bytes = static_cast<size_t>(vocab_size_) / 8;
  if (!automaton_->crowded() && !automaton_->exhausted() &&
      distinct_.size() * mask_bytes <= kMaxMaskBytes &&
      masks_.size() <= kMaxMasks) {
    return;
  }
  automaton_->Forget();
  masks_.clear();
  distinct_.clear();
}

GuidedOutput::GuidedOutput(std::shared_ptr<OutputGuide> guide)
    : guide_(std::move(guide)),
      state_(guide_->automaton().start()),
      generation_(guide_->automaton().generation()) {}

absl::Status GuidedOutput::Take(absl::Span<const TokenId> output) {
  guide_->MakeRoom();
  GrammarAutomaton& automaton = guide_->automaton();
  if (generation_ != automaton.generation()) {
    state_ = automaton.start();
    generation_ = automaton.generation();
    taken_ = 0;
  }
  CHECK_LE(taken_, output.size());
  for (; taken_ < output.size(); ++taken_) {
    const TokenId token = output[taken_];
    automaton.StartWork();
    // One without text is not part of any answer.
    const bool has_text = token < guide_->vocabulary().size() &&
                          !guide_->vocabulary().text(token).empty();
    const State next =
        has_text ? automaton.Next(state_, guide_->vocabulary().text(token))
                 : GrammarAutomaton::kNone;
    if (automaton.exhausted()) return TooMuch();
    if (next == GrammarAutomaton::kNone) {
      return absl::InvalidArgumentError(
          absl::StrCat("the output has token ", token, " at index ", taken_,
                       ", which its grammar does not allow"));
    }
    state_ = next;
  }
  return absl::OkStatus();
}

absl::StatusOr<GuidedOutput::Next> GuidedOutput::Follow(
    absl::Span<const TokenId> output, absl::Span<const TokenId> stop,
    bool may_stop, const TokenMask* among) {
  allowed_.reset();
  if (absl::Status taken = Take(output); !taken.ok()) return taken;
  const GrammarAutomaton& automaton = guide_->automaton();
  if (automaton.MustEnd(state_)) return Next::kComplete;
  auto of_grammar = guide_->Allowed(state_);
  if (!of_grammar.ok()) return of_grammar.status();
  const bool may_end = automaton.MayEnd(state_);
  std::shared_ptr<const TokenMask> allowed = *std::move(of_grammar);
  const bool changes_stop = !stop.empty() && (may_end || !may_stop);
  if (allowed != nullptr && (changes_stop || among != nullptr)) {
    TokenMask changed = *allowed;
    if (may_end && may_stop) changed.Add(stop);
    if (among != nullptr) changed.KeepOnly(*among);
    if (!may_stop) changed.Remove(stop);
    allowed = changed.num_tokens() == 0
                  ? nullptr
                  : std::make_shared<const TokenMask>(std::move(changed));
  }
  if (allowed == nullptr) {
    if (may_end) return Next::kComplete;
    return absl::FailedPreconditionError(
        "no token that may come out is one that the grammar allows next");
  }
  allowed_ = std::move(allowed);
  return Next::kGoesOn;
}

}  // namespace baton::scheduling
