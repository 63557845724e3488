// Networks that are cut while streams run: one decode worker lives in a network
// namespace, with one link for control and one for KV.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/integration/network_namespace.h"
#include "tests/integration/streams_fixture.h"

namespace baton::test {
namespace {

class NetworkTest : public StreamsTest {
 protected:
  void SetUp() override {
    if (!there_.made()) {
      GTEST_SKIP() << "network namespaces or veth links cannot be made here "
                      "(needs root and the ip command)";
    }
    StreamsTest::SetUp();
    cluster_ = std::make_unique<Cluster>(model_dir_);
    cluster_->set_launcher("decode-0",
                           {"/sbin/ip", "netns", "exec", there_.name()});
    const std::string control = there_.Address(kControl);
    // This machine may have devices that lead nowhere.
    const Flags prefill = {"--data-host", there_.OurAddress(kData)};
    StartCluster(
        {.prefill = {prefill, prefill},
         .decode = {{"--listen", control + ":0", "--metrics", control + ":0",
                     "--data-host", there_.Address(kData)},
                    {}}});
  }

  bool LinksToDecode0(bool usable) {
    grpc::ClientContext context;
    SetDeadline(&context);
    v1::GetClusterResponse cluster;
    if (!stub_->GetCluster(&context, {}, &cluster).ok()) return false;
    int matching = 0;
    for (const v1::LinkStatus& link : cluster.links()) {
      matching += link.decode_worker() == "decode-0" && link.usable() == usable;
    }
    return matching == 2;
  }

  static constexpr auto kControl = NetworkNamespace::kControl;
  static constexpr auto kData = NetworkNamespace::kData;
  const NetworkNamespace there_;
};

TEST_F(NetworkTest, HandOffsGoOnWithoutTheLinkThatIsCut) {
  const auto requests = MakeRequests();
  constexpr int kRounds = 5;
  int replaced = 0;
  for (int round = 0; round < kRounds && replaced == 0; ++round) {
    there_.Set(kData, true);
    ASSERT_TRUE(Eventually([&] { return LinksToDecode0(true); }));
    // Streams that are decoded there do not need the link any more. New ones
    // do: some find out, before the pairs are known to be down.
    std::vector<Answer> next;
    const std::vector<Answer> running = RunAndInterrupt(requests, [&] {
      there_.Set(kData, false);
      next = RunAndInterrupt(requests, [] {});
    });
    replaced += CheckAnswers(requests, running);
    replaced += CheckAnswers(requests, next);
  }
  EXPECT_GT(replaced, 0) << "no hand-off met the cut";
  EXPECT_TRUE(Eventually([&] { return LinksToDecode0(false); }));
  there_.Set(kData, true);
  EXPECT_TRUE(Eventually([&] { return LinksToDecode0(true); }));
  CheckServes();
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
}

TEST_F(NetworkTest, StreamsOfAWorkerThatIsCutOffGoOnElsewhere) {
  const auto requests = MakeRequests();
  EXPECT_TRUE(Eventually([&] { return LinksToDecode0(true); }));
  const auto connect = [&] {
    there_.Set(kControl, true);
    there_.Set(kData, true);
    CheckJoined(2, 2);
    EXPECT_TRUE(Eventually([&] { return LinksToDecode0(true); }));
  };
  const bool hit = InterruptUntilHit(
      requests,
      [&] {
        there_.Set(kControl, false);
        there_.Set(kData, false);
      },
      connect);
  EXPECT_TRUE(hit) << "the cut hit no stream";
  ASSERT_NO_FATAL_FAILURE(connect());
  CheckServes();
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
}

}  // namespace
}  // namespace baton::test
