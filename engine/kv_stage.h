// KV on its way between the memory of an engine's device and memory that
// transports and their peers reach: for engines whose kv_memory() is empty.
// What is handed over passes through *staged blocks*, with pages like the
// engine's, of which there are few. They lie in memory of the host, or beside
// KV in the device's, for transports that go from device to device. Which
// staged block stands for which block is the caller's business, and so that
// nobody else uses either of them until a copy is done.
//
// Copies run beside steps and wait for nobody: they begin in the order in which
// they are asked for, those to staged blocks and those from them apart.
//
// Used by the engine's thread (the worker's loop), but for HashPages and
// SelectDevice.
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
  // For registration with a transport; page aligned where it is the host's.
  absl::Span<std::byte> memory;
  // As Engine::kv_descriptor.
  int descriptor = -1;
  // Whether it is the memory of device 0, which the CPU neither reads nor
  // writes.
  bool on_device = false;
  // If so: memory beside it, of the same kind, in which nothing is kept.
  absl::Span<std::byte> spare;
};

class KvStage {
 public:
  // A copy that was asked for.
  struct Ticket {
    bool inward = false;  // from staged blocks
    uint64_t number = 0;
  };

  virtual ~KvStage() = default;

  virtual const StagedMemory& staged() const = 0;

  // Copies the pages of layers [first_layer, first_layer + num_layers) to
  // staged blocks, or from them. REQUIRES: layers and blocks in range, at least
  // one of each.
  virtual Ticket CopyOut(int32_t first_layer, int32_t num_layers,
                         absl::Span<const StagedBlock> blocks) = 0;
  virtual Ticket CopyIn(int32_t first_layer, int32_t num_layers,
                        absl::Span<const StagedBlock> blocks) = 0;
  // Whether the copy is done. Those of its direction that were asked for
  // earlier are done, too, then.
  virtual bool Done(Ticket ticket) = 0;

  // The next step copies these out, each layer as soon as it has written it: if
  // there are any, its hook is called when that is done, and what was asked for
  // before.
  virtual void WithStep(std::vector<StagedBlock> blocks) = 0;

  // Called from any thread when copies are done that were asked for outside of
  // steps, until another is set. Null: nothing.
  virtual void SetWake(std::function<void()> wake) = 0;

  // XXH3-64 of pages that lie in `runs`, parts of the staged memory, one after
  // another: of page i with the seed first_seed + i. Waits for the device:
  // some tens of microseconds, hundreds with pages of hundreds of kilobytes.
  // Any thread, at any time. REQUIRES: staged().on_device; `page_bytes`, at
  // least 256, and the runs are multiples of 64; they hold whole pages.
  virtual std::vector<uint64_t> HashPages(
      absl::Span<const absl::Span<const std::byte>> runs, int64_t page_bytes,
      uint64_t first_seed) = 0;

  // Makes the device of the staged memory the calling thread's, for libraries
  // that look for it there. Any thread. REQUIRES: staged().on_device.
  virtual void SelectDevice() = 0;

  // Blocks to memory of the host and back at once, without staged ones.
  virtual KvCopy& copy() = 0;
};

}  // namespace baton::engine
