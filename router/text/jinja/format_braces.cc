// format.h: `'{}'.format(value)`.

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/jinja/format.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {
namespace {

bool IsAlign(char c) { return c == '<' || c == '>' || c == '^' || c == '='; }

// [[fill]align][sign][#][0][width][grouping][.precision][type]
absl::StatusOr<FormatSpec> ParseSpec(absl::string_view text) {
  FormatSpec spec;
  size_t at = 0;
  const auto letter = [&] { return at < text.size() ? text[at] : '\0'; };
  if (!text.empty()) {
    const auto size = static_cast<size_t>(NextUtf8(text, 0).size);
    if (size < text.size() && IsAlign(text[size])) {
      spec.fill = std::string(text.substr(0, size));
      spec.align = text[size];
      at = size + 1;
    } else if (IsAlign(text[0])) {
      spec.align = text[0];
      at = 1;
    }
  }
  if (letter() == '+' || letter() == '-' || letter() == ' ') {
    spec.sign = text[at++];
  }
  if (letter() == '#') {
    spec.alternate = true;
    ++at;
  }
  if (letter() == '0') {
    if (spec.align == 0) {
      spec.fill = "0";
      spec.align = '=';
    }
    ++at;
  }
  BATON_ASSIGN_OR_RETURN(spec.width, ReadNumber(text, &at));
  if (letter() == ',' || letter() == '_') spec.grouping = text[at++];
  if (letter() == '.') {
    ++at;
    if (!absl::ascii_isdigit(letter())) {
      return Error("Format specifier missing precision");
    }
    BATON_ASSIGN_OR_RETURN(spec.precision, ReadNumber(text, &at));
  }
  if (at < text.size()) spec.type = text[at++];
  if (at < text.size()) return Error("Invalid format specifier");
  return spec;
}

absl::StatusOr<std::string> Formatted(Run& run, const Value& value,
                                      absl::string_view text) {
  if (text.empty()) return Str(run, value);
  BATON_ASSIGN_OR_RETURN(FormatSpec spec, ParseSpec(text));
  if (value.is_string()) {
    if ((spec.type != 0 && spec.type != 's') || spec.align == '=') {
      return Error(
          absl::StrCat("Unknown format code for object of type 'str'"));
    }
    std::string shown = value.text();
    if (spec.precision >= 0) {
      shown.resize(ByteOffset(shown, value.text_length(), spec.precision));
    }
    return Padded(shown, 0, '<', spec);
  }
  if (!value.is_number()) {
    return Error(absl::StrCat("unsupported format string passed to ",
                              value.type_name(), ".__format__"));
  }
  constexpr absl::string_view kTypes = "bcdeEfFgGnoxX%";
  if (spec.type != 0 && kTypes.find(spec.type) == absl::string_view::npos) {
    return Error(absl::StrCat("Unknown format code '",
                              std::string(1, spec.type),
                              "' for object of "
                              "type '",
                              value.type_name(), "'"));
  }
  return FormatNumber(value, spec);
}

class BraceFormat final {
 public:
  BraceFormat(Run& run, const CallArgs& args) : run_(run), args_(args) {}

  // `level`: a format specification may itself have fields.
  absl::Status Fill(absl::string_view format, int level, std::string* out) {
    for (size_t at = 0; at < format.size();) {
      const char c = format[at];
      const bool doubled = at + 1 < format.size() && format[at + 1] == c;
      if (c == '}' && !doubled) {
        return Error("Single '}' encountered in format string");
      }
      if ((c == '{' || c == '}') && doubled) {
        BATON_RETURN_IF_ERROR(Put(format.substr(at, 1), out));
        at += 2;
        continue;
      }
      if (c != '{') {
        const size_t end =
            std::min(format.find_first_of("{}", at), format.size());
        BATON_RETURN_IF_ERROR(Put(format.substr(at, end - at), out));
        at = end;
        continue;
      }
      size_t end = at + 1;
      for (int depth = 1; end < format.size(); ++end) {
        depth += format[end] == '{' ? 1 : format[end] == '}' ? -1 : 0;
        if (depth == 0) break;
      }
      if (end >= format.size()) {
        return Error("expected '}' before end of string");
      }
      BATON_RETURN_IF_ERROR(
          Field(format.substr(at + 1, end - at - 1), level, out));
      at = end + 1;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Put(absl::string_view text, std::string* out) {
    BATON_RETURN_IF_ERROR(run_.SpendText(text.size()));
    BATON_RETURN_IF_ERROR(run_.CheckLength(out->size() + text.size()));
    absl::StrAppend(out, text);
    return absl::OkStatus();
  }

  // NAME[!r][:spec]
  absl::Status Field(absl::string_view field, int level, std::string* out) {
    if (level >= 2) return Error("Max string recursion exceeded");
    const size_t end = std::min(field.find_first_of(":!"), field.size());
    BATON_ASSIGN_OR_RETURN(Value value, Lookup(field.substr(0, end)));
    absl::string_view rest = field.substr(end);
    if (!rest.empty() && rest[0] == '!') {
      if (rest.size() < 2 || (rest.size() > 2 && rest[2] != ':') ||
          (rest[1] != 's' && rest[1] != 'r' && rest[1] != 'a')) {
        return Error("Unknown conversion specifier in a format string");
      }
      std::string text;
      if (rest[1] == 's') {
        BATON_ASSIGN_OR_RETURN(text, Str(run_, value));
      } else {
        BATON_ASSIGN_OR_RETURN(text, Repr(run_, value));
      }
      BATON_ASSIGN_OR_RETURN(value, run_.String(std::move(text)));
      rest.remove_prefix(2);
    }
    std::string spec;
    if (!rest.empty()) {
      BATON_RETURN_IF_ERROR(Fill(rest.substr(1), level + 1, &spec));
    }
    BATON_ASSIGN_OR_RETURN(const std::string text,
                           Formatted(run_, value, spec));
    return Put(text, out);
  }

  // An argument by place or name, and what is in it: "0.a[b]".
  absl::StatusOr<Value> Lookup(absl::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    BATON_ASSIGN_OR_RETURN(Value value, Argument(name.substr(0, end)));
    absl::string_view rest = name.substr(end);
    while (!rest.empty()) {
      if (rest[0] == '.') {
        const size_t stop = std::min(rest.find_first_of(".[", 1), rest.size());
        BATON_ASSIGN_OR_RETURN(
            value, GetAttribute(run_, value, rest.substr(1, stop - 1)));
        rest.remove_prefix(stop);
        continue;
      }
      const size_t close = rest.find(']');
      if (rest[0] != '[' || close == absl::string_view::npos) {
        return Error("Missing ']' in format string");
      }
      const absl::string_view key = rest.substr(1, close - 1);
      Value index = Value::Constant(std::string(key));
      bool too_large = false;
      if (const auto number = ParseInteger(key, 10, &too_large)) {
        index = Value::Int(*number);
      }
      BATON_ASSIGN_OR_RETURN(value, GetItem(run_, value, index));
      rest.remove_prefix(close + 1);
    }
    return value;
  }

  absl::StatusOr<Value> Argument(absl::string_view name) {
    bool too_large = false;
    const std::optional<Integer> place =
        name.empty() ? std::optional<Integer>(next_++)
                     : ParseInteger(name, 10, &too_large);
    if (place.has_value()) {
      if (*place < 0 ||
          *place >= static_cast<Integer>(args_.positional.size())) {
        return Error(
            "Replacement index out of range for positional args tuple");
      }
      return args_.positional[static_cast<size_t>(*place)];
    }
    for (const auto& [each, value] : args_.named) {
      if (each == name) return value;
    }
    return Error(absl::StrCat("KeyError: ", ReprText(ShortText(name))));
  }

  Run& run_;
  const CallArgs& args_;
  int next_ = 0;
};

}  // namespace

absl::StatusOr<Value> FormatBraces(Run& run, const Value& format,
                                   const CallArgs& args) {
  std::string out;
  BATON_RETURN_IF_ERROR(
      BraceFormat(run, args).Fill(format.text(), /*level=*/0, &out));
  return run.String(std::move(out), format.is_safe());
}

}  // namespace baton::router::jinja
