#include "router/output_format/json_text.h"

#include <cstdint>
#include <limits>

#include "common/log.h"
#include "router/output_format/characters.h"
#include "router/output_format/json_number.h"
#include "router/output_format/regular_expression.h"
#include "router/output_format/string_formats.h"

namespace baton::router {
namespace {

using Expression = scheduling::GrammarBuilder::Expression;
using scheduling::ByteSet;
using scheduling::GrammarBuilder;
using scheduling::kAnyNumber;

// More than any indentation needs, and an end for models that would write
// spaces for ever.
constexpr uint32_t kMaxSpaces = 32;

Expression OneOf(absl::string_view bytes, GrammarBuilder* grammar) {
  ByteSet set;
  for (const char c : bytes) set.set(static_cast<uint8_t>(c));
  return grammar->Byte(set);
}

// What comes behind \u: four digits, or a surrogate pair's first four, \u and
// the others.
Expression WriteUnicodeEscape(GrammarBuilder* grammar) {
  const Expression digit = OneOf("0123456789abcdefABCDEF", grammar);
  const Expression d = OneOf("dD", grammar);
  const Expression other =
      grammar->Sequence({OneOf("0123456789abcefABCEF", grammar), digit});
  const Expression below = grammar->Sequence({d, grammar->ByteRange('0', '7')});
  const Expression high = grammar->Sequence({d, OneOf("89abAB", grammar)});
  const Expression low = grammar->Sequence({d, OneOf("cdefCDEF", grammar)});
  const Expression pair =
      grammar->Sequence({high, digit, digit, grammar->Literal("\\u"), low});
  return grammar->Sequence(
      {grammar->Choice({other, below, pair}), digit, digit});
}

}  // namespace

template <typename Write>
Expression JsonText::Shared(std::optional<Expression>* slot, Write write) {
  if (!slot->has_value()) {
    const Rule rule = grammar_.NewRule();
    // Before it is written: it may need itself.
    *slot = grammar_.Call(rule);
    grammar_.Define(rule, write());
  }
  return **slot;
}

Expression JsonText::Space() {
  return Shared(&space_, [this] {
    const Expression spaces =
        grammar_.Repeat(grammar_.Literal(" "), 0, kMaxSpaces);
    return grammar_.Optional(
        grammar_.Choice({grammar_.Literal(" "),
                         grammar_.Sequence({grammar_.Literal("\n"), spaces})}));
  });
}

Expression JsonText::Comma() {
  return Shared(&comma_, [this] {
    return grammar_.Sequence({Space(), grammar_.Literal(","), Space()});
  });
}

Expression JsonText::Colon() {
  return Shared(&colon_, [this] {
    return grammar_.Sequence({Space(), grammar_.Literal(":"), Space()});
  });
}

Expression JsonText::Between(absl::string_view open, Expression inside,
                             absl::string_view close) {
  return grammar_.Sequence({grammar_.Literal(open), Space(), inside, Space(),
                            grammar_.Literal(close)});
}

Expression JsonText::Character() {
  return Shared(&character_, [this] {
    CharacterSet escaped;
    escaped.Add(0, 0x1F);
    escaped.Add('"', '"');
    escaped.Add('\\', '\\');
    const Expression unicode = grammar_.Sequence(
        {grammar_.Literal("u"), WriteUnicodeEscape(&grammar_)});
    const Expression escape = grammar_.Sequence(
        {grammar_.Literal("\\"),
         grammar_.Choice({OneOf("\"\\/bfnrt", &grammar_), unicode})});
    return grammar_.Choice(
        {WriteCharacter(escaped.Complement(), Writing::kJsonString, &grammar_),
         escape});
  });
}

Expression JsonText::StringEnd() {
  return Shared(&string_end_, [this] {
    return grammar_.Sequence(
        {grammar_.Repeat(Character(), 0, kAnyNumber), grammar_.Literal("\"")});
  });
}

Expression JsonText::String() {
  return Shared(&string_, [this] {
    return grammar_.Sequence({grammar_.Literal("\""), StringEnd()});
  });
}

Expression JsonText::Integer() {
  return Shared(&integer_, [this] {
    return WriteIntegers(std::numeric_limits<int64_t>::min(),
                         std::numeric_limits<int64_t>::max(), &grammar_);
  });
}

Expression JsonText::Number() {
  return Shared(&number_, [this] { return *WriteNumbers({}, &grammar_); });
}

Expression JsonText::Boolean() {
  return Shared(&boolean_, [this] {
    return grammar_.Choice(
        {grammar_.Literal("true"), grammar_.Literal("false")});
  });
}

Expression JsonText::Null() {
  return Shared(&null_, [this] { return grammar_.Literal("null"); });
}

Expression JsonText::Array() {
  return Shared(&array_, [this] {
    const Expression more = grammar_.Sequence({Comma(), Value()});
    const Expression values =
        grammar_.Sequence({Value(), grammar_.Repeat(more, 0, kAnyNumber)});
    return grammar_.Choice({grammar_.Literal("[]"), Between("[", values, "]")});
  });
}

Expression JsonText::Object() {
  return Shared(&object_, [this] {
    const Expression member = grammar_.Sequence({String(), Colon(), Value()});
    const Expression more = grammar_.Sequence({Comma(), member});
    const Expression members =
        grammar_.Sequence({member, grammar_.Repeat(more, 0, kAnyNumber)});
    return grammar_.Choice(
        {grammar_.Literal("{}"), Between("{", members, "}")});
  });
}

Expression JsonText::Value() {
  return Shared(&value_, [this] {
    return grammar_.Choice(
        {Object(), Array(), String(), Number(), Boolean(), Null()});
  });
}

std::optional<Expression> JsonText::StringOfFormat(absl::string_view format,
                                                   TextLength length) {
  const std::optional<absl::string_view> pattern = FormatPattern(format);
  CHECK(pattern.has_value()) << format;
  const auto write = [this](absl::string_view text, TextLength of_length) {
    return WriteRegularExpression(text, Match::kWhole, Writing::kJsonString,
                                  &grammar_, of_length);
  };
  const auto quoted = [this](Expression text) {
    return grammar_.Sequence(
        {grammar_.Literal("\""), text, grammar_.Literal("\"")});
  };
  if (length.any()) {
    // By its pattern, which lives for ever.
    return Shared(&formats_[*pattern], [&] {
      const absl::StatusOr<Expression> text = write(*pattern, length);
      CHECK(text.ok()) << *pattern << " " << text.status();
      return quoted(*text);
    });
  }
  absl::StatusOr<Expression> text = write(*pattern, length);
  if (!text.ok()) {
    const std::optional<std::string> shorter =
        ShorterFormatPattern(format, length.least, length.most);
    if (!shorter.has_value()) return std::nullopt;
    text = write(*shorter, {});
    CHECK(text.ok()) << *shorter << " " << text.status();
  }
  return quoted(*text);
}

}  // namespace baton::router
