// The measurements of router_benchmark, one function each. Every one that needs
// a router starts one of its own. Rows are flat JSON objects, alike within a
// table.
//
// One thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/json.h"
#include "tests/bench/router_benchmark_clients.h"
#include "tests/bench/router_benchmark_raw.h"
#include "tests/bench/router_benchmark_router.h"
#include "tests/bench/router_benchmark_setup.h"
#include "tests/bench/router_benchmark_workers.h"

namespace baton::bench {

using Rows = nlohmann::ordered_json;

class RouterBenchmark final {
 public:
  struct Options {
    // baton-router.
    std::string program;
    std::string model_dir;
    int workers = 20;
    // Of each stream.
    double tokens_per_second = 20;
    // Of each window.
    double seconds = 3;
    // What is measured of streams; empty: upwards until they are too many.
    std::vector<int> streams;
  };

  // Both outlive it.
  RouterBenchmark(const Options& options, TokenBoard* board, RawServer* raw);

  // More and more streams, until the clients get less than 99 % of the tokens
  // or the added latency's p99 is 50 ms. `protocol`: "http" or "grpc".
  Rows Carried(const std::string& protocol);
  // More tokens than the router can pass on.
  Rows Overdriven(const std::string& protocol);
  // The same clients and a server that does nothing but send.
  Rows Raw();
  // Prompts of 100,000 token ids, one after another.
  Rows Placement();
  // Of streams that wait.
  Rows Memory(const std::string& protocol);
  // 500 good streams beside 2,000 clients that do not do their part.
  Rows Slow();
  // From a client's leaving to the worker's Cancel.
  Rows Leaving(const std::string& protocol);

 private:
  std::unique_ptr<RouterProcess> StartRouter(const ReplayWorkers::Plan& plan);
  std::unique_ptr<StreamClients> MakeClients(const std::string& protocol,
                                             const RouterProcess& router);
  // A window's row. `rate`: what each of the streams is offered.
  Rows Measure(int streams, double rate, double seconds, pid_t server);
  Rows MeasurePlacement(const std::string& protocol,
                        const RouterProcess& router);

  const Options options_;
  TokenBoard* const board_;
  RawServer* const raw_;
  const ScratchFolder scratch_;
  const std::string model_dir_;
  Window window_;
  std::unique_ptr<ReplayWorkers> workers_;
};

}  // namespace baton::bench
