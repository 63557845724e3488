// How fast KV goes from one process to another, next to how fast bytes can go.
// Run by hand, on an otherwise idle machine:
//
//   handoff_benchmark [--json FILE] [--sizes 1,8,64,512] [--repeat 15]
//                     [--transports local,tcp,tls,ucx] [--scattered]
//                     [--landing cold|warm]
//
// This process is the decode worker; it starts itself again as the prefill
// worker. Sizes are MB of KV (10^6 bytes, up to whole blocks) of a model of 30
// layers, 3 KV heads of 64 and 16 tokens per block in bf16: pages of 12,288
// bytes. --scattered: blocks in random order, so that no two pages lie next to
// each other. Before each repetition the sender writes the pages anew, as
// computing them would, and the receiver throws its own out of its caches, as
// blocks are that were free for a while, or with --landing warm reads them all:
// what is measured and what it is compared with find both sides alike. Times
// are the sender's, from the first SendLayer to the receiver's word that the
// commit is verified; medians. "In a row": half a GB of hand-offs of that size,
// two of them under way, each granted when one before it has landed, as under
// load; the pages are those of two hand-offs, written once, and the limits find
// them so, too.
//
// Each process keeps to a CPU of its own: two threads that happen to share one
// would find all bytes in its nearest cache.
//
// "tls" is "tcp", encrypted.
//
// The limits, measured in the same run, of the same bytes:
//   memcpy     the sender says with a byte on a socket that there is something,
//              the receiver copies it from their shared memory to its own, and
//              answers: a copy between two processes, by the sender's clock;
//   streaming  the same, by stores that leave the caches alone;
//   ... alone  of either the copy by itself, by the receiver's clock;
//   TCP        a loopback TCP stream from process to process, 1 MB at a time,
//              and a byte back, by the sender's clock;
//   UCX        UCX's own benchmark, where it is installed (Debian: ucx-utils):
//              active messages as large as the KV;
//   UCX cached the same with messages of 1 MiB: the same few bytes again and
//              again, out of the nearest caches, where KV is not.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "common/log.h"
#include "kv_transfer/transports/ucx/ucx_transport.h"
#include "tests/bench/handoff_benchmark_pair.h"
#include "tests/bench/handoff_benchmark_report.h"
#include "tests/bench/handoff_benchmark_sender.h"
#include "tests/bench/handoff_benchmark_setup.h"
#include "tests/bench/handoff_benchmark_ucx.h"

namespace baton::kv_transfer {
namespace {

struct Flags {
  std::string json;
  std::vector<std::string> sizes = {"1", "8", "64", "512"};
  std::vector<std::string> kinds = {"local", "tcp", "tls", "ucx"};
  int repeat = 15;
  bool scattered = false;
  bool warm = false;
};

// False: not as the top of this file says.
bool ParseFlags(int argc, char** argv, Flags* flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--scattered") {
      flags->scattered = true;
    } else if (i + 1 == argc) {
      return false;
    } else if (flag == "--json") {
      flags->json = argv[++i];
    } else if (flag == "--sizes") {
      flags->sizes = absl::StrSplit(argv[++i], ',');
    } else if (flag == "--transports") {
      flags->kinds = absl::StrSplit(argv[++i], ',');
    } else if (flag == "--landing") {
      const std::string state = argv[++i];
      if (state != "cold" && state != "warm") return false;
      flags->warm = state == "warm";
    } else if (flag == "--repeat") {
      flags->repeat = std::max(1, std::atoi(argv[++i]));
    } else {
      return false;
    }
  }
  return true;
}

std::vector<int32_t> BlockCounts(const Flags& flags) {
  const int64_t block_bytes = kBenchShape.layers * kBenchShape.page_bytes;
  std::vector<int32_t> counts;
  for (const std::string& size : flags.sizes) {
    const auto blocks = static_cast<int64_t>(
        (std::atof(size.c_str()) * 1e6 + block_bytes - 1) / block_bytes);
    counts.push_back(static_cast<int32_t>(std::max<int64_t>(1, blocks)));
  }
  return counts;
}

// Of three runs, in bytes per second; 0 when it cannot be had.
double UcxLimit(uint64_t message_bytes) {
  std::vector<double> runs;
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<double> run = UcxActiveMessageBandwidth(message_bytes);
    if (!run.ok()) {
      std::cerr << "UCX by itself: " << run.status().message() << "\n";
      return 0;
    }
    runs.push_back(*run);
  }
  return Median(runs);
}

// `ucx_cached`: bytes per second of UCX by itself with the same few bytes, 0
// when that is not known.
Result Measure(Pair& pair, const std::string& kind, int32_t num_blocks,
               int repeat, double ucx_cached) {
  Result result;
  result.transport = kind;
  result.bytes = pair.BytesOf(num_blocks);
  std::vector<double> transfers, hashes, tcp;
  std::vector<double> plain, plain_alone, streaming, streaming_alone;
  // Rounds of all, so that a disturbance hits all of them alike. The first two
  // are for warming up.
  for (int i = 0; i < repeat + 2; ++i) {
    const double transfer = pair.Transfer(num_blocks);
    const double hash = pair.Hash(num_blocks);
    if (i == 0) result.first_seconds = transfer;
    if (i >= 2) {
      transfers.push_back(transfer);
      hashes.push_back(hash);
    }
    if (kind != "local") {
      tcp.push_back(pair.TcpStream(num_blocks));
    } else {
      const Pair::Copied copied = pair.Copy(num_blocks);
      plain.push_back(copied.between_processes);
      plain_alone.push_back(copied.alone);
      const Pair::Copied streamed = pair.StreamingCopy(num_blocks);
      streaming.push_back(streamed.between_processes);
      streaming_alone.push_back(streamed.alone);
    }
  }
  result.seconds = Median(transfers);
  result.hash_seconds = Median(hashes);
  if (kind != "local") {
    result.limits.push_back({"TCP", Median(tcp)});
    if (ucx_cached > 0) {
      const auto bytes = static_cast<double>(result.bytes);
      // 0.00 in the table where it failed.
      constexpr double kNever = 1e9;
      const double ucx = UcxLimit(static_cast<uint64_t>(result.bytes));
      result.limits.push_back({"UCX", ucx > 0 ? bytes / ucx : kNever});
      result.beside.push_back({"UCX cached", bytes / ucx_cached});
    }
  } else {
    result.limits.push_back({"memcpy", Median(plain)});
    result.limits.push_back({"streaming", Median(streaming)});
    result.beside.push_back({"memcpy alone", Median(plain_alone)});
    result.beside.push_back({"streaming alone", Median(streaming_alone)});
  }
  return result;
}

// Hand-offs in a row, and the same in a row without them; medians of five
// rounds. What UCX does by itself is in a row anyway.
void MeasureInARow(int32_t num_blocks, const Flags& flags, Result* result) {
  const std::string& kind = result->transport;
  Pair pair(kind, {&kBenchShape, kAtOnce * num_blocks, flags.scattered},
            flags.warm);
  constexpr int64_t kTotalBytes = int64_t{1} << 29;
  const auto count = static_cast<int>(
      std::max<int64_t>(4, kTotalBytes / pair.BytesOf(num_blocks)));
  std::vector<double> rows, plain, streaming, tcp;
  pair.InARow(num_blocks, 4);
  for (int i = 0; i < 5; ++i) {
    rows.push_back(pair.InARow(num_blocks, count));
    if (kind != "local") {
      tcp.push_back(pair.TcpInARow(num_blocks, count));
    } else {
      plain.push_back(pair.CopyInARow(num_blocks, count));
      streaming.push_back(pair.StreamingCopyInARow(num_blocks, count));
    }
  }
  result->row_seconds = Median(rows);
  if (kind == "local") {
    result->row_limits = {{"memcpy", Median(plain)},
                          {"streaming", Median(streaming)}};
    return;
  }
  result->row_limits = {{"TCP", Median(tcp)}};
  for (const Limit& limit : result->limits) {
    if (limit.name == "UCX") result->row_limits.push_back(limit);
  }
}

int Run(const Flags& flags) {
  KeepToCpu(0);
  std::vector<Result> all, all_latencies;
  for (const std::string& kind : flags.kinds) {
    std::vector<Result> results, latencies;
    constexpr uint64_t kCachedBytes = uint64_t{1} << 20;
    const double ucx_cached = kind == "local" ? 0 : UcxLimit(kCachedBytes);
    for (int32_t count : BlockCounts(flags)) {
      {
        // The pool is as large as the hand-off.
        Pair pair(kind, {&kBenchShape, count, flags.scattered}, flags.warm);
        results.push_back(Measure(pair, kind, count, flags.repeat, ucx_cached));
      }
      MeasureInARow(count, flags, &results.back());
    }
    constexpr int32_t kStoriesBlocks = 128 / kBlockTokens;
    Pair pair(kind, {&kStoriesShape, kStoriesBlocks, flags.scattered},
              flags.warm);
    latencies.push_back(
        Measure(pair, kind, kStoriesBlocks, 10 * flags.repeat, ucx_cached));
    std::cout << "KV of " << kBenchShape.description << ", blocks "
              << (flags.scattered ? "scattered" : "in order") << ", landing "
              << (flags.warm ? "warm" : "cold") << ":\n\n";
    PrintTable(results, std::cout);
    std::cout << "\nIn a row, two at a time:\n\n";
    PrintRowTable(results, std::cout);
    std::cout << "\nKV of 128 tokens of " << kStoriesShape.description
              << ":\n\n";
    PrintTable(latencies, std::cout);
    std::cout << std::endl;
    all.insert(all.end(), results.begin(), results.end());
    all_latencies.insert(all_latencies.end(), latencies.begin(),
                         latencies.end());
  }
  if (!flags.json.empty()) WriteJson(flags.json, all, all_latencies);
  return 0;
}

int Main(int argc, char** argv) {
  PrepareUcxEnvironment();
  // As in a worker's main.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  InitLogging("handoff_benchmark");
  if (argc == 2 + kSenderArgs && std::string(argv[1]) == "--sender") {
    return RunSender(argv + 2);
  }
  Flags flags;
  if (!ParseFlags(argc, argv, &flags)) {
    std::cerr << "see the top of handoff_benchmark.cc\n";
    return 2;
  }
  return Run(flags);
}

}  // namespace
}  // namespace baton::kv_transfer

int main(int argc, char** argv) { return baton::kv_transfer::Main(argc, argv); }
