// The kernel of page_hash.h: XXH3 of long inputs as xxHash's specification has
// it (doc/xxhash_spec.md of github.com/Cyan4973/xxHash, "XXH3 Algorithm ...
// large inputs"). An input is stripes of 64 bytes, 16 of them a block. What a
// stripe adds to the eight accumulators does not depend on other stripes, so
// that a warp adds eight at a time, four lanes to each; between blocks they are
// scrambled, and that has to be done one block after another.
#include "engine/cuda/page_hash.h"

#include "device_target.h"

namespace baton::engine::cuda {
namespace {

constexpr uint32_t kHashThreads = 128;
constexpr int32_t kHashWarps = kHashThreads / 32;
constexpr int32_t kBlockStripes = 16;
constexpr int32_t kStripesAtOnce = 8;
constexpr int32_t kLaneBytes = 16;
// Blocks that a lane asks for before it adds the first: a page is hashed as
// fast as memory answers.
constexpr int32_t kBlocksAhead = 4;

constexpr int32_t kSecretWords = 24;
constexpr int32_t kScrambleWord = kSecretWords - 8;
// Bytes of the secret that the last stripe's and the merge's keys begin with.
constexpr int32_t kLastKey = 8 * kSecretWords - 64 - 7;
constexpr int32_t kMergeKey = 11;

constexpr uint64_t kPrime32_1 = 0x9E3779B1;
constexpr uint64_t kPrime32_2 = 0x85EBCA77;
constexpr uint64_t kPrime32_3 = 0xC2B2AE3D;
constexpr uint64_t kPrime64_1 = 0x9E3779B185EBCA87;
constexpr uint64_t kPrime64_2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kPrime64_3 = 0x165667B19E3779F9;
constexpr uint64_t kPrime64_4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kPrime64_5 = 0x27D4EB2F165667C5;
constexpr uint64_t kAvalanche = 0x165667919E3779F9;

// XXH3's default secret, as little-endian words.
struct Secret {
  uint64_t words[kSecretWords] = {
      0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de,
      0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb, 0x2172ffcc7dd05a82,
      0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c,
      0xa32e531b8b65d088, 0x4ef90da297486471, 0xd8acdea946ef1938,
      0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
      0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5,
      0x49daf0b751dd0d17, 0x9e68d429265516d3, 0xfca1477d58be162b,
      0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};
};

// Two of the eight accumulators, or the keys to them.
struct Two {
  uint64_t x[2];
};

// The secret of a seed, from any byte on.
struct SeededSecret {
  const uint64_t* words;
  uint64_t seed;

  BATON_DEVICE uint64_t Word(int32_t i) const {
    return i % 2 == 0 ? words[i] + seed : words[i] - seed;
  }
  BATON_DEVICE uint64_t At(int32_t byte) const {
    const int32_t bits = byte % 8 * 8;
    const uint64_t word = Word(byte / 8);
    if (bits == 0) return word;
    return word >> bits | Word(byte / 8 + 1) << (64 - bits);
  }
  BATON_DEVICE Two TwoAt(int32_t byte) const {
    return {{At(byte), At(byte + 8)}};
  }
};

// Where bytes of a page lie, asked for in their order. Runs are read once: they
// are in the host's memory.
class PageCursor {
 public:
  BATON_DEVICE explicit PageCursor(const HashRun* run)
      : run_(run), data_(run->data), end_(run->bytes) {}

  BATON_DEVICE const std::byte* At(int64_t byte) {
    while (byte >= end_) {
      ++run_;
      data_ = run_->data;
      begin_ = end_;
      end_ += run_->bytes;
    }
    return data_ + (byte - begin_);
  }

 private:
  const HashRun* run_;
  const std::byte* data_;
  // Of the run, in the page.
  int64_t begin_ = 0;
  int64_t end_;
};

// What two words of a stripe add to their accumulators.
BATON_DEVICE void AddWords(const Word4& bytes, const Two& key, Two* sum) {
  const uint64_t low = bytes.x[0] | uint64_t{bytes.x[1]} << 32;
  const uint64_t high = bytes.x[2] | uint64_t{bytes.x[3]} << 32;
  const uint64_t keyed_low = low ^ key.x[0];
  const uint64_t keyed_high = high ^ key.x[1];
  sum->x[0] += high + (keyed_low & 0xffffffff) * (keyed_low >> 32);
  sum->x[1] += low + (keyed_high & 0xffffffff) * (keyed_high >> 32);
}

// Adds what the lanes with the same words of other stripes have to all of them.
BATON_DEVICE void Join(Two sum, Two* all) {
  BATON_UNROLL
  for (int32_t i = 0; i < 2; ++i) {
    BATON_UNROLL
    for (int32_t mask = 4; mask < 32; mask *= 2) {
      sum.x[i] += ShuffleXor(sum.x[i], mask);
    }
    all->x[i] += sum.x[i];
  }
}

BATON_DEVICE uint64_t FoldedProduct(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xffffffff, a_high = a >> 32;
  const uint64_t b_low = b & 0xffffffff, b_high = b >> 32;
  const uint64_t low = a_low * b_low;
  const uint64_t one = a_high * b_low + (low >> 32);
  const uint64_t other = a_low * b_high + (one & 0xffffffff);
  const uint64_t top = a_high * b_high + (one >> 32) + (other >> 32);
  return (other << 32 | (low & 0xffffffff)) ^ top;
}

BATON_KERNEL(kHashThreads)
PageHash(PageHashArgs args, Secret default_secret) {
  LetNextKernelBegin();
  AwaitEarlierKernels();
  const int32_t page = BlockX() * kHashWarps + Thread() / 32;
  if (page >= args.pages) return;
  const int32_t stripe = Thread() % 32 / 4;  // of those that are added at once
  const int32_t pair = Thread() % 4;
  const int32_t place = pair * kLaneBytes;
  const SeededSecret secret = {default_secret.words, args.first_seed + page};
  PageCursor cursor(args.runs + args.first_run[page]);

  Two keys[2];
  BATON_UNROLL
  for (int32_t half = 0; half < 2; ++half) {
    keys[half] = secret.TwoAt(8 * (stripe + half * kStripesAtOnce) + place);
  }
  const Two scramble = secret.TwoAt(8 * kScrambleWord + place);
  const uint64_t start[8] = {kPrime32_3, kPrime64_1, kPrime64_2, kPrime64_3,
                             kPrime64_4, kPrime32_2, kPrime64_5, kPrime32_1};
  Two all = {{start[0], start[1]}};
  BATON_UNROLL
  for (int32_t i = 1; i < 4; ++i) {
    if (pair == i) all = {{start[2 * i], start[2 * i + 1]}};
  }

  const int64_t last = args.page_bytes / kHashStripeBytes - 1;
  const int64_t blocks = last / kBlockStripes;
  for (int64_t first = 0; first < blocks; first += kBlocksAhead) {
    Word4 bytes[kBlocksAhead][2];
    BATON_UNROLL
    for (int32_t i = 0; i < 2 * kBlocksAhead; ++i) {
      const int64_t at = first * kBlockStripes + i * kStripesAtOnce + stripe;
      if (at >= blocks * kBlockStripes) continue;
      bytes[i / 2][i % 2] = Load16(cursor.At(at * kHashStripeBytes + place));
    }
    BATON_UNROLL
    for (int32_t i = 0; i < kBlocksAhead; ++i) {
      if (first + i >= blocks) break;
      Two sum = {{0, 0}};
      AddWords(bytes[i][0], keys[0], &sum);
      AddWords(bytes[i][1], keys[1], &sum);
      Join(sum, &all);
      BATON_UNROLL
      for (int32_t j = 0; j < 2; ++j) {
        const uint64_t x = all.x[j];
        all.x[j] = (x ^ x >> 47 ^ scramble.x[j]) * kPrime32_1;
      }
    }
  }
  // Of what is left, up to a block, the last stripe has keys of its own.
  Two sum = {{0, 0}};
  BATON_UNROLL
  for (int32_t half = 0; half < 2; ++half) {
    const int64_t at = blocks * kBlockStripes + half * kStripesAtOnce + stripe;
    if (at > last) continue;
    const Word4 bytes = Load16(cursor.At(at * kHashStripeBytes + place));
    AddWords(bytes, at == last ? secret.TwoAt(kLastKey + place) : keys[half],
             &sum);
  }
  Join(sum, &all);

  const Two merge = secret.TwoAt(kMergeKey + place);
  uint64_t hash = FoldedProduct(all.x[0] ^ merge.x[0], all.x[1] ^ merge.x[1]);
  hash += ShuffleXor(hash, 1);
  hash += ShuffleXor(hash, 2);
  hash += static_cast<uint64_t>(args.page_bytes) * kPrime64_1;
  hash = (hash ^ hash >> 37) * kAvalanche;
  if (Thread() % 32 == 0) args.hashes[page] = hash ^ hash >> 32;
}

}  // namespace

void RunPageHash(const PageHashArgs& args, StreamHandle* stream) {
  LaunchShape shape;
  shape.x = static_cast<uint32_t>((args.pages + kHashWarps - 1) / kHashWarps);
  shape.threads = kHashThreads;
  Launch(PageHash, "page hash", shape, stream, args, Secret{});
}

}  // namespace baton::engine::cuda
