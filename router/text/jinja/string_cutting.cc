#include "router/text/jinja/string_cutting.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/python_text.h"

namespace baton::router::jinja {
namespace {

constexpr size_t kNone = std::string::npos;
// A text is not cut into more parts than this.
constexpr size_t kMaxParts = size_t{1} << 20;

// A part of a text, by bytes.
struct Window {
  size_t begin;
  size_t end;
  // Whether Python would look for anything there at all: its start is not
  // behind the text, nor its end before its start.
  bool is_valid;
};

// What the arguments `first` and `first` + 1 (start, end) leave of the text.
absl::StatusOr<Window> WindowOf(const Value& self, const Bound& bound,
                                size_t first) {
  const int64_t length = self.text_length();
  int64_t start = 0;
  int64_t end = length;
  if (const Value* const value = bound.GetUnlessNone(first)) {
    BATON_ASSIGN_OR_RETURN(start, AsIndex(*value));
  }
  if (const Value* const value = bound.GetUnlessNone(first + 1)) {
    BATON_ASSIGN_OR_RETURN(end, AsIndex(*value));
  }
  if (start < 0) start = std::max<int64_t>(0, start + length);
  if (end < 0) end = std::max<int64_t>(0, end + length);
  end = std::min(end, length);
  if (start > end) return Window{0, 0, false};
  return Window{ByteOffset(self.text(), length, start),
                ByteOffset(self.text(), length, end), true};
}

// The place of a byte, in code points.
Value PlaceOf(const Value& self, size_t byte) {
  if (byte == kNone) return Value::Int(-1);
  return Value::Int(CodePoints(absl::string_view(self.text()).substr(0, byte)));
}

absl::StatusOr<size_t> Search(Run& run, const Value& self, CallArgs& args,
                              bool last) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("find or index", args, {"sub", "start", "end"}, 1));
  BATON_ASSIGN_OR_RETURN(const std::string part, bound.Text(0, ""));
  BATON_ASSIGN_OR_RETURN(const Window window, WindowOf(self, bound, 1));
  BATON_RETURN_IF_ERROR(run.SpendText(self.text().size()));
  if (!window.is_valid) return kNone;
  const absl::string_view text =
      absl::string_view(self.text())
          .substr(window.begin, window.end - window.begin);
  const size_t found =
      last ? FindLastText(text, part, text.size()) : FindText(text, part, 0);
  return found == kNone ? kNone : found + window.begin;
}

absl::StatusOr<Value> Place(Run& run, const Value& self, CallArgs& args,
                            bool last, bool must) {
  BATON_ASSIGN_OR_RETURN(const size_t found, Search(run, self, args, last));
  if (must && found == kNone) return Error("substring not found");
  return PlaceOf(self, found);
}

// startswith and endswith, of one text or any of a tuple.
absl::StatusOr<Value> HasAtEnd(Run& run, const Value& self, CallArgs& args,
                               bool at_start) {
  const absl::string_view name = at_start ? "startswith" : "endswith";
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind(name, args, {"prefix", "start", "end"}, 1));
  const Value& wanted = *bound.Get(0);
  Values parts;
  if (wanted.is_sequence_of(SequenceType::kTuple)) {
    parts = wanted.sequence().items;
  } else {
    parts.push_back(wanted);
  }
  BATON_ASSIGN_OR_RETURN(const Window window, WindowOf(self, bound, 1));
  const absl::string_view text =
      absl::string_view(self.text())
          .substr(window.begin, window.end - window.begin);
  for (const Value& part : parts) {
    if (part.is_undefined()) return part.UndefinedError();
    if (!part.is_string()) {
      return Error(
          absl::StrCat(name, " first arg must be str or a tuple of str, not ",
                       part.type_name()));
    }
    BATON_RETURN_IF_ERROR(run.SpendText(part.text().size()));
    if (!window.is_valid) continue;
    if (at_start ? absl::StartsWith(text, part.text())
                 : absl::EndsWith(text, part.text())) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

absl::StatusOr<Value> PartitionAt(Run& run, const Value& self, CallArgs& args,
                                  bool last) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("partition", args, {"sep"}, 1));
  BATON_ASSIGN_OR_RETURN(const std::string separator, bound.Text(0, ""));
  if (separator.empty()) return Error("empty separator");
  const std::string& text = self.text();
  BATON_RETURN_IF_ERROR(run.SpendText(text.size()));
  const size_t at = last ? FindLastText(text, separator, text.size())
                         : FindText(text, separator, 0);
  std::vector<std::string> parts = {text, "", ""};
  if (at != kNone) {
    parts = {text.substr(0, at), separator, text.substr(at + separator.size())};
  } else if (last) {
    std::swap(parts[0], parts[2]);
  }
  Values values;
  for (std::string& part : parts) {
    BATON_ASSIGN_OR_RETURN(Value value,
                           run.String(std::move(part), self.is_safe()));
    values.push_back(std::move(value));
  }
  return run.Tuple(std::move(values));
}

absl::StatusOr<Value> Stripped(Run& run, const Value& self, CallArgs& args,
                               Side side) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("strip", args, {"chars"}, 0));
  BATON_RETURN_IF_ERROR(run.SpendText(2 * self.text().size()));
  std::optional<absl::string_view> chars;
  BATON_ASSIGN_OR_RETURN(const std::string given,
                         bound.GetUnlessNone(0) == nullptr
                             ? absl::StatusOr<std::string>("")
                             : bound.Text(0, ""));
  if (bound.GetUnlessNone(0) != nullptr) chars = given;
  BATON_RETURN_IF_ERROR(run.SpendText(32 * given.size()));
  const absl::string_view left = Strip(self.text(), side, chars);
  if (left.size() == self.text().size()) return self;
  return run.String(std::string(left), self.is_safe());
}

// The parts between white space; what is left after `most` cuts is one.
std::vector<absl::string_view> SplitAtSpace(absl::string_view text,
                                            int64_t most) {
  std::vector<absl::string_view> parts;
  text = Strip(text, Side::kLeft, std::nullopt);
  while (!text.empty() && parts.size() <= kMaxParts) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) >= most) {
      parts.push_back(text);
      break;
    }
    size_t end = 0;
    while (end < text.size()) {
      const Utf8Step step = NextUtf8(text, end);
      if (IsSpace(step.code_point)) break;
      end += static_cast<size_t>(step.size);
    }
    parts.push_back(text.substr(0, end));
    text = Strip(text.substr(end), Side::kLeft, std::nullopt);
  }
  return parts;
}

// The same from the right; the parts come in their order.
std::vector<absl::string_view> SplitAtSpaceLast(absl::string_view text,
                                                int64_t most) {
  std::vector<absl::string_view> parts;
  text = Strip(text, Side::kRight, std::nullopt);
  while (!text.empty() && parts.size() <= kMaxParts) {
    if (most >= 0 && static_cast<int64_t>(parts.size()) >= most) {
      parts.push_back(text);
      break;
    }
    size_t begin = text.size();
    while (begin > 0) {
      size_t before = begin - 1;
      while ((static_cast<unsigned char>(text[before]) & 0xC0) == 0x80) {
        --before;
      }
      if (IsSpace(NextUtf8(text, before).code_point)) break;
      begin = before;
    }
    parts.push_back(text.substr(begin));
    text = Strip(text.substr(0, begin), Side::kRight, std::nullopt);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<absl::string_view> SplitAt(absl::string_view text,
                                       absl::string_view separator,
                                       int64_t most) {
  std::vector<absl::string_view> parts;
  size_t from = 0;
  while ((most < 0 || static_cast<int64_t>(parts.size()) < most) &&
         parts.size() <= kMaxParts) {
    const size_t at = FindText(text, separator, from);
    if (at == kNone) break;
    parts.push_back(text.substr(from, at - from));
    from = at + separator.size();
  }
  parts.push_back(text.substr(from));
  return parts;
}

std::vector<absl::string_view> SplitAtLast(absl::string_view text,
                                           absl::string_view separator,
                                           int64_t most) {
  // All places from the right, found on the mirror of the text.
  const std::string mirror(text.rbegin(), text.rend());
  const std::string mirrored(separator.rbegin(), separator.rend());
  std::vector<absl::string_view> parts;
  for (const absl::string_view part : SplitAt(mirror, mirrored, most)) {
    const auto offset = static_cast<size_t>(part.data() - mirror.data());
    parts.push_back(
        text.substr(text.size() - offset - part.size(), part.size()));
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

absl::StatusOr<Value> ListOf(Run& run,
                             const std::vector<absl::string_view>& parts,
                             bool safe) {
  if (parts.size() > kMaxParts) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a text is cut into more than ", kMaxParts, " parts"));
  }
  BATON_RETURN_IF_ERROR(
      run.CheckRoom(parts.size(), sizeof(Value) + 2 * kStringOverhead));
  Values values;
  values.reserve(parts.size());
  for (const absl::string_view part : parts) {
    BATON_ASSIGN_OR_RETURN(Value value, run.String(std::string(part), safe));
    values.push_back(std::move(value));
  }
  return run.List(std::move(values));
}

absl::StatusOr<Value> Split(Run& run, const Value& self, CallArgs& args,
                            bool last) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("split", args, {"sep", "maxsplit"}, 0));
  BATON_ASSIGN_OR_RETURN(const int64_t most, bound.Int(1, -1));
  const std::string& text = self.text();
  BATON_RETURN_IF_ERROR(run.SpendText(4 * text.size()));
  if (bound.GetUnlessNone(0) == nullptr) {
    return ListOf(
        run, last ? SplitAtSpaceLast(text, most) : SplitAtSpace(text, most),
        self.is_safe());
  }
  BATON_ASSIGN_OR_RETURN(const std::string separator, bound.Text(0, ""));
  if (separator.empty()) return Error("empty separator");
  return ListOf(run,
                last ? SplitAtLast(text, separator, most)
                     : SplitAt(text, separator, most),
                self.is_safe());
}

}  // namespace

absl::Status CheckLines(Run& run, absl::string_view text) {
  const auto ends = std::count_if(text.begin(), text.end(), [](char c) {
    // The last bytes of U+0085, U+2028 and U+2029 among them.
    const auto byte = static_cast<unsigned char>(c);
    return byte < 0x20 || byte == 0x85 || byte == 0xA8 || byte == 0xA9;
  });
  return run.CheckRoom(static_cast<uint64_t>(ends), sizeof(absl::string_view));
}

absl::StatusOr<std::string> Replaced(Run& run, absl::string_view text,
                                     absl::string_view old,
                                     absl::string_view with, int64_t count) {
  const uint64_t most = count < 0 ? std::numeric_limits<uint64_t>::max()
                                  : static_cast<uint64_t>(count);
  BATON_RETURN_IF_ERROR(run.SpendText(2 * text.size()));
  std::string out;
  size_t from = 0;
  uint64_t done = 0;
  // An empty text stands before each character and at the end.
  while (done < most) {
    const size_t at = FindText(text, old, from);
    if (at == kNone) break;
    BATON_RETURN_IF_ERROR(run.SpendText(with.size()));
    BATON_RETURN_IF_ERROR(run.CheckLength(out.size() + with.size()));
    absl::StrAppend(&out, text.substr(from, at - from));
    absl::StrAppend(&out, with);
    from = at + old.size();
    ++done;
    if (!old.empty()) continue;
    if (from >= text.size()) break;
    const auto size = static_cast<size_t>(NextUtf8(text, from).size);
    absl::StrAppend(&out, text.substr(from, size));
    from += size;
  }
  BATON_RETURN_IF_ERROR(run.CheckLength(out.size() + text.size() - from));
  absl::StrAppend(&out, text.substr(from));
  return out;
}

absl::StatusOr<Value> StringReplace(Run& run, const Value& self,
                                    CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("replace", args, {"old", "new", "count"}, 2));
  BATON_ASSIGN_OR_RETURN(const std::string old, bound.Text(0, ""));
  BATON_ASSIGN_OR_RETURN(std::string with, bound.Text(1, ""));
  BATON_ASSIGN_OR_RETURN(const int64_t count, bound.Int(2, -1));
  if (self.is_safe() && !bound.Get(1)->is_safe()) with = EscapeHtml(with);
  BATON_ASSIGN_OR_RETURN(std::string text,
                         Replaced(run, self.text(), old, with, count));
  return run.String(std::move(text), self.is_safe());
}

absl::StatusOr<Value> StringCount(Run& run, const Value& self, CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(
      const Bound bound,
      Bound::Bind("count", args, {"sub", "start", "end"}, 1));
  BATON_ASSIGN_OR_RETURN(const std::string part, bound.Text(0, ""));
  BATON_ASSIGN_OR_RETURN(const Window window, WindowOf(self, bound, 1));
  BATON_RETURN_IF_ERROR(run.SpendText(4 * self.text().size()));
  if (!window.is_valid) return Value::Int(0);
  const absl::string_view text =
      absl::string_view(self.text())
          .substr(window.begin, window.end - window.begin);
  if (part.empty()) return Value::Int(CodePoints(text) + 1);
  int64_t count = 0;
  for (size_t at = FindText(text, part, 0); at != kNone;
       at = FindText(text, part, at + part.size())) {
    ++count;
  }
  return Value::Int(count);
}

absl::StatusOr<Value> StringFind(Run& run, const Value& self, CallArgs& args) {
  return Place(run, self, args, /*last=*/false, /*must=*/false);
}

absl::StatusOr<Value> StringFindLast(Run& run, const Value& self,
                                     CallArgs& args) {
  return Place(run, self, args, /*last=*/true, /*must=*/false);
}

absl::StatusOr<Value> StringIndex(Run& run, const Value& self, CallArgs& args) {
  return Place(run, self, args, /*last=*/false, /*must=*/true);
}

absl::StatusOr<Value> StringIndexLast(Run& run, const Value& self,
                                      CallArgs& args) {
  return Place(run, self, args, /*last=*/true, /*must=*/true);
}

absl::StatusOr<Value> StringStartsWith(Run& run, const Value& self,
                                       CallArgs& args) {
  return HasAtEnd(run, self, args, /*at_start=*/true);
}

absl::StatusOr<Value> StringEndsWith(Run& run, const Value& self,
                                     CallArgs& args) {
  return HasAtEnd(run, self, args, /*at_start=*/false);
}

absl::StatusOr<Value> StringPartition(Run& run, const Value& self,
                                      CallArgs& args) {
  return PartitionAt(run, self, args, /*last=*/false);
}

absl::StatusOr<Value> StringPartitionLast(Run& run, const Value& self,
                                          CallArgs& args) {
  return PartitionAt(run, self, args, /*last=*/true);
}

absl::StatusOr<Value> StringRemovePrefix(Run& run, const Value& self,
                                         CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("removeprefix", args, {"prefix"}, 1));
  BATON_ASSIGN_OR_RETURN(const std::string part, bound.Text(0, ""));
  if (part.empty() || !absl::StartsWith(self.text(), part)) return self;
  return run.String(self.text().substr(part.size()), self.is_safe());
}

absl::StatusOr<Value> StringRemoveSuffix(Run& run, const Value& self,
                                         CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("removesuffix", args, {"suffix"}, 1));
  BATON_ASSIGN_OR_RETURN(const std::string part, bound.Text(0, ""));
  if (part.empty() || !absl::EndsWith(self.text(), part)) return self;
  return run.String(self.text().substr(0, self.text().size() - part.size()),
                    self.is_safe());
}

absl::StatusOr<Value> StringSplit(Run& run, const Value& self, CallArgs& args) {
  return Split(run, self, args, /*last=*/false);
}

absl::StatusOr<Value> StringSplitLast(Run& run, const Value& self,
                                      CallArgs& args) {
  return Split(run, self, args, /*last=*/true);
}

absl::StatusOr<Value> StringSplitLines(Run& run, const Value& self,
                                       CallArgs& args) {
  BATON_ASSIGN_OR_RETURN(const Bound bound,
                         Bound::Bind("splitlines", args, {"keepends"}, 0));
  BATON_RETURN_IF_ERROR(run.SpendText(4 * self.text().size()));
  BATON_RETURN_IF_ERROR(CheckLines(run, self.text()));
  return ListOf(run, SplitLines(self.text(), bound.Truth(0, false)),
                self.is_safe());
}

absl::StatusOr<Value> StringStrip(Run& run, const Value& self, CallArgs& args) {
  return Stripped(run, self, args, Side::kBoth);
}

absl::StatusOr<Value> StringLeftStrip(Run& run, const Value& self,
                                      CallArgs& args) {
  return Stripped(run, self, args, Side::kLeft);
}

absl::StatusOr<Value> StringRightStrip(Run& run, const Value& self,
                                       CallArgs& args) {
  return Stripped(run, self, args, Side::kRight);
}

}  // namespace baton::router::jinja
