#include "kv_transfer/transports/ucx/ucx_turn.h"

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "absl/synchronization/notification.h"

namespace baton::kv_transfer {
namespace {

// Somebody who wants to make sockets, and whether that has been done.
class Maker {
 public:
  Maker()
      : thread_([this] {
          begun_.Notify();
          MakeUcxSockets([this] { made_ = true; });
          over_.Notify();
        }) {
    begun_.WaitForNotification();
  }
  ~Maker() { thread_.join(); }

  bool made() const { return made_; }
  void Await() { over_.WaitForNotification(); }

 private:
  absl::Notification begun_, over_;
  std::atomic<bool> made_ = false;
  std::thread thread_;
};

TEST(UcxTurnTest, NobodyElseMakesSocketsInATurn) {
  std::optional<UcxTurn> turn(std::in_place);
  Maker maker;
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_FALSE(maker.made());
  turn.reset();
  maker.Await();
  EXPECT_TRUE(maker.made());
}

TEST(UcxTurnTest, TheyDoWhileItRests) {
  UcxTurn turn;
  Maker maker;
  turn.Rest([&] { maker.Await(); });
  EXPECT_TRUE(maker.made());
}

TEST(UcxTurnTest, APauseLetsThemIn) {
  UcxTurn turn;
  Maker maker;
  while (!maker.made()) turn.Pause();
}

TEST(UcxTurnTest, TurnsGoOnBesideEachOther) {
  UcxTurn turn;
  std::thread other([] { UcxTurn beside; });
  other.join();
}

TEST(UcxTurnTest, WhoMakesSocketsIsAlone) {
  UcxTurn turn;
  std::atomic<bool> alone = true;
  std::thread other;
  turn.MakeSockets([&] {
    other = std::thread([&] {
      UcxTurn beside;
      EXPECT_FALSE(alone);
    });
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    alone = false;
  });
  other.join();
}

}  // namespace
}  // namespace baton::kv_transfer
