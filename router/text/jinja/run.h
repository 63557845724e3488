// One rendering of a template: what it may spend, and all that it made.
//
// Used by one thread. Every value that a Run made must be gone before the Run
// is; the Run's objects see to that themselves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/text/jinja/value.h"

namespace baton::router::jinja {

// Levels of lists and dicts in one value.
inline constexpr int kMaxValueDepth = 100;
// Levels of expressions and statements in a template's source.
inline constexpr int kMaxSourceDepth = 150;
// Levels of evaluation, macros that call macros included.
inline constexpr int kMaxCallDepth = 500;
// As Jinja's sandbox has it.
inline constexpr int64_t kMaxRange = 100'000;

struct Limits {
  // A step is about an evaluated node, an iteration, or 64 bytes of text that
  // were looked at or made.
  int64_t steps = 10'000'000;
  // Held at one time by all values.
  size_t bytes = size_t{256} << 20;
  // Of one string, and of the output.
  size_t string_bytes = size_t{32} << 20;
};

// Counts memory. Never fails by itself: see Run::Hold.
class Budget final {
 public:
  explicit Budget(size_t limit) : limit_(limit) {}
  bool Hold(size_t bytes) {
    held_ += bytes;
    return held_ <= limit_;
  }
  void Release(size_t bytes) { held_ -= bytes; }
  size_t held() const { return held_; }

 private:
  const size_t limit_;
  size_t held_ = 0;
};

class Run final {
 public:
  Run(const Limits& limits, absl::Time now)
      : limits_(limits), now_(now), budget_(limits.bytes) {}
  ~Run();
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  // Fails (ResourceExhausted) when all steps are spent.
  absl::Status Spend(int64_t steps);
  // The same for work over `bytes` of text.
  absl::Status SpendText(size_t bytes) {
    return Spend(1 + static_cast<int64_t>(bytes / 64));
  }
  // Fails where a string of so many bytes would be too long. For those that
  // make a string of other than its parts' size, before they make it.
  absl::Status CheckLength(uint64_t bytes) const;

  // Values that this run pays for. All fail when a bound is reached.
  absl::StatusOr<Value> String(std::string text, bool safe = false);
  absl::StatusOr<Value> Sequence(SequenceType type, Values items);
  absl::StatusOr<Value> List(Values items) {
    return Sequence(SequenceType::kList, std::move(items));
  }
  absl::StatusOr<Value> Tuple(Values items) {
    return Sequence(SequenceType::kTuple, std::move(items));
  }
  absl::StatusOr<Value> Generator(Values items) {
    return Sequence(SequenceType::kGenerator, std::move(items));
  }
  // Of several entries of one key the last value holds, at the first's place.
  absl::StatusOr<Value> Dict(std::vector<DictRep::Entry> entries);

  // Keeps the object as long as this run.
  template <typename T>
  absl::StatusOr<T*> Own(std::unique_ptr<T> object) {
    const absl::Status room = Hold(sizeof(T) + kOverhead);
    if (!room.ok()) return room;
    T* const kept = object.get();
    objects_.push_back(std::move(object));
    return kept;
  }
  // Pays for `bytes` until the run's end.
  absl::Status Hold(size_t bytes);
  // Fails where `count` things of `bytes` each, about to be made, would be too
  // much.
  absl::Status CheckRoom(uint64_t count, uint64_t bytes) const;

  // One level deeper, until Leave. Fails when it is too deep.
  absl::Status Enter();
  void Leave() { --depth_; }

  absl::Time now() const { return now_; }
  const Limits& limits() const { return limits_; }

  // Where the first error was found; 0 before.
  int error_line() const { return error_line_; }
  void NoteErrorLine(int line) {
    if (error_line_ == 0) error_line_ = line;
  }
  // An error of raise_exception is the template's own word, and has no line.
  bool raised() const { return raised_; }
  void NoteRaised() { raised_ = true; }

 private:
  // What the allocator and a shared pointer take besides.
  static constexpr size_t kOverhead = 64;

  const Limits limits_;
  const absl::Time now_;
  Budget budget_;
  int64_t spent_ = 0;
  int depth_ = 0;
  int error_line_ = 0;
  bool raised_ = false;
  std::vector<std::unique_ptr<Object>> objects_;
};

// Enters a level for as long as it lives.
class Level final {
 public:
  explicit Level(Run& run) : run_(run), status_(run.Enter()) {}
  ~Level() { run_.Leave(); }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;
  const absl::Status& status() const { return status_; }

 private:
  Run& run_;
  absl::Status status_;
};

// InvalidArgument of the parts' text: what is wrong with a template or with
// what it was given.
absl::Status Error(absl::string_view what);

}  // namespace baton::router::jinja
