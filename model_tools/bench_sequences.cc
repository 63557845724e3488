#include "model_tools/bench_sequences.h"

#include <algorithm>
#include <cstring>

#include "common/log.h"
#include "engine/philox.h"

namespace baton::model_tools {

using scheduling::PlannedSequence;
using scheduling::StepPlan;

BenchSequences::BenchSequences(engine::Engine* engine, int32_t count,
                               int64_t positions)
    : engine_(engine) {
  const engine::KvLayout& layout = engine->kv_layout();
  const int32_t blocks_each = layout.BlocksFor(positions);
  CHECK_LE(int64_t{count} * blocks_each, layout.num_blocks);
  greedy_.temperature = 0.0f;
  BlockId next = 0;
  sequences_.resize(count);
  for (Sequence& sequence : sequences_) {
    for (int32_t i = 0; i < blocks_each; ++i) {
      sequence.blocks.push_back(next++);
    }
    sequence.tokens.reserve(positions + 1);
    sequence.tokens.push_back(RandomToken(0, 0));
  }
}

TokenId BenchSequences::RandomToken(int32_t sequence, int64_t index) const {
  const double draw = engine::UniformDraw(/*seed=*/uint64_t{1} + sequence,
                                          static_cast<uint64_t>(index));
  return static_cast<TokenId>(draw * engine_->model().vocab_size);
}

void BenchSequences::Rewind(int64_t position) {
  CHECK_LE(position, done_);
  done_ = position;
  for (Sequence& sequence : sequences_) sequence.tokens.resize(position + 1);
}

PlannedSequence BenchSequences::Plan(int32_t sequence, int64_t first,
                                     bool sample) const {
  const Sequence& s = sequences_[sequence];
  PlannedSequence planned;
  planned.sequence = SequenceId{static_cast<uint64_t>(sequence)};
  planned.history = s.tokens;
  planned.tokens = planned.history.subspan(first);
  planned.first_position = static_cast<int32_t>(first);
  planned.blocks = s.blocks;
  planned.sample = sample;
  planned.sampling = &greedy_;
  planned.prompt_length = 1;
  if (const auto adapters = static_cast<int32_t>(engine_->adapters().size());
      adapters > 0) {
    planned.adapter = sequence % adapters;
  }
  return planned;
}

void BenchSequences::Execute(const StepPlan& plan) {
  const scheduling::StepResult result = engine_->Execute(plan, [](int32_t) {});
  for (const scheduling::SampledToken& sampled : result.sampled) {
    const auto i = static_cast<int32_t>(sampled.sequence);
    std::vector<TokenId>& tokens = sequences_[i].tokens;
    const auto index = static_cast<int64_t>(tokens.size());
    // A model whose logits are not finite is as fast as another.
    const TokenId token = sampled.ok ? sampled.token : 0;
    tokens.push_back((token + RandomToken(i, index)) %
                     engine_->model().vocab_size);
  }
}

void BenchSequences::Prefill(int64_t position, int32_t chunk) {
  std::vector<TokenId>& tokens = sequences_[0].tokens;
  while (done_ < position) {
    const int64_t end = std::min(position, done_ + chunk);
    tokens.resize(done_ + 1);
    while (static_cast<int64_t>(tokens.size()) < end) {
      tokens.push_back(RandomToken(0, static_cast<int64_t>(tokens.size())));
    }
    tokens.resize(end);
    StepPlan plan;
    plan.sequences.push_back(Plan(0, done_, /*sample=*/end == position));
    Execute(plan);
    done_ = end;
    if (end < position) tokens.push_back(RandomToken(0, end));
  }
}

void BenchSequences::CopyFirstToAll() {
  const engine::KvLayout& layout = engine_->kv_layout();
  std::byte* const memory = engine_->kv_memory().data();
  const int32_t blocks = layout.BlocksFor(done_);
  for (size_t i = 1; i < sequences_.size(); ++i) {
    sequences_[i].tokens = sequences_[0].tokens;
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      for (int32_t block = 0; block < blocks; ++block) {
        std::memcpy(
            memory + layout.PageOffset(layer, sequences_[i].blocks[block]),
            memory + layout.PageOffset(layer, sequences_[0].blocks[block]),
            static_cast<size_t>(layout.page_bytes()));
      }
    }
  }
}

void BenchSequences::DecodeStep() {
  StepPlan plan;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    plan.sequences.push_back(Plan(static_cast<int32_t>(i), done_, true));
  }
  Execute(plan);
  ++done_;
}

}  // namespace baton::model_tools
