// Runs a parsed template.
//
// For one rendering, by one thread. Every function is bounded by its Run:
// steps, memory, depth. Errors note their line in the Run.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/text/jinja/ast.h"
#include "router/text/jinja/run.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

// The variables of one block, within those of the blocks around it.
struct Scope {
  explicit Scope(Scope* parent) : parent(parent) {}

  const Value* Find(NameId name) const;
  void Set(NameId name, Value value);

  Scope* parent;
  // Whether a macro or loop that may outlive the block looks into it.
  bool captured = false;
  std::vector<std::pair<NameId, Value>> variables;
};

class Evaluator final {
 public:
  // `variables` by the numbers of the template's names. The template, the run
  // and what the variables hold must outlive the evaluator.
  Evaluator(const TemplateNode& root, Run& run,
            std::vector<std::optional<Value>> variables);
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  // The template's text. Called once.
  absl::StatusOr<std::string> Render();

  // For macros and loops.

  // How a body ended.
  enum class Flow { kNext, kBreak, kContinue };

  Run& run() { return run_; }
  absl::StatusOr<Value> Eval(const Expr& expr, Scope& scope);
  // Calls a macro, defined in `scope`.
  absl::StatusOr<Value> CallMacro(const MacroNode& macro, Scope& scope,
                                  CallArgs args);
  // Runs a loop over `iterable`, whose own scope is within `scope`.
  absl::StatusOr<Flow> RunLoop(const Statement& loop, const Value& iterable,
                               Scope& scope, int depth, std::string* out);
  // Whether the loop's filter takes the item.
  absl::StatusOr<bool> Passes(const Statement& loop, const Value& item,
                              Scope& scope);

 private:
  // A scope for as long as its block runs, or as the evaluator where it was
  // captured.
  class OpenScope final {
   public:
    OpenScope(Evaluator& evaluator, Scope* parent);
    ~OpenScope();
    OpenScope(const OpenScope&) = delete;
    OpenScope& operator=(const OpenScope&) = delete;
    // An empty one again.
    absl::Status Renew();
    Scope& operator*() { return *scope_; }

   private:
    Evaluator& evaluator_;
    std::unique_ptr<Scope> scope_;
  };

  absl::StatusOr<Flow> Exec(const Body& body, Scope& scope, std::string* out);
  absl::StatusOr<Flow> ExecOne(const Statement& statement, Scope& scope,
                               std::string* out);
  absl::StatusOr<Flow> ExecIf(const Statement& statement, Scope& scope,
                              std::string* out);
  absl::Status ExecText(const std::string& text, std::string* out);
  absl::Status ExecOutput(const Statement& statement, Scope& scope,
                          std::string* out);
  absl::Status ExecSet(const Statement& statement, Scope& scope);
  absl::Status ExecSetBlock(const Statement& statement, Scope& scope);
  absl::Status ExecMacro(const Statement& statement, Scope& scope);
  absl::Status ExecCallBlock(const Statement& statement, Scope& scope,
                             std::string* out);
  absl::Status ExecFilterBlock(const Statement& statement, Scope& scope,
                               std::string* out);
  absl::Status ExecWith(const Statement& statement, Scope& scope,
                        std::string* out);
  // The body's text, in a scope of its own, through `filter` if there is one.
  absl::StatusOr<Value> TextOf(const Body& body, const Expr* filter,
                               Scope& scope);

  absl::Status Assign(const Target& target, Value value, Scope& scope);
  absl::Status AssignParts(const Target& target, const Value& value,
                           Scope& scope);
  absl::StatusOr<Value> BindMacro(const MacroNode& macro, Scope& scope);

  absl::StatusOr<Value> EvalKind(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> EvalName(const Expr& expr, const Scope& scope);
  absl::StatusOr<Value> EvalDict(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> EvalConcat(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> EvalCompare(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> EvalCondition(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> EvalItem(const Expr& expr, Scope& scope);
  absl::StatusOr<Value> EvalCall(const Expr& expr, Scope& scope,
                                 std::optional<Value> caller);
  absl::StatusOr<Value> EvalFilter(const Expr& expr, Scope& scope,
                                   const Value* of_block);
  absl::StatusOr<Value> EvalTest(const Expr& expr, Scope& scope);
  absl::StatusOr<Values> EvalAll(const std::vector<ExprPtr>& exprs,
                                 Scope& scope);
  // Appends the evaluated arguments.
  absl::Status EvalArguments(const Arguments& arguments, Scope& scope,
                             CallArgs* args);
  absl::Status BindParameters(const MacroNode& macro, CallArgs args,
                              Scope& scope);

  const TemplateNode& root_;
  Run& run_;
  const std::vector<std::optional<Value>> variables_;
  std::vector<std::unique_ptr<Scope>> captured_;
};

}  // namespace baton::router::jinja
