#include "router/text/decoder_stages.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/utf8.h"
#include "router/text/byte_alphabet.h"
#include "router/text/byte_token.h"
#include "router/text/normalizer.h"

namespace baton::router {

void JoinWithSpacesStage::Text(absl::string_view text) {
  if (!in_token_ && after_token_) next_->Text(" ");
  in_token_ = true;
  next_->Text(text);
}

void JoinWithSpacesStage::EndToken() {
  if (!in_token_) Text("");
  in_token_ = false;
  after_token_ = true;
  next_->EndToken();
}

void ReplaceStage::WholeToken(const std::string& token) {
  const absl::StatusOr<std::string> replaced =
      ReplaceMatches(pattern_, content_, token);
  // A pattern that backtracks beyond its bound leaves the token as it is.
  Emit(replaced.ok() ? *replaced : token);
}

void MetaspaceStage::WholeToken(const std::string& token) {
  std::string text;
  size_t at = 0;
  while (at < token.size()) {
    if (absl::StartsWith(absl::string_view(token).substr(at), replacement_)) {
      if (!drops_next_) text.push_back(' ');
      at += replacement_.size();
    } else {
      text.push_back(token[at++]);
    }
  }
  drops_next_ = false;
  Emit(text);
}

void ByteLevelStage::WholeToken(const std::string& token) {
  AppendByteLevelToken(token, &pending_);
  std::string text;
  size_t at = 0;
  while (at < pending_.size()) {
    const Utf8Step step = NextUtf8(pending_, at);
    if (step.kind == Utf8Kind::kIncomplete) break;
    absl::StrAppend(&text,
                    step.kind == Utf8Kind::kCharacter
                        ? absl::string_view(pending_).substr(at, step.size)
                        : kReplacementCharacter);
    at += step.size;
  }
  pending_.erase(0, at);
  if (!text.empty()) next_->Text(text);
}

void ByteLevelStage::Finish() {
  // An incomplete character is one ill-formed piece.
  if (!pending_.empty()) next_->Text(kReplacementCharacter);
  next_->EndToken();
  next_->Finish();
}

void ByteFallbackStage::WholeToken(const std::string& token) {
  if (const std::optional<uint8_t> byte = ByteOfToken(token)) {
    AddByte(static_cast<char>(*byte));
    return;
  }
  EndRun();
  Emit(token);
}

void ByteFallbackStage::AddByte(char byte) {
  if (broken_) {
    Emit(kReplacementCharacter);
    return;
  }
  run_.push_back(byte);
  const Utf8Step step = NextUtf8(run_, valid_);
  if (step.kind == Utf8Kind::kCharacter) valid_ += step.size;
  if (step.kind == Utf8Kind::kIllFormed) {
    broken_ = true;
    for (size_t i = 0; i < run_.size(); ++i) Emit(kReplacementCharacter);
    run_.clear();
  }
}

void ByteFallbackStage::EndRun() {
  if (!run_.empty()) {
    if (valid_ == run_.size()) {
      Emit(run_);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) Emit(kReplacementCharacter);
    }
  }
  run_.clear();
  valid_ = 0;
  broken_ = false;
}

void ByteFallbackStage::Finish() {
  EndRun();
  next_->Finish();
}

void StripStage::Text(absl::string_view text) {
  size_t at = 0;
  while (at_start_ && at < text.size()) {
    if (removed_ < start_ && absl::StartsWith(text.substr(at), content_)) {
      ++removed_;
      at += content_.size();
    } else {
      at_start_ = false;
    }
  }
  text.remove_prefix(at);
  if (text.empty()) return;
  // Hold back as many of the trailing contents as EndToken might remove.
  int64_t trailing = 0;
  absl::string_view body = text;
  while (trailing < stop_ && absl::EndsWith(body, content_)) {
    body.remove_suffix(content_.size());
    ++trailing;
  }
  if (!body.empty()) {
    for (; held_ > 0; --held_) next_->Text(content_);
    next_->Text(body);
  }
  held_ += trailing;
  for (; held_ > stop_; --held_) next_->Text(content_);
}

void StripStage::EndToken() {
  at_start_ = true;
  removed_ = 0;
  held_ = 0;
  next_->EndToken();
}

}  // namespace baton::router
