// KV on its way between the memory of an engine's device and memory of the
// host, where transports and their peers reach it: for engines whose
// kv_memory() is empty. What is handed over passes through *staged blocks*,
// blocks of the host with pages like the engine's, of which there are few.
// Which staged block stands for which block is the caller's business, and so
// that nobody else uses either of them until a copy is done.
//
// Copies run beside steps and wait for nobody: they begin in the order in which
// they are asked for, those to the host and those to the device apart.
//
// Used by the engine's thread (the worker's loop).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "common/ids.h"
#include "engine/kv_copy.h"
#include "engine/kv_layout.h"

namespace baton::engine {

// A block of the engine and the staged one that stands for it.
struct StagedBlock {
  BlockId block = 0;
  BlockId staged = 0;
};

// Where staged blocks lie. Lives as long as the stage.
struct StagedMemory {
  // The engine's, but for the number of blocks.
  KvLayout layout;
  // Page aligned, for registration with a transport.
  absl::Span<std::byte> memory;
  // As Engine::kv_descriptor.
  int descriptor = -1;
};

class KvStage {
 public:
  // A copy that was asked for.
  struct Ticket {
    bool to_device = false;
    uint64_t number = 0;
  };

  virtual ~KvStage() = default;

  virtual const StagedMemory& host() const = 0;

  // Copies the pages of layers [first_layer, first_layer + num_layers).
  // REQUIRES: layers and blocks in range, at least one of each.
  virtual Ticket ToHost(int32_t first_layer, int32_t num_layers,
                        absl::Span<const StagedBlock> blocks) = 0;
  virtual Ticket ToDevice(int32_t first_layer, int32_t num_layers,
                          absl::Span<const StagedBlock> blocks) = 0;
  // Whether the copy is done. Those of its direction that were asked for
  // earlier are done, too, then.
  virtual bool Done(Ticket ticket) = 0;

  // The next step copies these to the host, each layer as soon as it has
  // written it: if there are any, its hook is called when that is done, and
  // what was asked for before.
  virtual void WithStep(std::vector<StagedBlock> blocks) = 0;

  // Called from any thread when copies are done that were asked for outside of
  // steps, until another is set. Null: nothing.
  virtual void SetWake(std::function<void()> wake) = 0;

  // Blocks to memory of the host and back at once, without staged ones.
  virtual KvCopy& copy() = 0;
};

}  // namespace baton::engine
