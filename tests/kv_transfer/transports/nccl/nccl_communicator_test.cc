// NCCL itself. What moves bytes needs two GPUs, because NCCL wants the two
// ranks of a communicator on different ones; elsewhere it is skipped.
#include "kv_transfer/transports/nccl/nccl_communicator.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/nccl/nccl_library.h"

namespace baton::kv_transfer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int NumDevices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

TEST(NcclCommunicatorTest, SaysWhyThereIsNone) {
  NcclCommunicatorOptions options;
  options.device = NumDevices();
  const auto communicators = CreateNcclCommunicators(options);
  EXPECT_EQ(communicators.status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(communicators.status().message(), HasSubstr("CUDA"));
}

class NcclWithoutADeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto nccl = LoadNccl(); !nccl.ok()) {
      GTEST_SKIP() << nccl.status();
    }
  }
  void Create(int rank, const std::string& unique_id) {
    NcclCommunicatorOptions options;
    options.device = NumDevices();
    options.check_device = false;
    communicators_ = *CreateNcclCommunicators(options);
    communicator_ = communicators_->Create(rank, unique_id, [this] {
      absl::MutexLock lock(&mu_);
      news_ = true;
    });
  }
  // The next news that say something.
  CommunicatorNews Next() {
    absl::MutexLock lock(&mu_);
    EXPECT_TRUE(
        mu_.AwaitWithTimeout(absl::Condition(&news_), absl::Seconds(60)));
    news_ = false;
    mu_.Unlock();
    CommunicatorNews news = communicator_->Poll();
    mu_.Lock();
    return news;
  }

  absl::Mutex mu_;
  bool news_ = false;
  std::unique_ptr<Communicators> communicators_;
  std::unique_ptr<Communicator> communicator_;
};

TEST_F(NcclWithoutADeviceTest, FailsAndBecomesQuiet) {
  Create(0, "");
  const CommunicatorNews failed = Next();
  EXPECT_THAT(failed.failure.message(), HasSubstr("cudaSetDevice"));
  EXPECT_FALSE(failed.ready);
  EXPECT_FALSE(failed.quiet);
  communicator_->Abort();
  EXPECT_TRUE(Next().quiet);
  communicator_.reset();
}

TEST_F(NcclWithoutADeviceTest, MayBeAbortedAtOnce) {
  Create(1, "an id");
  communicator_->Abort();
  while (!Next().quiet) {
  }
  communicator_.reset();
}

// One rank of a pair, its memory on its GPU, and all news so far.
class Rank {
 public:
  Rank(int rank, int device, const std::string& unique_id) : device_(device) {
    NcclCommunicatorOptions options;
    options.device = device;
    communicators_ = *CreateNcclCommunicators(options);
    communicator_ = communicators_->Create(rank, unique_id, [this] {
      absl::MutexLock lock(&mu_);
      news_ = true;
    });
    EXPECT_EQ(cudaSetDevice(device_), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&memory_, kBytes), cudaSuccess);
  }
  ~Rank() {
    communicator_->Abort();
    EXPECT_TRUE(Await([this] { return all.quiet; }));
    communicator_.reset();
    cudaSetDevice(device_);
    cudaFree(memory_);
  }

  bool Await(const std::function<bool()>& done) {
    for (;;) {
      CommunicatorNews news = communicator_->Poll();
      if (!news.unique_id.empty()) all.unique_id = news.unique_id;
      all.ready = all.ready || news.ready;
      all.quiet = all.quiet || news.quiet;
      if (!news.failure.ok()) all.failure = news.failure;
      all.done.insert(all.done.end(), news.done.begin(), news.done.end());
      if (done()) return true;
      absl::MutexLock lock(&mu_);
      if (!mu_.AwaitWithTimeout(absl::Condition(&news_), absl::Seconds(60))) {
        return false;
      }
      news_ = false;
    }
  }
  void Post(uint64_t ticket, bool is_send, std::vector<size_t> pieces) {
    PostedGroup group;
    group.ticket = ticket;
    group.is_send = is_send;
    std::byte* at = static_cast<std::byte*>(memory_);
    for (size_t bytes : pieces) {
      group.pieces.push_back(absl::MakeSpan(at, bytes));
      at += bytes;
    }
    communicator_->Post(std::move(group));
  }
  void Write(const std::vector<uint8_t>& bytes) {
    ASSERT_EQ(
        cudaMemcpy(memory_, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
        cudaSuccess);
  }
  std::vector<uint8_t> Read() {
    std::vector<uint8_t> bytes(kBytes);
    EXPECT_EQ(cudaMemcpy(bytes.data(), memory_, kBytes, cudaMemcpyDeviceToHost),
              cudaSuccess);
    return bytes;
  }

  static constexpr size_t kBytes = 8 << 20;
  CommunicatorNews all;

 private:
  const int device_;
  void* memory_ = nullptr;
  absl::Mutex mu_;
  bool news_ = false;
  std::unique_ptr<Communicators> communicators_;
  std::unique_ptr<Communicator> communicator_;
};

class NcclOnGpusTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (NumDevices() < 2) GTEST_SKIP() << "needs two GPUs";
    // Both ranks are in this process (nccl_communicator.h).
    setenv("NCCL_P2P_DIRECT_DISABLE", "1", /*overwrite=*/1);
    zero_.emplace(0, 0, "");
    ASSERT_TRUE(zero_->Await([&] { return !zero_->all.unique_id.empty(); }));
    one_.emplace(1, 1, zero_->all.unique_id);
    ASSERT_TRUE(zero_->Await([&] { return zero_->all.ready; }));
    ASSERT_TRUE(one_->Await([&] { return one_->all.ready; }));
  }

  std::optional<Rank> zero_, one_;
};

TEST_F(NcclOnGpusTest, GroupsArriveInBothDirections) {
  std::vector<uint8_t> sent(Rank::kBytes);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = i * 31 + i / 251;
  one_->Write(sent);
  one_->Post(1, true, {1000, 4 << 20, 333});
  zero_->Post(1, false, {1000, 4 << 20, 333});
  zero_->Post(2, true, {2 << 20});
  one_->Post(2, false, {2 << 20});
  ASSERT_TRUE(zero_->Await([&] { return zero_->all.done.size() == 2; }));
  ASSERT_TRUE(one_->Await([&] { return one_->all.done.size() == 2; }));
  EXPECT_THAT(zero_->all.done, ElementsAre(1, 2));
  const std::vector<uint8_t> landed = zero_->Read();
  EXPECT_TRUE(std::equal(landed.begin(), landed.begin() + (4 << 20) + 1333,
                         sent.begin()));
  EXPECT_TRUE(one_->Read() == sent);
}

TEST_F(NcclOnGpusTest, AnAbortEndsWhatIsPosted) {
  // Connects them, so that what is posted next is a kernel that waits.
  one_->Post(1, true, {1 << 20});
  zero_->Post(1, false, {1 << 20});
  ASSERT_TRUE(zero_->Await([&] { return !zero_->all.done.empty(); }));
  // Nobody sends this.
  zero_->Post(2, false, {4 << 20});
  zero_.reset();
  one_.reset();
}

}  // namespace
}  // namespace baton::kv_transfer
