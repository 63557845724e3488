#include "worker/file_kv_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <xxhash.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/log.h"
#include "common/process/memory.h"
#include "common/stable_hash.h"
#include "common/status_macros.h"
#include "worker/disk_space.h"

namespace baton::worker {
namespace {

constexpr char kMagic[] = {'B', 'A', 'T', 'O', 'N', 'K', 'V', '1'};
constexpr int64_t kAlignment = 4096;
constexpr size_t kMaxIdentity = 1000;
// Files of one identity in a directory.
constexpr int kMaxFiles = 256;
// Reads wait for memory, or a disk that likes several at a time.
constexpr int kReaders = 2;
// Of iovec, in one call (IOV_MAX).
constexpr size_t kMaxParts = 1024;

struct Header {
  char magic[8];
  uint32_t identity_length;
  char identity[kMaxIdentity];
  int32_t num_places;
  int64_t block_bytes;
  uint64_t generation;
  char unused[kAlignment - 8 - 4 - kMaxIdentity - 4 - 8 - 8 - 8];
  uint64_t sum;
};
static_assert(sizeof(Header) == kAlignment);

struct Record {
  uint64_t sum;
  uint64_t generation;
  uint64_t stamp;
  uint64_t before_stamp;
  int32_t before;
  uint32_t salt_length;
  uint64_t block_sum;
  // Then the tokens, and the salt.
};
static_assert(sizeof(Record) == 48);

int64_t Aligned(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int64_t RecordBytes(const engine::KvLayout& layout) {
  return static_cast<int64_t>(sizeof(Record)) + int64_t{4} * layout.block_size +
         static_cast<int64_t>(KvStore::kMaxSalt);
}

// All of `parts` at `offset`, or an error.
template <typename Call>
absl::Status Transfer(Call call, const char* what, int file, int64_t offset,
                      std::vector<iovec> parts) {
  size_t first = 0;
  while (first < parts.size()) {
    const auto count =
        static_cast<int>(std::min(parts.size() - first, kMaxParts));
    ssize_t moved = call(file, parts.data() + first, count, offset);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0) return absl::ErrnoToStatus(errno, what);
    if (moved == 0) {
      return absl::DataLossError(absl::StrCat(what, ": the file is too short"));
    }
    offset += moved;
    while (first < parts.size() &&
           static_cast<size_t>(moved) >= parts[first].iov_len) {
      moved -= static_cast<ssize_t>(parts[first++].iov_len);
    }
    if (moved > 0) {
      parts[first].iov_base = static_cast<char*>(parts[first].iov_base) + moved;
      parts[first].iov_len -= static_cast<size_t>(moved);
    }
  }
  return absl::OkStatus();
}

absl::Status WriteParts(int file, int64_t offset, std::vector<iovec> parts) {
  return Transfer(&pwritev, "write", file, offset, std::move(parts));
}

absl::Status ReadParts(int file, int64_t offset, std::vector<iovec> parts) {
  return Transfer(&preadv, "read", file, offset, std::move(parts));
}

absl::Status Named(const absl::Status& status, const std::string& path) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat(path.empty() ? "memory" : path, ": ", status.message()));
}

// The pages of a block, in the order of layers.
std::vector<iovec> PagesOf(const FileKvStoreOptions& options, BlockId block) {
  std::vector<iovec> pages;
  for (int32_t layer = 0; layer < options.layout.num_layers; ++layer) {
    pages.push_back(
        {options.memory.data() + options.layout.PageOffset(layer, block),
         static_cast<size_t>(options.layout.page_bytes())});
  }
  return pages;
}

uint64_t SumOf(const std::vector<iovec>& parts) {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(
      XXH3_createState(), &XXH3_freeState);
  XXH3_64bits_reset(state.get());
  for (const iovec& part : parts) {
    XXH3_64bits_update(state.get(), part.iov_base, part.iov_len);
  }
  return XXH3_64bits_digest(state.get());
}

uint64_t SumOfRecord(const std::vector<std::byte>& record) {
  return XXH3_64bits(record.data() + sizeof(uint64_t),
                     record.size() - sizeof(uint64_t));
}

std::string IdentityOf(const FileKvStoreOptions& options) {
  const engine::KvLayout& layout = options.layout;
  return absl::StrCat(
      options.identity, " kv=", engine::KvDtypeName(layout.dtype),
      " layers=", layout.num_layers, " kv_heads=", layout.num_kv_heads,
      " head_dim=", layout.head_dim, " block_size=", layout.block_size,
      layout.shares_values()
          ? absl::StrCat(" shared_value_dim=", layout.shared_value_dim)
          : "");
}

}  // namespace

FileKvStore::FileKvStore(const FileKvStoreOptions& options,
                         std::string identity, int32_t num_places)
    : options_(options),
      identity_(std::move(identity)),
      num_places_(num_places) {}

absl::StatusOr<std::unique_ptr<FileKvStore>> FileKvStore::Open(
    const FileKvStoreOptions& options) {
  const std::string identity = IdentityOf(options);
  CHECK_LE(identity.size(), kMaxIdentity);
  CHECK_GE(static_cast<int64_t>(options.memory.size()),
           options.layout.total_bytes());
  const int64_t each =
      options.layout.block_bytes() + RecordBytes(options.layout);
  const int64_t places = std::min<int64_t>(
      (options.bytes - 2 * kAlignment) / each, int64_t{1} << 30);
  if (options.bytes < 2 * kAlignment || places < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.bytes, " bytes are less than a block takes, ",
                     2 * kAlignment + each));
  }
  std::unique_ptr<FileKvStore> store(
      new FileKvStore(options, identity, static_cast<int32_t>(places)));
  if (options.directory.empty()) {
    BATON_RETURN_IF_ERROR(store->OpenMemory());
  } else {
    BATON_RETURN_IF_ERROR(store->OpenFile());
  }
  store->Start();
  return store;
}

absl::Status FileKvStore::OpenMemory() {
  const int64_t free = process::ReadMemory().Free();
  if (file_bytes() > free) {
    return absl::ResourceExhaustedError(absl::StrCat(
        file_bytes(), " bytes are more than the ", free, " that are free"));
  }
  file_ = ScopedFd(memfd_create("baton-kv-offload", MFD_CLOEXEC));
  if (!file_.valid()) return absl::ErrnoToStatus(errno, "memfd_create");
  // Taken as it is first written.
  if (ftruncate(file_.get(), file_bytes()) != 0) {
    return absl::ErrnoToStatus(errno, "memory");
  }
  return absl::OkStatus();
}

absl::Status FileKvStore::OpenFile() {
  const Hash128 hash = StableHash(absl::MakeConstSpan(
      reinterpret_cast<const std::byte*>(identity_.data()), identity_.size()));
  for (int i = 0; i < kMaxFiles; ++i) {
    path_ = absl::StrFormat("%s/kv-%s-%016x-%d", options_.directory,
                            options_.kind, hash.high, i);
    file_ = ScopedFd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file_.valid()) return absl::ErrnoToStatus(errno, path_);
    if (flock(file_.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) continue;  // another worker's
      return absl::ErrnoToStatus(errno, path_);
    }
    if (ReadHeader()) {
      ReadRecords();
      return absl::OkStatus();
    }
    if (ftruncate(file_.get(), 0) != 0) {
      return absl::ErrnoToStatus(errno, path_);
    }
    const absl::Status space = SetSpaceAside(file_.get(), file_bytes());
    if (absl::IsResourceExhausted(space)) unlink(path_.c_str());
    BATON_RETURN_IF_ERROR(Named(space, path_));
    return Named(WriteHeader(), path_);
  }
  return absl::UnavailableError(
      absl::StrCat(options_.directory, ": other workers have all ", kMaxFiles,
                   " files of this model"));
}

bool FileKvStore::ReadHeader() {
  struct stat stat;
  if (fstat(file_.get(), &stat) != 0 || stat.st_size == 0) return false;
  Header header;
  if (stat.st_size != file_bytes() ||
      !ReadParts(file_.get(), 0, {{&header, sizeof header}}).ok() ||
      std::memcmp(header.magic, kMagic, sizeof kMagic) != 0 ||
      header.sum != XXH3_64bits(&header, offsetof(Header, sum)) ||
      header.identity_length != identity_.size() ||
      std::memcmp(header.identity, identity_.data(), identity_.size()) != 0 ||
      header.num_places != num_places_ ||
      header.block_bytes != options_.layout.block_bytes()) {
    LOG(WARNING) << path_ << " is of another size, or damaged: it begins anew";
    return false;
  }
  generation_ = header.generation;
  return true;
}

absl::Status FileKvStore::WriteHeader() {
  Header header = {};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.identity_length = static_cast<uint32_t>(identity_.size());
  std::memcpy(header.identity, identity_.data(), identity_.size());
  header.num_places = num_places_;
  header.block_bytes = options_.layout.block_bytes();
  header.generation = generation_;
  header.sum = XXH3_64bits(&header, offsetof(Header, sum));
  return WriteParts(file_.get(), 0, {{&header, sizeof header}});
}

void FileKvStore::ReadRecords() {
  sums_.resize(static_cast<size_t>(num_places_));
  const auto size = static_cast<size_t>(record_bytes());
  std::vector<std::byte> bytes(size);
  for (BlockId place = 0; place < num_places_; ++place) {
    if (!ReadParts(file_.get(), RecordOffset(place), {{bytes.data(), size}})
             .ok()) {
      continue;
    }
    Record record;
    std::memcpy(&record, bytes.data(), sizeof record);
    if (record.generation != generation_ || record.sum != SumOfRecord(bytes) ||
        record.salt_length > kMaxSalt) {
      continue;
    }
    StoredBlock stored = {.place = place,
                          .stamp = record.stamp,
                          .before = record.before,
                          .before_stamp = record.before_stamp};
    stored.tokens.resize(static_cast<size_t>(options_.layout.block_size));
    const std::byte* const tokens = bytes.data() + sizeof record;
    const size_t token_bytes = stored.tokens.size() * sizeof(TokenId);
    std::memcpy(stored.tokens.data(), tokens, token_bytes);
    stored.salt.assign(reinterpret_cast<const char*>(tokens + token_bytes),
                       record.salt_length);
    sums_[place] = record.block_sum;
    found_.push_back(std::move(stored));
  }
  std::sort(found_.begin(), found_.end(),
            [](const StoredBlock& a, const StoredBlock& b) {
              return a.stamp < b.stamp;
            });
}

void FileKvStore::Start() {
  sums_.resize(static_cast<size_t>(num_places_));
  threads_.emplace_back([this] { RunWriter(); });
  for (int i = 0; i < kReaders; ++i) {
    threads_.emplace_back([this] { RunReader(); });
  }
}

FileKvStore::~FileKvStore() {
  {
    const absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

int64_t FileKvStore::record_bytes() const {
  return RecordBytes(options_.layout);
}

int64_t FileKvStore::RecordOffset(BlockId place) const {
  return kAlignment + place * record_bytes();
}

int64_t FileKvStore::BlockOffset(BlockId place) const {
  return Aligned(RecordOffset(num_places_)) +
         place * options_.layout.block_bytes();
}

std::vector<StoredBlock> FileKvStore::TakeStored() {
  return std::exchange(found_, {});
}

void FileKvStore::Write(uint64_t job, std::vector<BlockId> blocks,
                        std::vector<StoredBlock> stored) {
  CHECK_EQ(blocks.size(), stored.size());
  const absl::MutexLock lock(&mutex_);
  CHECK_LT(writes_.size(), static_cast<size_t>(kMaxJobs));
  writes_.push_back({job, std::move(blocks), std::move(stored)});
}

void FileKvStore::Read(uint64_t job, std::vector<Copy> copies) {
  const absl::MutexLock lock(&mutex_);
  CHECK_LT(reads_.size(), static_cast<size_t>(kMaxJobs));
  reads_.push_back({job, std::move(copies)});
}

void FileKvStore::Forget() {
  const absl::MutexLock lock(&mutex_);
  // One is as good as two.
  if (!writes_.empty() && writes_.back().job == 0) return;
  writes_.push_back({});
}

std::vector<KvStore::Done> FileKvStore::Poll() {
  const absl::MutexLock lock(&mutex_);
  return std::exchange(done_, {});
}

void FileKvStore::Await(absl::Duration most) {
  const absl::MutexLock lock(&mutex_);
  mutex_.AwaitWithTimeout(absl::Condition(this, &FileKvStore::HasDone), most);
}

void FileKvStore::Finish(Done done) {
  {
    const absl::MutexLock lock(&mutex_);
    done_.push_back(std::move(done));
  }
  const absl::MutexLock lock(&wake_mutex_);
  if (wake_) wake_();
}

void FileKvStore::SetWake(std::function<void()> wake) {
  const absl::MutexLock lock(&wake_mutex_);
  wake_ = std::move(wake);
}

void FileKvStore::RunWriter() {
  while (true) {
    WriteJob job;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &FileKvStore::WriterHasWork));
      if (stopped_) return;
      job = std::move(writes_.front());
      writes_.pop_front();
    }
    const absl::Status status = Named(WriteAll(job), path_);
    if (job.job == 0) {
      LOG_IF(ERROR, !status.ok()) << status.message();
      continue;
    }
    const auto count = static_cast<int32_t>(job.blocks.size());
    Finish({.job = job.job,
            .num_blocks = status.ok() ? count : 0,
            .error = std::string(status.message())});
  }
}

absl::Status FileKvStore::WriteAll(const WriteJob& job) {
  if (job.job == 0) return ForgetAll();
  for (size_t i = 0; i < job.blocks.size(); ++i) {
    BATON_RETURN_IF_ERROR(WriteOne(job.blocks[i], job.stored[i]));
  }
  return absl::OkStatus();
}

absl::Status FileKvStore::ForgetAll() {
  // Records of earlier generations are none.
  ++generation_;
  if (path_.empty()) return absl::OkStatus();
  absl::Status status = WriteHeader();
  if (status.ok() && fdatasync(file_.get()) != 0) {
    status = absl::ErrnoToStatus(errno, "fdatasync");
  }
  // What must not be found again is not, one way or the other.
  if (!status.ok()) unlink(path_.c_str());
  return status;
}

absl::Status FileKvStore::WriteOne(BlockId block, const StoredBlock& stored) {
  const std::vector<iovec> pages = PagesOf(options_, block);
  const uint64_t sum = SumOf(pages);
  if (path_.empty()) {
    BATON_RETURN_IF_ERROR(
        WriteParts(file_.get(), BlockOffset(stored.place), pages));
    sums_[stored.place] = sum;
    return absl::OkStatus();
  }
  Record record = {};
  BATON_RETURN_IF_ERROR(WriteParts(file_.get(), RecordOffset(stored.place),
                                   {{&record, sizeof record}}));
  BATON_RETURN_IF_ERROR(
      WriteParts(file_.get(), BlockOffset(stored.place), pages));
  record.generation = generation_;
  record.stamp = stored.stamp;
  record.before_stamp = stored.before_stamp;
  record.before = stored.before;
  record.salt_length = static_cast<uint32_t>(stored.salt.size());
  record.block_sum = sum;
  std::vector<std::byte> bytes(static_cast<size_t>(record_bytes()));
  std::byte* const tokens = bytes.data() + sizeof record;
  const size_t token_bytes = stored.tokens.size() * sizeof(TokenId);
  std::memcpy(tokens, stored.tokens.data(), token_bytes);
  std::memcpy(tokens + token_bytes, stored.salt.data(), stored.salt.size());
  std::memcpy(bytes.data(), &record, sizeof record);
  record.sum = SumOfRecord(bytes);
  std::memcpy(bytes.data(), &record, sizeof record);
  BATON_RETURN_IF_ERROR(WriteParts(file_.get(), RecordOffset(stored.place),
                                   {{bytes.data(), bytes.size()}}));
  sums_[stored.place] = sum;
  return absl::OkStatus();
}

void FileKvStore::RunReader() {
  while (true) {
    ReadJob job;
    {
      const absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &FileKvStore::ReaderHasWork));
      if (stopped_) return;
      job = std::move(reads_.front());
      reads_.pop_front();
    }
    Done done = {.job = job.job};
    // All that comes is asked for before the first is waited for: several
    // readers with a file would else find no order in what they read.
    for (const Copy& copy : job.copies) {
      if (path_.empty()) break;
      posix_fadvise(file_.get(), BlockOffset(copy.place),
                    options_.layout.block_bytes(), POSIX_FADV_WILLNEED);
    }
    for (const Copy& copy : job.copies) {
      const absl::Status status = Named(ReadOne(copy), path_);
      if (!status.ok()) {
        done.error = std::string(status.message());
        break;
      }
      ++done.num_blocks;
    }
    Finish(std::move(done));
  }
}

absl::Status FileKvStore::ReadOne(const Copy& copy) {
  const std::vector<iovec> pages = PagesOf(options_, copy.block);
  BATON_RETURN_IF_ERROR(ReadParts(file_.get(), BlockOffset(copy.place), pages));
  if (SumOf(pages) == sums_[copy.place]) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "block ", copy.place, " is not what was written (its sum differs)"));
}

}  // namespace baton::worker
