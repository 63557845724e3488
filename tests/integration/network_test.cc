// Networks that are cut while streams run: one decode worker lives in a network
// namespace, with one link for control and one for KV.
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/integration/streams_fixture.h"

namespace baton::test {
namespace {

bool Shell(const std::string& command) {
  return system(absl::StrCat(command, " >/dev/null 2>&1").c_str()) == 0;
}

// A namespace with two links to ours; gone with the object.
class Namespace final {
 public:
  enum Link { kControl = 0, kData = 1 };

  Namespace() : name_(absl::StrCat("baton", getpid())) {
    made_ = Shell(absl::StrCat("ip netns add ", name_)) && AddLink(kControl) &&
            AddLink(kData);
  }
  ~Namespace() {
    for (Link link : {kControl, kData}) {
      Shell(absl::StrCat("ip link del ", Device(link)));
    }
    Shell(absl::StrCat("ip netns del ", name_));
  }

  bool made() const { return made_; }
  const std::string& name() const { return name_; }
  // Of the end inside, and of ours.
  std::string Address(Link link) const { return absl::StrCat(Net(link), ".2"); }
  std::string OurAddress(Link link) const {
    return absl::StrCat(Net(link), ".1");
  }
  void Set(Link link, bool up) const {
    EXPECT_TRUE(Shell(
        absl::StrCat("ip link set ", Device(link), " ", up ? "up" : "down")));
  }

 private:
  std::string Net(Link link) const {
    return absl::StrCat("10.213.", getpid() % 127 * 2 + link);
  }
  std::string Device(Link link) const {
    return absl::StrCat("bt", getpid() % 100000, link == kControl ? "c" : "d");
  }
  bool AddLink(Link link) const {
    const std::string ours = Device(link);
    const std::string theirs = absl::StrCat(ours, "i");
    const std::string in = absl::StrCat("ip -n ", name_, " ");
    return Shell(absl::StrCat("ip link add ", ours, " type veth peer name ",
                              theirs)) &&
           Shell(absl::StrCat("ip link set ", theirs, " netns ", name_)) &&
           Shell(absl::StrCat("ip addr add ", Net(link), ".1/24 dev ", ours)) &&
           Shell(absl::StrCat(in, "addr add ", Net(link), ".2/24 dev ",
                              theirs)) &&
           Shell(absl::StrCat("ip link set ", ours, " up")) &&
           Shell(absl::StrCat(in, "link set ", theirs, " up")) &&
           Shell(absl::StrCat(in, "link set lo up"));
  }

  const std::string name_;
  bool made_ = false;
};

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
    const std::string control = there_.Address(Namespace::kControl);
    // This machine may have devices that lead nowhere.
    const Flags prefill = {"--data-host", there_.OurAddress(Namespace::kData)};
    StartCluster(
        {.prefill = {prefill, prefill},
         .decode = {{"--listen", control + ":0", "--metrics", control + ":0",
                     "--data-host", there_.Address(Namespace::kData)},
                    {}}});
  }

  bool LinksToDecode0(bool usable) {
    grpc::ClientContext context;
    v1::GetClusterResponse cluster;
    if (!stub_->GetCluster(&context, {}, &cluster).ok()) return false;
    int matching = 0;
    for (const v1::LinkStatus& link : cluster.links()) {
      matching += link.decode_worker() == "decode-0" && link.usable() == usable;
    }
    return matching == 2;
  }

  const Namespace there_;
};

TEST_F(NetworkTest, HandOffsGoOnWithoutTheLinkThatIsCut) {
  const auto requests = MakeRequests();
  EXPECT_TRUE(Eventually([&] { return LinksToDecode0(true); }));
  // Streams that are decoded there do not need the link any more.
  const std::vector<Answer> running =
      RunAndInterrupt(requests, [&] { there_.Set(Namespace::kData, false); });
  CheckAnswers(requests, running);
  // New ones do: some find out, then the pairs are known to be down.
  const std::vector<Answer> next = RunAndInterrupt(requests, [] {});
  EXPECT_GT(CheckAnswers(requests, next), 0) << "no hand-off met the cut";
  EXPECT_TRUE(Eventually([&] { return LinksToDecode0(false); }));
  there_.Set(Namespace::kData, true);
  EXPECT_TRUE(Eventually([&] { return LinksToDecode0(true); }));
  CheckServes();
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
}

TEST_F(NetworkTest, StreamsOfAWorkerThatIsCutOffGoOnElsewhere) {
  const auto requests = MakeRequests();
  EXPECT_TRUE(Eventually([&] { return LinksToDecode0(true); }));
  const std::vector<Answer> answers = RunAndInterrupt(requests, [&] {
    there_.Set(Namespace::kControl, false);
    there_.Set(Namespace::kData, false);
  });
  EXPECT_GT(CheckAnswers(requests, answers), 0) << "the cut hit no stream";
  there_.Set(Namespace::kControl, true);
  there_.Set(Namespace::kData, true);
  const absl::Status joined = cluster_->AwaitJoined(2, 2);
  ASSERT_TRUE(joined.ok()) << joined;
  CheckServes();
  AwaitBlocksFree({"prefill-0", "prefill-1", "decode-0", "decode-1"});
}

}  // namespace
}  // namespace baton::test
