// Filters that make texts.

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status_macros.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/filters.h"
#include "router/text/jinja/format.h"
#include "router/text/jinja/methods.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/string_cutting.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {
namespace {

// str(value), which keeps Markup.
absl::StatusOr<Value> TextArg(Run& run, const Bound& bound, size_t i = 0) {
  return StrValue(run, *bound.Get(i));
}

template <std::string (*kMap)(absl::string_view)>
absl::StatusOr<Value> Mapped(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("the filter", args, {"s"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, TextArg(run, bound));
  BATON_RETURN_IF_ERROR(run.SpendText(8 * text.text().size()));
  return run.String(kMap(text.text()), text.is_safe());
}

// Words begin behind white space, a hyphen or an opening bracket.
std::string TitleWords(absl::string_view text) {
  const std::u32string all = Decode(text);
  const auto is_break = [](char32_t c) {
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' ||
           IsSpace(c);
  };
  std::string out;
  for (size_t at = 0; at < all.size();) {
    const bool breaks = is_break(all[at]);
    size_t end = at;
    while (end < all.size() && is_break(all[end]) == breaks) ++end;
    const std::u32string_view piece =
        std::u32string_view(all).substr(at, end - at);
    out += ToUpper(Encode(piece.substr(0, 1)));
    out += ToLower(Encode(piece.substr(1)));
    at = end;
  }
  return out;
}

absl::StatusOr<Value> Trim(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("trim", args, {"value", "chars"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, TextArg(run, bound));
  CallArgs chars;
  if (bound.Get(1) != nullptr) chars.positional.push_back(*bound.Get(1));
  return StringStrip(run, text, chars);
}

absl::StatusOr<Value> Replace(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("replace", args, {"s", "old", "new", "count"}, 3));
  int64_t count = -1;
  if (bound.GetUnlessNone(3) != nullptr) {
    BATON_ASSIGN_OR_RETURN(count, bound.Int(3, -1));
  }
  BATON_ASSIGN_OR_RETURN(const std::string text, Str(run, *bound.Get(0)));
  BATON_ASSIGN_OR_RETURN(const std::string old, Str(run, *bound.Get(1)));
  BATON_ASSIGN_OR_RETURN(const std::string with, Str(run, *bound.Get(2)));
  BATON_ASSIGN_OR_RETURN(std::string out,
                         Replaced(run, text, old, with, count));
  return run.String(std::move(out));
}

absl::StatusOr<Value> Indent(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("indent", args, {"s", "width", "first", "blank"}, 1));
  const Value& value = *bound.Get(0);
  if (!value.is_string()) {
    // Jinja adds a line end to it.
    return ApplyBinary(run, BinaryOp::kAdd, value, Value::Constant("\n"));
  }
  std::string indention;
  if (bound.Get(1) != nullptr && bound.Get(1)->is_string()) {
    indention = bound.Get(1)->text();
  } else {
    BATON_ASSIGN_OR_RETURN(const int64_t width, bound.Int(1, 4));
    BATON_RETURN_IF_ERROR(
        run.CheckLength(static_cast<uint64_t>(std::max<int64_t>(width, 0))));
    indention.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  const bool blank = bound.Truth(3, false);
  BATON_RETURN_IF_ERROR(run.SpendText(4 * value.text().size()));
  BATON_RETURN_IF_ERROR(CheckLines(run, value.text()));
  std::string text = value.text() + "\n";
  std::string out = bound.Truth(2, false) ? indention : "";
  bool first = true;
  for (const absl::string_view line : SplitLines(text, /*keep_ends=*/false)) {
    BATON_RETURN_IF_ERROR(run.SpendText(indention.size()));
    BATON_RETURN_IF_ERROR(
        run.CheckLength(out.size() + indention.size() + line.size() + 1));
    if (!first) {
      out.push_back('\n');
      if (blank || !line.empty()) out += indention;
    }
    first = false;
    absl::StrAppend(&out, line);
  }
  return run.String(std::move(out), value.is_safe());
}

absl::StatusOr<Value> Truncate(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("truncate", args,
                  {"s", "length", "killwords", "end", "leeway"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t length, bound.Int(1, 255));
  BATON_ASSIGN_OR_RETURN(const std::string end, bound.Text(3, "..."));
  BATON_ASSIGN_OR_RETURN(const int64_t leeway, bound.GetUnlessNone(4) == nullptr
                                                   ? absl::StatusOr<int64_t>(5)
                                                   : bound.Int(4, 5));
  const Value& value = *bound.Get(0);
  BATON_ASSIGN_OR_RETURN(const int64_t size, Length(value));
  const int64_t end_size = CodePoints(end);
  if (length < end_size || leeway < 0) {
    return Error(
        absl::StrCat("expected length >= ", end_size, ", got ", length));
  }
  if (size <= length + leeway) return value;
  if (!value.is_string()) return Error("truncate takes a str");
  const std::string& text = value.text();
  BATON_RETURN_IF_ERROR(run.SpendText(text.size()));
  std::string kept = text.substr(0, ByteOffset(text, size, length - end_size));
  if (!bound.Truth(2, false)) {
    const size_t space = kept.rfind(' ');
    if (space != std::string::npos) kept.resize(space);
  }
  return run.String(kept + end, value.is_safe());
}

absl::StatusOr<Value> ToJsonFilter(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("tojson", args,
                  {"x", "ensure_ascii", "indent", "separators", "sort_keys"},
                  1));
  JsonStyle style;
  style.ensure_ascii = bound.Truth(1, false);
  style.sort_keys = bound.Truth(4, false);
  if (const Value* const indent = bound.GetUnlessNone(2)) {
    if (indent->is_string()) {
      style.indent = indent->text();
    } else {
      BATON_ASSIGN_OR_RETURN(const int64_t width, bound.Int(2, 0));
      BATON_RETURN_IF_ERROR(
          run.CheckLength(static_cast<uint64_t>(std::max<int64_t>(width, 0))));
      style.indent =
          std::string(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
    }
    style.item_separator = ",";
  }
  if (const Value* const separators = bound.GetUnlessNone(3)) {
    BATON_ASSIGN_OR_RETURN(const Values two, Items(run, *separators));
    if (two.size() != 2 || !two[0].is_string() || !two[1].is_string()) {
      return Error("tojson's separators are not two texts");
    }
    style.item_separator = two[0].text();
    style.key_separator = two[1].text();
  }
  BATON_ASSIGN_OR_RETURN(std::string text, ToJson(run, *bound.Get(0), style));
  return run.String(std::move(text));
}

absl::StatusOr<Value> Safe(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("safe", args, {"value"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, TextArg(run, bound));
  return text.WithSafe(true);
}

absl::StatusOr<Value> Escaped(Run& run, const Value& text) {
  BATON_RETURN_IF_ERROR(run.SpendText(4 * text.text().size()));
  BATON_RETURN_IF_ERROR(run.CheckLength(text.text().size()));
  return run.String(EscapeHtml(text.text()), /*safe=*/true);
}

absl::StatusOr<Value> Escape(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("escape", args, {"s"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, TextArg(run, bound));
  return text.is_safe() ? text : Escaped(run, text);
}

absl::StatusOr<Value> ForceEscape(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("forceescape", args, {"value"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, TextArg(run, bound));
  return Escaped(run, text);
}

absl::StatusOr<Value> ToStringFilter(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("string", args, {"object"}, 1));
  return TextArg(run, bound);
}

absl::StatusOr<Value> Format(Run& run, CallArgs& args) {
  if (!args.named.empty() && args.positional.size() > 1) {
    return Error(
        "can't handle positional and keyword arguments at the same time");
  }
  BATON_ASSIGN_OR_RETURN(const Value text, StrValue(run, args.positional[0]));
  if (args.named.empty()) {
    Values rest(args.positional.begin() + 1, args.positional.end());
    BATON_ASSIGN_OR_RETURN(const Value tuple, run.Tuple(std::move(rest)));
    return FormatPercent(run, text, tuple);
  }
  std::vector<DictRep::Entry> entries;
  for (auto& [name, value] : args.named) {
    BATON_ASSIGN_OR_RETURN(Value key, run.String(name));
    entries.emplace_back(std::move(key), std::move(value));
  }
  BATON_ASSIGN_OR_RETURN(const Value dict, run.Dict(std::move(entries)));
  return FormatPercent(run, text, dict);
}

absl::StatusOr<Value> Center(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("center", args, {"value", "width"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, TextArg(run, bound));
  CallArgs width;
  width.positional.push_back(bound.Get(1) == nullptr ? Value::Int(80)
                                                     : *bound.Get(1));
  return CallBuiltinMethod(run, text, "center", width);
}

absl::StatusOr<Value> WordCount(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("wordcount", args, {"s"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, TextArg(run, bound));
  BATON_RETURN_IF_ERROR(run.SpendText(8 * text.text().size()));
  int64_t count = 0;
  bool inside = false;
  for (const char32_t c : Decode(text.text())) {
    const bool is_word = IsWordCharacterOfRe(c);
    count += is_word && !inside ? 1 : 0;
    inside = is_word;
  }
  return Value::Int(count);
}

// Bytes as a URL has them; "/" stays.
absl::StatusOr<Value> UrlEncode(Run& run, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("urlencode", args, {"value"}, 1));
  const Value& value = *bound.Get(0);
  if (value.is_dict() || value.is_sequence()) {
    return Error("urlencode of lists and dicts is not supported");
  }
  BATON_ASSIGN_OR_RETURN(const std::string text, Str(run, value));
  BATON_RETURN_IF_ERROR(run.SpendText(4 * text.size()));
  std::string out;
  for (const char c : text) {
    if (absl::ascii_isalnum(c) ||
        absl::string_view("_.-~/").find(c) != absl::string_view::npos) {
      out.push_back(c);
    } else {
      absl::StrAppend(&out, "%",
                      absl::AsciiStrToUpper(absl::StrCat(absl::Hex(
                          static_cast<unsigned char>(c), absl::kZeroPad2))));
    }
  }
  return run.String(std::move(out));
}

}  // namespace

void AddTextFilters(Filters* filters) {
  *filters = {
      {"upper", Mapped<ToUpper>},
      {"lower", Mapped<ToLower>},
      {"capitalize", Mapped<Capitalize>},
      {"title", Mapped<TitleWords>},
      {"trim", Trim},
      {"replace", Replace},
      {"indent", Indent},
      {"truncate", Truncate},
      {"tojson", ToJsonFilter},
      {"safe", Safe},
      {"e", Escape},
      {"escape", Escape},
      {"forceescape", ForceEscape},
      {"string", ToStringFilter},
      {"format", Format},
      {"center", Center},
      {"wordcount", WordCount},
      {"urlencode", UrlEncode},
  };
}

}  // namespace baton::router::jinja
