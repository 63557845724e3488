#include "tests/bench/handoff_benchmark_setup.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/tls/pem_files.h"
#include "kv_transfer/transports/host_aware/create_transport.h"
#include "tests/support/test_certificates.h"

namespace baton::kv_transfer {

std::vector<std::string> Plan::Args() const {
  return {shape->name, absl::StrCat(num_blocks),
          scattered ? "scattered" : "in-order"};
}

Plan Plan::Parse(char** args) {
  Plan plan;
  plan.shape = std::string(args[0]) == kStoriesShape.name ? &kStoriesShape
                                                          : &kBenchShape;
  plan.num_blocks = std::atoi(args[1]);
  plan.scattered = std::string(args[2]) == "scattered";
  return plan;
}

std::vector<BlockId> Plan::Blocks(uint32_t seed) const {
  std::vector<BlockId> blocks(num_blocks);
  std::iota(blocks.begin(), blocks.end(), 0);
  if (scattered) {
    std::shuffle(blocks.begin(), blocks.end(), std::minstd_rand(seed));
  }
  return blocks;
}

std::unique_ptr<Transport> OpenTransport(const std::string& kind, bool listen) {
  TcpTls tls;
  if (kind == "tls") {
    // The process that was started first makes the certificate, for both.
    constexpr char kMember[] = "BATON_BENCHMARK_MEMBER";
    static test::ClusterMembers members;
    if (std::getenv(kMember) == nullptr) {
      const std::string file = members.Files()->paths().certificate;
      setenv(kMember, file.substr(0, file.rfind('/')).c_str(), 1);
    }
    auto files = tls::PemFiles::Open(tls::ClusterPaths(std::getenv(kMember)));
    CHECK(files.ok()) << files.status();
    tls.files = *std::move(files);
  }
  auto transport = CreateTransport(kind == "tls" ? "tcp" : kind,
                                   {.listen = listen}, nullptr, tls);
  CHECK(transport.ok()) << transport.status();
  return *std::move(transport);
}

HandoffOptions OptionsOf(const Plan& plan, v1::WorkerRole role,
                         const engine::cpu::MemoryArena& arena) {
  HandoffOptions options;
  options.self.set_role(role);
  options.self.set_incarnation(role == v1::WORKER_ROLE_DECODE ? 2 : 1);
  options.self.set_worker_name("bench");
  v1::ModelFingerprint* const model = options.self.mutable_fingerprint();
  model->set_num_layers(plan.shape->layers);
  model->set_num_kv_heads(plan.shape->kv_heads);
  model->set_block_size(kBlockTokens);
  options.kv.memory = arena.memory();
  options.kv.descriptor = arena.descriptor();
  options.kv.num_layers = plan.shape->layers;
  options.kv.page_bytes = plan.shape->page_bytes;
  options.kv.layer_stride_bytes = plan.shape->page_bytes * plan.num_blocks;
  options.kv.num_blocks = plan.num_blocks;
  return options;
}

int CpuAt(int index) {
  static const cpu_set_t all = [] {
    cpu_set_t set;
    PCHECK(sched_getaffinity(0, sizeof(set), &set) == 0);
    return set;
  }();
  int last = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &all)) continue;
    last = cpu;
    if (index-- == 0) break;
  }
  return last;
}

void KeepToCpu(int index) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(CpuAt(index), &one);
  PCHECK(sched_setaffinity(0, sizeof(one), &one) == 0);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

}  // namespace baton::kv_transfer
