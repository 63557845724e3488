#include "tests/bench/handoff_benchmark_report.h"

#include <algorithm>
#include <fstream>

#include "absl/strings/str_format.h"
#include "common/log.h"

namespace baton::kv_transfer {
namespace {

double GigabytesPerSecond(int64_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds / 1e9;
}

}  // namespace

void PrintTable(const std::vector<Result>& results, std::ostream& out) {
  if (results.empty()) return;
  out << "| transport | MB | first, ms | ms | GB/s |";
  std::string rule = "| --- | --: | --: | --: | --: |";
  for (const auto* limits : {&results[0].limits, &results[0].beside}) {
    for (const Limit& limit : *limits) {
      out << " " << limit.name << ", GB/s |";
      rule += " --: |";
    }
  }
  out << " hashing, GB/s | ratio |\n" << rule << " --: | --: |\n";
  for (const Result& r : results) {
    CHECK_EQ(r.limits.size(), results[0].limits.size());
    out << absl::StrFormat("| %s | %.1f | %.2f | %.3f | %.2f |", r.transport,
                           static_cast<double>(r.bytes) / 1e6,
                           r.first_seconds * 1e3, r.seconds * 1e3,
                           GigabytesPerSecond(r.bytes, r.seconds));
    double fastest = 1e9;
    for (const Limit& limit : r.limits) {
      out << absl::StrFormat(" %.2f |",
                             GigabytesPerSecond(r.bytes, limit.seconds));
      fastest = std::min(fastest, limit.seconds);
    }
    for (const Limit& limit : r.beside) {
      out << absl::StrFormat(" %.2f |",
                             GigabytesPerSecond(r.bytes, limit.seconds));
    }
    out << absl::StrFormat(" %.1f | **%.2f** |",
                           GigabytesPerSecond(r.bytes, r.hash_seconds),
                           fastest / r.seconds);
    out << "\n";
  }
}

void PrintRowTable(const std::vector<Result>& results, std::ostream& out) {
  if (results.empty()) return;
  out << "| transport | MB | in a row, GB/s |";
  std::string rule = "| --- | --: | --: |";
  for (const Limit& limit : results[0].row_limits) {
    out << " " << limit.name << ", GB/s | of it |";
    rule += " --: | --: |";
  }
  out << "\n" << rule << "\n";
  for (const Result& r : results) {
    out << absl::StrFormat("| %s | %.1f | %.2f |", r.transport,
                           static_cast<double>(r.bytes) / 1e6,
                           GigabytesPerSecond(r.bytes, r.row_seconds));
    for (const Limit& limit : r.row_limits) {
      out << absl::StrFormat(" %.2f | **%.2f** |",
                             GigabytesPerSecond(r.bytes, limit.seconds),
                             limit.seconds / r.row_seconds);
    }
    out << "\n";
  }
}

void WriteJson(const std::string& path, const std::vector<Result>& bandwidth,
               const std::vector<Result>& latency) {
  std::ofstream out(path);
  const auto write = [&](const char* name, const std::vector<Result>& rows) {
    out << "  \"" << name << "\": [\n";
    for (size_t i = 0; i < rows.size(); ++i) {
      const Result& r = rows[i];
      out << absl::StrFormat(
          "    {\"transport\": \"%s\", \"bytes\": %d, \"seconds\": %.9f, "
          "\"first_seconds\": %.9f, \"hash_seconds\": %.9f, "
          "\"row_seconds\": %.9f",
          r.transport, r.bytes, r.seconds, r.first_seconds, r.hash_seconds,
          r.row_seconds);
      for (const auto* limits : {&r.limits, &r.beside}) {
        for (const Limit& limit : *limits) {
          out << absl::StrFormat(", \"%s\": %.9f", limit.name, limit.seconds);
        }
      }
      for (const Limit& limit : r.row_limits) {
        out << absl::StrFormat(", \"%s in a row\": %.9f", limit.name,
                               limit.seconds);
      }
      out << (i + 1 < rows.size() ? "},\n" : "}\n");
    }
    out << "  ]";
  };
  out << "{\n";
  write("bandwidth", bandwidth);
  out << ",\n";
  write("stories_128_tokens", latency);
  out << "\n}\n";
  CHECK(out.flush().good()) << "cannot write " << path;
}

}  // namespace baton::kv_transfer
