// A made-up tokenizer for a model of random weights, in Hugging Face's format:
// byte-level BPE without merges.
//
// Ids 0..255 are the bytes, 256 and 257 the special tokens below, and each of
// the others is a word of syllables with a space before it (" bababa"). A text
// of such words has one token per word; every other text one per byte.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <string>

#include "common/ids.h"

namespace baton::model_tools {

// "<|bos|>", which the tokenizer puts before a text, and "<|eos|>".
inline constexpr TokenId kSynthBos = 256;
inline constexpr TokenId kSynthEos = 257;
inline constexpr int32_t kMinSynthVocabulary = 258;

// The text of a token above kSynthEos, with its space: " bababa".
// REQUIRES: kSynthEos < id.
std::string SynthWord(TokenId id);

// Whether the token's text is printable ASCII or a line feed.
bool IsPrintableSynthToken(TokenId id);

// The content of tokenizer.json and of tokenizer_config.json.
// REQUIRES: vocab_size >= kMinSynthVocabulary.
std::string SynthTokenizerJson(int32_t vocab_size);
std::string SynthTokenizerConfigJson(int32_t max_position);

}  // namespace baton::model_tools
