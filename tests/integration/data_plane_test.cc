// How KV goes from worker to worker on one host: by shared memory unless the
// operator says otherwise, with the same answers.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/match.h"
#include "tests/integration/client.h"
#include "tests/integration/cluster.h"
#include "tests/integration/reference.h"
#include "tests/support/tiny_model.h"

namespace baton::test {
namespace {

struct Way {
  std::string name;
  Flags prefill, decode;
  // What both logs say.
  std::string over;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class DataPlaneTest : public testing::TestWithParam<Way> {};

TEST_P(DataPlaneTest, AnswersAreThoseOfOneEngine) {
  const ScratchDir scratch;
  const std::string model_dir = scratch.path() + "/model";
  ASSERT_TRUE(WriteTinyModel(model_dir).ok());
  auto reference = Reference::Load(model_dir);
  ASSERT_TRUE(reference.ok()) << reference.status();
  Cluster cluster(model_dir);
  ClusterShape shape;
  shape.prefill = {GetParam().prefill};
  shape.decode = {GetParam().decode};
  const absl::Status started = cluster.Start(shape);
  ASSERT_TRUE(started.ok()) << started;
  const auto stub = cluster.MakeStub();
  for (int length : {1, 40, 200}) {
    std::vector<TokenId> prompt(length);
    for (int i = 0; i < length; ++i) {
      prompt[i] = (i * 7 + 3) % (*reference)->model().vocab_size;
    }
    const v1::GenerateRequest request = GreedyRequest(prompt, 12);
    const Answer answer = Generate(*stub, request, kPatience);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens, (*reference)->Tokens(request)) << length;
    EXPECT_GT(answer.last.timing().kv_transfer_bytes(), 0u);
  }
  for (const char* worker : {"prefill-0", "decode-0"}) {
    EXPECT_TRUE(absl::StrContains(cluster.process(worker).LogTail(500),
                                  GetParam().over))
        << worker << " says:\n"
        << cluster.process(worker).LogTail(500);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, DataPlaneTest,
    testing::Values(
        Way{"ByDefault", {}, {}, ") over local/memfd"},
        Way{"LocalOnly",
            {"--transport", "local"},
            {"--transport", "local"},
            ") over local/memfd"},
        Way{"OneSideSaysUcx", {"--transport", "ucx"}, {}, ") over ucx/tcp"},
        Way{"TheOtherSaysUcx", {}, {"--transport", "ucx"}, ") over ucx/tcp"}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace baton::test
