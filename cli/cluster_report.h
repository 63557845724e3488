// A cluster as an operator wants to see it: workers, the matrix of links, and
// what is wrong. Pure.
#pragma once

#include <string>
#include <vector>

#include "baton/v1/inference.pb.h"

namespace baton::cli {

struct ClusterFinding {
  // Something does not work; else, it could be better.
  bool is_problem = false;
  std::string text;
};

// Workers that get no requests, workers that do not compute alike, links that
// do not work, links much slower than the others, and TCP between workers of
// one host.
std::vector<ClusterFinding> FindTrouble(const v1::GetClusterResponse& cluster);

// Lines of text: a table of workers, the matrix of links, the findings.
std::string FormatCluster(const v1::GetClusterResponse& cluster);

}  // namespace baton::cli
