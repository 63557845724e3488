#include "scheduling/placement_policies.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduling/cost_placement.h"
#include "scheduling/power_of_two_placement.h"
#include "scheduling/prefix_affine_placement.h"

namespace baton::scheduling {
namespace {

template <typename Policy>
std::unique_ptr<const PlacementPolicy> Make() {
  return std::make_unique<const Policy>();
}

struct NamedPolicy {
  const char* name;
  const char* meaning;
  std::unique_ptr<const PlacementPolicy> (*make)();
};

constexpr NamedPolicy kPolicies[] = {
    {"least-load", "the least loaded", Make<LeastLoadPlacement>},
    {"power-of-two", "the less loaded of two drawn by chance",
     Make<PowerOfTwoPlacement>},
    {"prefix-affine", "where most of the prompt is cached, weighed by load",
     Make<PrefixAffinePlacement>},
    {"cost-model",
     "the least predicted delay, which also decides whether a prompt is "
     "computed on the decode worker itself",
     Make<CostModelPlacement>},
};

}  // namespace

const std::vector<std::string>& PlacementPolicyNames() {
  static const auto* const names = [] {
    auto* list = new std::vector<std::string>;
    for (const NamedPolicy& policy : kPolicies) list->push_back(policy.name);
    return list;
  }();
  return *names;
}

std::string DescribePlacementPolicies() {
  return absl::StrJoin(
      kPolicies, "; ", [](std::string* out, const NamedPolicy& policy) {
        absl::StrAppend(out, policy.name, ": ", policy.meaning);
      });
}

absl::StatusOr<std::unique_ptr<const PlacementPolicy>> MakePlacementPolicy(
    absl::string_view name) {
  for (const NamedPolicy& policy : kPolicies) {
    if (name == policy.name) return policy.make();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("placement policy \"", name, "\" is unknown; there are ",
                   absl::StrJoin(PlacementPolicyNames(), ", ")));
}

}  // namespace baton::scheduling
