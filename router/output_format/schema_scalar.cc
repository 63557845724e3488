// Strings and numbers, as a schema has them.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/output_format/json_number.h"
#include "router/output_format/regular_expression.h"
#include "router/output_format/schema_writer.h"
#include "router/output_format/string_formats.h"

namespace baton::router {
namespace {

using Expression = scheduling::GrammarBuilder::Expression;
using scheduling::kAnyNumber;

constexpr int64_t kLowest = std::numeric_limits<int64_t>::min();
constexpr int64_t kHighest = std::numeric_limits<int64_t>::max();

absl::StatusOr<absl::string_view> ReadString(const SchemaNode& schema,
                                             absl::string_view keyword) {
  const SchemaJson& value = *schema.Find(keyword);
  if (!value.is_string()) {
    return schema.Invalid(keyword, "that is not a string");
  }
  return value.get_ref<const std::string&>();
}

absl::Status WritePattern(const SchemaNode& schema, TextLength length,
                          SchemaWriter* writer, SchemaWays* ways) {
  BATON_ASSIGN_OR_RETURN(const absl::string_view pattern,
                         ReadString(schema, "pattern"));
  const absl::StatusOr<Expression> text =
      WriteRegularExpression(pattern, Match::kAnywhere, Writing::kJsonString,
                             &writer->grammar(), length);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("has \"pattern\" at ", schema.Pointer(),
                                     " that ", text.status().message()));
  }
  const Expression quote = writer->grammar().Literal("\"");
  ways->push_back({writer->grammar().Sequence({quote, *text, quote}), {}});
  return absl::OkStatus();
}

absl::Status WriteFormat(const SchemaNode& schema, TextLength length,
                         SchemaWriter* writer, SchemaWays* ways) {
  BATON_ASSIGN_OR_RETURN(const absl::string_view format,
                         ReadString(schema, "format"));
  if (!FormatPattern(format).has_value()) {
    return schema.Unknown("format",
                          absl::StrCat("that is ", QuotedInSchema(format)));
  }
  const std::optional<Expression> text =
      writer->text().StringOfFormat(format, length);
  if (!text.has_value()) {
    return schema.UnknownBeside(length.least > 0 ? "minLength" : "maxLength",
                                "format");
  }
  ways->push_back({*text, {}});
  return absl::OkStatus();
}

// What a keyword says as a bound.
struct Bound {
  int64_t whole = 0;  // the bound, or the whole number below it
  bool is_whole = true;
  int beyond = 0;  // of 64 bits: -1 below them, 1 above
};

absl::StatusOr<std::optional<Bound>> ReadBound(const SchemaNode& schema,
                                               absl::string_view keyword) {
  const SchemaJson* value = schema.Find(keyword);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    return schema.Invalid(keyword, "that is not a number");
  }
  if (value->is_number_unsigned() &&
      value->get<uint64_t>() > static_cast<uint64_t>(kHighest)) {
    return Bound{.beyond = 1};
  }
  if (!value->is_number_float()) return Bound{.whole = value->get<int64_t>()};
  constexpr double kEnd = 9223372036854775808.0;  // 2^63
  const double number = value->get<double>();
  const double floor = std::floor(number);
  if (floor >= kEnd) return Bound{.beyond = 1};
  if (floor < -kEnd) return Bound{.beyond = -1};
  return Bound{.whole = static_cast<int64_t>(floor),
               .is_whole = floor == number};
}

// Raises *least, or lowers *most, to what the keywords say of integers.
absl::Status ReadIntegerBounds(const SchemaNode& schema, int64_t* least,
                               int64_t* most) {
  for (const bool exclusive : {false, true}) {
    const absl::string_view lower = exclusive ? "exclusiveMinimum" : "minimum";
    BATON_ASSIGN_OR_RETURN(const std::optional<Bound> low,
                           ReadBound(schema, lower));
    if (low.has_value() && low->beyond >= 0) {
      const bool above = exclusive || !low->is_whole;
      if (low->beyond > 0 || (above && low->whole == kHighest)) {
        return schema.Unknown(lower, "beyond 64 bits");
      }
      *least = std::max(*least, low->whole + (above ? 1 : 0));
    }
    const absl::string_view upper = exclusive ? "exclusiveMaximum" : "maximum";
    BATON_ASSIGN_OR_RETURN(const std::optional<Bound> high,
                           ReadBound(schema, upper));
    if (high.has_value() && high->beyond <= 0) {
      const bool below = exclusive && high->is_whole;
      if (high->beyond < 0 || (below && high->whole == kLowest)) {
        return schema.Unknown(upper, "beyond 64 bits");
      }
      *most = std::min(*most, high->whole - (below ? 1 : 0));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::optional<int64_t>> ReadWholeBound(
    const SchemaNode& schema, absl::string_view keyword) {
  BATON_ASSIGN_OR_RETURN(const std::optional<Bound> bound,
                         ReadBound(schema, keyword));
  if (!bound.has_value()) return std::nullopt;
  if (bound->beyond != 0) return schema.Unknown(keyword, "beyond 64 bits");
  if (!bound->is_whole) {
    return schema.Unknown(keyword, "for numbers that is not whole");
  }
  return bound->whole;
}

absl::StatusOr<NumberBounds> ReadNumberBounds(const SchemaNode& schema) {
  NumberBounds bounds;
  BATON_ASSIGN_OR_RETURN(bounds.least, ReadWholeBound(schema, "minimum"));
  BATON_ASSIGN_OR_RETURN(bounds.most, ReadWholeBound(schema, "maximum"));
  BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> above,
                         ReadWholeBound(schema, "exclusiveMinimum"));
  BATON_ASSIGN_OR_RETURN(const std::optional<int64_t> below,
                         ReadWholeBound(schema, "exclusiveMaximum"));
  if (above.has_value() && *above >= bounds.least.value_or(kLowest)) {
    bounds.least = above;
    bounds.above_least = true;
  }
  if (below.has_value() && *below <= bounds.most.value_or(kHighest)) {
    bounds.most = below;
    bounds.below_most = true;
  }
  return bounds;
}

// Narrows the bounds of integers to those of a format.
absl::Status ReadNumberFormat(const SchemaNode& schema, bool fractions,
                              int64_t* least, int64_t* most) {
  if (!schema.Has("format")) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const absl::string_view format,
                         ReadString(schema, "format"));
  // All that we write are doubles, but for what they round.
  if (format == "double" || format == "float") return absl::OkStatus();
  // Of strings: says nothing about numbers.
  if (FormatPattern(format).has_value()) return absl::OkStatus();
  if (!fractions && format == "int64") return absl::OkStatus();
  if (!fractions && format == "int32") {
    *least = std::max<int64_t>(*least, std::numeric_limits<int32_t>::min());
    *most = std::min<int64_t>(*most, std::numeric_limits<int32_t>::max());
    return absl::OkStatus();
  }
  return schema.Unknown("format",
                        absl::StrCat("that is ", QuotedInSchema(format)));
}

}  // namespace

absl::Status WriteStrings(const SchemaNode& schema, SchemaWriter* writer,
                          SchemaWays* ways) {
  BATON_ASSIGN_OR_RETURN(const uint32_t least, schema.Count("minLength", 0));
  BATON_ASSIGN_OR_RETURN(const uint32_t most,
                         schema.Count("maxLength", kAnyNumber));
  const TextLength length = {least, most};
  if (schema.Has("pattern")) {
    if (schema.Has("format")) return schema.UnknownBeside("format", "pattern");
    return WritePattern(schema, length, writer, ways);
  }
  if (schema.Has("format")) return WriteFormat(schema, length, writer, ways);
  if (least > most) return absl::OkStatus();
  scheduling::GrammarBuilder& grammar = writer->grammar();
  const Expression quote = grammar.Literal("\"");
  std::vector<Expression> parts = {quote};
  if (most > 0) {
    parts.push_back(grammar.Repeat(writer->text().Character(), least, most));
  }
  parts.push_back(quote);
  ways->push_back({grammar.Sequence(parts), {}});
  return absl::OkStatus();
}

absl::Status WriteNumberValues(const SchemaNode& schema, bool fractions,
                               SchemaWriter* writer, SchemaWays* ways) {
  // All integers are multiples of 1.
  if (const SchemaJson* multiple = schema.Find("multipleOf");
      multiple != nullptr && (fractions || *multiple != 1)) {
    return schema.Unknown("multipleOf");
  }
  int64_t least = kLowest;
  int64_t most = kHighest;
  BATON_RETURN_IF_ERROR(ReadNumberFormat(schema, fractions, &least, &most));
  if (fractions) {
    BATON_ASSIGN_OR_RETURN(const NumberBounds bounds, ReadNumberBounds(schema));
    const std::optional<Expression> numbers =
        WriteNumbers(bounds, &writer->grammar());
    if (numbers.has_value()) ways->push_back({*numbers, {}});
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(ReadIntegerBounds(schema, &least, &most));
  if (least > most) return absl::OkStatus();
  ways->push_back({WriteIntegers(least, most, &writer->grammar()), {}});
  return absl::OkStatus();
}

}  // namespace baton::router
