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
#include "tests/support/emulated_device/ptx/names.h"
#include "tests/support/emulated_device/ptx/program.h"
#include "tests/support/emulated_device/ptx/warp.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

using absl::string_view;

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

class BodyParser final : private Names {
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
    BeginScope();
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
    for (Instruction& i : kernel_.code) i.run = ArithmeticHandler(i);
    kernel_.executed.resize(kernel_.code.size());
    return std::move(kernel_);
  }

 private:
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
      BeginScope();
      return absl::StripAsciiWhitespace(text.substr(1));
    }
    if (text[0] == '}') {
      EndScope();
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
      if (words[0] == "griddepcontrol" && has("wait")) {
        out.op = Op::kAwaitKernels;
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
      case Op::kAwaitKernels:
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
        out->early = has("L2::128B");
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
        if (args.size() > 4) Operands(args[4], 2, out);
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
  std::map<std::pair<int, std::string>, int> labels_;
  std::vector<Branch> branches_;
};

}  // namespace

Kernel ParseKernel(const KernelText& text) { return BodyParser(text).Parse(); }

}  // namespace baton::engine::cuda::emulated::ptx
