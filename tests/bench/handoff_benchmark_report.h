// What handoff_benchmark found, as a table and as JSON. One thread.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace baton::kv_transfer {

// The same bytes, moved by something else.
struct Limit {
  std::string name;
  double seconds = 0;
};

struct Result {
  std::string transport;
  int64_t bytes = 0;
  double seconds = 0;
  // The very first hand-off between the two processes.
  double first_seconds = 0;
  // Each of several in a row; 0: not measured.
  double row_seconds = 0;
  // The same bytes in a row by something else.
  std::vector<Limit> row_limits;
  std::vector<Limit> limits;
  // Shown, but nothing is compared with them.
  std::vector<Limit> beside;
  // Of hashing the bytes, once, on one thread.
  double hash_seconds = 0;
};

// Of one transport; all have the same limits. Ratios are to the fastest limit.
void PrintTable(const std::vector<Result>& results, std::ostream& out);

// Of those in a row.
void PrintRowTable(const std::vector<Result>& results, std::ostream& out);

void WriteJson(const std::string& path, const std::vector<Result>& bandwidth,
               const std::vector<Result>& latency);

}  // namespace baton::kv_transfer
