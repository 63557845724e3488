#include "router/text/jinja/content_format.h"

#include "absl/container/flat_hash_set.h"

namespace baton::router::jinja {
namespace {

class ContentFinder final {
 public:
  explicit ContentFinder(const TemplateNode& root) : root_(root) {}

  bool Run() {
    // A name may be set behind its use: in a loop, or a macro further up.
    FindNames(root_.body);
    return HasLoop(root_.body);
  }

 private:
  // What is iterated over, without the filters, slices and choices around it.
  bool IsContent(const Expr* expr) const {
    if (expr == nullptr) return false;
    switch (expr->kind) {
      case ExprKind::kName:
        return names_.contains(expr->name);
      case ExprKind::kAttribute:
        return expr->text == "content";
      case ExprKind::kItem: {
        const Expr& index = *expr->parts[1];
        if (index.kind == ExprKind::kSlice) {
          return IsContent(expr->parts[0].get());
        }
        return index.kind == ExprKind::kConstant &&
               index.constant.is_string() && index.constant.text() == "content";
      }
      case ExprKind::kFilter:
        return IsContent(expr->parts[0].get());
      case ExprKind::kCondition:
        return IsContent(expr->parts[1].get()) ||
               IsContent(expr->parts[2].get());
      case ExprKind::kAnd:
      case ExprKind::kOr:
        return IsContent(expr->parts[0].get()) ||
               IsContent(expr->parts[1].get());
      default:
        return false;
    }
  }

  template <typename Visit>
  static void ForEachBody(const Statement& statement, Visit visit) {
    for (const auto& [test, body] : statement.branches) visit(body);
    visit(statement.body);
    visit(statement.else_body);
    if (statement.macro != nullptr) visit(statement.macro->body);
  }

  void FindNames(const Body& body) {
    for (const Statement& statement : body) {
      if (statement.kind == StatementKind::kSet &&
          statement.target.kind == Target::Kind::kName &&
          IsContent(statement.exprs[0].get())) {
        names_.insert(statement.target.name);
      }
      ForEachBody(statement, [this](const Body& inner) { FindNames(inner); });
    }
  }

  bool HasLoop(const Body& body) const {
    for (const Statement& statement : body) {
      if (statement.kind == StatementKind::kFor &&
          IsContent(statement.exprs[0].get())) {
        return true;
      }
      bool found = false;
      ForEachBody(statement,
                  [&](const Body& inner) { found = found || HasLoop(inner); });
      if (found) return true;
    }
    return false;
  }

  const TemplateNode& root_;
  absl::flat_hash_set<NameId> names_;
};

}  // namespace

bool LoopsOverContent(const TemplateNode& root) {
  return ContentFinder(root).Run();
}

}  // namespace baton::router::jinja
