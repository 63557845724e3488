// Field names, defaults and meanings are those of AutoGPTQ, GPTQModel, AutoAWQ,
// and for FP8 of Transformers ("fp8", "fbgemm_fp8"), compressed-tensors and
// NVIDIA's ModelOpt; for MXFP4 of Transformers.
#include "engine/quantization_config.h"

#include <algorithm>
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

// Two whole numbers: the outputs and inputs of a block.
void ReadBlock(JsonFields& fields, absl::string_view name,
               QuantizationConfig& out) {
  const json* const block = fields.Find(name);
  if (block == nullptr) return;
  int64_t sizes[2] = {0, 0};
  if (!block->is_array() || block->size() != 2 ||
      !JsonInt((*block)[0], 1, kMaxGroupSize, &sizes[0]) ||
      !JsonInt((*block)[1], 1, kMaxGroupSize, &sizes[1])) {
    fields.FailField(name, *block, "two positive integers");
    return;
  }
  const QuantizationConfig before = out;
  out.block_rows = static_cast<int32_t>(sizes[0]);
  out.block_columns = static_cast<int32_t>(sizes[1]);
  if (before.block_rows != 0 && (before.block_rows != out.block_rows ||
                                 before.block_columns != out.block_columns)) {
    FailUnknown(fields, name, *block, "one size of blocks in a model");
  }
}

void ExpectString(JsonFields& fields, absl::string_view name,
                  absl::string_view known) {
  const std::string value = fields.String(name, known);
  if (value != known) {
    FailUnknown(fields, name, value, absl::StrCat("\"", known, "\""));
  }
}

// Calls read(fields of the object `name`); with an error, `fields` has it.
template <typename Read>
void ReadObject(JsonFields& fields, absl::string_view prefix,
                absl::string_view name, const json* object, const Read& read) {
  if (object == nullptr || !object->is_object()) {
    fields.FailField(name, object == nullptr ? json() : *object, "an object");
    return;
  }
  JsonFields inner(fields.file(), *object, absl::StrCat(prefix, name, "."));
  read(inner, absl::StrCat(prefix, name, "."));
  fields.Fail(inner.status());
}

// Of a group of modules. How activations would be rounded is of no interest:
// they are not.
void ReadGroupWeights(JsonFields& weights, QuantizationConfig& out) {
  ExpectString(weights, "type", "float");
  const int32_t bits = weights.RequiredInt("num_bits", 1, 32);
  if (weights.status().ok() && bits != 8) {
    FailUnknown(weights, "num_bits", bits, "8");
  }
  if (!weights.Bool("symmetric", true)) {
    FailUnknown(weights, "symmetric", false, "true");
  }
  ReadBlock(weights, "block_structure", out);
}

// A name as messages have it: the file's, or which one it is.
std::string GroupName(const std::string& name, int index) {
  constexpr size_t kLongest = 40;
  const bool plain = !name.empty() && name.size() <= kLongest &&
                     std::all_of(name.begin(), name.end(), [](unsigned char c) {
                       return absl::ascii_isalnum(c) || c == '_' || c == '-';
                     });
  return plain ? name : absl::StrCat(index);
}

void ReadCompressedTensors(JsonFields& fields, const std::string& prefix,
                           QuantizationConfig& out) {
  ExpectString(fields, "format", "float-quantized");
  // What is to be done to activations while the model runs.
  const json* const transforms = fields.Find("transform_config");
  if (transforms != nullptr && !transforms->empty()) {
    FailUnknown(fields, "transform_config", *transforms, "none");
  }
  const json* const groups = fields.Find("config_groups");
  const auto read_group = [&](JsonFields& group, const std::string& of_group) {
    ReadObject(group, of_group, "weights", group.Find("weights"),
               [&](JsonFields& weights, const std::string&) {
                 ReadGroupWeights(weights, out);
               });
  };
  const auto read_groups = [&](JsonFields& all, const std::string& of_all) {
    int index = 0;
    for (auto group = groups->begin(); group != groups->end(); ++group) {
      ReadObject(all, of_all, GroupName(group.key(), index++), &group.value(),
                 read_group);
    }
  };
  ReadObject(fields, prefix, "config_groups", groups, read_groups);
}

// Whether it is one of the ways to say that matrices are FP8.
bool ReadFp8(const std::string& method, JsonFields& fields,
             const std::string& prefix, QuantizationConfig& out) {
  if (method == "fp8") {
    ExpectString(fields, "fmt", "e4m3");
    ReadBlock(fields, "weight_block_size", out);
  } else if (method == "compressed-tensors") {
    ReadCompressedTensors(fields, prefix, out);
  } else if (method == "modelopt") {
    ExpectString(fields, "quant_algo", "FP8");
  } else if (method != "fbgemm_fp8") {
    return false;
  }
  out.method = QuantizationConfig::Method::kFp8;
  return true;
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
  const std::string prefix = absl::StrCat(kField, ".");
  JsonFields quantization(fields.file(), *object, prefix);
  const std::string method = quantization.String("quant_method", "");
  if (ReadFp8(method, quantization, prefix, out)) {
    fields.Fail(quantization.status());
    return out;
  }
  if (method == "mxfp4") {
    out.method = QuantizationConfig::Method::kMxfp4;
    return out;
  }
  if (method != "gptq" && method != "awq") {
    FailUnknown(quantization, "quant_method", method,
                "\"gptq\", \"awq\", \"fp8\", \"fbgemm_fp8\", \"modelopt\", "
                "\"compressed-tensors\" and \"mxfp4\"");
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
