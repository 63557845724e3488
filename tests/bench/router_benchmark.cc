// What one router process can do: how many streams it carries, what a token
// costs it, what it adds to a token's way, beside a server that does nothing
// but send. Run by hand, on an otherwise idle machine of two CPUs; about three
// minutes.
//
//   router_benchmark [--router PROGRAM] [--model models/stories] [--json FILE]
//                    [--only carried,overdriven,raw,placement,memory,slow,
//                            leaving,tokenizing]
//                    [--protocol http|grpc] [--workers 20] [--seconds 3]
//                    [--tokens-per-second 20] [--streams 500,5000]
//
// The router is a real process and has the second CPU. This process has the
// first, with workers that replay a token (router_benchmark_workers.h) and with
// the clients. Added latency is from the worker's send of a frame to the
// client's receipt of a token of it, both in this process: the way over two
// sockets, and the wait for a place on this CPU, are part of it.
//
// "CPU" is of the router (user and system, of /proc/PID/stat), "clients' CPU"
// of this process: where it is near 1, the load was the bound and not the
// router. "others" is the share of the whole machine that other processes
// took, "late steps" are those that the workers began more than 5 ms late: a
// row with much of either says little.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/json.h"
#include "common/log.h"
#include "common/process/process.h"
#include "tests/bench/router_benchmark_phases.h"
#include "tests/bench/router_benchmark_tokenizing.h"

namespace baton::bench {
namespace {

struct Flags {
  RouterBenchmark::Options benchmark;
  std::vector<std::string> protocols = {"http", "grpc"};
  std::vector<std::string> only = {"tokenizing", "raw",       "carried",
                                   "overdriven", "placement", "memory",
                                   "slow",       "leaving"};
  std::string json;
};

// False: not as the top of this file says.
bool ParseFlag(const std::string& flag, const std::string& value,
               Flags* flags) {
  RouterBenchmark::Options& benchmark = flags->benchmark;
  if (flag == "--router") {
    benchmark.program = value;
  } else if (flag == "--model") {
    benchmark.model_dir = value;
  } else if (flag == "--json") {
    flags->json = value;
  } else if (flag == "--only") {
    flags->only = absl::StrSplit(value, ',');
  } else if (flag == "--protocol") {
    flags->protocols = {value};
    return value == "http" || value == "grpc";
  } else if (flag == "--workers") {
    return absl::SimpleAtoi(value, &benchmark.workers) &&
           benchmark.workers > 0 && benchmark.workers <= 1000;
  } else if (flag == "--seconds") {
    return absl::SimpleAtod(value, &benchmark.seconds) && benchmark.seconds > 0;
  } else if (flag == "--tokens-per-second") {
    return absl::SimpleAtod(value, &benchmark.tokens_per_second) &&
           benchmark.tokens_per_second > 0;
  } else if (flag == "--streams") {
    for (absl::string_view size : absl::StrSplit(value, ',')) {
      int streams = 0;
      if (!absl::SimpleAtoi(size, &streams) || streams < 1 ||
          streams > TokenBoard::kMaxStreams) {
        return false;
      }
      benchmark.streams.push_back(streams);
    }
    return std::is_sorted(benchmark.streams.begin(), benchmark.streams.end());
  } else {
    return false;
  }
  return true;
}

std::string Cell(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  const double number = value.get<double>();
  if (value.is_number_integer() || std::abs(number) >= 1000) {
    return absl::StrFormat("%.0f", number);
  }
  if (std::abs(number) >= 100) return absl::StrFormat("%.1f", number);
  if (std::abs(number) >= 0.1) return absl::StrFormat("%.2f", number);
  return absl::StrFormat("%.4f", number);
}

void PrintTable(const std::string& title, const Rows& rows) {
  std::cout << "\n" << title << "\n\n";
  bool first = true;
  for (const auto& row : rows) {
    std::vector<std::string> names, rule, cells;
    for (const auto& [name, value] : row.items()) {
      names.push_back(name);
      rule.push_back(value.is_string() ? "---" : "--:");
      cells.push_back(Cell(value));
    }
    if (first) {
      std::cout << "| " << absl::StrJoin(names, " | ") << " |\n| "
                << absl::StrJoin(rule, " | ") << " |\n";
    }
    first = false;
    std::cout << "| " << absl::StrJoin(cells, " | ") << " |\n";
  }
  std::cout << std::flush;
}

class Report final {
 public:
  void Add(const std::string& name, Rows rows) {
    PrintTable(name, rows);
    all_[name] = std::move(rows);
  }
  void Write(const std::string& path) const {
    std::ofstream out(path);
    out << all_.dump(1) << "\n";
    CHECK(out.flush().good()) << "cannot write " << path;
  }

 private:
  Rows all_ = Rows::object();
};

void Run(const Flags& flags, TokenBoard* board, RawServer* raw) {
  const auto wanted = [&](const char* name) {
    return std::find(flags.only.begin(), flags.only.end(), name) !=
           flags.only.end();
  };
  Report report;
  if (wanted("tokenizing")) report.Add("tokenizing", MeasureTokenizing());
  RouterBenchmark benchmark(flags.benchmark, board, raw);
  if (wanted("raw")) report.Add("raw", benchmark.Raw());
  for (const std::string& protocol : flags.protocols) {
    if (wanted("carried")) {
      report.Add("carried, " + protocol, benchmark.Carried(protocol));
    }
    if (wanted("overdriven")) {
      report.Add("overdriven, " + protocol, benchmark.Overdriven(protocol));
    }
  }
  if (wanted("placement")) report.Add("placement", benchmark.Placement());
  Rows memory = Rows::array(), leaving = Rows::array();
  for (const std::string& protocol : flags.protocols) {
    if (wanted("memory")) {
      for (const auto& row : benchmark.Memory(protocol)) memory.push_back(row);
    }
    if (wanted("leaving")) leaving.push_back(benchmark.Leaving(protocol));
  }
  if (!memory.empty()) report.Add("memory", std::move(memory));
  if (!leaving.empty()) report.Add("leaving", std::move(leaving));
  if (wanted("slow")) report.Add("slow clients", benchmark.Slow());
  if (!flags.json.empty()) report.Write(flags.json);
}

int Main(int argc, char** argv) {
  Flags flags;
  flags.benchmark.program = BATON_BINARY_DIR "/bin/baton-router";
  flags.benchmark.model_dir = BATON_SOURCE_DIR "/models/stories";
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc || !ParseFlag(argv[i], argv[i + 1], &flags)) {
      std::cerr << "see the top of router_benchmark.cc\n";
      return 2;
    }
  }
  RaiseFileLimit();
  InitLogging("router_benchmark");
  KeepToCpu(kOwnCpu);
  TokenBoard board;
  RawServer raw(&board);
  Run(flags, &board, &raw);
  return 0;
}

}  // namespace
}  // namespace baton::bench

int main(int argc, char** argv) { return baton::bench::Main(argc, argv); }
