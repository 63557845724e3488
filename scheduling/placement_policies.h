// The placement policies by name, for whoever lets a person choose: the router,
// `baton up`, the planner. Pure; any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduling/placement.h"

namespace baton::scheduling {

inline constexpr char kDefaultPlacementPolicy[] = "cost-model";

// "least-load", "power-of-two", "prefix-affine", "cost-model".
const std::vector<std::string>& PlacementPolicyNames();

// Each in a few words, with what tells it from the others; for help texts.
std::string DescribePlacementPolicies();

// InvalidArgument names what there is.
absl::StatusOr<std::unique_ptr<const PlacementPolicy>> MakePlacementPolicy(
    absl::string_view name);

}  // namespace baton::scheduling
