// Keeps answers to a grammar: which tokens may come next.
//
// OutputGuide is what all sequences with one grammar and vocabulary share: the
// automaton, and the tokens that it allows at each of its states, found once.
// GuidedOutput is one sequence's place in it. What is allowed depends on the
// grammar, the vocabulary and the output so far alone, so a sequence that goes
// on elsewhere is allowed the same there.
//
// Used by one thread at a time (a worker's loop).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/ids.h"
#include "common/stable_hash.h"
#include "scheduling/grammar.h"
#include "scheduling/grammar_automaton.h"
#include "scheduling/token_mask.h"
#include "scheduling/vocabulary.h"

namespace baton::scheduling {

class OutputGuide final {
 public:
  // As GrammarAutomaton::Make. REQUIRES: vocabulary->size() <= vocab_size,
  // which is the model's.
  static absl::StatusOr<std::unique_ptr<OutputGuide>> Make(
      const Grammar& grammar, std::shared_ptr<const Vocabulary> vocabulary,
      int32_t vocab_size);

  GrammarAutomaton& automaton() { return *automaton_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }

  // The tokens whose text may come next, and nothing else; null: none. States
  // that allow the same share it.
  // ResourceExhausted when finding them takes more states or time than it may.
  absl::StatusOr<std::shared_ptr<const TokenMask>> Allowed(
      GrammarAutomaton::State state);

  // The same if it was found before; else null.
  std::shared_ptr<const TokenMask> Known(GrammarAutomaton::State state) const;

  // Makes room where states or masks have become many, or anyway.
  void MakeRoom();
  void Forget();

  // Masks that were found, and not looked up, since the start.
  int64_t masks_found() const { return masks_found_; }

 private:
  OutputGuide() = default;

  std::unique_ptr<GrammarAutomaton> automaton_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  int32_t vocab_size_ = 0;
  absl::flat_hash_map<GrammarAutomaton::State, std::shared_ptr<const TokenMask>>
      masks_;
  // All of them, by what they have.
  absl::flat_hash_map<Hash128, std::shared_ptr<const TokenMask>> distinct_;
  std::vector<GrammarAutomaton::State> path_;  // of a walk
  int64_t masks_found_ = 0;
};

class GuidedOutput final {
 public:
  // What comes of a token.
  enum class Next {
    kGoesOn,    // allowed() says how
    kComplete,  // nothing may follow
  };

  // What following an output may take, in nodes of the automaton that are
  // looked at (some 40 ns each): so many at first, and so many more for each
  // token. What is known costs nothing.
  static constexpr size_t kFirstWork = 8u << 20;
  static constexpr size_t kWorkPerToken = 1u << 14;
  // Of that, for one token.
  static constexpr size_t kMostWork = 1u << 21;

  explicit GuidedOutput(std::shared_ptr<OutputGuide> guide);
  ~GuidedOutput();
  GuidedOutput(const GuidedOutput&) = delete;
  GuidedOutput& operator=(const GuidedOutput&) = delete;

  // The answer is `output` now: what Follow was told before, and perhaps tokens
  // more, none of which ends it. The next one is then to be one of allowed():
  // those that the grammar allows, and `stop` where it may be over; of them
  // only those that `among` has (null: all), and not `stop` while it must go on
  // (`may_stop` false).
  //
  // InvalidArgument when the grammar does not allow the tokens;
  // FailedPrecondition when it wants something that no token is allowed for;
  // ResourceExhausted as OutputGuide::Allowed. Nothing is allowed then.
  absl::StatusOr<Next> Follow(absl::Span<const TokenId> output,
                              absl::Span<const TokenId> stop, bool may_stop,
                              const TokenMask* among);

  // Never without a token. REQUIRES: kGoesOn was the last that Follow said.
  const TokenMask* allowed() const { return allowed_.get(); }

  // If the answer goes on with the first tokens of `guess`: what allowed() is
  // after each of them, as Follow finds it with these `stop` (where it may be
  // over) and `among`. Of those before the first that may not come, or ends the
  // answer, or behind which that was not found before: nothing is looked for.
  // REQUIRES: as allowed().
  std::vector<std::shared_ptr<const TokenMask>> LookAhead(
      absl::Span<const TokenId> guess, absl::Span<const TokenId> stop,
      const TokenMask* among) const;
  // Up to `most` tokens that may come next where the grammar leaves no choice,
  // as far as that was found before: of the text that must come, each time the
  // longest token. The model may cut it otherwise. REQUIRES: as allowed().
  std::vector<TokenId> Forced(int32_t most) const;

 private:
  absl::Status Take(absl::Span<const TokenId> output);
  // Within what following may still take.
  absl::Status TakeToken(TokenId token);
  absl::StatusOr<std::shared_ptr<const TokenMask>> FindAllowed();
  void StartWork();
  void EndWork();

  const std::shared_ptr<OutputGuide> guide_;
  // Where the output's first `taken_` tokens end.
  const GrammarAutomaton::Pin place_;
  size_t taken_ = 0;
  size_t work_left_ = kFirstWork;
  std::shared_ptr<const TokenMask> allowed_;
};

}  // namespace baton::scheduling
