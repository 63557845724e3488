#include "router/text/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/uchar.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "common/utf8.h"

namespace baton::router {
namespace {

const icu::Normalizer2* FindNormalizer(NormalizationForm form,
                                       UErrorCode& error) {
  switch (form) {
    case NormalizationForm::kNfc:
      return icu::Normalizer2::getNFCInstance(error);
    case NormalizationForm::kNfd:
      return icu::Normalizer2::getNFDInstance(error);
    case NormalizationForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(error);
    case NormalizationForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(error);
  }
  LOG(FATAL) << "no such normalization form";
  return nullptr;
}

UChar32 ToIcu(char32_t code_point) { return static_cast<UChar32>(code_point); }

}  // namespace

bool IsAscii(absl::string_view text) {
  for (const char c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) return false;
  }
  return true;
}

absl::StatusOr<std::string> NormalizeUnicode(NormalizationForm form,
                                             absl::string_view text) {
  if (IsAscii(text)) return std::string(text);
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = FindNormalizer(form, error);
  std::string out;
  if (U_SUCCESS(error)) {
    icu::StringByteSink<std::string> sink(&out);
    normalizer->normalizeUTF8(
        /*options=*/0,
        icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
        /*edits=*/nullptr, error);
  }
  if (U_FAILURE(error)) {
    return absl::InternalError(
        absl::StrCat("Unicode normalization failed: ", u_errorName(error)));
  }
  return out;
}

std::string LowercaseCharacters(absl::string_view text) {
  // The only unconditional entry of SpecialCasing.txt that changes the length
  // of a lower-cased character.
  constexpr char32_t kCapitalIWithDotAbove = 0x130;
  constexpr char32_t kCombiningDotAbove = 0x307;
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = NextUtf8(text, at);
    if (step.code_point == kCapitalIWithDotAbove) {
      out.push_back('i');
      AppendUtf8(kCombiningDotAbove, &out);
    } else {
      AppendUtf8(static_cast<char32_t>(u_tolower(ToIcu(step.code_point))),
                 &out);
    }
    at += step.size;
  }
  return out;
}

bool IsWhitespace(char32_t code_point) {
  return u_isUWhiteSpace(ToIcu(code_point));
}

bool IsNumeric(char32_t code_point) {
  return (U_GET_GC_MASK(ToIcu(code_point)) & U_GC_N_MASK) != 0;
}

bool IsPunctuation(char32_t code_point) {
  if (code_point < 0x80) {
    return code_point > ' ' && code_point < 0x7F &&
           !u_isalnum(ToIcu(code_point));
  }
  return (U_GET_GC_MASK(ToIcu(code_point)) & U_GC_P_MASK) != 0;
}

bool IsWordCharacter(char32_t code_point) {
  constexpr uint32_t kCategories = U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK;
  const UChar32 c = ToIcu(code_point);
  return u_isUAlphabetic(c) || (U_GET_GC_MASK(c) & kCategories) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

}  // namespace baton::router
