#include "tests/support/emulated_device/ptx/names.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/log.h"

namespace baton::engine::cuda::emulated::ptx {

using absl::string_view;

std::optional<Type> ParseType(string_view word) {
  if (word == "pred") return Type{'p', 4};
  if (word.size() < 2 || word.size() > 3) return std::nullopt;
  int bits = 0;
  if (std::string("busf").find(word[0]) == std::string::npos ||
      !absl::SimpleAtoi(word.substr(1), &bits) ||
      (bits != 8 && bits != 16 && bits != 32 && bits != 64)) {
    return std::nullopt;
  }
  return Type{word[0], bits / 8};
}

std::vector<string_view> SplitOperands(string_view text) {
  std::vector<string_view> parts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    const char c = i < text.size() ? text[i] : ',';
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (c != ',' || (depth > 0 && i < text.size())) continue;
    const string_view part =
        absl::StripAsciiWhitespace(text.substr(begin, i - begin));
    if (!part.empty()) parts.push_back(part);
    begin = i + 1;
  }
  return parts;
}

void Names::BeginScope() {
  scopes_.emplace_back();
  scope_ids_.push_back(last_scope_++);
}

void Names::EndScope() {
  scopes_.pop_back();
  scope_ids_.pop_back();
}

void Names::Fail(string_view what) const {
  LOG(FATAL) << "PTX of " << kernel_.name << ", line " << line_ << ": " << what;
  std::abort();
}

void Names::Declare(string_view text) {
  if (absl::ConsumePrefix(&text, ".reg ")) {
    text = absl::StripLeadingAsciiWhitespace(text);
    const size_t space = text.find_first_of(" \t");
    const std::optional<Type> type = ParseType(text.substr(1, space - 1));
    if (!type) Fail(text);
    for (string_view name : absl::StrSplit(text.substr(space), ',')) {
      name = absl::StripAsciiWhitespace(name);
      name = name.substr(0, name.find('<'));
      scopes_.back()[std::string(name)] = Registers{*type, {}};
    }
    return;
  }
  if (!absl::StartsWith(text, ".local ")) Fail(text);
  const size_t open = text.find('[');
  int64_t bytes = 0;
  CHECK(absl::SimpleAtoi(text.substr(open + 1, text.size() - open - 2), &bytes))
      << text;
  const size_t name = text.rfind(' ', open);
  local_ =
      std::string(absl::StripAsciiWhitespace(text.substr(name, open - name)));
  const size_t tab = local_.rfind('\t');
  if (tab != std::string::npos) local_ = local_.substr(tab + 1);
  kernel_.local_bytes = bytes;
}

int Names::NewRegister(int bytes) {
  kernel_.widths.push_back(bytes);
  return static_cast<int>(kernel_.widths.size()) - 1;
}

int Names::PresetOf(Preset preset, int64_t value, int bytes) {
  const auto [place, added] =
      preset_numbers_.try_emplace({preset, value, bytes}, 0);
  if (added) {
    place->second = NewRegister(bytes);
    kernel_.presets.push_back({place->second, preset, value});
  }
  return place->second;
}

std::optional<int64_t> Names::ConstantOf(string_view text) const {
  bool negative = absl::ConsumePrefix(&text, "-");
  if (text.empty() || !absl::ascii_isdigit(text[0])) return std::nullopt;
  const std::string digits(text);
  const bool is_float =
      absl::StartsWith(text, "0f") || absl::StartsWith(text, "0d");
  const char* const begin = digits.c_str() + (is_float ? 2 : 0);
  const uint64_t value = std::strtoull(
      begin, nullptr, is_float || absl::StartsWith(text, "0x") ? 16 : 10);
  return static_cast<int64_t>(negative ? -value : value);
}

Names::Registers* Names::Find(const std::string& name) {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    const auto place = scope->find(name);
    if (place != scope->end()) return &place->second;
  }
  return nullptr;
}

int Names::Operand(string_view text, int bytes) {
  if (text == "_") return -1;
  if (const std::optional<int64_t> value = ConstantOf(text)) {
    return PresetOf(Preset::kConstant, *value, bytes);
  }
  static const auto* const specials = new std::map<string_view, Preset>{
      {"%tid.x", Preset::kThreadX},
      {"%ntid.x", Preset::kThreadsX},
      {"%ctaid.x", Preset::kBlockX},
      {"%ctaid.y", Preset::kBlockY},
      {"%ctaid.z", Preset::kBlockZ},
      {"%nctaid.x", Preset::kBlocksX},
      {"%cluster_ctarank", Preset::kClusterRank}};
  if (const auto special = specials->find(text); special != specials->end()) {
    return PresetOf(special->second, 0, 4);
  }
  if (Registers* one = Find(std::string(text))) return Numbered(*one, 0);
  size_t digits = text.size();
  while (digits > 0 && absl::ascii_isdigit(text[digits - 1])) --digits;
  int number = 0;
  if (absl::SimpleAtoi(text.substr(digits), &number)) {
    if (Registers* many = Find(std::string(text.substr(0, digits)))) {
      return Numbered(*many, number);
    }
  }
  if (absl::StrContains(text, "baton_shared_memory")) {
    return PresetOf(Preset::kSharedAddress, 0, bytes);
  }
  if (text == local_) return PresetOf(Preset::kLocalAddress, 0, 8);
  for (const Param& param : kernel_.params) {
    if (text == param.name) {
      return PresetOf(Preset::kParamAddress, param.offset, 8);
    }
  }
  Fail(text);
}

int Names::Numbered(Registers& registers, int number) {
  const auto [place, added] = registers.numbers.try_emplace(number, 0);
  if (added) place->second = NewRegister(registers.type.bytes);
  return place->second;
}

void Names::Address(string_view text, Instruction* out) {
  if (text.size() < 2 || text[0] != '[') Fail(text);
  text = text.substr(1, text.size() - 2);
  const size_t plus = text.find('+');
  if (plus != string_view::npos) {
    CHECK(absl::SimpleAtoi(text.substr(plus + 1), &out->offset)) << text;
    text = text.substr(0, plus);
  }
  out->operands.push_back(Operand(text, out->space == Space::kShared ? 4 : 8));
}

int Names::Operands(string_view text, int bytes, Instruction* out) {
  if (text[0] != '{') {
    out->operands.push_back(Operand(text, bytes));
    return 1;
  }
  int count = 0;
  for (const string_view part :
       SplitOperands(text.substr(1, text.size() - 2))) {
    out->operands.push_back(Operand(part, bytes));
    ++count;
  }
  return count;
}

}  // namespace baton::engine::cuda::emulated::ptx
