// The engine: runs the model. It executes the step plans that a worker's loop
// makes, in the KV blocks that the plan names, and knows no queue, no peer and
// no RPC.
//
// Same answer everywhere: for one backend, dtype and instruction set, the
// logits of a sequence are bitwise equal whatever else is in its batch, however
// its prompt was cut into chunks and however many threads ran it.
//
// Threads: Execute is called by one thread at a time (the worker's loop). The
// accessors are constant after construction, but where they say otherwise, and
// may be read from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/log.h"
#include "engine/kv_layout.h"
#include "engine/kv_stage.h"
#include "engine/lora_adapter.h"
#include "engine/model_config.h"
#include "scheduling/step_plan.h"

namespace baton::engine {

// Of backends that take guesses, most of one sequence.
inline constexpr int32_t kMaxDrafts = 16;

// How an engine holds its weights, and what loading them took.
struct WeightsInfo {
  // "bf16", "fp8", "int8", "int4" or "mxfp4"; or two of them, where some
  // matrices are of one and some of the other: "int4-bf16".
  std::string dtype;
  // Of all matrices, their scales and the embedding.
  int64_t bytes = 0;
  // Mapped from a file that holds them packed; else packed at load.
  bool mapped = false;
  double load_seconds = 0;
};

// An adapter as an engine takes it.
class PreparedAdapter {
 public:
  explicit PreparedAdapter(AdapterInfo info) : info_(std::move(info)) {}
  virtual ~PreparedAdapter() = default;

  const AdapterInfo& info() const { return info_; }

 private:
  const AdapterInfo info_;
};

class Engine {
 public:
  // Called on the thread that called Execute, after layer `layer` has written
  // all of the step's keys and values of that layer to KV memory, and a stage
  // has copied what it takes of them (KvStage::WithStep).
  using LayerHook = absl::FunctionRef<void(int32_t layer)>;

  virtual ~Engine() = default;

  virtual const ModelConfig& model() const = 0;

  // Names the exact weights: equal for two engines that loaded the same files
  // and hold them in the same dtype, different for another model or another
  // training state of it.
  virtual const std::string& model_identity() const = 0;

  // A short name of the backend, instruction set and dtypes of weights and KV
  // ("cpu-avx512bf16", "cpu-avx512bf16-int4-kv8"). Answers are bitwise equal
  // only between equal names.
  virtual const std::string& backend_name() const = 0;

  virtual const KvLayout& kv_layout() const = 0;

  virtual WeightsInfo weights_info() const { return {}; }

  // Adapters that sequences may be computed with (PlannedSequence::adapter): in
  // the order of EngineOptions::adapters, then those that came later. One
  // without a name is none. Once Execute was called, for the thread that does.
  virtual absl::Span<const AdapterInfo> adapters() const { return {}; }

  // Makes one ready that may be added to them. Takes as long as reading it, and
  // touches nothing that steps read: any thread. Errors as of LoadLoraAdapter;
  // InvalidArgument for a larger rank than there is room for; Unimplemented
  // where adapters are loaded with the model alone.
  virtual absl::StatusOr<std::unique_ptr<PreparedAdapter>> PrepareAdapter(
      const AdapterSource& source) const {
    return absl::UnimplementedError(
        absl::StrCat(backend_name(), " loads adapters at start alone"));
  }
  // Adds it: its place among adapters(), one that has none if there is. Between
  // two steps, with none ahead, by the thread that calls Execute, in little
  // time: memory of devices may be asked for. ResourceExhausted where there is
  // none.
  // REQUIRES: fewer than kMaxAdapters are there.
  virtual absl::StatusOr<int32_t> AddAdapter(
      std::unique_ptr<PreparedAdapter> adapter) {
    LOG(FATAL) << "none could be prepared";
  }
  // The same, the other way round. REQUIRES: no sequence is computed with it
  // any more.
  virtual void RemoveAdapter(int32_t adapter) {
    LOG(FATAL) << "none could be added";
  }

  // The arena that kv_layout() describes, page aligned, for registration with
  // a transport. Lives as long as the engine. Empty when KV lies in the memory
  // of a device.
  virtual absl::Span<std::byte> kv_memory() = 0;

  // How blocks come to the host and back where kv_memory() is empty; else null.
  // Lives as long as the engine.
  virtual KvStage* kv_stage() const { return nullptr; }

  // A file that is kv_memory() from its first byte on, sealed as
  // common/shared_memory.h says; -1 when there is none. Lives as long as the
  // engine.
  virtual int kv_descriptor() const { return -1; }

  // Runs one step. Tokens of one sequence appear in one entry only.
  // REQUIRES: a well-formed plan (positions, tokens < vocab_size, and blocks in
  // range); breaking this is a bug of the caller and CHECK-fails.
  virtual scheduling::StepResult Execute(const scheduling::StepPlan& plan,
                                         LayerHook on_layer_done) = 0;

  // Most guesses that a sequence of a plan may have (PlannedSequence::
  // num_drafts); 0: none.
  virtual int32_t max_drafts() const { return 0; }

  // Whether it has weights of fewer bits besides, to guess with
  // (scheduling::StepPlan::draft; Execute takes such steps).
  virtual bool has_draft_weights() const { return false; }

  // Whether a device runs the steps, so that ExecuteBeside costs no time.
  virtual bool runs_on_device() const { return false; }

  // As Execute, and calls `meanwhile` once, on the same thread: while a device
  // runs the step, or before it where none does. It touches neither what the
  // plan names nor the engine; but where that runs ahead, it may call RunAhead,
  // and give sequences more blocks before that: their tables were read.
  virtual scheduling::StepResult ExecuteBeside(
      const scheduling::StepPlan& plan, LayerHook on_layer_done,
      absl::FunctionRef<void()> meanwhile) {
    meanwhile();
    return Execute(plan, on_layer_done);
  }

  // Whether RunAhead is of any use.
  virtual bool runs_ahead() const { return false; }

  // Gives the device a step behind the one that it runs, so that it need not
  // wait for the host between the two: called by `meanwhile`, once at most.
  // Sequences are some of the running step's, with one token more
  // (PlannedSequence::follows), and not others. False: nothing was given, as
  // this step cannot run ahead; it is to be planned when the other is done.
  // REQUIRES: as Execute; what a sequence's token decides of the next draw
  // (penalties) is not asked for.
  virtual bool RunAhead(const scheduling::StepPlan& plan) { return false; }

  // The result of the step that RunAhead gave; calls `meanwhile` as
  // ExecuteBeside does. Until then its blocks are the sequences', whatever
  // becomes of these, and nothing is executed.
  // REQUIRES: a step was given, and the one before it is done.
  virtual scheduling::StepResult Await(absl::FunctionRef<void()> meanwhile) {
    LOG(FATAL) << "no step was given";
  }
};

}  // namespace baton::engine
