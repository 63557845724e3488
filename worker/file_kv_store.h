// KV blocks in a file: one in a directory, where the next process of this
// worker finds what it left, or one that has no name and lies in the host's
// memory.
//
// A directory has a file for each worker that uses it at a time, locked while
// it is used:
//   kv-KIND-IDENTITY-N   IDENTITY: 16 hexadecimal digits, of the model, the
//                        backend, the version and the layout; N: the first
//                        that no other worker has.
// It holds KV and tokens as they are: only its owner may read it. A file of
// another model is never touched.
//
// To the byte, all little-endian; offsets of the parts are multiples of 4096:
//
//   header   "BATONKV1", u32 length of the identity and its bytes (at most
//            1000), u64 generation, i32 places, i64 bytes of a block; at 4088
//            the XXH3-64 of all before
//   records  one for each place: u64 XXH3-64 of what follows, u64 generation,
//            u64 stamp, u64 stamp of the block before, i32 its place, u32
//            length of the salt, u64 XXH3-64 of the block's bytes, i32 tokens
//            [block_size], salt [512]
//   blocks   for each place, layer by layer, the pages of the block
//
// A record is cleared before its block is written, and written behind it. What
// the kernel had not written when the machine lost power is found by the sums:
// of a record when the file is opened, of a block each time when it is read.
//
// Threads: as KvStore says. Its own: one that writes and some that read, with
// the system's ordinary cached reads and writes.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/scoped_fd.h"
#include "engine/kv_layout.h"
#include "worker/kv_store.h"

namespace baton::worker {

struct FileKvStoreOptions {
  // Of the file, blocks and all else.
  int64_t bytes = 0;
  // Empty: in memory.
  std::string directory;
  // Which workers find each other's files there: those of one kind.
  std::string kind;
  // What else its bits depend on: model, backend, version. At most 800 bytes.
  std::string identity;
  // The memory that blocks are in; it outlives the store.
  engine::KvLayout layout;
  absl::Span<std::byte> memory;
};

class FileKvStore final : public KvStore {
 public:
  // Sets all of the space aside, where the file system can. Errors name the
  // path: InvalidArgument where `bytes` is too little for a block;
  // ResourceExhausted where there is no room; Unavailable where other workers
  // have all files; and those of open(2).
  static absl::StatusOr<std::unique_ptr<FileKvStore>> Open(
      const FileKvStoreOptions& options);
  ~FileKvStore() override;

  int32_t num_places() const override { return num_places_; }
  std::vector<StoredBlock> TakeStored() override;
  void Write(uint64_t job, std::vector<BlockId> blocks,
             std::vector<StoredBlock> stored) override;
  void Read(uint64_t job, std::vector<Copy> copies) override;
  std::vector<Done> Poll() override;
  void Await(absl::Duration most) override;
  void Forget() override;

  // Called by any thread when a job is done, until another is set. Null:
  // nothing. Any thread.
  void SetWake(std::function<void()> wake);

  // Of the file in the directory; empty in memory.
  const std::string& path() const { return path_; }

 private:
  struct WriteJob {
    uint64_t job = 0;  // 0: Forget
    std::vector<BlockId> blocks;
    std::vector<StoredBlock> stored;
  };
  struct ReadJob {
    uint64_t job = 0;
    std::vector<Copy> copies;
  };

  FileKvStore(const FileKvStoreOptions& options, std::string identity,
              int32_t num_places);
  // Takes the first file of the directory that is free.
  absl::Status OpenFile();
  absl::Status OpenMemory();
  // Whether the file's header is this store's; sets the generation.
  bool ReadHeader();
  absl::Status WriteHeader();
  absl::Status ForgetAll();
  void ReadRecords();
  void Start();

  int64_t record_bytes() const;
  int64_t RecordOffset(BlockId place) const;
  int64_t BlockOffset(BlockId place) const;
  int64_t file_bytes() const { return BlockOffset(num_places_); }

  void RunWriter();
  void RunReader();
  absl::Status WriteAll(const WriteJob& job);
  absl::Status WriteOne(BlockId block, const StoredBlock& stored);
  absl::Status ReadOne(const Copy& copy);
  void Finish(Done done) ABSL_LOCKS_EXCLUDED(mutex_, wake_mutex_);
  bool WriterHasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !writes_.empty();
  }
  bool ReaderHasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopped_ || !reads_.empty();
  }
  bool HasDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !done_.empty();
  }

  const FileKvStoreOptions options_;
  const std::string identity_;
  const int32_t num_places_;
  std::string path_;
  ScopedFd file_;
  // Of the header and of records that count. The writer's, once it runs.
  uint64_t generation_ = 1;
  std::vector<StoredBlock> found_;
  // XXH3-64 of each place's block: written by the writer, read by readers,
  // which are given a place only when its write is done.
  std::vector<uint64_t> sums_;

  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<WriteJob> writes_ ABSL_GUARDED_BY(mutex_);
  std::deque<ReadJob> reads_ ABSL_GUARDED_BY(mutex_);
  std::vector<Done> done_ ABSL_GUARDED_BY(mutex_);

  absl::Mutex wake_mutex_;
  std::function<void()> wake_ ABSL_GUARDED_BY(wake_mutex_);

  std::vector<std::thread> threads_;
};

}  // namespace baton::worker
