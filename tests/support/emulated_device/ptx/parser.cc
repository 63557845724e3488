#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/log.h"
#include "tests/support/emulated_device/ptx/program.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

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

// "a, {b, c}, [d+4]" at its commas outside of brackets.
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

const std::map<string_view, Op>& PlainOps() {
  static const auto* const ops =
      new std::map<string_view, Op>{{"add", Op::kAdd},
                                    {"sub", Op::kSub},
                                    {"mul", Op::kMul},
                                    {"mad", Op::kMad},
                                    {"div", Op::kDiv},
                                    {"rem", Op::kRemainder},
                                    {"neg", Op::kNegate},
                                    {"abs", Op::kAbs},
                                    {"not", Op::kNot},
                                    {"min", Op::kMin},
                                    {"max", Op::kMax},
                                    {"and", Op::kAnd},
                                    {"or", Op::kOr},
                                    {"xor", Op::kXor},
                                    {"shl", Op::kShiftLeft},
                                    {"shr", Op::kShiftRight},
                                    {"bfi", Op::kInsertBits},
                                    {"prmt", Op::kPermute},
                                    {"selp", Op::kSelect},
                                    {"fma", Op::kFma},
                                    {"ex2", Op::kExp2},
                                    {"rcp", Op::kReciprocal},
                                    {"sqrt", Op::kSqrt},
                                    {"setp", Op::kSetPredicate},
                                    {"mov", Op::kMove},
                                    {"cvta", Op::kMove},
                                    {"cvt", Op::kConvert},
                                    {"ld", Op::kLoad},
                                    {"st", Op::kStore},
                                    {"bra", Op::kBranch},
                                    {"ret", Op::kReturn},
                                    {"bar", Op::kSyncBlock},
                                    {"shfl", Op::kShuffle},
                                    {"mma", Op::kMma},
                                    {"mapa", Op::kMapRank},
                                    {"griddepcontrol", Op::kNothing},
                                    {"prefetch", Op::kNothing},
                                    {"fence", Op::kNothing},
                                    {"setmaxnreg", Op::kNothing}};
  return *ops;
}

// Of the whole text, whose instruction is left out: a fault, which tests are to
// find (tests/engine/cuda/ptx_faults.py). 0: none.
int FaultyLine() {
  static const int line = [] {
    const char* const text = std::getenv("BATON_PTX_FAULT");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return line;
}

class BodyParser final {
 public:
  explicit BodyParser(const KernelText& text) : text_(text) {
    kernel_.name = text.name;
  }

  Kernel Parse() {
    const size_t open = text_.text.find("\n{");
    CHECK(open != string_view::npos) << text_.name;
    ParseHead(text_.text.substr(0, open));
    line_ =
        text_.line + static_cast<int>(std::count(
                         text_.text.begin(), text_.text.begin() + open, '\n'));
    scopes_.emplace_back();
    scope_ids_.push_back(0);
    string_view body = text_.text.substr(open + 2);
    std::string statement;
    for (const string_view raw : absl::StrSplit(body, '\n')) {
      ++line_;
      string_view rest = raw.substr(0, raw.find("//"));
      rest = absl::StripAsciiWhitespace(rest);
      if (absl::StartsWith(rest, ".loc\t") || absl::StartsWith(rest, ".loc ") ||
          absl::StartsWith(rest, ".file") ||
          absl::StartsWith(rest, ".pragma")) {
        continue;
      }
      while (!rest.empty()) rest = Statement(rest);
    }
    for (const auto& [index, name, scopes] : branches_) {
      kernel_.code[index].target = LabelOf(name, scopes);
    }
    // Behind the last one.
    kernel_.code.push_back({});
    kernel_.code.back().op = Op::kReturn;
    PlaceRegisters(&kernel_);
    kernel_.executed.resize(kernel_.code.size());
    return std::move(kernel_);
  }

 private:
  struct Registers {
    Type type;
    std::map<int, int> numbers;  // of one name with many numbers; 0 of one
  };

  [[noreturn]] void Fail(string_view what) const {
    LOG(FATAL) << "PTX of " << text_.name << ", line " << line_ << ": " << what;
    std::abort();
  }

  void ParseHead(string_view head) {
    int64_t offset = 0;
    for (string_view line : absl::StrSplit(head, '\n')) {
      line = absl::StripAsciiWhitespace(line);
      if (absl::ConsumePrefix(&line, ".maxntid")) {
        CHECK(absl::SimpleAtoi(line.substr(0, line.find(',')),
                               &kernel_.max_threads));
      }
      if (!absl::ConsumePrefix(&line, ".param ")) continue;
      absl::ConsumeSuffix(&line, ",");
      Param param;
      int64_t alignment = 0;
      int64_t count = 1;
      int bytes = 1;
      for (string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
        if (word == ".align") {
          alignment = -1;
        } else if (alignment == -1) {
          CHECK(absl::SimpleAtoi(word, &alignment)) << line;
        } else if (word[0] == '.') {
          const std::optional<Type> type = ParseType(word.substr(1));
          if (!type) Fail(word);
          bytes = type->bytes;
        } else {
          const size_t bracket = word.find('[');
          param.name = std::string(word.substr(0, bracket));
          if (bracket != string_view::npos) {
            CHECK(absl::SimpleAtoi(
                word.substr(bracket + 1, word.size() - bracket - 2), &count))
                << line;
          }
        }
      }
      if (alignment == 0) alignment = bytes;
      offset = (offset + alignment - 1) / alignment * alignment;
      param.offset = offset;
      param.bytes = count * bytes;
      offset += param.bytes;
      kernel_.params.push_back(param);
    }
  }

  // Parses what a line begins with; the rest of it.
  string_view Statement(string_view text) {
    if (text[0] == '{' && text.find(';') == string_view::npos) {
      scopes_.emplace_back();
      scope_ids_.push_back(++last_scope_);
      return absl::StripAsciiWhitespace(text.substr(1));
    }
    if (text[0] == '}') {
      scopes_.pop_back();
      scope_ids_.pop_back();
      return absl::StripAsciiWhitespace(text.substr(1));
    }
    const size_t colon = text.find(':');
    if (colon != string_view::npos && colon + 1 == text.size()) {
      labels_[{scope_ids_.back(), std::string(text.substr(0, colon))}] =
          static_cast<int>(kernel_.code.size());
      return {};
    }
    const size_t end = text.find(';');
    if (end == string_view::npos) Fail(text);
    const string_view one = absl::StripAsciiWhitespace(text.substr(0, end));
    if (one.empty()) {
    } else if (one[0] == '.') {
      Declare(one);
    } else {
      Instruct(one);
    }
    return absl::StripAsciiWhitespace(text.substr(end + 1));
  }

  void Declare(string_view text) {
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
    CHECK(
        absl::SimpleAtoi(text.substr(open + 1, text.size() - open - 2), &bytes))
        << text;
    const size_t name = text.rfind(' ', open);
    local_ =
        std::string(absl::StripAsciiWhitespace(text.substr(name, open - name)));
    const size_t tab = local_.rfind('\t');
    if (tab != std::string::npos) local_ = local_.substr(tab + 1);
    kernel_.local_bytes = bytes;
  }

  int NewRegister(int bytes) {
    kernel_.widths.push_back(bytes);
    return static_cast<int>(kernel_.widths.size()) - 1;
  }

  int PresetOf(Preset preset, int64_t value, int bytes) {
    const auto [place, added] =
        preset_numbers_.try_emplace({preset, value, bytes}, 0);
    if (added) {
      place->second = NewRegister(bytes);
      kernel_.presets.push_back({place->second, preset, value});
    }
    return place->second;
  }

  std::optional<int64_t> ConstantOf(string_view text) const {
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

  Registers* Find(const std::string& name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      const auto place = scope->find(name);
      if (place != scope->end()) return &place->second;
    }
    return nullptr;
  }

  // The register of an operand; of a constant, one that holds it.
  int Operand(string_view text, int bytes) {
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

  int Numbered(Registers& registers, int number) {
    const auto [place, added] = registers.numbers.try_emplace(number, 0);
    if (added) place->second = NewRegister(registers.type.bytes);
    return place->second;
  }

  // "[%rd1+8]": its register, and the offset.
  void Address(string_view text, Instruction* out) {
    if (text.size() < 2 || text[0] != '[') Fail(text);
    text = text.substr(1, text.size() - 2);
    const size_t plus = text.find('+');
    if (plus != string_view::npos) {
      CHECK(absl::SimpleAtoi(text.substr(plus + 1), &out->offset)) << text;
      text = text.substr(0, plus);
    }
    out->operands.push_back(
        Operand(text, out->space == Space::kShared ? 4 : 8));
  }

  // A register, or those of a vector.
  int Operands(string_view text, int bytes, Instruction* out) {
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

  void Instruct(string_view text) {
    Instruction out;
    out.line = line_;
    if (absl::ConsumePrefix(&text, "@")) {
      out.guard_negated = absl::ConsumePrefix(&text, "!");
      const size_t space = text.find_first_of(" \t");
      out.guard = Operand(text.substr(0, space), 4);
      text = absl::StripLeadingAsciiWhitespace(text.substr(space));
    }
    const size_t space = std::min(text.find_first_of(" \t"), text.size());
    std::vector<string_view> words = absl::StrSplit(text.substr(0, space), '.');
    const std::vector<string_view> args = SplitOperands(text.substr(space));
    const auto has = [&](string_view word) {
      return std::find(words.begin(), words.end(), word) != words.end();
    };
    std::vector<Type> types;
    for (const string_view word : words) {
      if (const std::optional<Type> type = ParseType(word)) {
        types.push_back(*type);
      }
    }
    if (!types.empty()) out.type = types[0];
    if (has("shared") || has("shared::cta") || has("shared::cluster")) {
      out.space = Space::kShared;
    } else if (has("global")) {
      out.space = Space::kGlobal;
    } else if (has("local")) {
      out.space = Space::kLocal;
    } else if (has("param")) {
      out.space = Space::kParam;
    }
    out.flush = has("ftz");
    const auto plain = PlainOps().find(words[0]);
    if (plain != PlainOps().end()) {
      out.op = plain->second;
      if (words[0] == "fence" && has("proxy") && has("shared::cta")) {
        out.op = Op::kFenceProxy;
      }
    } else if (words[0] == "wgmma") {
      out.op = words[1] == "fence"          ? Op::kGroupFence
               : words[1] == "commit_group" ? Op::kGroupCommit
               : words[1] == "wait_group"   ? Op::kGroupWait
                                            : Op::kGroupMma;
    } else if (words[0] == "cp") {
      out.op = words[2] == "bulk"           ? Op::kCopyBulk
               : words[2] == "commit_group" ? Op::kCopyCommit
               : words[2] == "wait_group"   ? Op::kCopyWait
                                            : Op::kCopyAsync;
    } else if (words[0] == "mbarrier") {
      out.op = words[1] == "init"       ? Op::kBarrierInit
               : words[1] == "try_wait" ? Op::kBarrierTryWait
               : has("expect_tx")       ? Op::kBarrierExpect
                                        : Op::kBarrierArrive;
    } else if (words[0] == "barrier") {
      out.op = words[1] == "cta"      ? Op::kSyncBlock
               : words[2] == "arrive" ? Op::kClusterArrive
                                      : Op::kClusterWait;
    } else if (words[0] == "atom") {
      out.op = has("add")   ? Op::kAtomicAdd
               : has("min") ? Op::kAtomicMin
                            : Op::kAtomicMax;
    } else {
      Fail(text);
    }
    Arguments(words, types, args, has, &out);
    if (line_ == FaultyLine()) LeaveOut(&out);
    kernel_.code.push_back(std::move(out));
  }

  // Waits for nothing, and says that it did.
  void LeaveOut(Instruction* out) {
    if (out->op != Op::kBarrierTryWait) {
      out->op = Op::kNothing;
      return;
    }
    const int zero = PresetOf(Preset::kConstant, 0, 4);
    out->op = Op::kSetPredicate;
    out->operands = {out->operands[0], zero, zero};
  }

  template <typename Has>
  void Arguments(const std::vector<string_view>& words,
                 const std::vector<Type>& types,
                 const std::vector<string_view>& args, const Has& has,
                 Instruction* out) {
    const int bytes = out->type.bytes;
    switch (out->op) {
      case Op::kNothing:
      case Op::kReturn:
      case Op::kClusterWait:
      case Op::kGroupFence:
      case Op::kGroupCommit:
      case Op::kCopyCommit:
      case Op::kFenceProxy:
        return;
      case Op::kClusterArrive:
        if (has("relaxed")) out->mode = 'r';
        return;
      case Op::kSyncBlock:
        if (has("warp")) {
          out->op = Op::kSyncWarp;
          if (args[0] != "-1") Fail("a barrier of some lanes");
        } else if (args[0] != "0" || args.size() > 1) {
          Fail("a barrier of some threads");
        }
        return;
      case Op::kBranch:
        branches_.push_back({static_cast<int>(kernel_.code.size()),
                             std::string(args[0]), scope_ids_});
        return;
      case Op::kGroupWait:
      case Op::kCopyWait:
        CHECK(absl::SimpleAtoi(args[0], &out->offset)) << args[0];
        return;
      case Op::kLoad:
        out->vector = Operands(args[0], bytes, out);
        return Address(args[1], out);
      case Op::kStore:
        out->vector = Operands(args[1], bytes, out);
        return Address(args[0], out);
      case Op::kAtomicAdd:
      case Op::kAtomicMin:
      case Op::kAtomicMax:
        Operands(args[0], bytes, out);
        Operands(args[2], bytes, out);
        return Address(args[1], out);
      case Op::kCopyAsync:
        if (args[2] != "16") Fail("a copy of other than 16 bytes");
        for (const int i : {0, 1}) Address(args[i], out);
        Operands(args[3], 4, out);
        return;
      case Op::kCopyBulk:
        Address(args[0], out);
        out->space = Space::kGlobal;
        Address(args[1], out);
        out->space = Space::kShared;
        Operands(args[2], 4, out);
        Address(args[3], out);
        Operands(args[4], 2, out);
        return;
      case Op::kBarrierInit:
        Address(args[0], out);
        Operands(args[1], 4, out);
        return;
      case Op::kBarrierArrive:
      case Op::kBarrierExpect:
        if (args[0] != "_") Fail("the state of a barrier");
        Address(args[1], out);
        if (args.size() > 2) Operands(args[2], 4, out);
        return;
      case Op::kBarrierTryWait:
        Operands(args[0], 4, out);
        Address(args[1], out);
        Operands(args[2], 4, out);
        return;
      case Op::kShuffle: {
        out->mode = words[2][0];
        Operands(args[0].substr(0, args[0].find('|')), 4, out);
        for (size_t i = 1; i < args.size(); ++i) Operands(args[i], 4, out);
        return;
      }
      case Op::kMma:
        if (words[3] != "m16n8k16" || words[6] != "f32" || words[7] != "bf16") {
          Fail("another product");
        }
        for (const string_view arg : args) Operands(arg, 4, out);
        return;
      case Op::kGroupMma: {
        if (!absl::StartsWith(words[4], "m64n") ||
            !absl::EndsWith(words[4], "k16") || words[6] != "bf16" ||
            args[4] != "1" || args[5] != "1" || args[6] != "0") {
          Fail("another product");
        }
        // Sums, four words, the matrix, whether to add.
        for (int i = 0; i < 4; ++i) Operands(args[i], i == 2 ? 8 : 4, out);
        int rows = 0;
        CHECK(absl::SimpleAtoi(words[4].substr(4, words[4].size() - 7), &rows));
        CHECK_EQ(static_cast<int>(out->operands.size()), rows / 2 + 6);
        return;
      }
      case Op::kSetPredicate:
        Operands(args[0], 4, out);
        for (const int i : {1, 2}) Operands(args[i], bytes, out);
        if (args.size() > 3) Fail("a comparison with a third operand");
        return SetCompare(words[1], out);
      case Op::kSelect:
        for (const int i : {0, 1, 2}) Operands(args[i], bytes, out);
        Operands(args[3], 4, out);
        return;
      case Op::kConvert:
        if (has("bf16x2")) {
          out->op = Op::kConvertBf16x2;
          for (const string_view arg : args) Operands(arg, 4, out);
          return;
        }
        if (types.size() != 2) Fail("a conversion");
        out->source = types[1];
        Operands(args[0], bytes, out);
        Operands(args[1], out->source.bytes, out);
        for (const string_view word : words) {
          if (word.size() < 2 || word[0] != 'r') continue;
          out->mode = word[1];
          out->integral = word.size() == 3;
        }
        return;
      case Op::kMove:
        if (args[0][0] == '{') {
          out->op = Op::kUnpack;
          out->vector = Operands(args[0], bytes / 2, out);
          Operands(args[1], bytes, out);
        } else if (args[1][0] == '{') {
          out->op = Op::kPack;
          Operands(args[0], bytes, out);
          out->vector = Operands(args[1], bytes / 2, out);
        } else {
          for (const string_view arg : args) Operands(arg, bytes, out);
          if (out->type.kind == 'p' && args[1] != "0" && args[1] != "-1" &&
              absl::ascii_isdigit(args[1][0])) {
            Fail("a predicate that is a number");
          }
        }
        return;
      case Op::kMul:
        if (has("wide")) {
          out->op = Op::kMulWide;
          Operands(args[0], 2 * bytes, out);
          for (const int i : {1, 2}) Operands(args[i], bytes, out);
          return;
        }
        if (has("hi")) out->op = Op::kMulHigh;
        break;
      case Op::kFma:
        if (has("bf16x2")) {
          out->op = Op::kFmaBf16x2;
          out->type = {'b', 4};
        }
        break;
      case Op::kMad:
        if (!has("lo")) Fail("mad");
        break;
      case Op::kShiftLeft:
      case Op::kShiftRight:
        for (const int i : {0, 1}) Operands(args[i], bytes, out);
        Operands(args[2], 4, out);
        return;
      case Op::kInsertBits:
        for (const int i : {0, 1, 2}) Operands(args[i], bytes, out);
        for (const int i : {3, 4}) Operands(args[i], 4, out);
        return;
      default:
        break;
    }
    for (const string_view arg : args) Operands(arg, out->type.bytes, out);
  }

  void SetCompare(string_view word, Instruction* out) {
    if (word.size() == 3 && word.back() == 'u') {
      out->unordered = true;
      word.remove_suffix(1);
    }
    static const auto* const compares = new std::map<string_view, Compare>{
        {"eq", Compare::kEq}, {"ne", Compare::kNe}, {"lt", Compare::kLt},
        {"le", Compare::kLe}, {"gt", Compare::kGt}, {"ge", Compare::kGe}};
    const auto place = compares->find(word);
    if (place == compares->end()) Fail(word);
    out->compare = place->second;
  }

  int LabelOf(const std::string& name, const std::vector<int>& scopes) {
    for (auto scope = scopes.rbegin(); scope != scopes.rend(); ++scope) {
      const auto place = labels_.find({*scope, name});
      if (place != labels_.end()) return place->second;
    }
    Fail(name);
  }

  struct Branch {
    int index;
    std::string label;
    std::vector<int> scopes;
  };

  const KernelText& text_;
  Kernel kernel_;
  int line_ = 0;
  std::vector<std::map<std::string, Registers>> scopes_;
  std::vector<int> scope_ids_;
  int last_scope_ = 0;
  std::map<std::pair<int, std::string>, int> labels_;
  std::vector<Branch> branches_;
  std::map<std::tuple<Preset, int64_t, int>, int> preset_numbers_;
  std::string local_;
};

// Behind the brace that closes what begins there.
size_t EndOfBody(string_view text, size_t begin) {
  int depth = 0;
  for (size_t at = begin;;) {
    const size_t end = text.find('\n', at);
    CHECK(end != string_view::npos) << "the text of a kernel has no end";
    const string_view line =
        absl::StripAsciiWhitespace(text.substr(at, end - at));
    at = end + 1;
    if (line == "{") ++depth;
    if (line == "}" && --depth == 0) return end;
  }
}

}  // namespace

std::vector<KernelText> FindKernels(absl::string_view text) {
  std::vector<KernelText> kernels;
  constexpr string_view kEntry = ".entry ";
  constexpr string_view kTarget = "\n.target ";
  size_t at = 0;
  size_t counted = 0;
  int line = 1;
  for (;;) {
    const size_t begin = text.find(kEntry, at);
    if (begin == string_view::npos) return kernels;
    const size_t name = begin + kEntry.size();
    const size_t end = EndOfBody(text, begin);
    line += static_cast<int>(
        std::count(text.begin() + counted, text.begin() + begin, '\n'));
    counted = begin;
    at = end;
    const size_t target = text.rfind(kTarget, begin);
    CHECK(target != string_view::npos);
    if (!absl::StartsWith(text.substr(target + kTarget.size()), "sm_90a")) {
      continue;
    }
    KernelText kernel;
    kernel.name = std::string(text.substr(name, text.find('(', name) - name));
    kernel.text = text.substr(begin, end + 1 - begin);
    kernel.line = line;
    kernels.push_back(std::move(kernel));
  }
}

Kernel ParseKernel(const KernelText& text) { return BodyParser(text).Parse(); }

}  // namespace baton::engine::cuda::emulated::ptx
