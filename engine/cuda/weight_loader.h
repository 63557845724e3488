// Loads matrices into device memory: threads copy rows as files have them into
// one of two pinned buffers, while the other goes to the device, which makes
// tiles of them (pack_tiles.h).
//
// Called by one thread, the rank's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cpu/thread_team.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/output_rows.h"
#include "engine/cuda/weight_tiles.h"
#include "engine/weight_matrix.h"

namespace baton::engine::cuda {

class WeightLoader final {
 public:
  // What is loaded is held by `weights`, which notes how large it is and in
  // which formats. Without a format each matrix gets the one that it has in the
  // file (FormatOf, output_rows.h). `progress` is called with the share of
  // `total_elements` that is done. All must outlive the object.
  WeightLoader(std::optional<WeightFormat> format, cpu::ThreadTeam& team,
               Stream& stream, int64_t total_elements,
               absl::FunctionRef<void(double)> progress,
               DeviceWeights* weights);

  // Waits: copies from the staging buffers may still run when loading fails.
  ~WeightLoader();

  // These give ResourceExhausted when the device has too little memory.
  //
  // A matrix of these outputs; with `bias`, one float per output. In
  // `own_format`, whatever others have, if that is there.
  absl::StatusOr<DeviceMatrix> Matrix(
      const std::vector<OutputRows>& rows, int32_t inputs,
      const std::vector<float>& bias,
      std::optional<WeightFormat> own_format = std::nullopt);
  // The rows of a matrix one after another, in bfloat16.
  absl::StatusOr<const uint16_t*> Rows(const WeightMatrix& matrix);
  // Null when there are none.
  absl::StatusOr<float*> Vector(const std::vector<float>& values);

 private:
  // Items [first, first + count): those from `at` on of the `total` that pass
  // through a buffer at a time.
  struct Piece {
    int64_t first = 0;
    int64_t count = 0;
    std::byte* buffer = nullptr;
    int64_t at = 0;
    int64_t total = 0;
  };

  struct Staging {
    PinnedBuffer host;
    DeviceBuffer device;
    int64_t bytes = 0;  // of each
    Event copied;       // what was given of it is on the device
    bool used = false;
  };

  void NoteFormat(WeightFormat format);
  absl::StatusOr<std::byte*> Take(int64_t bytes);
  // Small models take little. REQUIRES: nothing is copied from it.
  static absl::Status Grow(int64_t bytes, Staging& staging);
  // For `count` items of `item_bytes` each, as many at a time as a buffer
  // holds: `make` writes pieces of them, on several threads at the
  // same time, then `give(first, count, staging)` gives the stream what copies
  // them. An item is made of `item_elements` weights, for progress.
  absl::Status Copy(
      int64_t count, int64_t item_bytes, int64_t item_elements,
      absl::FunctionRef<void(const Piece&)> make,
      absl::FunctionRef<void(int64_t, int64_t, const Staging&)> give);

  const std::optional<WeightFormat> format_;
  cpu::ThreadTeam& team_;
  Stream& stream_;
  const int64_t total_elements_;
  const absl::FunctionRef<void(double)> progress_;
  DeviceWeights& weights_;
  Staging staging_[2];
  int next_ = 0;
  int64_t done_elements_ = 0;
};

}  // namespace baton::engine::cuda
