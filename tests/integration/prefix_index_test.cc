// What the router knows of real workers' prefix caches, over a conversation.
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/raw_call.h"
#include "tests/integration/reference.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

// Of workers unless told otherwise.
constexpr int kBlockSize = 16;
constexpr int kFirstPrompt = 100;
constexpr uint32_t kAnswer = 40;

class PrefixIndexTest : public testing::Test {
 protected:
  void Start(const Flags& router) {
    const std::string model_dir = scratch_.path() + "/model";
    ASSERT_TRUE(WriteTinyModel(model_dir).ok());
    auto reference = Reference::Load(model_dir);
    ASSERT_TRUE(reference.ok()) << reference.status();
    reference_ = *std::move(reference);
    cluster_ = std::make_unique<Cluster>(model_dir);
    ClusterShape shape;
    shape.prefill = {{}, {}};
    shape.decode = {{}, {}};
    shape.router = router;
    const absl::Status started = cluster_->Start(shape);
    ASSERT_TRUE(started.ok()) << started;
    const absl::Status joined = cluster_->AwaitJoined(2, 2);
    ASSERT_TRUE(joined.ok()) << joined;
    stub_ = cluster_->MakeStub();
  }

  // The client says something, and is answered; all of it is said_ then.
  void TakeTurn() {
    if (said_.empty()) {
      for (int i = 0; i < kFirstPrompt; ++i) {
        said_.push_back((i * 7 + 3) % reference_->model().vocab_size);
      }
    } else {
      for (TokenId token = 0; token < 7; ++token) said_.push_back(token);
    }
    const v1::GenerateRequest request = GreedyRequest(said_, kAnswer);
    const Answer answer = Generate(*stub_, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, reference_->Tokens(request));
    said_.insert(said_.end(), answer.tokens.begin(), answer.tokens.end());
  }
  // Full blocks of what was said, but for the last token, which no worker has
  // computed.
  double BlocksSaid() const {
    return static_cast<double>((said_.size() - 1) / kBlockSize);
  }

  // Of the router; -1 when there is none. `label` is a part of the line.
  double Metric(const std::string& name, const std::string& label = "") {
    const auto page =
        HttpGet(cluster_->Address("router", "metrics"), "/metrics");
    if (!page.ok()) return -1;
    for (absl::string_view line : absl::StrSplit(*page, '\n')) {
      if (!absl::StrContains(line, label)) continue;
      const double value = MetricValue(std::string(line), name);
      if (value >= 0) return value;
    }
    return -1;
  }

  ScratchDir scratch_;
  std::unique_ptr<Reference> reference_;
  std::unique_ptr<Cluster> cluster_;
  std::unique_ptr<v1::Inference::Stub> stub_;
  std::vector<TokenId> said_;
};

TEST_F(PrefixIndexTest, AConversationIsKnownWhenItGoesOn) {
  ASSERT_NO_FATAL_FAILURE(Start({"--prefix-index-memory", "2MiB"}));
  double known = 0;
  for (int turn = 0; turn < 3; ++turn) {
    ASSERT_NO_FATAL_FAILURE(TakeTurn());
    // An attempt that has to be made again counts again.
    EXPECT_GE(Metric("baton_router_prefix_matched_tokens_total", "\"best\""),
              known * kBlockSize)
        << "turn " << turn;
    // The next turn begins with all of it.
    known += BlocksSaid();
    EXPECT_TRUE(Eventually([&] {
      return Metric("baton_router_prefix_blocks") == BlocksSaid();
    })) << Metric("baton_router_prefix_blocks")
        << " of " << BlocksSaid();
  }
  EXPECT_TRUE(Eventually([&] {
    return Metric("baton_router_prefix_news_total", "\"reset\"") >= 4;
  }));
  EXPECT_EQ(Metric("baton_router_prefix_news_total", "\"invalid\""), 0);
  EXPECT_EQ(Metric("baton_router_prefix_dropped_total"), 0);
  const double bytes = Metric("baton_router_prefix_bytes");
  EXPECT_GT(bytes, 0);
  EXPECT_LE(bytes, 2 << 20);
  // Workers that are gone have nothing.
  for (const char* worker : {"prefill-0", "prefill-1", "decode-0"}) {
    cluster_->Kill(worker);
  }
  ASSERT_TRUE(cluster_->AwaitJoined(0, 1).ok());
  cluster_->Kill("decode-1");
  EXPECT_TRUE(
      Eventually([&] { return Metric("baton_router_prefix_blocks") == 0; }));
}

TEST_F(PrefixIndexTest, OffKnowsNothing) {
  ASSERT_NO_FATAL_FAILURE(Start({"--prefix-index", "off"}));
  for (int turn = 0; turn < 2; ++turn) ASSERT_NO_FATAL_FAILURE(TakeTurn());
  EXPECT_EQ(Metric("baton_router_prefix_blocks"), 0);
  EXPECT_EQ(Metric("baton_router_prefix_matched_tokens_total", "\"best\""), 0);
  EXPECT_GT(Metric("baton_router_prefix_prompt_tokens_total"), 0);
}

}  // namespace
}  // namespace baton::test
