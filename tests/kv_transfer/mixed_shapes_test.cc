// Hand-offs between workers whose pages differ: in tokens per block, in the
// heads that they hold, and in how KV goes over the wire.
#include <xxhash.h>

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kv_transfer/extent_bytes.h"
#include "kv_transfer/link_probe.h"
#include "kv_transfer/page_hasher.h"
#include "kv_transfer/wire_encoding.h"
#include "tests/kv_transfer/handoff_pair.h"
#include "tests/kv_transfer/shaped_cache.h"

namespace baton::kv_transfer {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kModelHeads = 4;
constexpr int32_t kLayers = 3;
constexpr int32_t kPoolBlocks = 40;
constexpr CommitRecord kMixedRecord{.first_token = 5, .num_tokens = 9};

// Keys and values of 32 bf16 elements a head.
const std::vector<PageSection> kMixedSections = {{1, 1024}, {2, 512}};

HandoffOptions OptionsOf(const ShapedCache& cache, v1::WorkerRole role,
                         uint64_t incarnation, const Clock* clock) {
  HandoffOptions options;
  options.self = cache.Hello(role, incarnation, kModelHeads);
  options.kv = cache.geometry();
  options.clock = clock;
  return options;
}

std::vector<BlockId> Scattered(int32_t count, int32_t step) {
  std::vector<BlockId> blocks;
  for (int32_t i = 0; i < count; ++i) {
    blocks.push_back((step * i + 3) % kPoolBlocks);
  }
  return blocks;
}

int32_t BlocksFor(int32_t tokens, int32_t block_size) {
  return (tokens + block_size - 1) / block_size;
}

class MixedShapesTest : public ::testing::Test {
 protected:
  struct PrefillWorker {
    std::unique_ptr<ShapedCache> cache;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<HandoffSender> sender;
    std::vector<BlockId> blocks;
  };
  struct DecodeWorker {
    std::unique_ptr<ShapedCache> cache;
    std::unique_ptr<Transport> transport;
    std::unique_ptr<HandoffReceiver> receiver;
    std::vector<BlockId> blocks;
  };

  PrefillWorker Prefill(uint64_t incarnation, PageShape shape,
                        WirePolicy wire = {}) {
    PrefillWorker worker;
    worker.cache = std::make_unique<ShapedCache>(kLayers, kPoolBlocks, shape,
                                                 kMixedSections);
    worker.cache->set_bf16();
    worker.transport = network_.CreateTransport(/*listen=*/false);
    HandoffOptions options =
        OptionsOf(*worker.cache, v1::WORKER_ROLE_PREFILL, incarnation, &clock_);
    options.wire = wire;
    options.probe_links = wire.encoding != WireEncoding::kExact;
    worker.sender = *HandoffSender::Create(worker.transport.get(), options);
    worker.blocks = Scattered(BlocksFor(num_tokens_, shape.block_size), 7);
    worker.cache->Fill(worker.blocks, BlocksFor(num_tokens_, 16));
    return worker;
  }
  DecodeWorker Decode(uint64_t incarnation, PageShape shape) {
    DecodeWorker worker;
    worker.cache = std::make_unique<ShapedCache>(kLayers, kPoolBlocks, shape,
                                                 kMixedSections);
    worker.cache->set_bf16();
    worker.transport = network_.CreateTransport(/*listen=*/true);
    HandoffOptions options =
        OptionsOf(*worker.cache, v1::WORKER_ROLE_DECODE, incarnation, &clock_);
    options.probe_links = true;
    options.kv.hasher = decode_hasher_;
    options.kv.spare = absl::MakeSpan(spare_);
    worker.receiver = *HandoffReceiver::Create(worker.transport.get(), options);
    worker.blocks =
        Scattered(BlocksFor(num_tokens_ - first_token_, shape.block_size), 9);
    return worker;
  }
  void Pair(PrefillWorker& p, DecodeWorker& d) {
    ASSERT_TRUE(p.sender->Pair(d.transport->properties().address).ok());
    network_.RunUntilIdle();
  }
  void Begin(PrefillWorker& p, DecodeWorker& d, uint64_t transfer,
             uint64_t decode_incarnation) {
    HandoffReceiver::OpenTransfer open;
    open.transfer = TransferId{transfer};
    open.blocks = d.blocks;
    open.num_tokens = num_tokens_ - first_token_;
    open.deadline = clock_.Now() + absl::Seconds(10);
    ASSERT_TRUE(d.receiver->Open(open).ok());
    HandoffSender::Grant grant;
    grant.transfer = open.transfer;
    grant.receiver = Incarnation{decode_incarnation};
    grant.first_token = first_token_;
    grant.num_tokens = *open.num_tokens;
    ASSERT_TRUE(p.sender->Start(grant, p.blocks, open.deadline).ok());
  }
  // Passes all pages on as chunks of a few blocks become ready.
  void SendAll(PrefillWorker& p, uint64_t transfer) {
    const auto n = static_cast<int32_t>(p.blocks.size());
    for (int32_t ready = 1; ready < n + 3; ready += 3) {
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        p.sender->SendLayer(TransferId{transfer}, layer, std::min(ready, n));
      }
      network_.RunUntilIdle();
    }
    p.sender->Commit(TransferId{transfer}, kMixedRecord);
    network_.RunUntilIdle();
  }
  int64_t Wrong(DecodeWorker& d, int32_t first_head, int32_t end_head) {
    return d.cache->Wrong(d.blocks, first_token_ / 16,
                          BlocksFor(num_tokens_, 16), first_head, end_head);
  }

  // A transfer, which is not encoded.
  void CheckGoesExact(PrefillWorker& p, DecodeWorker& d) {
    Pair(p, d);
    Begin(p, d, 7, 2);
    SendAll(p, 7);
    EXPECT_THAT(Only<HandoffReceiver::Landed>(d.receiver->Poll()), SizeIs(1));
    EXPECT_EQ(p.sender->stats().transfers_encoded, 0u);
    EXPECT_EQ(Wrong(d, 0, kModelHeads), 0);
  }

  ManualClock clock_;
  FakeNetwork network_;
  PageHasher* decode_hasher_ = nullptr;
  std::vector<std::byte> spare_;
  int32_t num_tokens_ = 16 * 13 + 5;
  int32_t first_token_ = 0;
};

TEST_F(MixedShapesTest, BlocksOfAnySize) {
  for (int32_t here : {16, 32, 64, 128}) {
    for (int32_t there : {16, 32, 64, 128}) {
      for (int32_t first_block : {0, 1}) {
        SCOPED_TRACE(absl::StrCat(here, " to ", there, ", ", first_block));
        first_token_ = first_block * there;
        PrefillWorker p =
            Prefill(1, {.block_size = here, .num_heads = kModelHeads});
        DecodeWorker d =
            Decode(2, {.block_size = there, .num_heads = kModelHeads});
        Pair(p, d);
        Begin(p, d, 7, 2);
        SendAll(p, 7);
        const auto landed = Only<HandoffReceiver::Landed>(d.receiver->Poll());
        ASSERT_THAT(landed, SizeIs(1));
        EXPECT_EQ(landed[0].num_heads, kModelHeads);
        EXPECT_THAT(Only<HandoffSender::Acked>(p.sender->Poll()), SizeIs(1));
        EXPECT_EQ(Wrong(d, 0, kModelHeads), 0);
        EXPECT_TRUE(d.cache->memory().UntouchedExcept(d.blocks));
      }
    }
  }
}

// Two prefill workers with half of the heads each, one decode worker.
TEST_F(MixedShapesTest, ManyToOne) {
  for (int32_t there : {16, 64}) {
    PrefillWorker low = Prefill(1, {.block_size = 16, .num_heads = 2});
    PrefillWorker high =
        Prefill(2, {.block_size = 32, .first_head = 2, .num_heads = 2});
    DecodeWorker d = Decode(3, {.block_size = there, .num_heads = kModelHeads});
    Pair(low, d);
    Pair(high, d);
    Begin(low, d, 7, 3);
    Begin(high, d, 8, 3);
    SendAll(low, 7);
    EXPECT_EQ(Wrong(d, 0, 2), 0);
    EXPECT_GT(Wrong(d, 2, 4), 0);
    SendAll(high, 8);
    EXPECT_EQ(Wrong(d, 0, 4), 0);
    const auto landed = Only<HandoffReceiver::Landed>(d.receiver->Poll());
    ASSERT_THAT(landed, SizeIs(2));
    EXPECT_EQ(landed[0].first_head, 0);
    EXPECT_EQ(landed[0].num_heads, 2);
    EXPECT_EQ(landed[1].first_head, 2);
    EXPECT_EQ(landed[1].num_heads, 2);
    EXPECT_TRUE(d.cache->memory().UntouchedExcept(d.blocks));
  }
}

// One prefill worker, two decode workers with half of the heads each.
TEST_F(MixedShapesTest, OneToMany) {
  PrefillWorker p = Prefill(1, {.block_size = 32, .num_heads = kModelHeads});
  DecodeWorker low = Decode(2, {.block_size = 32, .num_heads = 2});
  DecodeWorker high =
      Decode(3, {.block_size = 16, .first_head = 2, .num_heads = 2});
  Pair(p, low);
  Pair(p, high);
  Begin(p, low, 7, 2);
  Begin(p, high, 8, 3);
  SendAll(p, 7);
  SendAll(p, 8);
  EXPECT_THAT(Only<HandoffReceiver::Landed>(low.receiver->Poll()), SizeIs(1));
  EXPECT_THAT(Only<HandoffReceiver::Landed>(high.receiver->Poll()), SizeIs(1));
  EXPECT_EQ(Wrong(low, 0, 2), 0);
  EXPECT_EQ(Wrong(high, 2, 4), 0);
}

TEST_F(MixedShapesTest, WhatDoesNotFitIsNotPaired) {
  PrefillWorker p = Prefill(1, {.block_size = 16, .num_heads = 2});
  DecodeWorker d =
      Decode(2, {.block_size = 16, .first_head = 2, .num_heads = 2});
  Pair(p, d);
  const auto mine = Only<PeerRefused>(p.sender->Poll());
  ASSERT_THAT(mine, SizeIs(1));
  EXPECT_THAT(mine[0].reason, HasSubstr("first_kv_head (0 here, 2 there"));
  const auto theirs = Only<PeerRefused>(d.receiver->Poll());
  ASSERT_THAT(theirs, SizeIs(1));
  EXPECT_THAT(theirs[0].reason, HasSubstr("first_kv_head (2 here, 0 there"));
}

TEST_F(MixedShapesTest, AGrantBeginsWhereABlockBegins) {
  PrefillWorker p = Prefill(1, {.block_size = 64, .num_heads = kModelHeads});
  DecodeWorker d = Decode(2, {.block_size = 32, .num_heads = kModelHeads});
  Pair(p, d);
  HandoffSender::Grant grant;
  grant.receiver = Incarnation{2};
  grant.first_token = 16;
  grant.num_tokens = 20;
  const absl::Status status =
      p.sender->Start(grant, p.blocks, clock_.Now() + absl::Seconds(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("first_token 16"));
}

// On a slow link, KV goes over as a byte per element; what arrives is what
// encoding and decoding the sender's pages gives.
TEST_F(MixedShapesTest, EncodedOnASlowLink) {
  for (WireEncoding encoding : {WireEncoding::kInt8, WireEncoding::kFp8}) {
    for (int32_t there : {32, 16, 64}) {
      SCOPED_TRACE(absl::StrCat(WireEncodingName(encoding), " to ", there));
      const PageShape from{.block_size = 32, .num_heads = kModelHeads};
      const PageShape to{.block_size = there, .num_heads = kModelHeads};
      PrefillWorker p = Prefill(
          1, from, {.encoding = encoding, .below_bytes_per_second = 1e18});
      DecodeWorker d = Decode(2, to);
      Pair(p, d);
      ASSERT_THAT(Only<LinkMeasured>(p.sender->Poll()), SizeIs(1));
      Begin(p, d, 7, 2);
      SendAll(p, 7);
      const auto landed = Only<HandoffReceiver::Landed>(d.receiver->Poll());
      ASSERT_THAT(landed, SizeIs(1));
      EXPECT_EQ(p.sender->stats().transfers_encoded, 1u);
      EXPECT_EQ(landed[0].encoding, encoding);

      const auto here = *PageMap::Create(p.cache->geometry(), from, to);
      const auto back = *PageMap::Create(d.cache->geometry(), to, from);
      const uint32_t pages = here.PagesFor(num_tokens_);
      EXPECT_EQ(landed[0].bytes,
                kLayers * pages * EncodedPageBytes(here, encoding));
      int64_t wrong = 0;
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        // The last page holds what lies behind the sequence's end, too.
        for (uint32_t i = 0; i + here.slices() < pages; ++i) {
          const PageRun run{layer, i, 1};
          std::vector<std::byte> page(here.page_bytes()), got(page.size());
          std::vector<std::byte> encoded(EncodedPageBytes(here, encoding));
          ReadExtents(
              p.cache->geometry().memory,
              here.Extents(p.cache->geometry(), RegionId{}, run, 0, p.blocks),
              0, absl::MakeSpan(page));
          EncodePage(here, encoding, page, absl::MakeSpan(encoded));
          DecodePage(here, encoding, encoded, absl::MakeSpan(page));
          ReadExtents(
              d.cache->geometry().memory,
              back.Extents(d.cache->geometry(), RegionId{}, run, 0, d.blocks),
              0, absl::MakeSpan(got));
          wrong += got != page;
        }
      }
      EXPECT_EQ(wrong, 0);
      EXPECT_TRUE(d.cache->memory().UntouchedExcept(d.blocks));
    }
  }
}

TEST_F(MixedShapesTest, ExactOnAFastLink) {
  const PageShape shape{.block_size = 16, .num_heads = kModelHeads};
  PrefillWorker p = Prefill(
      1, shape, {.encoding = WireEncoding::kInt8, .below_bytes_per_second = 1});
  DecodeWorker d = Decode(2, shape);
  CheckGoesExact(p, d);
}

// As a device hashes, but in memory of the host.
class HostHasher final : public PageHasher {
 public:
  std::vector<uint64_t> HashPages(absl::Span<const ByteSpan> runs,
                                  int64_t page_bytes,
                                  uint64_t first_seed) override {
    std::vector<std::byte> bytes;
    for (const ByteSpan run : runs) {
      bytes.insert(bytes.end(), run.begin(), run.end());
    }
    std::vector<uint64_t> hashes;
    for (size_t at = 0; at < bytes.size(); at += page_bytes) {
      hashes.push_back(XXH3_64bits_withSeed(bytes.data() + at, page_bytes,
                                            first_seed + hashes.size()));
    }
    return hashes;
  }
};

// A device cannot decode, and says so before anything is sent.
TEST_F(MixedShapesTest, ExactToADevice) {
  HostHasher hasher;
  decode_hasher_ = &hasher;
  spare_.resize(LinkProbe::kMaxPayloadBytes);
  const PageShape shape{.block_size = 16, .num_heads = kModelHeads};
  PrefillWorker p = Prefill(
      1, shape,
      {.encoding = WireEncoding::kInt8, .below_bytes_per_second = 1e18});
  DecodeWorker d = Decode(2, shape);
  CheckGoesExact(p, d);
}

TEST_F(MixedShapesTest, EncodingNeedsACacheInBf16) {
  const PageShape shape{.block_size = 16, .num_heads = kModelHeads};
  ShapedCache cache(kLayers, kPoolBlocks, shape, kMixedSections);
  HandoffOptions options =
      OptionsOf(cache, v1::WORKER_ROLE_PREFILL, 1, &clock_);
  options.wire.encoding = WireEncoding::kFp8;
  const auto transport = network_.CreateTransport(/*listen=*/false);
  const auto sender = HandoffSender::Create(transport.get(), options);
  EXPECT_EQ(sender.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(sender.status().message()), HasSubstr("bf16"));
}

// A transfer torn in the middle of an encoded one touches only its own blocks.
TEST_F(MixedShapesTest, AnEncodedTransferMayBeAborted) {
  PrefillWorker p = Prefill(
      1, {.block_size = 32, .num_heads = kModelHeads},
      {.encoding = WireEncoding::kInt8, .below_bytes_per_second = 1e18});
  DecodeWorker d = Decode(2, {.block_size = 16, .num_heads = kModelHeads});
  Pair(p, d);
  for (uint64_t round = 0; round < 40; ++round) {  // more than there are slots
    Begin(p, d, round, 2);
    p.sender->SendLayer(TransferId{round}, 0, 3);
    p.sender->SendLayer(TransferId{round}, 1, 2);
    for (uint64_t step = 0; step < round % 7; ++step) network_.Step();
    (round % 2 == 0) ? p.sender->Abort(TransferId{round})
                     : d.receiver->Abort(TransferId{round});
    network_.RunUntilIdle();
    EXPECT_THAT(Only<HandoffReceiver::Quiesced>(d.receiver->Poll()), SizeIs(1));
    EXPECT_THAT(Only<HandoffSender::Quiesced>(p.sender->Poll()), SizeIs(1));
  }
  EXPECT_TRUE(d.cache->memory().UntouchedExcept(d.blocks));
  Begin(p, d, 99, 2);
  SendAll(p, 99);
  EXPECT_THAT(Only<HandoffReceiver::Landed>(d.receiver->Poll()), SizeIs(1));
}

}  // namespace
}  // namespace baton::kv_transfer
