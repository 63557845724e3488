// What guided sequences of a worker share: the vocabularies that routers sent,
// and the guides of the grammars that came last.
//
// Used by the worker's loop thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include <prometheus/histogram.h>
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "baton/v1/worker.pb.h"
#include "common/ids.h"
#include "common/stable_hash.h"
#include "scheduling/output_guide.h"
#include "scheduling/sequence.h"
#include "scheduling/vocabulary.h"
#include "worker/session_leases.h"

namespace baton::worker {

// Bytes of all texts of a vocabulary.
inline constexpr size_t kMaxVocabularyBytes = 8u << 20;

// The vocabulary of a message, which takes tens of milliseconds to arrange: not
// on a loop's thread. InvalidArgument for one that is not of a model with
// `vocab_size` tokens. Any thread.
absl::StatusOr<std::shared_ptr<const scheduling::Vocabulary>> FromWire(
    const v1::Vocabulary& wire, int32_t vocab_size);

// The grammar of a message. InvalidArgument says which of its expressions is
// malformed.
absl::StatusOr<scheduling::Grammar> FromWire(const v1::Grammar& wire);

class OutputGuides final {
 public:
  // Guides that are kept for the next sequence with the same grammar.
  static constexpr size_t kMaxKept = 16;

  // `vocab_size`: the model's.
  explicit OutputGuides(int32_t vocab_size) : vocab_size_(vocab_size) {}

  // Of the router whose session that is; null: none that is any good.
  void SetVocabulary(SessionId session,
                     std::shared_ptr<const scheduling::Vocabulary> vocabulary);
  void Forget(SessionId session) { vocabularies_.erase(session); }

  // Makes what is sampled of `sequence` keep to the grammar that `spec` has;
  // does nothing where it has none. InvalidArgument names what is wrong with
  // it; FailedPrecondition for one that came before its router's vocabulary; as
  // Sequence::Guide else. The sequence is of no use then.
  absl::Status Guide(SessionId session, const v1::SequenceSpec& spec,
                     scheduling::Sequence* sequence);

 private:
  struct Kept {
    std::string grammar;  // as it came
    const scheduling::Vocabulary* vocabulary;
    std::shared_ptr<scheduling::OutputGuide> guide;
  };

  absl::StatusOr<std::shared_ptr<scheduling::OutputGuide>> Find(
      const std::shared_ptr<const scheduling::Vocabulary>& vocabulary,
      const v1::Grammar& wire);

  const int32_t vocab_size_;
  absl::flat_hash_map<SessionId, std::shared_ptr<const scheduling::Vocabulary>>
      vocabularies_;
  // The same for all routers that sent the same.
  absl::flat_hash_map<Hash128, std::weak_ptr<const scheduling::Vocabulary>>
      known_;
  std::deque<Kept> kept_;  // the last one used first
};

// Sequence::CommitSampled; of a guided one, observes what it took.
void CommitSampled(TokenId token, scheduling::Sequence* sequence,
                   prometheus::Histogram* guide_seconds);

}  // namespace baton::worker
