#include "router/http/intake_pool.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"
#include "router/http/body_budget.h"

namespace baton::router::http {
namespace {

// Keeps what is to be called when the client leaves.
class LeavingResponder final : public Responder {
 public:
  void Send(Response) override {}
  void Start(Response) override {}
  void KeepAlive(Response, std::string) override {}
  bool SendUnlessBegun(Response) override { return true; }
  bool Write(absl::string_view) override { return true; }
  void AllowPending(size_t) override {}
  void End() override {}
  void Abort() override {}
  void OnGone(std::function<void()> gone) override { gone_ = std::move(gone); }

  void Leave() { gone_(); }

 private:
  std::function<void()> gone_;
};

Request Named(const std::string& path) {
  Request request;
  request.path = path;
  return request;
}

class IntakePoolTest : public testing::Test {
 protected:
  // The pool waits for its thread, also when a test gave up before Finish.
  void TearDown() override {
    if (!go_on_.HasBeenNotified()) go_on_.Notify();
  }
  // Keeps the only thread from other work until `go_on_`.
  void Block() {
    ASSERT_TRUE(pool_->TryServe(
        Named("first"), std::make_shared<LeavingResponder>(),
        [this](const Request&, const std::shared_ptr<Responder>&) {
          blocked_.Notify();
          go_on_.WaitForNotification();
        }));
    blocked_.WaitForNotification();
  }
  bool Queue(Request request, std::shared_ptr<Responder> responder) {
    return pool_->TryServe(
        std::move(request), std::move(responder),
        [this](const Request& served, const std::shared_ptr<Responder>&) {
          served_.push_back(served.path);
        });
  }
  // Ends the pool.
  void Finish() {
    go_on_.Notify();
    pool_.reset();
  }

  absl::Notification blocked_;
  absl::Notification go_on_;
  std::vector<std::string> served_;  // on the pool's thread, until Finish
  std::unique_ptr<IntakePool> pool_ =
      std::make_unique<IntakePool>(/*num_threads=*/1, /*max_queued=*/2);
};

TEST_F(IntakePoolTest, WhoLeavesIsNotServedAndHoldsNothing) {
  Block();
  const auto budget = std::make_shared<BodyBudget>(100);
  Request large = Named("leaves");
  large.body_share = std::make_shared<BodyShare>(budget);
  ASSERT_TRUE(large.body_share->GrowTo(100));
  const auto leaving = std::make_shared<LeavingResponder>();
  ASSERT_TRUE(Queue(std::move(large), leaving));
  ASSERT_TRUE(Queue(Named("stays"), std::make_shared<LeavingResponder>()));
  EXPECT_EQ(budget->taken(), 100u);
  leaving->Leave();
  EXPECT_EQ(budget->taken(), 0u);
  Finish();
  EXPECT_THAT(served_, testing::ElementsAre("stays"));
}

TEST_F(IntakePoolTest, WhatRunsHoldsItsRequest) {
  const auto budget = std::make_shared<BodyBudget>(100);
  Request large = Named("large");
  large.body_share = std::make_shared<BodyShare>(budget);
  ASSERT_TRUE(large.body_share->GrowTo(100));
  const auto responder = std::make_shared<LeavingResponder>();
  size_t while_it_runs = 0;
  ASSERT_TRUE(
      pool_->TryServe(std::move(large), responder,
                      [&](const Request&, const std::shared_ptr<Responder>&) {
                        responder->Leave();  // Too late for the pool.
                        while_it_runs = budget->taken();
                      }));
  Finish();
  EXPECT_EQ(while_it_runs, 100u);
  EXPECT_EQ(budget->taken(), 0u);
}

TEST_F(IntakePoolTest, AFullQueueTakesNoMore) {
  Block();
  EXPECT_TRUE(Queue(Named("a"), std::make_shared<LeavingResponder>()));
  EXPECT_TRUE(Queue(Named("b"), std::make_shared<LeavingResponder>()));
  EXPECT_FALSE(Queue(Named("c"), std::make_shared<LeavingResponder>()));
  Finish();
  EXPECT_THAT(served_, testing::ElementsAre("a", "b"));
}

}  // namespace
}  // namespace baton::router::http
