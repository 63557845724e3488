// KvOffload: pieces, from the moment that they are issued.
#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/log.h"
#include "worker/kv_offload.h"

namespace baton::worker {
namespace {

using scheduling::PooledBlocks;
using scheduling::Sequence;

// Pieces under way, of each kind.
constexpr int kMostPieces = 4;
// What a load still weighs after the next one.
constexpr double kForgetting = 0.9;

std::vector<BlockId> Ids(absl::Span<const BlockId> ids) {
  return {ids.begin(), ids.end()};
}

}  // namespace

bool KvOffload::Stage(bool load, int32_t count, PooledBlocks* staged) {
  if (stage_ == nullptr) return true;
  const int32_t taken = staged_for_loads_ + staged_for_saves_ + count;
  if (taken > staged_share_) return false;
  if (!load && staged_for_saves_ + count > std::max(1, staged_share_ / 2)) {
    return false;
  }
  std::optional<PooledBlocks> blocks = staged_->Allocate(count);
  CHECK(blocks.has_value()) << "shares are more than there is";
  *staged = *std::move(blocks);
  (load ? staged_for_loads_ : staged_for_saves_) += count;
  return true;
}

std::vector<engine::StagedBlock> KvOffload::StagedBlocks(
    const Piece& piece) const {
  const absl::Span<const BlockId> blocks =
      piece.loading != nullptr
          ? piece.loading->blocks.ids().subspan(
                piece.first - piece.loading->first, piece.count)
          : piece.blocks.ids();
  std::vector<engine::StagedBlock> staged;
  for (int32_t i = 0; i < piece.count; ++i) {
    staged.push_back({blocks[i], piece.staged.ids()[i]});
  }
  return staged;
}

void KvOffload::IssueLoads() {
  for (Loading& loading : loadings_) {
    while (loading.sequence != nullptr && loading.error.empty() &&
           loading.issued < loading.count) {
      if (!IssueLoad(&loading)) return;
    }
  }
}

bool KvOffload::IssueLoad(Loading* loading) {
  if (num_load_pieces_ == kMostPieces) return false;
  auto piece = std::make_unique<Piece>();
  piece->loading = loading;
  piece->first = loading->first + loading->issued;
  piece->count = std::min(PieceBlocks(), loading->count - loading->issued);
  if (!Stage(/*load=*/true, piece->count, &piece->staged)) return false;
  std::vector<KvStore::Copy> copies;
  for (int32_t i = 0; i < piece->count; ++i) {
    copies.push_back({stage_ != nullptr
                          ? piece->staged.ids()[i]
                          : loading->blocks.ids()[loading->issued + i],
                      loading->places.ids()[piece->first + i]});
  }
  loading->issued += piece->count;
  ++loading->num_pieces;
  ++num_load_pieces_;
  const uint64_t id = ++last_piece_;
  pieces_.emplace(id, std::move(piece));
  store_->Read(id, std::move(copies));
  return true;
}

void KvOffload::IssueSaves() {
  for (Saving& saving : savings_) {
    while (saving.issued < saving.end) {
      if (!IssueSave(&saving)) return;
    }
  }
}

bool KvOffload::IssueSave(Saving* saving) {
  if (num_save_pieces_ == kMostPieces) return false;
  auto piece = std::make_unique<Piece>();
  piece->saving = saving;
  piece->first = saving->issued;
  piece->count = std::min(PieceBlocks(), saving->end - saving->issued);
  if (!Stage(/*load=*/false, piece->count, &piece->staged)) return false;
  piece->blocks =
      cache_->HoldNext(saving->text.view(), piece->count, &saving->cached);
  std::optional<PooledBlocks> places = places_.Allocate(piece->count);
  if (piece->blocks.size() < piece->count || !places.has_value()) {
    staged_for_saves_ -= piece->staged.size();
    Drop(saving,
         places.has_value() ? &stats_.dropped_backlog : &stats_.dropped_full);
    return true;
  }
  piece->places = *std::move(places);
  for (int32_t i = 0; i < piece->count; ++i) {
    const BlockId place = piece->places.ids()[i];
    const auto tokens =
        saving->text.tokens.begin() +
        static_cast<ptrdiff_t>(saving->issued + i) * block_size_;
    piece->stored.push_back(
        {.place = place,
         .stamp = ++last_stamp_,
         .before = saving->before,
         .before_stamp = saving->before_stamp,
         .salt = saving->issued + i == 0 ? saving->text.salt : "",
         .tokens = {tokens, tokens + block_size_}});
    saving->before = place;
    saving->before_stamp = stamps_[place] = last_stamp_;
  }
  saving->issued += piece->count;
  ++saving->num_pieces;
  ++num_save_pieces_;
  const uint64_t id = ++last_piece_;
  Piece* const issued =
      pieces_.emplace(id, std::move(piece)).first->second.get();
  if (stage_ == nullptr) {
    Write(id, issued);
    return true;
  }
  issued->ticket = stage_->CopyOut(0, num_layers_, StagedBlocks(*issued));
  copying_.push_back(id);
  return true;
}

void KvOffload::Write(uint64_t id, Piece* piece) {
  store_->Write(
      id, Ids(stage_ != nullptr ? piece->staged.ids() : piece->blocks.ids()),
      std::move(piece->stored));
}

void KvOffload::OnStoreDone(const KvStore::Done& done) {
  Piece* const piece = pieces_.at(done.job).get();
  piece->num_good = done.num_blocks;
  piece->error = done.error;
  const bool copies_in = piece->loading != nullptr && stage_ != nullptr &&
                         piece->loading->sequence != nullptr &&
                         piece->error.empty();
  if (!copies_in) {
    EndPiece(done.job);
    return;
  }
  piece->ticket = stage_->CopyIn(0, num_layers_, StagedBlocks(*piece));
  copying_.push_back(done.job);
}

void KvOffload::OnCopied(uint64_t id) {
  Piece* const piece = pieces_.at(id).get();
  if (piece->loading != nullptr) {
    EndPiece(id);
  } else {
    Write(id, piece);
  }
}

void KvOffload::EndPiece(uint64_t id) {
  const auto it = pieces_.find(id);
  const std::unique_ptr<Piece> piece = std::move(it->second);
  pieces_.erase(it);
  (piece->loading != nullptr ? staged_for_loads_ : staged_for_saves_) -=
      piece->staged.size();
  if (piece->loading != nullptr) {
    EndLoadPiece(*piece);
  } else {
    EndSavePiece(piece.get());
  }
}

void KvOffload::EndLoadPiece(const Piece& piece) {
  Loading& loading = *piece.loading;
  --loading.num_pieces;
  --num_load_pieces_;
  if (piece.error.empty()) return;
  // With a stage nothing of this piece came in.
  const int32_t good = stage_ != nullptr ? 0 : piece.num_good;
  loading.good = std::min(loading.good, piece.first - loading.first + good);
  loading.error = piece.error;
}

void KvOffload::EndSavePiece(Piece* piece) {
  Saving& saving = *piece->saving;
  --saving.num_pieces;
  --num_save_pieces_;
  num_pending_ -= piece->count;
  if (!piece->error.empty()) {
    LOG(WARNING) << "KV is not stored: " << piece->error;
    saving.failed = true;
    Drop(&saving, &stats_.dropped_error);
  }
  // Behind a gap nothing would be found.
  if (saving.failed || saving.at.num_blocks != piece->first) {
    stats_.dropped_error += static_cast<uint64_t>(piece->count);
    return;
  }
  stored_.Extend(saving.text.view(), piece->places.ids(), &saving.at);
  stats_.saved_blocks += static_cast<uint64_t>(piece->count);
  // So that they stay while what comes behind them is written.
  saving.places.Append(std::move(piece->places));
}

void KvOffload::Drop(Saving* saving, uint64_t* counter) {
  const int32_t rest = saving->end - saving->issued;
  saving->end = saving->issued;
  num_pending_ -= rest;
  *counter += static_cast<uint64_t>(rest);
}

void KvOffload::CheckTime() {
  const absl::Time now = clock_->Now();
  for (Loading& loading : loadings_) {
    if (loading.sequence != nullptr && now >= loading.until) GiveUp(&loading);
  }
}

void KvOffload::GiveUp(Loading* loading) {
  // The store may still write to the blocks that it has.
  Sequence* const sequence = loading->sequence;
  std::optional<PooledBlocks> others =
      pool_->Allocate(sequence->blocks().size() - loading->first);
  if (!others.has_value()) return;
  LOG(WARNING) << "KV of " << loading->count << " blocks was not loaded within "
               << loading->until - loading->began;
  PooledBlocks blocks = sequence->blocks().Share(loading->first);
  blocks.Append(*std::move(others));
  sequence->blocks() = std::move(blocks);
  sequence->SetLoading(false);
  loading->sequence = nullptr;
  ++stats_.loads_given_up;
}

void KvOffload::EndLoadings() {
  bool corrupt = false;
  for (auto it = loadings_.begin(); it != loadings_.end();) {
    Loading& loading = *it;
    const bool more = loading.sequence != nullptr && loading.error.empty() &&
                      loading.issued < loading.count;
    if (loading.num_pieces > 0 || more) {
      ++it;
      continue;
    }
    if (!loading.error.empty()) {
      LOG(ERROR) << "KV was not loaded, and all that is stored is forgotten: "
                 << loading.error;
      ++stats_.loads_failed;
      corrupt = true;
    }
    if (Sequence* const sequence = loading.sequence; sequence != nullptr) {
      sequence->SetLoading(false);
      const int32_t tokens = loading.good * block_size_;
      if (tokens > 0) {
        sequence->AdoptCached(tokens);
        cache_->Insert(sequence);
        stats_.loaded_tokens += static_cast<uint64_t>(tokens);
      }
      if (loading.error.empty()) {
        const double seconds =
            absl::ToDoubleSeconds(clock_->Now() - loading.began);
        ++stats_.loads_done;
        stats_.load_seconds += seconds;
        read_bytes_ = kForgetting * read_bytes_ +
                      static_cast<double>(loading.count * block_bytes_);
        read_seconds_ = kForgetting * read_seconds_ + seconds;
      }
    }
    it = loadings_.erase(it);
  }
  if (corrupt) Clear();
}

void KvOffload::EndSavings() {
  for (auto it = savings_.begin(); it != savings_.end();) {
    if (it->num_pieces > 0 || it->issued < it->end) {
      ++it;
      continue;
    }
    for (const Hash128& name : it->names) pending_.erase(name);
    it = savings_.erase(it);
  }
}

}  // namespace baton::worker
