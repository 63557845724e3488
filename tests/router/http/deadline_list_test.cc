#include "router/http/deadline_list.h"

#include <gtest/gtest.h>

namespace baton::router::http {
namespace {

struct Owner {
  DeadlineHook<Owner> hook{this};
};

class DeadlineListTest : public testing::Test {
 protected:
  absl::Time At(int second) {
    return absl::UnixEpoch() + absl::Seconds(second);
  }
  // The owner of what expired, or null.
  Owner* Take(int second) {
    DeadlineHook<Owner>* hook = list_.TakeExpired(At(second));
    return hook == nullptr ? nullptr : hook->owner();
  }

  DeadlineList<Owner> list_{absl::Seconds(10)};
};

TEST_F(DeadlineListTest, GivesThemInTheirOrder) {
  Owner a, b, c;
  list_.Set(&a.hook, At(0));
  list_.Set(&b.hook, At(1));
  list_.Set(&c.hook, At(1));
  EXPECT_EQ(Take(9), nullptr);
  EXPECT_EQ(Take(10), &a);
  EXPECT_EQ(Take(10), nullptr);
  EXPECT_FALSE(a.hook.is_set());
  EXPECT_EQ(Take(20), &b);
  EXPECT_EQ(Take(20), &c);
  EXPECT_EQ(Take(20), nullptr);
}

TEST_F(DeadlineListTest, SettingAgainMovesIt) {
  Owner a, b;
  list_.Set(&a.hook, At(0));
  list_.Set(&b.hook, At(1));
  list_.Set(&a.hook, At(5));
  EXPECT_EQ(Take(14), &b);
  EXPECT_EQ(Take(14), nullptr);
  EXPECT_EQ(Take(15), &a);
}

TEST_F(DeadlineListTest, ClearedAndDeadOnesAreGone) {
  Owner a;
  list_.Set(&a.hook, At(0));
  a.hook.Clear();
  a.hook.Clear();
  {
    Owner b;
    list_.Set(&b.hook, At(0));
  }
  EXPECT_EQ(Take(100), nullptr);
}

TEST_F(DeadlineListTest, AHookIsInOneListOnly) {
  DeadlineList<Owner> other{absl::Seconds(1)};
  Owner a;
  list_.Set(&a.hook, At(0));
  other.Set(&a.hook, At(0));
  EXPECT_EQ(Take(100), nullptr);
  EXPECT_EQ(other.TakeExpired(At(1)), &a.hook);
}

}  // namespace
}  // namespace baton::router::http
