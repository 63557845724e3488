// Field names, defaults and meanings are those of AutoGPTQ, GPTQModel and
// AutoAWQ.
#include "engine/quantization_config.h"

#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/json_fields.h"
#include "engine/json_file.h"

namespace baton::engine {
namespace {

using nlohmann::json;

constexpr absl::string_view kField = "quantization_config";
constexpr int64_t kMaxGroupSize = 1 << 20;

void FailUnknown(JsonFields& fields, absl::string_view name, const json& value,
                 absl::string_view known) {
  fields.Fail(absl::UnimplementedError(absl::StrCat(fields.Where(name), " is ",
                                                    JsonExcerpt(value),
                                                    "; Baton knows ", known)));
}

// `bits_field` is what the file calls the number of bits.
void ReadGptqFields(JsonFields& fields, absl::string_view bits_field,
                    QuantizationConfig& out) {
  out.method = QuantizationConfig::Method::kGptq;
  if (out.bits != 4 && out.bits != 8) {
    FailUnknown(fields, bits_field, out.bits, "4 and 8");
  }
  const std::string format = fields.String("checkpoint_format", "gptq");
  if (format == "gptq") {
    out.zero_offset = 1;
  } else if (format != "gptq_v2") {
    FailUnknown(fields, "checkpoint_format", format,
                "\"gptq\" and \"gptq_v2\"");
  }
}

void ReadAwqFields(JsonFields& fields, absl::string_view bits_field,
                   QuantizationConfig& out) {
  out.method = QuantizationConfig::Method::kAwq;
  if (out.bits != 4) FailUnknown(fields, bits_field, out.bits, "4");
  const std::string version = fields.String("version", "gemm");
  if (absl::AsciiStrToLower(version) != "gemm") {
    FailUnknown(fields, "version", version, "\"gemm\"");
  }
}

}  // namespace

QuantizationConfig ReadQuantization(JsonFields& fields) {
  QuantizationConfig out;
  const json* const object = fields.Find(kField);
  if (object == nullptr) return out;
  if (!object->is_object()) {
    fields.FailField(kField, *object, "an object or null");
    return out;
  }
  JsonFields quantization(fields.file(), *object, absl::StrCat(kField, "."));
  const std::string method = quantization.String("quant_method", "");
  if (method != "gptq" && method != "awq") {
    FailUnknown(quantization, "quant_method", method, "\"gptq\" and \"awq\"");
  }
  // -1: all inputs are one group. Some AWQ files say w_bit and q_group_size.
  const bool old_names = quantization.Find("w_bit") != nullptr;
  const absl::string_view bits_field = old_names ? "w_bit" : "bits";
  out.bits = quantization.RequiredInt(bits_field, 1, 32);
  out.group_size = quantization.Int(old_names ? "q_group_size" : "group_size",
                                    128, -1, kMaxGroupSize);
  if (out.group_size < 0) out.group_size = 0;
  if (quantization.status().ok()) {
    if (method == "gptq") {
      ReadGptqFields(quantization, bits_field, out);
    } else {
      ReadAwqFields(quantization, bits_field, out);
    }
  }
  fields.Fail(quantization.status());
  return out;
}

}  // namespace baton::engine
