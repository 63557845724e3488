#include "router/text/jinja/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "router/text/jinja/python_text.h"

namespace baton::router::jinja {
namespace {

// Parts of a tuple that may be a key.
constexpr int kMaxHashed = 1000;

bool IsTuple(const SequenceRep& sequence) {
  return sequence.type == SequenceType::kTuple ||
         sequence.type == SequenceType::kGroup;
}

// Whether Python compares the two item by item.
bool AreOfOneType(const SequenceRep& a, const SequenceRep& b) {
  if (IsTuple(a) && IsTuple(b)) return true;
  if (a.type != b.type) return false;
  switch (a.type) {
    case SequenceType::kList:
    case SequenceType::kRange:
    case SequenceType::kKeys:
    case SequenceType::kItems:
      return true;
    case SequenceType::kTuple:
    case SequenceType::kGroup:
    case SequenceType::kGenerator:
    case SequenceType::kValues:
      return false;
  }
  return false;
}

bool EqualNumbers(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) {
    return a.as_integer() == b.as_integer();
  }
  return a.as_double() == b.as_double();
}

// Equality whose steps are counted, where there is a run.
class Comparison final {
 public:
  explicit Comparison(Run* run) : run_(run) {}

  bool Equal(const Value& a, const Value& b) {
    if (!status_.ok() || !Pay(1)) return false;
    if (a.is_number() && b.is_number()) return EqualNumbers(a, b);
    if (a.kind() != b.kind()) return false;
    switch (a.kind()) {
      case Kind::kUndefined:
      case Kind::kNone:
        return true;
      case Kind::kBool:
      case Kind::kInt:
      case Kind::kFloat:
        return EqualNumbers(a, b);
      case Kind::kString:
        return a.text().size() == b.text().size() &&
               Pay(static_cast<int64_t>(a.text().size() / 64)) &&
               a.text() == b.text();
      case Kind::kSequence:
        return EqualSequences(a.sequence(), b.sequence());
      case Kind::kDict:
        return EqualDicts(a.dict(), b.dict());
      case Kind::kObject:
        return a.object() == b.object();
    }
    return false;
  }

  const absl::Status& status() const { return status_; }

 private:
  bool Pay(int64_t steps) {
    if (run_ == nullptr) return true;
    if (status_.ok()) status_ = run_->Spend(steps);
    return status_.ok();
  }

  bool EqualSequences(const SequenceRep& a, const SequenceRep& b) {
    if (&a == &b) return true;
    if (!AreOfOneType(a, b) || a.items.size() != b.items.size()) return false;
    for (size_t i = 0; i < a.items.size(); ++i) {
      if (!Equal(a.items[i], b.items[i])) return false;
    }
    return true;
  }

  bool EqualDicts(const DictRep& a, const DictRep& b) {
    if (&a == &b) return true;
    if (a.entries.size() != b.entries.size()) return false;
    for (const auto& [key, value] : a.entries) {
      const Value* other = b.Find(key);
      if (other == nullptr || !Equal(value, *other)) return false;
    }
    return true;
  }

  Run* const run_;
  absl::Status status_;
};

uint64_t HashOfNumber(const Value& value) {
  if (value.is_integral()) {
    const Integer number = value.as_integer();
    return absl::HashOf(static_cast<uint64_t>(number),
                        static_cast<uint64_t>(number >> 64));
  }
  const double number = value.as_double();
  // A float that is a whole number equals that integer.
  if (std::nearbyint(number) == number && std::abs(number) < 1e18) {
    return HashOfNumber(Value::Int(static_cast<Integer>(number)));
  }
  return absl::HashOf(number);
}

absl::string_view SymbolOf(Order order) {
  switch (order) {
    case Order::kLess:
      return "<";
    case Order::kLessOrEqual:
      return "<=";
    case Order::kGreater:
      return ">";
    case Order::kGreaterOrEqual:
      return ">=";
  }
  return "";
}

template <typename T>
bool Ordered(Order order, const T& a, const T& b) {
  switch (order) {
    case Order::kLess:
      return a < b;
    case Order::kLessOrEqual:
      return a <= b;
    case Order::kGreater:
      return a > b;
    case Order::kGreaterOrEqual:
      return a >= b;
  }
  return false;
}

}  // namespace

bool Truth(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
      return value.as_bool();
    case Kind::kInt:
      return value.as_integer() != 0;
    case Kind::kFloat:
      return value.as_double() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kSequence:
      return value.sequence().type == SequenceType::kGenerator ||
             !value.sequence().items.empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    case Kind::kObject:
      return true;
  }
  return false;
}

bool Equal(const Value& a, const Value& b) {
  return Comparison(nullptr).Equal(a, b);
}

absl::StatusOr<bool> Equals(Run& run, const Value& a, const Value& b) {
  Comparison comparison(&run);
  const bool equal = comparison.Equal(a, b);
  if (!comparison.status().ok()) return comparison.status();
  return equal;
}

absl::StatusOr<bool> IsOrdered(Run& run, Order order, const Value& a,
                               const Value& b) {
  BATON_RETURN_IF_ERROR(run.Spend(1));
  if (a.is_undefined()) return a.UndefinedError();
  if (b.is_undefined()) return b.UndefinedError();
  if (a.is_integral() && b.is_integral()) {
    return Ordered(order, a.as_integer(), b.as_integer());
  }
  if (a.is_number() && b.is_number()) {
    return Ordered(order, a.as_double(), b.as_double());
  }
  if (a.is_string() && b.is_string()) {
    BATON_RETURN_IF_ERROR(
        run.SpendText(std::min(a.text().size(), b.text().size())));
    // The order of UTF-8 bytes is that of code points.
    return Ordered(order, a.text(), b.text());
  }
  if (a.is_sequence() && b.is_sequence() &&
      AreOfOneType(a.sequence(), b.sequence()) && a.is_indexable_sequence() &&
      a.sequence().type != SequenceType::kRange) {
    const Values& left = a.sequence().items;
    const Values& right = b.sequence().items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      BATON_ASSIGN_OR_RETURN(const bool equal, Equals(run, left[i], right[i]));
      if (!equal) return IsOrdered(run, order, left[i], right[i]);
    }
    return Ordered(order, left.size(), right.size());
  }
  return Error(absl::StrCat("'", SymbolOf(order),
                            "' not supported between instances of '",
                            a.type_name(), "' and '", b.type_name(), "'"));
}

absl::StatusOr<bool> Contains(Run& run, const Value& container,
                              const Value& item) {
  switch (container.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kString: {
      if (!item.is_string()) {
        return Error(
            absl::StrCat("'in <string>' requires string as left operand, not ",
                         item.type_name()));
      }
      BATON_RETURN_IF_ERROR(run.SpendText(container.text().size()));
      return FindText(container.text(), item.text(), 0) != std::string::npos;
    }
    case Kind::kSequence: {
      const SequenceRep& sequence = container.sequence();
      for (size_t i = sequence.taken; i < sequence.items.size(); ++i) {
        // A generator gives what it gives once.
        if (sequence.type == SequenceType::kGenerator) sequence.taken = i + 1;
        BATON_ASSIGN_OR_RETURN(const bool equal,
                               Equals(run, sequence.items[i], item));
        if (equal) return true;
      }
      return false;
    }
    case Kind::kDict: {
      if (!HashOf(item).has_value()) {
        return Error(absl::StrCat("unhashable type: '", item.type_name(), "'"));
      }
      BATON_RETURN_IF_ERROR(run.Spend(1));
      return container.dict().Find(item) != nullptr;
    }
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
    case Kind::kObject:
      return Error(absl::StrCat("argument of type '", container.type_name(),
                                "' is not iterable"));
  }
  return false;
}

namespace {

// `left` counts what may still be looked at: small tuples can stand for huge
// ones, by sharing their parts.
std::optional<uint64_t> HashWithin(const Value& value, int* left) {
  if (--*left < 0) return std::nullopt;
  switch (value.kind()) {
    case Kind::kUndefined:
      return 1;
    case Kind::kNone:
      return 2;
    case Kind::kBool:
    case Kind::kInt:
    case Kind::kFloat:
      return HashOfNumber(value);
    case Kind::kString:
      return absl::HashOf(value.text());
    case Kind::kSequence: {
      if (!IsTuple(value.sequence())) return std::nullopt;
      uint64_t hash = 3;
      for (const Value& item : value.sequence().items) {
        const std::optional<uint64_t> of_item = HashWithin(item, left);
        if (!of_item.has_value()) return std::nullopt;
        hash = absl::HashOf(hash, *of_item);
      }
      return hash;
    }
    case Kind::kDict:
      return std::nullopt;
    case Kind::kObject:
      return absl::HashOf(value.object());
  }
  return std::nullopt;
}

}  // namespace

std::optional<uint64_t> HashOf(const Value& value) {
  int left = kMaxHashed;
  return HashWithin(value, &left);
}

absl::Status MergeEqualKeys(std::vector<DictRep::Entry>* entries) {
  // By hash, the places of the kept entries.
  absl::flat_hash_map<uint64_t, std::vector<size_t>> places;
  size_t kept = 0;
  for (size_t i = 0; i < entries->size(); ++i) {
    DictRep::Entry& entry = (*entries)[i];
    const std::optional<uint64_t> hash = HashOf(entry.first);
    if (!hash.has_value()) {
      return Error(
          absl::StrCat("unhashable type: '", entry.first.type_name(), "'"));
    }
    std::vector<size_t>& same_hash = places[*hash];
    const auto it =
        std::find_if(same_hash.begin(), same_hash.end(), [&](size_t place) {
          return Equal((*entries)[place].first, entry.first);
        });
    if (it != same_hash.end()) {
      (*entries)[*it].second = std::move(entry.second);
      continue;
    }
    same_hash.push_back(kept);
    if (kept != i) (*entries)[kept] = std::move(entry);
    ++kept;
  }
  entries->resize(kept);
  return absl::OkStatus();
}

}  // namespace baton::router::jinja
