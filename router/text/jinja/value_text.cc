#include "router/text/jinja/value_text.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/utf8.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/python_text.h"

namespace baton::router::jinja {
namespace {

// Appends to a text, paying as it goes.
class Writer {
 public:
  Writer(Run& run, std::string* out) : run_(run), out_(*out) {}

 protected:
  absl::Status Put(absl::string_view text) {
    BATON_RETURN_IF_ERROR(run_.SpendText(text.size()));
    BATON_RETURN_IF_ERROR(run_.CheckLength(out_.size() + text.size()));
    absl::StrAppend(&out_, text);
    return absl::OkStatus();
  }

  Run& run_;
  std::string& out_;
};

class ReprWriter final : public Writer {
 public:
  using Writer::Writer;

  absl::Status Write(const Value& value) {
    switch (value.kind()) {
      case Kind::kUndefined:
        return Put("Undefined");
      case Kind::kNone:
        return Put("None");
      case Kind::kBool:
        return Put(value.as_bool() ? "True" : "False");
      case Kind::kInt:
        return Put(ReprInteger(value.as_integer()));
      case Kind::kFloat:
        return Put(ReprFloat(value.as_double()));
      case Kind::kString: {
        BATON_RETURN_IF_ERROR(run_.SpendText(8 * value.text().size()));
        const std::string repr = ReprText(value.text());
        return Put(value.is_safe() ? absl::StrCat("Markup(", repr, ")") : repr);
      }
      case Kind::kSequence:
        return WriteSequence(value.sequence());
      case Kind::kDict:
        return WriteDict(value.dict());
      case Kind::kObject: {
        // A namespace may hold itself, and each time around takes many frames.
        constexpr size_t kLevels = 25;
        std::vector<std::unique_ptr<Level>> levels;
        while (levels.size() < kLevels) {
          levels.push_back(std::make_unique<Level>(run_));
          BATON_RETURN_IF_ERROR(levels.back()->status());
        }
        BATON_ASSIGN_OR_RETURN(const std::string repr,
                               value.object()->Repr(run_));
        return Put(repr);
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status WriteSequence(const SequenceRep& sequence) {
    switch (sequence.type) {
      case SequenceType::kList:
        return WriteItems("[", sequence.items, "]");
      case SequenceType::kTuple:
      case SequenceType::kGroup:
        return WriteItems("(", sequence.items,
                          sequence.items.size() == 1 ? ",)" : ")");
      case SequenceType::kRange:
        return WriteRange(sequence.items);
      case SequenceType::kGenerator:
        return Put("<generator object>");
      case SequenceType::kKeys:
        return WriteItems("dict_keys([", sequence.items, "])");
      case SequenceType::kValues:
        return WriteItems("dict_values([", sequence.items, "])");
      case SequenceType::kItems:
        return WriteItems("dict_items([", sequence.items, "])");
    }
    return absl::OkStatus();
  }

  absl::Status WriteItems(absl::string_view open, const Values& items,
                          absl::string_view close) {
    BATON_RETURN_IF_ERROR(Put(open));
    bool first = true;
    for (const Value& item : items) {
      if (!first) BATON_RETURN_IF_ERROR(Put(", "));
      first = false;
      BATON_RETURN_IF_ERROR(Write(item));
    }
    return Put(close);
  }

  // A range as the shortest call that makes the same numbers.
  absl::Status WriteRange(const Values& items) {
    if (items.empty()) return Put("range(0, 0)");
    const Integer start = items[0].as_integer();
    const Integer step =
        items.size() > 1 ? items[1].as_integer() - start : Integer{1};
    const Integer stop = items.back().as_integer() + (step > 0 ? 1 : -1);
    std::string text =
        absl::StrCat("range(", ReprInteger(start), ", ", ReprInteger(stop));
    if (step != 1) absl::StrAppend(&text, ", ", ReprInteger(step));
    return Put(text + ")");
  }

  absl::Status WriteDict(const DictRep& dict) {
    BATON_RETURN_IF_ERROR(Put("{"));
    bool first = true;
    for (const auto& [key, value] : dict.entries) {
      if (!first) BATON_RETURN_IF_ERROR(Put(", "));
      first = false;
      BATON_RETURN_IF_ERROR(Write(key));
      BATON_RETURN_IF_ERROR(Put(": "));
      BATON_RETURN_IF_ERROR(Write(value));
    }
    return Put("}");
  }
};

void AppendEscaped(char32_t c, std::string* out) {
  if (c >= 0x10000) {
    const char32_t rest = c - 0x10000;
    absl::StrAppend(out, "\\u",
                    absl::Hex(0xD800 + (rest >> 10), absl::kZeroPad4), "\\u",
                    absl::Hex(0xDC00 + (rest & 0x3FF), absl::kZeroPad4));
  } else {
    absl::StrAppend(out, "\\u", absl::Hex(c, absl::kZeroPad4));
  }
}

std::string JsonText(absl::string_view text, bool ensure_ascii) {
  std::string out;
  out.reserve(text.size() + 2);
  out.push_back('"');
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (static_cast<unsigned char>(c) >= 0x80) {
      const Utf8Step step = NextUtf8(text, at);
      if (ensure_ascii) {
        AppendEscaped(step.code_point, &out);
      } else {
        absl::StrAppend(&out, text.substr(at, step.size));
      }
      at += step.size;
      continue;
    }
    ++at;
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          AppendEscaped(static_cast<char32_t>(c), &out);
        } else {
          out.push_back(c);
        }
    }
  }
  out.push_back('"');
  return out;
}

std::string JsonFloat(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
  return ReprFloat(number);
}

class JsonWriter final : public Writer {
 public:
  JsonWriter(Run& run, std::string* out, const JsonStyle& style)
      : Writer(run, out), style_(style) {}

  absl::Status Write(const Value& value, int level) {
    switch (value.kind()) {
      case Kind::kNone:
        return Put("null");
      case Kind::kBool:
        return Put(value.as_bool() ? "true" : "false");
      case Kind::kInt:
        return Put(ReprInteger(value.as_integer()));
      case Kind::kFloat:
        return Put(JsonFloat(value.as_double()));
      case Kind::kString:
        BATON_RETURN_IF_ERROR(run_.SpendText(8 * value.text().size()));
        return Put(JsonText(value.text(), style_.ensure_ascii));
      case Kind::kSequence:
        if (IsListOrTuple(value.sequence())) {
          return WriteList(value.sequence().items, level);
        }
        break;
      case Kind::kDict:
        return WriteDict(value.dict(), level);
      case Kind::kUndefined:
      case Kind::kObject:
        break;
    }
    return Error(absl::StrCat("Object of type ", value.type_name(),
                              " is not JSON serializable"));
  }

 private:
  static bool IsListOrTuple(const SequenceRep& sequence) {
    return sequence.type == SequenceType::kList ||
           sequence.type == SequenceType::kTuple ||
           sequence.type == SequenceType::kGroup;
  }

  absl::Status NewLine(int level) {
    if (!style_.indent.has_value()) return absl::OkStatus();
    BATON_RETURN_IF_ERROR(Put("\n"));
    for (int i = 0; i < level; ++i) BATON_RETURN_IF_ERROR(Put(*style_.indent));
    return absl::OkStatus();
  }

  absl::Status WriteList(const Values& items, int level) {
    if (items.empty()) return Put("[]");
    BATON_RETURN_IF_ERROR(Put("["));
    bool first = true;
    for (const Value& item : items) {
      if (!first) BATON_RETURN_IF_ERROR(Put(style_.item_separator));
      first = false;
      BATON_RETURN_IF_ERROR(NewLine(level + 1));
      BATON_RETURN_IF_ERROR(Write(item, level + 1));
    }
    BATON_RETURN_IF_ERROR(NewLine(level));
    return Put("]");
  }

  absl::Status WriteDict(const DictRep& dict, int level) {
    if (dict.entries.empty()) return Put("{}");
    std::vector<const DictRep::Entry*> entries;
    entries.reserve(dict.entries.size());
    for (const DictRep::Entry& entry : dict.entries) entries.push_back(&entry);
    if (style_.sort_keys) BATON_RETURN_IF_ERROR(SortByKey(&entries));
    BATON_RETURN_IF_ERROR(Put("{"));
    bool first = true;
    for (const DictRep::Entry* entry : entries) {
      if (!first) BATON_RETURN_IF_ERROR(Put(style_.item_separator));
      first = false;
      BATON_RETURN_IF_ERROR(NewLine(level + 1));
      BATON_RETURN_IF_ERROR(WriteKey(entry->first));
      BATON_RETURN_IF_ERROR(Put(style_.key_separator));
      BATON_RETURN_IF_ERROR(Write(entry->second, level + 1));
    }
    BATON_RETURN_IF_ERROR(NewLine(level));
    return Put("}");
  }

  absl::Status SortByKey(std::vector<const DictRep::Entry*>* entries) {
    absl::Status status;
    std::stable_sort(entries->begin(), entries->end(),
                     [&](const DictRep::Entry* a, const DictRep::Entry* b) {
                       if (!status.ok()) return false;
                       const auto less = Less(run_, a->first, b->first);
                       if (!less.ok()) status = less.status();
                       return less.ok() && *less;
                     });
    return status;
  }

  absl::Status WriteKey(const Value& key) {
    switch (key.kind()) {
      case Kind::kString:
        return Write(key, 0);
      case Kind::kNone:
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        BATON_RETURN_IF_ERROR(Put("\""));
        BATON_RETURN_IF_ERROR(Write(key, 0));
        return Put("\"");
      case Kind::kUndefined:
      case Kind::kSequence:
      case Kind::kDict:
      case Kind::kObject:
        break;
    }
    return Error(absl::StrCat(
        "keys must be str, int, float, bool or None, not ", key.type_name()));
  }

  const JsonStyle& style_;
};

}  // namespace

absl::Status AppendStr(Run& run, const Value& value, std::string* out) {
  if (value.is_undefined()) return absl::OkStatus();
  if (!value.is_string()) return ReprWriter(run, out).Write(value);
  BATON_RETURN_IF_ERROR(run.SpendText(value.text().size()));
  BATON_RETURN_IF_ERROR(run.CheckLength(out->size() + value.text().size()));
  out->append(value.text());
  return absl::OkStatus();
}

absl::StatusOr<std::string> Str(Run& run, const Value& value) {
  std::string out;
  BATON_RETURN_IF_ERROR(AppendStr(run, value, &out));
  return out;
}

absl::StatusOr<Value> StrValue(Run& run, const Value& value) {
  if (value.is_string()) return value;
  BATON_ASSIGN_OR_RETURN(std::string text, Str(run, value));
  return run.String(std::move(text));
}

absl::StatusOr<std::string> Repr(Run& run, const Value& value) {
  std::string out;
  BATON_RETURN_IF_ERROR(ReprWriter(run, &out).Write(value));
  return out;
}

absl::StatusOr<std::string> ToJson(Run& run, const Value& value,
                                   const JsonStyle& style) {
  std::string out;
  BATON_RETURN_IF_ERROR(JsonWriter(run, &out, style).Write(value, 0));
  return out;
}

}  // namespace baton::router::jinja
