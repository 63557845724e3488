#include "router/text/jinja/value.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "router/text/jinja/compare.h"
#include "router/text/jinja/python_text.h"
#include "router/text/jinja/run.h"

namespace baton::router::jinja {
namespace {

// Dicts with more entries than this get an index.
constexpr size_t kMaxSearched = 8;

// Adapted to a variant's order.
static_assert(static_cast<int>(Kind::kObject) == 8);

}  // namespace

StringRep::StringRep(std::string text, Budget* budget)
    : text(std::move(text)), length(CodePoints(this->text)), budget(budget) {}

StringRep::~StringRep() {
  if (budget != nullptr) budget->Release(text.size() + kStringOverhead);
}

SequenceRep::SequenceRep(SequenceType type, Values items, int depth,
                         size_t bytes, Budget* budget)
    : type(type),
      items(std::move(items)),
      depth(depth),
      bytes(bytes),
      budget(budget) {}

SequenceRep::~SequenceRep() { budget->Release(bytes); }

DictRep::DictRep(std::vector<Entry> entries, int depth, size_t bytes,
                 Budget* budget)
    : entries(std::move(entries)), depth(depth), bytes(bytes), budget(budget) {
  if (this->entries.size() <= kMaxSearched) return;
  index_.reserve(this->entries.size());
  for (size_t i = 0; i < this->entries.size(); ++i) {
    index_.emplace_back(HashOf(this->entries[i].first).value_or(0),
                        static_cast<uint32_t>(i));
  }
  std::sort(index_.begin(), index_.end());
}

DictRep::~DictRep() { budget->Release(bytes); }

const Value* DictRep::Find(const Value& key) const {
  if (index_.empty()) {
    for (const Entry& entry : entries) {
      if (Equal(entry.first, key)) return &entry.second;
    }
    return nullptr;
  }
  const std::optional<uint64_t> hash = HashOf(key);
  if (!hash.has_value()) return nullptr;
  auto it = std::lower_bound(index_.begin(), index_.end(),
                             std::make_pair(*hash, uint32_t{0}));
  for (; it != index_.end() && it->first == *hash; ++it) {
    if (Equal(entries[it->second].first, key)) {
      return &entries[it->second].second;
    }
  }
  return nullptr;
}

const Value* DictRep::Find(absl::string_view key) const {
  if (!index_.empty()) return Find(Value::Constant(std::string(key)));
  for (const Entry& entry : entries) {
    if (entry.first.is_string() && entry.first.text() == key) {
      return &entry.second;
    }
  }
  return nullptr;
}

absl::StatusOr<std::string> Object::Repr(Run& run) const {
  return absl::StrCat("<", type_name(), " object>");
}

absl::StatusOr<Value> Object::Attribute(Run& run, absl::string_view name) {
  return Value::Undefined(absl::StrCat("'", type_name(), "' has no attribute '",
                                       ShortText(name), "'"));
}

absl::StatusOr<Value> Object::Call(Run& run, CallArgs args) {
  return Error(absl::StrCat("'", type_name(), "' object is not callable"));
}

absl::StatusOr<Value> Object::CallMethod(Run& run, absl::string_view name,
                                         CallArgs args) {
  absl::StatusOr<Value> attribute = Attribute(run, name);
  if (!attribute.ok()) return attribute;
  if (attribute->is_undefined()) return attribute->UndefinedError();
  if (!attribute->is_object()) {
    return Error(
        absl::StrCat("'", attribute->type_name(), "' object is not callable"));
  }
  return attribute->object()->Call(run, std::move(args));
}

Value Value::Undefined(absl::string_view why) {
  return Value(Data(UndefinedRef{std::make_shared<const std::string>(why)}));
}

Value Value::Constant(std::string text) {
  return Of(StringRef{std::make_shared<const StringRep>(std::move(text),
                                                        /*budget=*/nullptr),
                      /*safe=*/false});
}

bool Value::is_indexable_sequence() const {
  if (!is_sequence()) return false;
  switch (sequence().type) {
    case SequenceType::kList:
    case SequenceType::kTuple:
    case SequenceType::kGroup:
    case SequenceType::kRange:
      return true;
    case SequenceType::kGenerator:
    case SequenceType::kKeys:
    case SequenceType::kValues:
    case SequenceType::kItems:
      return false;
  }
  return false;
}

bool Value::is_sequence_of(SequenceType type) const {
  return is_sequence() && sequence().type == type;
}

Integer Value::as_integer() const {
  if (is_bool()) return as_bool() ? 1 : 0;
  return std::get<Integer>(data_);
}

double Value::as_double() const {
  if (is_float()) return std::get<double>(data_);
  return static_cast<double>(as_integer());
}

Value Value::WithSafe(bool safe) const {
  return Of(StringRef{std::get<StringRef>(data_).rep, safe});
}

absl::Status Value::UndefinedError() const {
  const auto& why = std::get<UndefinedRef>(data_).why;
  return Error(why == nullptr ? absl::string_view("a value is undefined")
                              : absl::string_view(*why));
}

int Value::depth() const {
  if (is_sequence()) return sequence().depth;
  if (is_dict()) return dict().depth;
  return 0;
}

absl::string_view Value::type_name() const {
  switch (kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return is_safe() ? "Markup" : "str";
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return object()->type_name();
    case Kind::kSequence:
      break;
  }
  switch (sequence().type) {
    case SequenceType::kList:
      return "list";
    case SequenceType::kTuple:
      return "tuple";
    case SequenceType::kGroup:
      return "_GroupTuple";
    case SequenceType::kRange:
      return "range";
    case SequenceType::kGenerator:
      return "generator";
    case SequenceType::kKeys:
      return "dict_keys";
    case SequenceType::kValues:
      return "dict_values";
    case SequenceType::kItems:
      return "dict_items";
  }
  return "object";
}

bool Value::IsSame(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::kUndefined:
      return std::get<UndefinedRef>(data_).why ==
             std::get<UndefinedRef>(other.data_).why;
    case Kind::kSequence:
      return &sequence() == &other.sequence();
    case Kind::kDict:
      return &dict() == &other.dict();
    case Kind::kObject:
      return object() == other.object();
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kString:
      return Equal(*this, other);
  }
  return false;
}

}  // namespace baton::router::jinja
