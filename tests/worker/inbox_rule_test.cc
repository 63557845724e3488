#include "worker/inbox_rule.h"

#include "gtest/gtest.h"

namespace baton::worker {
namespace {

v1::RouterMessage Of(void (*set)(v1::RouterMessage*)) {
  v1::RouterMessage message;
  set(&message);
  return message;
}

TEST(InboxRuleTest, WhatAsksForSomethingIsRefused) {
  EXPECT_EQ(RuleOf(Of([](auto* m) { m->mutable_reserve(); })),
            InboxRule::kRefused);
  EXPECT_EQ(RuleOf(Of([](auto* m) { m->mutable_prefill(); })),
            InboxRule::kRefused);
}

TEST(InboxRuleTest, WhatBelongsToSomethingThatCameInIsTaken) {
  EXPECT_EQ(RuleOf(Of([](auto* m) { m->mutable_hello(); })), InboxRule::kTaken);
  EXPECT_EQ(RuleOf(Of([](auto* m) { m->mutable_grant(); })), InboxRule::kTaken);
  EXPECT_EQ(RuleOf(Of([](auto* m) { m->mutable_cancel(); })),
            InboxRule::kTaken);
}

// Nobody can fill a worker's memory with them.
TEST(InboxRuleTest, TheRestHasABound) {
  EXPECT_EQ(RuleOf(Of([](auto* m) { m->mutable_pair(); })),
            InboxRule::kDropped);
  EXPECT_EQ(RuleOf(Of([](auto* m) { m->mutable_set_role(); })),
            InboxRule::kDropped);
  EXPECT_EQ(RuleOf(v1::RouterMessage()), InboxRule::kDropped);
}

}  // namespace
}  // namespace baton::worker
