// A span of a trace, as OpenTelemetry has them, and who takes it away.
//
// Plain values; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "common/trace_context.h"

namespace baton::router::tracing {

struct Attribute {
  using Value =
      std::variant<std::string, int64_t, double, std::vector<std::string>>;
  std::string key;
  Value value;
};

// Something that happened at one moment of a span.
struct SpanEvent {
  std::string name;
  absl::Time at;
  std::vector<Attribute> attributes;
};

struct Span {
  // The numbers are those of OTLP.
  enum class Kind { kInternal = 1, kServer = 2, kClient = 3 };

  // Trace, and the span's own id.
  TraceContext context;
  // 0: none.
  uint64_t parent = 0;
  std::string name;
  Kind kind = Kind::kInternal;
  // Wall-clock time.
  absl::Time start;
  absl::Time end;
  std::vector<Attribute> attributes;
  std::vector<SpanEvent> events;
  // What was not asked for happened; `error` says what.
  bool failed = false;
  std::string error;
};

// Where ended spans go.
class SpanSink {
 public:
  virtual ~SpanSink() = default;

  // Takes all of them or, without room, none. Any thread; never blocks.
  virtual void Add(std::vector<Span> spans) = 0;
};

}  // namespace baton::router::tracing
