// format.h: `'%s' % value`.

#include <cmath>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/arguments.h"
#include "router/text/jinja/format.h"
#include "router/text/jinja/operators.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/value_text.h"

namespace baton::router::jinja {
namespace {

class PercentFormat final {
 public:
  PercentFormat(Run& run, const Value& format, const Value& values)
      : run_(run),
        format_(format.text()),
        safe_(format.is_safe()),
        values_(values) {}

  absl::StatusOr<Value> Format() {
    while (at_ < format_.size()) {
      const size_t percent = format_.find('%', at_);
      const size_t end =
          percent == absl::string_view::npos ? format_.size() : percent;
      BATON_RETURN_IF_ERROR(Put(format_.substr(at_, end - at_)));
      at_ = end;
      if (at_ < format_.size()) BATON_RETURN_IF_ERROR(Conversion());
    }
    const bool is_mapping =
        values_.is_dict() || values_.is_sequence_of(SequenceType::kList);
    if (!is_mapping && used_ < Count()) {
      return Error("not all arguments converted during string formatting");
    }
    return run_.String(std::move(out_), safe_);
  }

 private:
  absl::Status Put(absl::string_view text) {
    BATON_RETURN_IF_ERROR(run_.SpendText(text.size()));
    BATON_RETURN_IF_ERROR(run_.CheckLength(out_.size() + text.size()));
    absl::StrAppend(&out_, text);
    return absl::OkStatus();
  }

  size_t Count() const {
    return values_.is_sequence_of(SequenceType::kTuple)
               ? values_.sequence().items.size()
               : 1;
  }

  absl::StatusOr<Value> Next() {
    if (used_ >= Count()) {
      return Error("not enough arguments for format string");
    }
    const size_t index = used_++;
    if (!values_.is_sequence_of(SequenceType::kTuple)) return values_;
    return values_.sequence().items[index];
  }

  char Letter() const { return at_ < format_.size() ? format_[at_] : '\0'; }

  absl::StatusOr<int> NumberOrStar() {
    if (Letter() != '*') return ReadNumber(format_, &at_);
    ++at_;
    BATON_ASSIGN_OR_RETURN(const Value value, Next());
    BATON_ASSIGN_OR_RETURN(const int64_t number, AsIndex(value));
    size_t at = 0;
    return ReadNumber(absl::StrCat(number < 0 ? 0 : number), &at);
  }

  absl::Status Conversion() {
    ++at_;  // '%'
    std::optional<Value> value;
    if (Letter() == '(') {
      const size_t close = format_.find(')', at_);
      if (close == absl::string_view::npos) {
        return Error("incomplete format key");
      }
      if (!values_.is_dict()) return Error("format requires a mapping");
      const absl::string_view key = format_.substr(at_ + 1, close - at_ - 1);
      const Value* const found = values_.dict().Find(key);
      if (found == nullptr) {
        return Error(absl::StrCat("KeyError: ", ReprText(ShortText(key))));
      }
      value = *found;
      at_ = close + 1;
    }
    FormatSpec spec;
    spec.align = '>';
    bool zeros = false;
    bool left = false;
    for (;
         absl::string_view("-+ #0").find(Letter()) != absl::string_view::npos &&
         Letter() != 0;
         ++at_) {
      const char flag = Letter();
      left |= flag == '-';
      zeros |= flag == '0';
      spec.alternate |= flag == '#';
      if (flag == '+' || (flag == ' ' && spec.sign != '+')) spec.sign = flag;
    }
    BATON_ASSIGN_OR_RETURN(spec.width, NumberOrStar());
    if (Letter() == '.') {
      ++at_;
      BATON_ASSIGN_OR_RETURN(spec.precision, NumberOrStar());
    }
    while (Letter() == 'l' || Letter() == 'h' || Letter() == 'L') ++at_;
    const char letter = Letter();
    if (letter == 0) return Error("incomplete format");
    ++at_;
    if (letter == '%') return Put("%");
    if (!value.has_value()) {
      BATON_ASSIGN_OR_RETURN(value, Next());
    }
    spec.type = letter;
    if (left) spec.align = '<';
    if (absl::string_view("sra").find(letter) != absl::string_view::npos) {
      return PutText(*value, spec);
    }
    if (zeros && !left) {
      spec.fill = "0";
      spec.align = '=';
    }
    return PutNumber(*value, spec);
  }

  absl::Status PutText(const Value& value, const FormatSpec& spec) {
    std::string text;
    if (spec.type == 's') {
      BATON_ASSIGN_OR_RETURN(text, Str(run_, value));
    } else {
      BATON_ASSIGN_OR_RETURN(text, Repr(run_, value));
    }
    if (spec.precision >= 0) {
      text.resize(ByteOffset(text, CodePoints(text), spec.precision));
    }
    if (safe_ && !value.is_safe()) text = EscapeHtml(text);
    return Put(Padded(text, 0, '>', spec));
  }

  absl::Status PutNumber(const Value& value, FormatSpec spec) {
    const absl::string_view kIntegers = "diuoxXc";
    const bool wants_integer =
        kIntegers.find(spec.type) != absl::string_view::npos;
    if (!wants_integer && absl::string_view("eEfFgG").find(spec.type) ==
                              absl::string_view::npos) {
      return Error(absl::StrCat("unsupported format character '",
                                std::string(1, spec.type), "'"));
    }
    if (spec.type == 'c' && value.is_string() && value.text_length() == 1) {
      return Put(Padded(value.text(), 0, '>', spec));
    }
    if (value.is_undefined()) return value.UndefinedError();
    if (!value.is_number()) {
      return Error(absl::StrCat("%", std::string(1, spec.type),
                                " format: a number is required, not ",
                                value.type_name()));
    }
    if (!wants_integer) {
      BATON_ASSIGN_OR_RETURN(
          const std::string text,
          FormatNumber(Value::Float(value.as_double()), spec));
      return Put(text);
    }
    Value whole = value;
    if (value.is_float()) {
      const double number = value.as_double();
      if (!std::isfinite(number) || std::abs(number) > 1e38 ||
          absl::string_view("diu").find(spec.type) == absl::string_view::npos) {
        return Error(absl::StrCat("%", std::string(1, spec.type),
                                  " format: an integer is required"));
      }
      whole = Value::Int(static_cast<Integer>(number));
    }
    // A precision is the least number of digits.
    if (spec.precision > 0 && spec.type != 'c') {
      FormatSpec digits = spec;
      digits.width = spec.precision + (whole.as_integer() < 0 ? 1 : 0);
      digits.precision = -1;
      digits.fill = "0";
      digits.align = '=';
      BATON_ASSIGN_OR_RETURN(const std::string text,
                             FormatNumber(whole, digits));
      spec.fill = " ";
      if (spec.align == '=') spec.align = '>';
      return Put(Padded(text, 0, '>', spec));
    }
    spec.precision = -1;
    BATON_ASSIGN_OR_RETURN(const std::string text, FormatNumber(whole, spec));
    return Put(text);
  }

  Run& run_;
  const absl::string_view format_;
  const bool safe_;
  const Value& values_;
  size_t at_ = 0;
  size_t used_ = 0;
  std::string out_;
};

}  // namespace

absl::StatusOr<Value> FormatPercent(Run& run, const Value& format,
                                    const Value& values) {
  return PercentFormat(run, format, values).Format();
}

}  // namespace baton::router::jinja
