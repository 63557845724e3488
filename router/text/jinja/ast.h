// A parsed template. Immutable after Parse (parser.h); any thread may read it.
//
// Names are numbers, given by Names in the order in which the parser met them,
// so that finding a variable compares no strings.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

using NameId = int;

class Names final {
 public:
  // The names that mean something by themselves, which every template has.
  static constexpr NameId kLoop = 0;
  static constexpr NameId kCaller = 1;
  static constexpr NameId kVarargs = 2;
  static constexpr NameId kKwargs = 3;

  Names() {
    for (const char* name : {"loop", "caller", "varargs", "kwargs"}) {
      Intern(name);
    }
  }

  NameId Intern(absl::string_view name) {
    const auto [it, is_new] =
        ids_.try_emplace(std::string(name), static_cast<NameId>(texts_.size()));
    if (is_new) texts_.emplace_back(name);
    return it->second;
  }
  // Nothing for a name that the template does not have.
  std::optional<NameId> Find(absl::string_view name) const {
    const auto it = ids_.find(name);
    if (it == ids_.end()) return std::nullopt;
    return it->second;
  }
  const std::string& TextOf(NameId id) const { return texts_[id]; }
  size_t size() const { return texts_.size(); }

 private:
  absl::flat_hash_map<std::string, NameId> ids_;
  std::vector<std::string> texts_;
};

enum class ExprKind {
  kConstant,
  kName,
  kTuple,
  kList,
  kDict,       // parts: key, value, key, value, ...
  kNot,        // parts: operand
  kAnd,        // parts: left, right
  kOr,         // parts: left, right
  kUnary,      // op '-' or '+'; parts: operand
  kBinary,     // parts: left, right
  kConcat,     // parts, two or more
  kCompare,    // parts: first, and one for each of `comparisons`
  kCondition,  // parts: test, value, other value or null
  kAttribute,  // parts: object; text
  kItem,       // parts: object, index
  kSlice,      // parts: start, stop, step; each may be null
  kCall,       // parts: what is called
  kFilter,     // parts: value, null for that of a block; text
  kTest,       // parts: value; text
};

enum class BinaryOp {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
};

enum class CompareOp { kEq, kNe, kLt, kLe, kGt, kGe, kIn, kNotIn };

struct Expr;
using ExprPtr = std::unique_ptr<const Expr>;

struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr star;       // *args, or null
  ExprPtr star_star;  // **kwargs, or null
};

struct Expr {
  ExprKind kind = ExprKind::kConstant;
  int line = 0;
  int depth = 1;  // levels of expressions from here down
  std::vector<ExprPtr> parts;
  Value constant;
  NameId name = 0;
  std::string text;
  BinaryOp binary = BinaryOp::kAdd;
  char unary = 0;
  std::vector<CompareOp> comparisons;
  Arguments arguments;  // of a call, filter or test
};

// What is assigned to: a name, an attribute of a namespace, or several.
struct Target {
  enum class Kind { kName, kNamespace, kTuple };
  Kind kind = Kind::kName;
  int line = 0;
  NameId name = 0;
  std::string attribute;
  std::vector<Target> parts;
};

enum class StatementKind {
  kText,
  kOutput,       // exprs
  kIf,           // branches; else_body
  kFor,          // target, exprs[0]: what; exprs[1]: filter or null; body, ...
  kSet,          // target, exprs[0]
  kSetBlock,     // target, filter or null, body
  kMacro,        // macro
  kCallBlock,    // exprs[0]: the call; macro: the caller
  kFilterBlock,  // filter, body
  kWith,         // targets, exprs, body
  kScope,        // body, in a scope of its own
  kBreak,
  kContinue,
};

struct Statement;
using Body = std::vector<Statement>;

struct Parameter {
  NameId name = 0;
  std::string text;
  ExprPtr fallback;  // or null
};

struct MacroNode {
  NameId name = 0;
  std::string text;
  std::vector<Parameter> parameters;
  // What the body reads, and so accepts.
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
  Body body;
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;
  std::vector<ExprPtr> exprs;
  std::vector<std::pair<ExprPtr, Body>> branches;
  Target target;
  std::vector<Target> targets;
  ExprPtr filter;
  bool recursive = false;
  bool uses_loop = false;  // whether a loop's body reads `loop`
  Body body;
  Body else_body;
  std::unique_ptr<const MacroNode> macro;
};

struct TemplateNode {
  Names names;
  Body body;
};

}  // namespace baton::router::jinja
