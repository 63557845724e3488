// Many streams through a cluster to which something happens while they run, and
// the answers that they must have all the same.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference.h"

namespace baton::test {

class StreamsTest : public testing::Test {
 protected:
  void SetUp() override;

  // Half greedy, half sampled, each some hundred tokens long.
  std::vector<v1::GenerateRequest> MakeRequests(int count = 24);

  // Starts `cluster_`, making it first where there is none.
  void StartCluster(const ClusterShape& shape);
  // With two workers of each kind.
  void StartTwoPairs() {
    StartCluster({.prefill = {{}, {}}, .decode = {{}, {}}});
  }

  // Runs all requests at once; calls `interrupt` when every stream has its
  // third token (or has ended).
  std::vector<Answer> RunAndInterrupt(
      const std::vector<v1::GenerateRequest>& requests,
      const std::function<void()>& interrupt);

  // Runs all requests and interrupts them, and again after `mend`, until it hit
  // a stream that was not over: the tokens that clients have yet to read may
  // all be computed. Checks the answers. False when it never did.
  bool InterruptUntilHit(const std::vector<v1::GenerateRequest>& requests,
                         const std::function<void()>& interrupt,
                         const std::function<void()>& mend);

  // Starts two pairs; decode-0 is killed while the requests run, again and
  // again until that hits one of them. Checks the answers.
  void CheckKilledDecodeWorker(
      const std::vector<v1::GenerateRequest>& requests);

  // Every stream ended with the tokens that it would have had; how many were
  // placed again.
  int CheckAnswers(const std::vector<v1::GenerateRequest>& requests,
                   const std::vector<Answer>& answers);
  // The cluster still serves.
  void CheckServes();

  // SIGTERM, exit status 0, and a new life at the same address.
  void RestartWorker(const std::string& program, const std::string& name);
  // The new life of a worker that ends or has ended.
  void LaunchAgain(const std::string& program, const std::string& name);
  // The router counts so many workers.
  void CheckJoined(int num_prefill, int num_decode);

  // Until all workers have adapters of these names, sorted, and the router
  // knows.
  bool AwaitAdapters(const std::vector<std::string>& names);

  // Until no block is in use on any of these workers.
  void AwaitBlocksFree(const std::vector<std::string>& workers);

  ScratchDir scratch_;
  std::string model_dir_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

}  // namespace baton::test
