// What the router knows of its cluster, for operators (`baton doctor`).
#pragma once

#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "router/worker_registry.h"

namespace baton::router {

// Workers and links. The router's loop thread.
v1::GetClusterResponse DescribeCluster(const WorkerRegistry& registry,
                                       absl::Time now);

}  // namespace baton::router
