// The values that a template computes with: Python's, as far as Jinja shows
// them. Cheap to copy; everything that is not a number is shared.
//
// Strings, sequences and dicts never change once made. They are made by a Run
// (run.h), which bounds their size, their number and how deeply they nest, so
// that functions may recurse over a value. Objects (namespaces, macros, loops)
// may change and may point at each other; their Run owns them.
//
// A value of a template's source may be read from any thread; all others belong
// to the thread of their Run and must not outlive it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::router::jinja {

// Python's integers have no bound; ours end where even an unsigned 64-bit
// number of a JSON schema is far away. Beyond: an error, never a wrong number.
__extension__ typedef __int128 Integer;

class Budget;
class Run;
class Value;
struct CallArgs;

using Values = std::vector<Value>;

// In the order of Value's variant.
enum class Kind {
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kSequence,
  kDict,
  kObject,
};

enum class SequenceType {
  kList,
  kTuple,
  kGroup,      // a tuple whose parts are also called grouper and list
  kRange,      // like a tuple
  kGenerator,  // can be iterated over once; has no length
  kKeys,       // dict.keys()
  kValues,     // dict.values()
  kItems,      // dict.items()
};

// What a string takes besides its bytes.
inline constexpr size_t kStringOverhead = 96;

// Valid UTF-8.
struct StringRep {
  StringRep(std::string text, Budget* budget);
  ~StringRep();
  StringRep(const StringRep&) = delete;
  StringRep& operator=(const StringRep&) = delete;

  const std::string text;
  const int64_t length;  // in code points
  Budget* const budget;  // null for a template's own
};

// What Value's variant holds for an undefined one: why, for the error that its
// use gives. May be null.
struct UndefinedRef {
  std::shared_ptr<const std::string> why;
};

struct StringRef {
  std::shared_ptr<const StringRep> rep;
  // Python's Markup: what is added to it gets HTML escapes.
  bool safe;
};

struct SequenceRep;
struct DictRep;

// What templates can call or look into, and what may change. Each function has
// a default: there is nothing to call and no attribute.
class Object {
 public:
  virtual ~Object() = default;

  // As Python calls its type in messages.
  virtual absl::string_view type_name() const = 0;
  virtual bool callable() const { return false; }
  // As it is printed. REQUIRES: run.Enter() was successful.
  virtual absl::StatusOr<std::string> Repr(Run& run) const;
  // Undefined where there is none.
  virtual absl::StatusOr<Value> Attribute(Run& run, absl::string_view name);
  virtual absl::StatusOr<Value> Call(Run& run, CallArgs args);
  // `object.name(args)`; by default calls the attribute.
  virtual absl::StatusOr<Value> CallMethod(Run& run, absl::string_view name,
                                           CallArgs args);
};

class Value final {
 public:
  // Undefined.
  Value() = default;

  static Value None() { return Value(Data(std::monostate())); }
  static Value Bool(bool value) { return Value(Data(value)); }
  static Value Int(Integer value) { return Value(Data(value)); }
  static Value Float(double value) { return Value(Data(value)); }
  static Value Of(Object* object) { return Value(Data(object)); }
  static Value Of(StringRef string) { return Value(Data(std::move(string))); }
  static Value Of(std::shared_ptr<const SequenceRep> sequence) {
    return Value(Data(std::move(sequence)));
  }
  static Value Of(std::shared_ptr<const DictRep> dict) {
    return Value(Data(std::move(dict)));
  }
  // An undefined value whose use fails with `why`.
  static Value Undefined(absl::string_view why);
  // A string of a template's source, which no Run counts.
  static Value Constant(std::string text);

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind kind) const { return this->kind() == kind; }
  bool is_undefined() const { return is(Kind::kUndefined); }
  bool is_none() const { return is(Kind::kNone); }
  bool is_bool() const { return is(Kind::kBool); }
  bool is_string() const { return is(Kind::kString); }
  bool is_sequence() const { return is(Kind::kSequence); }
  bool is_dict() const { return is(Kind::kDict); }
  bool is_object() const { return is(Kind::kObject); }
  bool is_float() const { return is(Kind::kFloat); }
  // An integer as Python sees it: bool is one.
  bool is_integral() const { return is(Kind::kInt) || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }
  // A list or tuple: what may be indexed.
  bool is_indexable_sequence() const;
  bool is_sequence_of(SequenceType type) const;

  // REQUIRES for each: the kind.
  bool as_bool() const { return std::get<bool>(data_); }
  Integer as_integer() const;  // also of a bool
  double as_double() const;    // of any number
  const std::string& text() const {
    return std::get<StringRef>(data_).rep->text;
  }
  int64_t text_length() const { return std::get<StringRef>(data_).rep->length; }
  bool is_safe() const {
    return is_string() && std::get<StringRef>(data_).safe;
  }
  // The same string, as Markup or not.
  Value WithSafe(bool safe) const;
  const SequenceRep& sequence() const {
    return *std::get<std::shared_ptr<const SequenceRep>>(data_);
  }
  const DictRep& dict() const {
    return *std::get<std::shared_ptr<const DictRep>>(data_);
  }
  Object* object() const { return std::get<Object*>(data_); }

  // What the use of this undefined value is answered with.
  absl::Status UndefinedError() const;

  // Levels of sequences and dicts in it.
  int depth() const;

  // As Python calls the type: "str", "NoneType", "dict_items".
  absl::string_view type_name() const;

  // Whether `other` is the same thing (Python's `is`).
  bool IsSame(const Value& other) const;

 private:
  using Data = std::variant<UndefinedRef, std::monostate, bool, Integer, double,
                            StringRef, std::shared_ptr<const SequenceRep>,
                            std::shared_ptr<const DictRep>, Object*>;

  explicit Value(Data data) : data_(std::move(data)) {}

  Data data_;
};

struct SequenceRep {
  SequenceRep(SequenceType type, Values items, int depth, size_t bytes,
              Budget* budget);
  ~SequenceRep();
  SequenceRep(const SequenceRep&) = delete;
  SequenceRep& operator=(const SequenceRep&) = delete;

  const SequenceType type;
  const Values items;
  const int depth;
  const size_t bytes;
  Budget* const budget;
  // For a generator: how many items were taken from it.
  mutable size_t taken = 0;
};

// Entries in the order of insertion, with different keys that can be hashed.
struct DictRep {
  using Entry = std::pair<Value, Value>;

  DictRep(std::vector<Entry> entries, int depth, size_t bytes, Budget* budget);
  ~DictRep();
  DictRep(const DictRep&) = delete;
  DictRep& operator=(const DictRep&) = delete;

  // Null where there is no such key. A key that cannot be hashed is none.
  const Value* Find(const Value& key) const;
  const Value* Find(absl::string_view key) const;

  const std::vector<Entry> entries;
  const int depth;
  const size_t bytes;
  Budget* const budget;

 private:
  // (hash, entry), sorted by hash; empty where a search is as fast.
  std::vector<std::pair<uint64_t, uint32_t>> index_;
};

// The arguments of a call, filter or test; for the latter two, the value that
// they are applied to is the first.
struct CallArgs {
  Values positional;
  std::vector<std::pair<std::string, Value>> named;
};

}  // namespace baton::router::jinja
