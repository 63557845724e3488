#include "worker/output_guides.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::worker {
namespace {

using scheduling::Grammar;
using scheduling::GrammarExpression;
using scheduling::OutputGuide;
using scheduling::Vocabulary;

constexpr size_t kByteSetBytes = 32;

absl::Status ReadExpression(const v1::GrammarExpression& wire,
                            GrammarExpression* out) {
  using Kind = GrammarExpression::Kind;
  switch (wire.kind_case()) {
    case v1::GrammarExpression::kLiteral:
      out->kind = Kind::kLiteral;
      out->literal = wire.literal();
      return absl::OkStatus();
    case v1::GrammarExpression::kByteSet:
      if (wire.byte_set().size() != kByteSetBytes) {
        return absl::InvalidArgumentError(
            absl::StrCat("has a byte_set of ", wire.byte_set().size(),
                         " bytes, it must have ", kByteSetBytes));
      }
      out->kind = Kind::kByte;
      for (size_t b = 0; b < out->bytes.size(); ++b) {
        const auto byte = static_cast<unsigned char>(wire.byte_set()[b / 8]);
        out->bytes.set(b, (byte >> (b % 8) & 1) != 0);
      }
      return absl::OkStatus();
    case v1::GrammarExpression::kSequence:
      out->kind = Kind::kSequence;
      out->parts.assign(wire.sequence().expressions().begin(),
                        wire.sequence().expressions().end());
      return absl::OkStatus();
    case v1::GrammarExpression::kChoice:
      out->kind = Kind::kChoice;
      out->parts.assign(wire.choice().expressions().begin(),
                        wire.choice().expressions().end());
      return absl::OkStatus();
    case v1::GrammarExpression::kRepeat:
      out->kind = Kind::kRepeat;
      out->parts = {wire.repeat().expression()};
      out->least = wire.repeat().least();
      out->most = wire.repeat().has_most() ? wire.repeat().most()
                                           : scheduling::kAnyNumber;
      return absl::OkStatus();
    case v1::GrammarExpression::kRule:
      out->kind = Kind::kRule;
      out->rule = wire.rule();
      return absl::OkStatus();
    case v1::GrammarExpression::KIND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("is of no kind that is known");
}

}  // namespace

absl::StatusOr<Grammar> FromWire(const v1::Grammar& wire) {
  Grammar grammar;
  // Before anything is taken.
  if (static_cast<uint32_t>(wire.expressions_size()) >
      scheduling::kMaxGrammarExpressions) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has ", wire.expressions_size(), " expressions, it may have at most ",
        scheduling::kMaxGrammarExpressions));
  }
  grammar.rules.assign(wire.rules().begin(), wire.rules().end());
  grammar.expressions.resize(static_cast<size_t>(wire.expressions_size()));
  for (int i = 0; i < wire.expressions_size(); ++i) {
    const absl::Status read =
        ReadExpression(wire.expressions(i), &grammar.expressions[i]);
    if (!read.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("expression ", i, " ", read.message()));
    }
  }
  BATON_RETURN_IF_ERROR(scheduling::Validate(grammar));
  return grammar;
}

absl::StatusOr<std::shared_ptr<const Vocabulary>> FromWire(
    const v1::Vocabulary& wire, int32_t vocab_size) {
  size_t bytes = 0;
  for (const std::string& text : wire.texts()) bytes += text.size();
  if (wire.texts().empty() || wire.texts_size() > vocab_size ||
      bytes > kMaxVocabularyBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocabulary.texts has ", wire.texts_size(), " tokens of ",
                     bytes, " bytes, it must have 1 to ", vocab_size,
                     " of at most ", kMaxVocabularyBytes));
  }
  return std::make_shared<const Vocabulary>(
      std::vector<std::string>(wire.texts().begin(), wire.texts().end()));
}

void OutputGuides::SetVocabulary(SessionId session,
                                 std::shared_ptr<const Vocabulary> vocabulary) {
  vocabularies_.erase(session);
  if (vocabulary == nullptr) return;
  CHECK_LE(vocabulary->size(), vocab_size_);
  absl::erase_if(known_, [](const auto& one) { return one.second.expired(); });
  std::weak_ptr<const Vocabulary>& known = known_[vocabulary->hash()];
  if (std::shared_ptr<const Vocabulary> same = known.lock()) {
    vocabulary = std::move(same);
  } else {
    known = vocabulary;
  }
  vocabularies_[session] = std::move(vocabulary);
}

absl::StatusOr<std::shared_ptr<OutputGuide>> OutputGuides::Find(
    const std::shared_ptr<const Vocabulary>& vocabulary,
    const v1::Grammar& wire) {
  std::string name = wire.SerializeAsString();
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Kept& kept) {
        return kept.vocabulary == vocabulary.get() && kept.grammar == name;
      });
  if (found != kept_.end()) {
    std::rotate(kept_.begin(), found, found + 1);
    return kept_.front().guide;
  }
  BATON_ASSIGN_OR_RETURN(const Grammar grammar, FromWire(wire));
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<OutputGuide> guide,
                         OutputGuide::Make(grammar, vocabulary, vocab_size_));
  if (kept_.size() >= kMaxKept) kept_.pop_back();
  kept_.push_front({.grammar = std::move(name),
                    .vocabulary = vocabulary.get(),
                    .guide = guide});
  return guide;
}

absl::Status OutputGuides::Guide(SessionId session,
                                 const v1::SequenceSpec& spec,
                                 scheduling::Sequence* sequence) {
  if (!spec.has_grammar()) return absl::OkStatus();
  const auto vocabulary = vocabularies_.find(session);
  if (vocabulary == vocabularies_.end()) {
    return absl::FailedPreconditionError(
        "sequence.grammar came before the router's vocabulary");
  }
  const auto guide = Find(vocabulary->second, spec.grammar());
  if (!guide.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence.grammar ", guide.status().message()));
  }
  const absl::Status guided = sequence->Guide(*guide);
  if (!guided.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence.grammar: ", guided.message()));
  }
  return absl::OkStatus();
}

void CommitSampled(TokenId token, scheduling::Sequence* sequence,
                   prometheus::Histogram* guide_seconds) {
  if (!sequence->guided()) {
    sequence->CommitSampled(token);
    return;
  }
  const absl::Time started = Clock::Monotonic()->Now();
  sequence->CommitSampled(token);
  guide_seconds->Observe(
      absl::ToDoubleSeconds(Clock::Monotonic()->Now() - started));
}

}  // namespace baton::worker
