// The state of a running {% for %}, which is also what `loop` is in its body.
//
// The thread of its Run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/text/jinja/evaluator.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

class Loop final : public Object {
 public:
  // `outer`: where the loop stands. `depth`: of the recursion, from 0.
  Loop(Evaluator& evaluator, const Statement& statement, Scope& outer,
       int depth)
      : evaluator_(evaluator),
        statement_(statement),
        outer_(outer),
        depth_(depth) {}

  absl::Status Start(const Value& iterable);
  // Goes to the next item that passes the filter; false at the end.
  absl::StatusOr<bool> Advance();
  const Value& item() const { return *current_; }

  absl::string_view type_name() const override { return "LoopContext"; }
  bool callable() const override { return true; }
  absl::StatusOr<std::string> Repr(Run& run) const override;
  absl::StatusOr<Value> Attribute(Run& run, absl::string_view name) override;
  // Runs the loop again over its children, for {% for ... recursive %}.
  absl::StatusOr<Value> Call(Run& run, CallArgs args) override;
  absl::StatusOr<Value> CallMethod(Run& run, absl::string_view name,
                                   CallArgs args) override;

 private:
  // The next item that passes, or nothing. Jinja looks at items no earlier than
  // this does, which a filter can notice.
  absl::StatusOr<std::optional<Value>> Next();
  absl::StatusOr<bool> HasNext();
  absl::StatusOr<int64_t> Length();
  absl::StatusOr<Value> Cycle(const CallArgs& args) const;
  absl::StatusOr<Value> Changed(Run& run, CallArgs args);

  Evaluator& evaluator_;
  const Statement& statement_;
  Scope& outer_;
  const int depth_;
  Value generator_;  // undefined where `items_` has all
  Values items_;
  size_t at_ = 0;        // in `items_`
  bool is_all_ = false;  // whether what is left in `items_` passed the filter
  int64_t index0_ = -1;
  std::optional<int64_t> length_;
  std::optional<Value> previous_;
  std::optional<Value> current_;
  std::optional<Value> after_;  // looked at already
  std::optional<Value> last_changed_;
};

}  // namespace baton::router::jinja
