#include "common/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace baton {
namespace {

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;
constexpr size_t kLargePage = size_t{2} << 20;

// Of the mapping that `at` lies in, the KiB that are mapped by large pages.
size_t KibInLargePages(const void* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin = 0, end = 0;
    size_t kib = 0;
    if (std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " ", &begin, &end) ==
        2) {
      inside = begin <= address && address < end;
    } else if (inside &&
               std::sscanf(line.c_str(), "ShmemPmdMapped: %zu", &kib) == 1) {
      return kib;
    }
  }
  return 0;
}

// Whether this system makes large pages of a memory file, and has so many.
bool MakesLargePages(size_t count) {
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  const size_t bytes = count * kLargePage;
  const ScopedFd file(memfd_create("x", MFD_CLOEXEC));
  if (!file.valid() || ftruncate(file.get(), bytes) != 0) return false;
  void* const place = mmap(nullptr, bytes + kLargePage, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (place == MAP_FAILED) return false;
  const auto address = reinterpret_cast<uintptr_t>(place);
  auto* const begin = reinterpret_cast<char*>((address + kLargePage - 1) /
                                              kLargePage * kLargePage);
  bool made = false;
  if (mmap(begin, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
           file.get(), 0) != MAP_FAILED) {
    std::memset(begin, 1, bytes);
    made = madvise(begin, bytes, kCollapse) == 0;
  }
  munmap(place, bytes + kLargePage);
  return made;
}

TEST(SharedMemoryTest, ReadersSeeWhatItsMakerWrites) {
  auto made = SharedMemory::Create(100000, "a test");
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_EQ(made->memory().size(), 100000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(made->memory().data()) % (2 << 20), 0u);
  EXPECT_EQ(made->memory()[99999], std::byte{0});
  auto view = SharedMemoryView::Open(made->descriptor(), 100000);
  ASSERT_TRUE(view.ok()) << view.status();
  made->memory()[99999] = std::byte{7};
  EXPECT_EQ(view->memory()[99999], std::byte{7});
}

TEST(SharedMemoryTest, LiesInLargePagesWhereTheSystemMakesThem) {
  constexpr size_t kPages = 20;
  if (!MakesLargePages(kPages)) {
    GTEST_SKIP() << "this system makes no large pages of shared memory";
  }
  constexpr size_t kBytes = kPages * kLargePage + 5000;
  auto made = SharedMemory::Create(kBytes, "a test");
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->TakeLargePages(absl::ZeroDuration()), 0);
  std::memset(made->memory().data() + kLargePage, 5, 100);
  const int64_t taken = made->TakeLargePages(absl::Minutes(1));
  if (taken != kPages * kLargePage && !MakesLargePages(kPages)) {
    GTEST_SKIP() << "others took the large pages";
  }
  EXPECT_EQ(taken, kPages * kLargePage);
  EXPECT_EQ(KibInLargePages(made->memory().data()), kPages * 2048);
  // What was there stays.
  for (size_t i = 0; i < 200; ++i) {
    ASSERT_EQ(made->memory()[kLargePage + i], std::byte(i < 100 ? 5 : 0)) << i;
  }
  std::memset(made->memory().data() + kLargePage, 0, 100);
  for (size_t at = 0; at < kBytes; at += 1000) {
    ASSERT_EQ(made->memory()[at], std::byte{0}) << at;
  }
  // For those that read it, too.
  made->memory()[kBytes - 1] = std::byte{9};
  auto view = SharedMemoryView::Open(made->descriptor(), kBytes);
  ASSERT_TRUE(view.ok()) << view.status();
  EXPECT_EQ(view->memory()[kBytes - 1], std::byte{9});
  for (size_t at = 0; at < kBytes; at += kLargePage) {
    ASSERT_EQ(view->memory()[at], std::byte{0}) << at;
  }
  EXPECT_EQ(KibInLargePages(view->memory().data()), kPages * 2048);
}

TEST(SharedMemoryTest, ViewsOutliveTheirMaker) {
  std::optional<SharedMemory> made = *SharedMemory::Create(5000, "a test");
  std::memset(made->memory().data(), 3, 5000);
  auto view = SharedMemoryView::Open(made->descriptor(), 5000);
  ASSERT_TRUE(view.ok()) << view.status();
  made.reset();
  EXPECT_EQ(view->memory()[4999], std::byte{3});
}

TEST(SharedMemoryTest, NobodyElseCanWriteOrResizeIt) {
  auto made = SharedMemory::Create(8192, "a test");
  ASSERT_TRUE(made.ok());
  const int file = made->descriptor();
  EXPECT_NE(ftruncate(file, 4096), 0);
  EXPECT_NE(ftruncate(file, 16384), 0);
  EXPECT_EQ(mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0),
            MAP_FAILED);
  EXPECT_EQ(pwrite(file, "x", 1, 0), -1);
  EXPECT_NE(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE), 0);
}

TEST(SharedMemoryTest, OtherFilesAreNotMapped) {
  const ScopedFd unsealed(memfd_create("x", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(unsealed.get(), 4096), 0);
  EXPECT_EQ(SharedMemoryView::Open(unsealed.get(), 4096).status().code(),
            kInvalid);
  ASSERT_EQ(fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  EXPECT_EQ(SharedMemoryView::Open(unsealed.get(), 4096).status().code(),
            kInvalid);
  const ScopedFd file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(SharedMemoryView::Open(file.get(), 4096).status().code(), kInvalid);
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const ScopedFd in(pipes[0]), out(pipes[1]);
  EXPECT_FALSE(SharedMemoryView::Open(in.get(), 4096).ok());
  EXPECT_FALSE(SharedMemoryView::Open(-1, 4096).ok());
}

TEST(SharedMemoryTest, LengthsAreChecked) {
  auto made = SharedMemory::Create(4096, "a test");
  ASSERT_TRUE(made.ok());
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{4097}, ~uint64_t{0}}) {
    EXPECT_EQ(SharedMemoryView::Open(made->descriptor(), bytes).status().code(),
              kInvalid)
        << bytes;
  }
}

TEST(SharedMemoryTest, TooMuchIsAnError) {
  auto made = SharedMemory::Create(int64_t{1} << 60, "a test");
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.status().message().find("a test"), std::string::npos);
}

}  // namespace
}  // namespace baton
