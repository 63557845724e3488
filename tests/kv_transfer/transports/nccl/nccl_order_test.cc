// Random traffic in both directions over a control transport on which messages
// overtake each other, cut short at a random moment: whatever happens, both
// sides post alike, everything completes once, and memory is written only while
// it may be.
#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/kv_transfer/transports/nccl/nccl_pair.h"

namespace baton::kv_transfer::nccl_order_test {
namespace {

constexpr uint64_t kSlotBytes = 1024;
constexpr uint64_t kSlots = NcclEnd::kRegionBytes / kSlotBytes / 2;

// One end that sends from the lower half of its memory, and lets land in slots
// of the upper half.
class Talker {
 public:
  Talker(NcclEnd* end, std::mt19937_64* random) : end_(end), random_(random) {
    for (uint64_t i = 0; i < kSlots; ++i) free_.insert(i);
    end_->on_payload = [this](const std::string& header, uint64_t bytes) {
      return Answer(header, bytes);
    };
    end_->on_landed = [this](uint64_t cookie, const absl::Status& status) {
      Landed(cookie, status);
    };
  }
  ~Talker() {
    end_->on_payload = nullptr;
    end_->on_landed = nullptr;
  }

  // Sends something; false when it may not.
  bool Speak() {
    const uint64_t number = next_++;
    std::vector<Extent> payload;
    std::string header = absl::StrCat("m", number);
    if (Draw(4) > 0) {
      const uint64_t at = Draw(kSlots) * kSlotBytes;
      payload = Cut(at, 1 + Draw(kSlotBytes));
      header = absl::StrCat("p", at);
    }
    if (!end_->Send(header, payload, number).ok()) {
      --next_;
      return false;
    }
    return true;
  }

  void ExpectAllCompleted() const {
    for (uint64_t i = 0; i < next_; ++i) {
      EXPECT_EQ(end_->Count(absl::StrCat("sent ", i)) +
                    end_->Count(absl::StrCat("not sent ", i)),
                1)
          << i;
    }
    EXPECT_EQ(landing_.size(), 0u);
    // Nothing but what landed was written.
    for (uint64_t slot : free_) {
      const auto begin =
          end_->memory.begin() + kSlots * kSlotBytes + slot * kSlotBytes;
      EXPECT_TRUE(
          std::equal(begin, begin + kSlotBytes, expected_[slot].begin()))
          << slot;
    }
  }

  // Where the other side's payloads come from.
  const NcclEnd* other = nullptr;
  int landed = 0;
  int refused = 0;

 private:
  struct Coming {
    uint64_t slot = 0;
    uint64_t from = 0;
    uint64_t bytes = 0;
  };

  uint64_t Draw(uint64_t n) { return (*random_)() % n; }

  // `bytes` from `at` on, in up to four extents.
  std::vector<Extent> Cut(uint64_t at, uint64_t bytes) {
    std::vector<Extent> extents;
    while (bytes > 0) {
      const uint64_t n = extents.size() == 3 ? bytes : 1 + Draw(bytes);
      extents.push_back({end_->region, at, n});
      at += n;
      bytes -= n;
    }
    return extents;
  }

  std::optional<Landing> Answer(const std::string& header, uint64_t bytes) {
    if (free_.empty() || Draw(3) == 0) {
      ++refused;
      return std::nullopt;
    }
    const uint64_t slot = *free_.begin();
    free_.erase(free_.begin());
    const uint64_t cookie = next_cookie_++;
    landing_[cookie] = {slot, std::stoull(header.substr(1)), bytes};
    return Landing{Cut((kSlots + slot) * kSlotBytes, bytes), cookie};
  }

  void Landed(uint64_t cookie, const absl::Status& status) {
    const Coming coming = landing_.at(cookie);
    landing_.erase(cookie);
    const auto slot =
        end_->memory.begin() + (kSlots + coming.slot) * kSlotBytes;
    if (status.ok()) {
      ++landed;
      EXPECT_TRUE(std::equal(slot, slot + coming.bytes,
                             other->memory.begin() + coming.from));
    }
    // From here on it stays as it is, unless something else lands here.
    expected_[coming.slot].assign(slot, slot + kSlotBytes);
    free_.insert(coming.slot);
  }

  NcclEnd* const end_;
  std::mt19937_64* const random_;
  uint64_t next_ = 0;
  uint64_t next_cookie_ = 0;
  std::set<uint64_t> free_;
  std::map<uint64_t, Coming> landing_;
  std::vector<std::vector<std::byte>> expected_ =
      std::vector<std::vector<std::byte>>(kSlots,
                                          std::vector<std::byte>(kSlotBytes));
};

struct Totals {
  int landed = 0;
  int refused = 0;
  int torn = 0;
};

void RunSeed(uint64_t seed, Totals* totals) {
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  NcclOptions options;
  options.max_sends_in_flight = 1 + random() % 6;
  options.max_sends_outstanding = 20;
  NcclPair pair(options, seed);
  pair.network.reorder = true;
  pair.network.notice_apart = true;
  pair.ConnectAndExpectUp();
  // Lower halves differ from each other; upper halves are zero.
  for (uint64_t i = 0; i < kSlots * kSlotBytes; ++i) {
    pair.client->memory[i] = static_cast<std::byte>(i * 7 + i / 256 + 1);
    pair.server->memory[i] = static_cast<std::byte>(i * 13 + i / 128 + 2);
  }
  Talker client(pair.client.get(), &random);
  Talker server(pair.server.get(), &random);
  client.other = pair.server.get();
  server.other = pair.client.get();
  const uint64_t steps = 200 + random() % 800;
  for (uint64_t step = 0; step < steps; ++step) {
    switch (random() % 10) {
      case 0:
        client.Speak();
        break;
      case 1:
        server.Speak();
        break;
      case 2:
        pair.fabric.HoldPosts(random() % 2 == 0);
        break;
      case 3:
        pair.network.Tick();
        break;
      default:
        pair.network.Step();
    }
  }
  switch (random() % 4) {
    case 0:
      break;  // ends well
    case 1:
      ASSERT_TRUE(pair.network.BreakConnection());
      ++totals->torn;
      break;
    case 2:
      pair.client->transport->ClosePeer(pair.client->peer);
      ++totals->torn;
      break;
    case 3:
      pair.fabric.Fail(static_cast<int>(random() % 2),
                       absl::InternalError("a fault"));
      ++totals->torn;
      break;
  }
  pair.fabric.HoldAborts(random() % 2 == 0);
  for (int i = 0; i < 50; ++i) pair.network.Step();
  pair.fabric.HoldPosts(false);
  pair.fabric.HoldAborts(false);
  pair.network.RunUntilIdle();
  client.ExpectAllCompleted();
  server.ExpectAllCompleted();
  totals->landed += client.landed + server.landed;
  totals->refused += client.refused + server.refused;
}

TEST(NcclOrderTest, BothSidesPostAlikeWhateverOvertakesWhat) {
  Totals totals;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    RunSeed(seed, &totals);
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(totals.landed, 3000);
  EXPECT_GT(totals.refused, 1000);
  EXPECT_GT(totals.torn, 150);
}

}  // namespace
}  // namespace baton::kv_transfer::nccl_order_test
