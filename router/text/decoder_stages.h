// The steps of a decoder as stages of a stream. Private to decoder.cc.
//
// A stage is told of the tokens that the stage before it makes: any number of
// Text() calls and one EndToken() per token, then Finish(). Text() always gets
// whole characters. A stage whose rule needs a whole token collects it; where
// an earlier stage fuses all tokens into one, such a stage has nothing to say
// before Finish().
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "router/text/text_pattern.h"

namespace baton::router {

class DecoderStage {
 public:
  explicit DecoderStage(DecoderStage* next) : next_(next) {}
  virtual ~DecoderStage() = default;

  virtual void Text(absl::string_view text) = 0;
  virtual void EndToken() = 0;
  virtual void Finish() { next_->Finish(); }

 protected:
  void Emit(absl::string_view token) {
    next_->Text(token);
    next_->EndToken();
  }

  DecoderStage* const next_;  // null for the last
};

// The end of the chain: appends everything to a string.
class CollectStage final : public DecoderStage {
 public:
  explicit CollectStage(std::string* out) : DecoderStage(nullptr), out_(out) {}
  void Text(absl::string_view text) override { absl::StrAppend(out_, text); }
  void EndToken() override {}
  void Finish() override {}

 private:
  std::string* const out_;
};

// No decoder at all: a space between tokens.
class JoinWithSpacesStage final : public DecoderStage {
 public:
  using DecoderStage::DecoderStage;
  void Text(absl::string_view text) override;
  void EndToken() override;

 private:
  bool in_token_ = false;
  bool after_token_ = false;
};

class FuseStage final : public DecoderStage {
 public:
  using DecoderStage::DecoderStage;
  void Text(absl::string_view text) override { next_->Text(text); }
  void EndToken() override {}
  void Finish() override {
    next_->EndToken();
    next_->Finish();
  }
};

// Collects whole tokens for the stages below.
class WholeTokenStage : public DecoderStage {
 public:
  using DecoderStage::DecoderStage;
  void Text(absl::string_view text) final { absl::StrAppend(&token_, text); }
  void EndToken() final {
    WholeToken(token_);
    token_.clear();
  }

 protected:
  virtual void WholeToken(const std::string& token) = 0;

 private:
  std::string token_;
};

class ReplaceStage final : public WholeTokenStage {
 public:
  ReplaceStage(DecoderStage* next, const TextPattern& pattern,
               absl::string_view content)
      : WholeTokenStage(next), pattern_(pattern), content_(content) {}

 private:
  void WholeToken(const std::string& token) override;

  const TextPattern& pattern_;
  const absl::string_view content_;
};

class MetaspaceStage final : public WholeTokenStage {
 public:
  MetaspaceStage(DecoderStage* next, absl::string_view replacement,
                 bool drops_first)
      : WholeTokenStage(next),
        replacement_(replacement),
        drops_next_(drops_first) {}

 private:
  void WholeToken(const std::string& token) override;

  const absl::string_view replacement_;
  bool drops_next_;
};

// Bytes of all tokens as one token; what is not UTF-8 becomes U+FFFD.
class ByteLevelStage final : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  void Finish() override;

 private:
  void WholeToken(const std::string& token) override;

  std::string pending_;  // the beginning of a character, at most 3 bytes
};

// Runs of tokens <0x00> to <0xFF>: their text if the whole run is UTF-8, else
// one U+FFFD per byte. So a run is not certain before it ends or goes wrong.
class ByteFallbackStage final : public WholeTokenStage {
 public:
  using WholeTokenStage::WholeTokenStage;
  void Finish() override;

 private:
  void WholeToken(const std::string& token) override;
  void AddByte(char byte);
  void EndRun();

  std::string run_;      // bytes that may still be UTF-8
  size_t valid_ = 0;     // how many of them are whole characters
  bool broken_ = false;  // the run cannot be UTF-8 any more
};

// Removes up to `start` times `content` (one character) at the start of each
// token and up to `stop` times at its end.
class StripStage final : public DecoderStage {
 public:
  StripStage(DecoderStage* next, absl::string_view content, int64_t start,
             int64_t stop)
      : DecoderStage(next), content_(content), start_(start), stop_(stop) {}
  void Text(absl::string_view text) override;
  void EndToken() override;

 private:
  const absl::string_view content_;
  const int64_t start_;
  const int64_t stop_;
  bool at_start_ = true;
  int64_t removed_ = 0;  // at the start of this token
  int64_t held_ = 0;     // at its end so far: removed if nothing follows
};

}  // namespace baton::router
