// Workers that a name in DNS has: who is connected to, who gets no requests any
// more, who is dropped. Links without a network.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/metrics/metrics.h"
#include "router/cluster.h"
#include "router/cluster_status.h"
#include "tests/support/fake_worker.h"

namespace baton::router {
namespace {

using scheduling::kNoWorker;
using scheduling::WorkerId;
using scheduling::WorkerRole;
using test::FakeWorker;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Its stream ends when the test says so, or at once where there is nobody.
class LooseLink final : public WorkerLink {
 public:
  struct State {
    bool connected = false;
    bool broken = false;
    bool gone = false;  // the link was destroyed
    Sink sink;
    int index = 0;
  };

  explicit LooseLink(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~LooseLink() override { state_->gone = true; }

  void Connect() override {
    ASSERT_FALSE(state_->connected);
    state_->connected = true;
  }
  bool connected() const override { return state_->connected; }
  bool Send(v1::RouterMessage) override { return state_->connected; }
  void Consumed() override {}
  void Ended() override { state_->connected = state_->broken = false; }
  void Break() override { state_->broken = true; }

 private:
  const std::shared_ptr<State> state_;
};

constexpr char kDecode[] = "dns:decode.test:90";
constexpr char kSpare[] = "dns:spare.test:90";

class ClusterDiscoveryTest : public testing::Test {
 protected:
  ClusterDiscoveryTest() {
    model_.architecture = "LlamaForCausalLM";
    model_.vocab_size = 2048;
    model_.num_layers = 6;
    model_.max_context = 512;
  }

  void Start(const std::vector<std::string>& decode = {kDecode}) {
    Cluster::Options options;
    options.decode_addresses = decode;
    cluster_.emplace(
        options, model_, v1::RouterHello(),
        [this](int link, const std::string& address, v1::RouterMessage,
               WorkerLink::Sink sink) -> std::unique_ptr<WorkerLink> {
          auto state = std::make_shared<LooseLink::State>();
          state->sink = std::move(sink);
          state->index = link;
          links_[address] = state;
          return std::make_unique<LooseLink>(state);
        },
        &inbox_, &metrics_, now_);
    Turn();
  }

  // What the inbox has, and then what time asks for.
  void Turn() {
    now_ += absl::Milliseconds(100);
    for (RouterEvent& event : inbox_.DrainFor(absl::ZeroDuration())) {
      cluster_->Take(std::move(std::get<LinkEvent>(event)), now_);
    }
    cluster_->Advance(now_);
    for (const WorkerRegistry::Worker& worker :
         cluster_->registry().workers()) {
      EXPECT_TRUE(!worker.removed || worker.id == kNoWorker);
    }
  }

  void Find(const std::vector<std::string>& ips, int source = 0) {
    FoundWorkers found = {.source = source,
                          .addresses = std::vector<std::string>()};
    for (const std::string& ip : ips) {
      found.addresses->push_back(AddressOf(ip, 90));
    }
    cluster_->TakeFound(found, now_);
    Turn();
  }
  void FindFails(const absl::Status& status) {
    cluster_->TakeFound({.source = 0, .addresses = status}, now_);
    Turn();
  }
  // So many look-ups in a row.
  void FindOften(const std::vector<std::string>& ips, int times = 3) {
    for (int i = 0; i < times; ++i) Find(ips);
  }

  LooseLink::State& LinkTo(const std::string& ip) {
    const auto it = links_.find(AddressOf(ip, 90));
    CHECK(it != links_.end()) << ip;
    return *it->second;
  }
  void SayHello(const std::string& ip) {
    LinkEvent event;
    event.link = LinkTo(ip).index;
    *event.message.mutable_hello() =
        FakeWorker::Hello(v1::WORKER_ROLE_DECODE, ip);
    LinkTo(ip).sink(std::move(event));
    Turn();
  }
  // Where there is one.
  void EndStream(const std::string& ip) {
    if (!LinkTo(ip).connected) return;
    LinkEvent event;
    event.link = LinkTo(ip).index;
    event.kind = LinkEvent::Kind::kEnded;
    event.reason = "gone";
    LinkTo(ip).sink(std::move(event));
    Turn();
  }

  // As operators see it: "10.0.0.1:90", and why it gets no requests.
  std::map<std::string, std::string> Workers() {
    std::map<std::string, std::string> workers;
    const v1::GetClusterResponse cluster =
        DescribeCluster(cluster_->registry(), now_);
    for (const v1::WorkerStatus& worker : cluster.workers()) {
      EXPECT_TRUE(workers.emplace(worker.address(), worker.why_not()).second)
          << worker.address();
    }
    return workers;
  }
  std::vector<std::string> Addresses() {
    std::vector<std::string> addresses;
    for (const auto& [address, why] : Workers()) addresses.push_back(address);
    return addresses;
  }
  WorkerId IdOf(const std::string& ip) {
    for (const WorkerRegistry::Worker& worker :
         cluster_->registry().workers()) {
      if (worker.address == AddressOf(ip, 90)) return worker.id;
    }
    return kNoWorker;
  }
  bool MetricsHave(const std::string& text) {
    return registry_.Text().find(text) != std::string::npos;
  }

  ServedModel model_;
  metrics::Metrics registry_{{}};
  RouterMetrics metrics_{&registry_};
  RouterInbox inbox_{64};
  absl::Time now_ = absl::UnixEpoch() + absl::Seconds(1000);
  std::map<std::string, std::shared_ptr<LooseLink::State>> links_;
  std::optional<Cluster> cluster_;
};

TEST_F(ClusterDiscoveryTest, NewAddressesAreConnectedTo) {
  Start();
  EXPECT_THAT(Addresses(), IsEmpty());
  ASSERT_EQ(cluster_->Sources().size(), 1u);
  EXPECT_EQ(cluster_->Sources()[0].text, kDecode);
  EXPECT_THAT(cluster_->registry().WhyNot(),
              HasSubstr("dns:decode.test:90: was not looked up yet"));
  Find({"10.0.0.1", "fd00::1"});
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.1:90", "[fd00::1]:90"));
  EXPECT_TRUE(LinkTo("10.0.0.1").connected);
  SayHello("fd00::1");
  EXPECT_TRUE(cluster_->registry().CouldPlace());
  EXPECT_TRUE(
      MetricsHave("baton_router_discovered_workers{peer_role=\"decode\"} 2"));
  // Nothing new.
  Find({"fd00::1", "10.0.0.1"});
  EXPECT_EQ(Addresses().size(), 2u);
}

TEST_F(ClusterDiscoveryTest, WhoIsNotConnectedIsDroppedAtOnce) {
  Start();
  Find({"10.0.0.1", "10.0.0.2"});
  SayHello("10.0.0.1");
  EXPECT_TRUE(MetricsHave("peer=\"10.0.0.2:90\""));
  Find({"10.0.0.1"});
  // A stream was being opened.
  EXPECT_TRUE(LinkTo("10.0.0.2").broken);
  EndStream("10.0.0.2");
  EXPECT_TRUE(LinkTo("10.0.0.2").gone);
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.1:90"));
  EXPECT_FALSE(MetricsHave("peer=\"10.0.0.2:90\""));
  // Its place is another's now.
  const int index = LinkTo("10.0.0.2").index;
  Find({"10.0.0.1", "10.0.0.3"});
  EXPECT_EQ(LinkTo("10.0.0.3").index, index);
  SayHello("10.0.0.3");
  EXPECT_EQ(Workers()["10.0.0.3:90"], "");
}

TEST_F(ClusterDiscoveryTest, OneMissingAnswerTurnsNobodyAway) {
  Start();
  Find({"10.0.0.1", "10.0.0.2"});
  SayHello("10.0.0.1");
  SayHello("10.0.0.2");
  for (int i = 0; i < 10; ++i) {
    FindOften({"10.0.0.1"}, 2);
    EXPECT_EQ(Workers()["10.0.0.2:90"], "");
    Find({"10.0.0.1", "10.0.0.2"});
  }
  EXPECT_FALSE(LinkTo("10.0.0.2").broken);
}

// As a pod that ends: DNS forgets it, and its streams go on to their end.
TEST_F(ClusterDiscoveryTest, WhoIsAtWorkIsDroppedWhenThatIsOver) {
  Start();
  Find({"10.0.0.1", "10.0.0.2"});
  SayHello("10.0.0.1");
  SayHello("10.0.0.2");
  const WorkerId leaving = IdOf("10.0.0.2");
  WorkerRegistry& registry = cluster_->registry();
  registry.AttemptSent(kNoWorker, leaving, now_);
  registry.AttemptSent(kNoWorker, leaving, now_);
  FindOften({"10.0.0.1"});
  EXPECT_EQ(Workers()["10.0.0.2:90"], "is not in DNS any more");
  EXPECT_EQ(registry.NumServing(WorkerRole::kDecode), 1);
  EXPECT_TRUE(
      MetricsHave("baton_worker_usable{peer=\"10.0.0.2:90\",peer_role="
                  "\"decode\"} 0"));
  registry.AttemptEnded(kNoWorker, leaving);
  Turn();
  EXPECT_FALSE(LinkTo("10.0.0.2").broken);
  registry.AttemptEnded(kNoWorker, leaving);
  Turn();
  EXPECT_TRUE(LinkTo("10.0.0.2").broken);
  // Not yet: its stream has not ended.
  EXPECT_EQ(Addresses().size(), 2u);
  // What DNS says meanwhile waits.
  Find({"10.0.0.1", "10.0.0.2"});
  EndStream("10.0.0.2");
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.1:90"));
  Find({"10.0.0.1", "10.0.0.2"});
  EXPECT_EQ(Addresses().size(), 2u);
}

TEST_F(ClusterDiscoveryTest, WhoComesBackWhileAtWorkGetsRequestsAgain) {
  Start();
  Find({"10.0.0.1", "10.0.0.2"});
  SayHello("10.0.0.1");
  SayHello("10.0.0.2");
  cluster_->registry().AttemptSent(kNoWorker, IdOf("10.0.0.2"), now_);
  FindOften({"10.0.0.1"});
  EXPECT_EQ(Workers()["10.0.0.2:90"], "is not in DNS any more");
  Find({"10.0.0.1", "10.0.0.2"});
  EXPECT_EQ(Workers()["10.0.0.2:90"], "");
  cluster_->registry().AttemptEnded(kNoWorker, IdOf("10.0.0.2"));
  Turn();
  EXPECT_FALSE(LinkTo("10.0.0.2").broken);
}

TEST_F(ClusterDiscoveryTest, WhatFailsChangesNothing) {
  Start();
  Find({"10.0.0.1", "10.0.0.2"});
  SayHello("10.0.0.1");
  for (int i = 0; i < 10; ++i) {
    FindFails(absl::UnavailableError("no server answers"));
  }
  EXPECT_EQ(Addresses().size(), 2u);
  EXPECT_EQ(Workers()["10.0.0.1:90"], "");
  EXPECT_TRUE(MetricsHave(
      "baton_router_discovery_lookups_total{result=\"failed\"} 10"));
  EXPECT_TRUE(
      MetricsHave("baton_router_discovery_lookups_total{result=\"found\"} 1"));
}

// Who removes a name by mistake does not remove workers that serve.
TEST_F(ClusterDiscoveryTest, ANameWithoutAddressesKeepsWhoIsConnected) {
  Start();
  Find({"10.0.0.1", "10.0.0.2"});
  SayHello("10.0.0.1");
  for (int i = 0; i < 10; ++i) FindFails(absl::NotFoundError("has none"));
  EndStream("10.0.0.2");
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.1:90"));
  EXPECT_EQ(Workers()["10.0.0.1:90"], "");
  // Until it is lost.
  EndStream("10.0.0.1");
  FindFails(absl::NotFoundError("has none"));
  EXPECT_THAT(Addresses(), IsEmpty());
  EXPECT_THAT(cluster_->registry().WhyNot(),
              HasSubstr("dns:decode.test:90: has none"));
  Find({"10.0.0.3"});
  SayHello("10.0.0.3");
  EXPECT_TRUE(cluster_->registry().CouldPlace());
}

TEST_F(ClusterDiscoveryTest, NamedWorkersStay) {
  Start({"10.0.0.1:90", kDecode});
  Find({"10.0.0.1", "10.0.0.2"});
  EXPECT_EQ(Addresses().size(), 2u);
  SayHello("10.0.0.1");
  FindOften({"10.0.0.2"}, 10);
  EXPECT_EQ(Workers()["10.0.0.1:90"], "");
  EXPECT_FALSE(LinkTo("10.0.0.1").broken);
}

TEST_F(ClusterDiscoveryTest, AnAddressOfTwoNamesStaysWhileOneHasIt) {
  Start({kDecode, kSpare});
  Find({"10.0.0.1"}, 0);
  Find({"10.0.0.1", "10.0.0.2"}, 1);
  EXPECT_EQ(Addresses().size(), 2u);
  SayHello("10.0.0.1");
  for (int i = 0; i < 10; ++i) {
    Find({"10.0.0.3"}, 0);
    Find({"10.0.0.1"}, 1);
  }
  EXPECT_EQ(Workers()["10.0.0.1:90"], "");
  for (int i = 0; i < 10; ++i) {
    Find({"10.0.0.3"}, 0);
    Find({"10.0.0.2"}, 1);
  }
  EXPECT_TRUE(LinkTo("10.0.0.1").broken);
}

// A worker of another model is remembered while it is away, but not for ever.
TEST_F(ClusterDiscoveryTest, WhoHasLeftKeepsNobodyOut) {
  Start();
  Find({"10.0.0.1", "10.0.0.2", "10.0.0.3"});
  for (const char* ip : {"10.0.0.1", "10.0.0.2", "10.0.0.3"}) {
    LinkEvent event;
    event.link = LinkTo(ip).index;
    v1::WorkerHello hello = FakeWorker::Hello(v1::WORKER_ROLE_DECODE, ip);
    if (std::string(ip) == "10.0.0.3") {
      hello.mutable_fingerprint()->set_model_identity("another");
    }
    *event.message.mutable_hello() = hello;
    LinkTo(ip).sink(std::move(event));
    Turn();
  }
  EXPECT_THAT(Workers()["10.0.0.3:90"], HasSubstr("does not fit"));
  EndStream("10.0.0.1");
  EndStream("10.0.0.2");
  EXPECT_THAT(Workers()["10.0.0.3:90"], HasSubstr("does not fit"));
  Find({"10.0.0.3"});
  EndStream("10.0.0.1");
  EndStream("10.0.0.2");
  EXPECT_THAT(Addresses(), ElementsAre("10.0.0.3:90"));
  EXPECT_EQ(Workers()["10.0.0.3:90"], "");
}

}  // namespace
}  // namespace baton::router
