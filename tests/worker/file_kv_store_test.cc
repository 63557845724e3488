#include "worker/file_kv_store.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/scratch_dir.h"

namespace baton::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int64_t kBytes = 1 << 20;

engine::KvLayout SmallLayout() {
  engine::KvLayout layout;
  layout.num_layers = 3;
  layout.num_blocks = 8;
  layout.num_kv_heads = 2;
  layout.head_dim = 24;
  return layout;
}

StoredBlock What(BlockId place, uint64_t stamp, BlockId before = -1,
                 uint64_t before_stamp = 0, std::string salt = "") {
  return {.place = place,
          .stamp = stamp,
          .before = before,
          .before_stamp = before_stamp,
          .salt = std::move(salt),
          .tokens = std::vector<TokenId>(16, static_cast<TokenId>(stamp))};
}

class FileKvStoreTest : public testing::Test {
 protected:
  FileKvStoreTest()
      : memory_(static_cast<size_t>(SmallLayout().total_bytes())) {
    std::mt19937 random(7);
    for (std::byte& b : memory_) b = static_cast<std::byte>(random());
  }

  FileKvStoreOptions Options(bool in_directory = true) {
    return {.bytes = kBytes,
            .directory = in_directory ? folder_.path() : "",
            .kind = "prefill",
            .identity = "model cpu",
            .layout = SmallLayout(),
            .memory = absl::MakeSpan(memory_)};
  }
  static std::unique_ptr<FileKvStore> Open(const FileKvStoreOptions& options) {
    auto store = FileKvStore::Open(options);
    CHECK(store.ok()) << store.status();
    return *std::move(store);
  }
  static absl::Status ErrorOf(const FileKvStoreOptions& options) {
    return FileKvStore::Open(options).status();
  }

  KvStore::Done Await(KvStore* store, uint64_t job) {
    while (true) {
      store->Await(absl::Seconds(30));
      std::vector<KvStore::Done> done = store->Poll();
      CHECK_EQ(done.size(), 1u);
      CHECK_EQ(done[0].job, job);
      return done[0];
    }
  }
  void Write(KvStore* store, BlockId block, const StoredBlock& what) {
    store->Write(++job_, {block}, {what});
    const KvStore::Done done = Await(store, job_);
    EXPECT_EQ(done.num_blocks, 1) << done.error;
  }
  KvStore::Done Read(KvStore* store, std::vector<KvStore::Copy> copies) {
    store->Read(++job_, std::move(copies));
    return Await(store, job_);
  }

  std::vector<std::byte> ContentOf(BlockId block) {
    std::vector<std::byte> content;
    const engine::KvLayout layout = SmallLayout();
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      const auto page = memory_.begin() + layout.PageOffset(layer, block);
      content.insert(content.end(), page, page + layout.page_bytes());
    }
    return content;
  }
  std::vector<std::string> Files() {
    std::vector<std::string> files;
    for (const auto& file :
         std::filesystem::directory_iterator(folder_.path())) {
      files.push_back(file.path().filename());
    }
    return files;
  }
  // One bit of the file's byte is another.
  static void Damage(const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 4));
    CHECK(file.good());
  }

  const test::ScratchDir folder_;
  std::vector<std::byte> memory_;
  uint64_t job_ = 0;
};

TEST_F(FileKvStoreTest, BlocksComeBackBitForBit) {
  for (const bool in_directory : {false, true}) {
    const auto store = Open(Options(in_directory));
    EXPECT_EQ(store->path().empty(), !in_directory);
    ASSERT_GE(store->num_places(), 50);
    const BlockId last = store->num_places() - 1;
    const auto first_content = ContentOf(2);
    const auto last_content = ContentOf(5);
    const auto others = ContentOf(0);
    Write(store.get(), 2, What(0, 1));
    Write(store.get(), 5, What(last, 2, 0, 1));
    const KvStore::Done done = Read(store.get(), {{7, 0}, {1, last}});
    EXPECT_EQ(done.num_blocks, 2);
    EXPECT_EQ(done.error, "");
    EXPECT_EQ(ContentOf(7), first_content);
    EXPECT_EQ(ContentOf(1), last_content);
    EXPECT_EQ(ContentOf(0), others);
    EXPECT_LE(in_directory ? std::filesystem::file_size(store->path()) : 0,
              static_cast<uint64_t>(kBytes));
  }
}

TEST_F(FileKvStoreTest, TheNextProcessFindsWhatIsThere) {
  const std::string salt(KvStore::kMaxSalt, 's');
  const auto content = ContentOf(3);
  {
    const auto store = Open(Options());
    EXPECT_THAT(store->TakeStored(), IsEmpty());
    Write(store.get(), 1, What(4, 1));
    Write(store.get(), 2, What(9, 2, -1, 0, salt));
    Write(store.get(), 3, What(2, 3, 9, 2));
    Write(store.get(), 5, What(4, 4, 2, 3));  // over the first one
  }
  const auto store = Open(Options());
  const std::vector<StoredBlock> found = store->TakeStored();
  ASSERT_THAT(found, SizeIs(3));
  EXPECT_THAT(store->TakeStored(), IsEmpty()) << "once";
  const std::vector<StoredBlock> expected = {
      What(9, 2, -1, 0, salt), What(2, 3, 9, 2), What(4, 4, 2, 3)};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(found[i].place, expected[i].place) << i;
    EXPECT_EQ(found[i].stamp, expected[i].stamp) << i;
    EXPECT_EQ(found[i].before, expected[i].before) << i;
    EXPECT_EQ(found[i].before_stamp, expected[i].before_stamp) << i;
    EXPECT_EQ(found[i].salt, expected[i].salt) << i;
    EXPECT_EQ(found[i].tokens, expected[i].tokens) << i;
  }
  EXPECT_EQ(Read(store.get(), {{0, 2}}).num_blocks, 1);
  EXPECT_EQ(ContentOf(0), content);
}

TEST_F(FileKvStoreTest, WhatIsForgottenIsNotFound) {
  {
    const auto store = Open(Options());
    Write(store.get(), 1, What(0, 1));
    store->Write(++job_, {2}, {What(1, 2)});
    store->Forget();
    store->Forget();
    Await(store.get(), job_);
    Write(store.get(), 3, What(2, 3));
  }
  const std::vector<StoredBlock> found = Open(Options())->TakeStored();
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].stamp, 3u);
}

TEST_F(FileKvStoreTest, ADamagedBlockIsAnErrorAndADamagedRecordIsNone) {
  const engine::KvLayout layout = SmallLayout();
  std::string path;
  int32_t places = 0;
  {
    const auto store = Open(Options());
    path = store->path();
    places = store->num_places();
    for (BlockId b = 0; b < 4; ++b) {
      Write(store.get(), b,
            What(b, static_cast<uint64_t>(b) + 1, b - 1,
                 static_cast<uint64_t>(b)));
    }
    // While it runs, and of a block that it wrote.
    const int64_t blocks = (4096 + places * (48 + 4 * 16 + 512) + 4095) / 4096 *
                           4096;  // as the header says
    Damage(path, blocks + 2 * layout.block_bytes() + 1000);
    const KvStore::Done done =
        Read(store.get(), {{4, 0}, {5, 1}, {6, 2}, {7, 3}});
    EXPECT_EQ(done.num_blocks, 2);
    EXPECT_THAT(done.error, HasSubstr("block 2 is not what was written"));
    EXPECT_THAT(done.error, StartsWith(path));
  }
  Damage(path, 4096 + 1 * (48 + 4 * 16 + 512) + 60);
  const std::vector<StoredBlock> found = Open(Options())->TakeStored();
  std::vector<uint64_t> stamps;
  for (const StoredBlock& block : found) stamps.push_back(block.stamp);
  EXPECT_THAT(stamps, ElementsAre(1, 3, 4));
}

TEST_F(FileKvStoreTest, EachWorkerHasAFileOfItsOwn) {
  auto first = Open(Options());
  const auto second = Open(Options());
  EXPECT_THAT(first->path(), HasSubstr("-0"));
  EXPECT_THAT(second->path(), HasSubstr("-1"));
  Write(first.get(), 1, What(0, 1));
  first.reset();
  const auto again = Open(Options());
  EXPECT_THAT(again->path(), HasSubstr("-0"));
  EXPECT_THAT(again->TakeStored(), SizeIs(1));
  // Another model's is not touched.
  FileKvStoreOptions other = Options();
  other.identity = "another model";
  EXPECT_THAT(Open(other)->TakeStored(), IsEmpty());
  other = Options();
  other.layout.dtype = engine::KvDtype::kInt8;
  EXPECT_THAT(Open(other)->TakeStored(), IsEmpty());
  other = Options();
  other.kind = "decode";
  EXPECT_THAT(Open(other)->path(), HasSubstr("/kv-decode-"));
  EXPECT_THAT(Files(), SizeIs(5));
  struct stat stat;
  ASSERT_EQ(::stat(again->path().c_str(), &stat), 0);
  EXPECT_EQ(stat.st_mode & 0777, 0600u) << "nobody else reads prompts";
}

TEST_F(FileKvStoreTest, AFileOfAnotherSizeBeginsAnew) {
  Write(Open(Options()).get(), 1, What(0, 1));
  FileKvStoreOptions larger = Options();
  larger.bytes = 2 * kBytes;
  const auto store = Open(larger);
  EXPECT_THAT(store->TakeStored(), IsEmpty());
  EXPECT_THAT(Files(), SizeIs(1));
  EXPECT_GT(std::filesystem::file_size(store->path()),
            static_cast<uint64_t>(kBytes));
}

TEST_F(FileKvStoreTest, ADamagedHeaderBeginsAnew) {
  std::string path;
  {
    const auto store = Open(Options());
    path = store->path();
    Write(store.get(), 1, What(0, 1));
  }
  Damage(path, 30);
  EXPECT_THAT(Open(Options())->TakeStored(), IsEmpty());
}

TEST_F(FileKvStoreTest, ErrorsSayWhatIsWrong) {
  FileKvStoreOptions options = Options();
  options.bytes = 10'000;
  EXPECT_EQ(ErrorOf(options).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(ErrorOf(options).message(),
              HasSubstr("10000 bytes are less than a block takes"));
  options = Options();
  options.directory = folder_.path() + "/nowhere";
  EXPECT_EQ(ErrorOf(options).code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(ErrorOf(options).message(), HasSubstr("/nowhere/kv-prefill-"));
  options = Options(/*in_directory=*/false);
  options.bytes = int64_t{1} << 42;
  EXPECT_EQ(ErrorOf(options).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(ErrorOf(options).message(), HasSubstr("that are free"));
}

TEST_F(FileKvStoreTest, WithoutRoomNoFileIsLeft) {
  FileKvStoreOptions options = Options();
  // One block of a megabyte, and eight terabytes of them.
  options.layout.num_blocks = 1;
  options.layout.num_layers = 1;
  options.layout.num_kv_heads = 256;
  options.layout.head_dim = 64;
  std::vector<std::byte> memory(
      static_cast<size_t>(options.layout.total_bytes()));
  options.memory = absl::MakeSpan(memory);
  options.bytes = int64_t{8} << 40;
  const auto space = std::filesystem::space(folder_.path());
  if (space.available > static_cast<uint64_t>(options.bytes)) {
    GTEST_SKIP() << "there is room for 8 TB";
  }
  // Meanwhile others write, too.
  std::atomic<bool> over = false;
  uintmax_t least = space.available;
  std::thread others([&] {
    while (!over) {
      least = std::min(least, std::filesystem::space(folder_.path()).available);
    }
  });
  const absl::Status status = ErrorOf(options);
  over = true;
  others.join();
  EXPECT_GT(least, space.available / 2);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(), HasSubstr("no room for"));
  EXPECT_THAT(Files(), IsEmpty());
}

}  // namespace
}  // namespace baton::worker
