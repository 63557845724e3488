// What the key of a client lets its requests ask for.
#include <cstdint>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "router/invalid_field.h"
#include "router/request_validation.h"
#include "router/served_model.h"

namespace baton::router {
namespace {

using testing::StartsWith;

class RequestRightsTest : public testing::Test {
 protected:
  RequestRightsTest() {
    auto model =
        LoadServedModel(absl::StrCat(BATON_SOURCE_DIR, "/models/stories"), "");
    EXPECT_TRUE(model.ok()) << model.status();
    model_ = *std::move(model);
    request_.mutable_token_ids()->add_ids(1);
  }

  absl::StatusOr<PreparedRequest> Prepare() {
    return PrepareRequest(request_, model_, limits_, [] { return 1; });
  }

  ServedModel model_;
  v1::GenerateRequest request_;
  RequestLimits limits_ = {.max_context = 512};
};

TEST_F(RequestRightsTest, AKeyBoundsClassAndPriority) {
  limits_.targets.batch.ttft = absl::Seconds(40);
  const KeyRights rights = {.max_priority = -3, .batch_only = true};
  limits_.rights = &rights;
  request_.set_request_class(v1::REQUEST_CLASS_INTERACTIVE);
  for (const auto& [asked, got] :
       {std::pair(100, -3), std::pair(0, -3), std::pair(-4, -4)}) {
    request_.set_priority(asked);
    const auto prepared = Prepare();
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    EXPECT_EQ(prepared->answer.priority, got) << asked;
    EXPECT_EQ(prepared->answer.request_class, RequestClass::kBatch);
    EXPECT_EQ(prepared->answer.ttft_target, absl::Seconds(40));
  }
  // What nobody may ask for is an error all the same.
  request_.set_priority(101);
  EXPECT_THAT(std::string(Prepare().status().message()),
              StartsWith("priority is 101"));
}

TEST_F(RequestRightsTest, AKeyHasItsModels) {
  const AdapterNames adapters = {{"sql", "A1"}, {"chat", "A2"}};
  const KeyRights rights = {.models = {"chat"}};
  limits_.adapters = &adapters;
  limits_.rights = &rights;
  request_.set_model("chat");
  ASSERT_TRUE(Prepare().ok());
  EXPECT_EQ(Prepare()->answer.adapter, "chat");
  // Others are there as little as those that are nowhere.
  for (const char* other : {"sql", "nowhere", "stories", ""}) {
    request_.set_model(other);
    const absl::Status status = Prepare().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << other;
    EXPECT_EQ(FieldOf(status), "model");
    EXPECT_EQ(std::string(status.message()),
              absl::StrCat("model \"", *other == 0 ? "stories" : other,
                           "\" is not served here to this API key"));
  }
}

}  // namespace
}  // namespace baton::router
