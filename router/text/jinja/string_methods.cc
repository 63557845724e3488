// methods.h: Python's str. What cuts and searches is in string_cutting.cc.

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/format.h"
#include "router/text/jinja/methods.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/string_cutting.h"
#include "router/text/unicode.h"

namespace baton::router::jinja {
namespace {

// A method without arguments that maps the whole text.
template <std::string (*kMap)(absl::string_view)>
absl::StatusOr<Value> MappedText(Run& run, const Value& self, CallArgs& args) {
  BATON_RETURN_IF_ERROR(Bound::Bind("a str method", args, {}, 0).status());
  BATON_RETURN_IF_ERROR(run.SpendText(8 * self.text().size()));
  return run.String(kMap(self.text()), self.is_safe());
}

template <bool (*kTest)(absl::string_view)>
absl::StatusOr<Value> Tested(Run& run, const Value& self, CallArgs& args) {
  BATON_RETURN_IF_ERROR(Bound::Bind("a str method", args, {}, 0).status());
  BATON_RETURN_IF_ERROR(run.SpendText(8 * self.text().size()));
  return Value::Bool(kTest(self.text()));
}

// Whether the text is not empty and all of it passes.
template <bool (*kTest)(char32_t)>
bool All(absl::string_view text) {
  const std::u32string all = Decode(text);
  return !all.empty() && std::all_of(all.begin(), all.end(), kTest);
}

bool IsAlnum(char32_t c) { return c != '_' && IsWordCharacterOfRe(c); }
bool IsAlpha(char32_t c) { return IsAlnum(c) && !IsNumeric(c); }
bool IsAsciiDigit(char32_t c) { return c >= '0' && c <= '9'; }
// Of the digits of all scripts, the ones that JSON and people write.
bool IsUnicodeDigit(char32_t c) {
  return IsAsciiDigit(c) || (c >= 0x80 && IsNumeric(c));
}
bool AllPrintable(absl::string_view text) {
  return text.empty() || All<IsPrintable>(text);
}
bool IsIdentifier(absl::string_view text) {
  return All<IsWordCharacterOfRe>(text) && !IsAsciiDigit(Decode(text)[0]);
}
bool IsTitle(absl::string_view text) {
  return (IsLower(ToLower(text)) || IsUpper(ToUpper(text))) &&
         ToTitle(text) == text;
}

enum class Justify { kLeft, kRight, kCenter };

template <Justify kJustify>
absl::StatusOr<Value> Justified(Run& run, const Value& self, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("ljust, rjust or center", args, {"width", "fillchar"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 0));
  BATON_ASSIGN_OR_RETURN(const std::string fill, bound.Text(1, " "));
  if (CodePoints(fill) != 1) {
    return Error("The fill character must be exactly one character long");
  }
  const int64_t missing = width - self.text_length();
  if (missing <= 0) return self;
  BATON_RETURN_IF_ERROR(run.CheckLength(static_cast<uint64_t>(missing)));
  BATON_RETURN_IF_ERROR(run.CheckLength(
      self.text().size() + static_cast<uint64_t>(missing) * fill.size()));
  // As CPython rounds.
  const int64_t left = kJustify == Justify::kLeft ? 0
                       : kJustify == Justify::kRight
                           ? missing
                           : missing / 2 + (missing & width & 1);
  std::string out;
  for (int64_t i = 0; i < left; ++i) out += fill;
  out += self.text();
  for (int64_t i = left; i < missing; ++i) out += fill;
  return run.String(std::move(out), self.is_safe());
}

absl::StatusOr<Value> ZeroFill(Run& run, const Value& self, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("zfill", args, {"width"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 0));
  const int64_t missing = width - self.text_length();
  if (missing <= 0) return self;
  BATON_RETURN_IF_ERROR(
      run.CheckLength(self.text().size() + static_cast<uint64_t>(missing)));
  const std::string& text = self.text();
  const bool has_sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  const size_t sign = has_sign ? 1 : 0;
  return run.String(absl::StrCat(text.substr(0, sign),
                                 std::string(static_cast<size_t>(missing), '0'),
                                 text.substr(sign)),
                    self.is_safe());
}

absl::StatusOr<Value> ExpandTabs(Run& run, const Value& self, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("expandtabs", args, {"tabsize"}, 0));
  BATON_ASSIGN_OR_RETURN(const int64_t size, bound.Int(0, 8));
  const auto tabs = static_cast<uint64_t>(
      std::count(self.text().begin(), self.text().end(), '\t'));
  BATON_RETURN_IF_ERROR(
      run.CheckLength(static_cast<uint64_t>(std::max<int64_t>(size, 0))));
  BATON_RETURN_IF_ERROR(run.CheckLength(
      self.text().size() +
      tabs * static_cast<uint64_t>(std::max<int64_t>(size, 0))));
  std::string out;
  int64_t column = 0;
  for (const char c : self.text()) {
    if (c == '\t') {
      const int64_t width = size > 0 ? size - column % size : 0;
      out.append(static_cast<size_t>(width), ' ');
      column += width;
      continue;
    }
    out.push_back(c);
    // A continuation of a character takes no column.
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) ++column;
    if (c == '\n' || c == '\r') column = 0;
  }
  return run.String(std::move(out), self.is_safe());
}

absl::StatusOr<Value> FormatMethod(Run& run, const Value& self,
                                   CallArgs& args) {
  return FormatBraces(run, self, args);
}

absl::StatusOr<Value> FormatMap(Run& run, const Value& self, CallArgs& args) {
  if (args.positional.size() != 1 || !args.positional[0].is_dict()) {
    return Error("format_map() takes a mapping");
  }
  CallArgs named;
  for (const auto& [key, value] : args.positional[0].dict().entries) {
    if (key.is_string()) named.named.emplace_back(key.text(), value);
  }
  return FormatBraces(run, self, named);
}

absl::StatusOr<Value> JoinMethod(Run& run, const Value& self, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("join", args, {"iterable"}, 1));
  if (bound.Get(0)->is_undefined()) return run.String("", self.is_safe());
  BATON_ASSIGN_OR_RETURN(const Values items, Items(run, *bound.Get(0)));
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    const Value& item = items[i];
    if (!item.is_string()) {
      return Error(absl::StrCat("sequence item ", i,
                                ": expected str instance, ", item.type_name(),
                                " found"));
    }
    BATON_RETURN_IF_ERROR(
        run.SpendText(item.text().size() + self.text().size()));
    BATON_RETURN_IF_ERROR(run.CheckLength(out.size() + self.text().size() +
                                          6 * item.text().size()));
    if (i > 0) out += self.text();
    out += self.is_safe() && !item.is_safe() ? EscapeHtml(item.text())
                                             : item.text();
  }
  return run.String(std::move(out), self.is_safe());
}

}  // namespace

Method FindStringMethod(absl::string_view name) {
  static const auto* methods =
      new absl::flat_hash_map<absl::string_view, Method>{
          {"capitalize", MappedText<Capitalize>},
          {"casefold", MappedText<CaseFold>},
          {"center", Justified<Justify::kCenter>},
          {"count", StringCount},
          {"endswith", StringEndsWith},
          {"expandtabs", ExpandTabs},
          {"find", StringFind},
          {"format", FormatMethod},
          {"format_map", FormatMap},
          {"index", StringIndex},
          {"isalnum", Tested<All<IsAlnum>>},
          {"isalpha", Tested<All<IsAlpha>>},
          {"isascii", Tested<IsAscii>},
          {"isdecimal", Tested<All<IsUnicodeDigit>>},
          {"isdigit", Tested<All<IsUnicodeDigit>>},
          {"isidentifier", Tested<IsIdentifier>},
          {"islower", Tested<IsLower>},
          {"isnumeric", Tested<All<IsNumeric>>},
          {"isprintable", Tested<AllPrintable>},
          {"isspace", Tested<All<IsSpace>>},
          {"istitle", Tested<IsTitle>},
          {"isupper", Tested<IsUpper>},
          {"join", JoinMethod},
          {"ljust", Justified<Justify::kLeft>},
          {"lower", MappedText<ToLower>},
          {"lstrip", StringLeftStrip},
          {"partition", StringPartition},
          {"removeprefix", StringRemovePrefix},
          {"removesuffix", StringRemoveSuffix},
          {"replace", StringReplace},
          {"rfind", StringFindLast},
          {"rindex", StringIndexLast},
          {"rjust", Justified<Justify::kRight>},
          {"rpartition", StringPartitionLast},
          {"rsplit", StringSplitLast},
          {"rstrip", StringRightStrip},
          {"split", StringSplit},
          {"splitlines", StringSplitLines},
          {"startswith", StringStartsWith},
          {"strip", StringStrip},
          {"swapcase", MappedText<SwapCase>},
          {"title", MappedText<ToTitle>},
          {"upper", MappedText<ToUpper>},
          {"zfill", ZeroFill},
      };
  const auto it = methods->find(name);
  return it == methods->end() ? nullptr : it->second;
}

}  // namespace baton::router::jinja
