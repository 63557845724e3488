#include "engine/cuda/device_kernels.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/log.h"
#include "common/status_macros.h"
#include "engine/cuda/weight_tiles.h"

namespace baton::engine::cuda {
namespace {

// Two chunks; of groups, one block.
constexpr int32_t kOutputs = 128;
constexpr int32_t kInputs = 576;
constexpr int32_t kManyRows = kLargeTileRows;
constexpr int32_t kSomeRows = 17;

// bfloat16 of either sign, of magnitudes from 2^-7 to 2, so that sums have to
// be rounded.
std::vector<uint16_t> RandomValues(int64_t count, uint32_t seed) {
  std::mt19937 bits(seed);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values) {
    const uint32_t drawn = bits();
    const uint32_t exponent = 120 + drawn % 8;
    value = static_cast<uint16_t>((drawn >> 16 & 0x807f) | exponent << 7);
  }
  return values;
}

// A product, and where its results go.
class Trial final {
 public:
  static absl::StatusOr<Trial> Create(Stream& stream) {
    Trial trial(stream);
    // In whatever order: any numbers do.
    BATON_ASSIGN_OR_RETURN(
        trial.weights_,
        trial.Put(RandomValues(int64_t{kOutputs} * kInputs, 1)));
    const std::vector<uint16_t> x =
        RandomValues(int64_t{kManyRows} * kInputs, 2);
    std::vector<uint16_t> staged(StagedRows(kManyRows) * kInputs);
    for (int32_t row = 0; row < kManyRows; ++row) {
      for (int32_t i = 0; i < kInputs; ++i) {
        staged[PlaceOfInput(InputOrder::kStaged, row, i, kInputs)] =
            x[row * kInputs + i];
      }
    }
    BATON_ASSIGN_OR_RETURN(trial.x_, trial.Put(x));
    BATON_ASSIGN_OR_RETURN(trial.x_staged_, trial.Put(staged));
    BATON_ASSIGN_OR_RETURN(
        trial.out_, DeviceBuffer::Allocate(kOutBytes, "a trial of kernels"));
    return trial;
  }

  std::vector<float> Run(MatmulKernel kernel, int32_t rows) {
    const bool staged = kernel == MatmulKernel::kGroup;
    MatmulArgs args;
    args.w.tiles = weights_.data();
    args.w.outputs = kOutputs;
    args.w.inputs = kInputs;
    args.w.output_tiles = OutputTiles(kOutputs);
    args.w.padded_inputs = PaddedInputs(kInputs);
    args.x = (staged ? x_staged_ : x_).as<uint16_t>();
    args.x_stride = kInputs;
    args.x_order = staged ? InputOrder::kStaged : InputOrder::kNatural;
    args.rows = rows;
    args.out = out_.as<float>();
    args.out_stride = kOutputs;
    stream_->Fill(out_.data(), 0xff, out_.bytes());
    RunMatmul(PlanMatmul(args, MatmulOutput::kStore, kernel), args,
              MatmulOutput::kStore, stream_->handle());
    std::vector<float> y(int64_t{rows} * kOutputs);
    stream_->CopyToHost(y.data(), out_.data(),
                        static_cast<int64_t>(y.size() * sizeof(float)));
    stream_->Wait();
    return y;
  }

 private:
  static constexpr int64_t kOutBytes =
      int64_t{kManyRows} * kOutputs * int64_t{sizeof(float)};

  explicit Trial(Stream& stream) : stream_(&stream) {}

  absl::StatusOr<DeviceBuffer> Put(const std::vector<uint16_t>& values) {
    const auto bytes = static_cast<int64_t>(values.size() * sizeof(uint16_t));
    BATON_ASSIGN_OR_RETURN(DeviceBuffer buffer,
                           DeviceBuffer::Allocate(bytes, "a trial of kernels"));
    stream_->CopyToDevice(buffer.data(), values.data(), bytes);
    stream_->Wait();
    return buffer;
  }

  Stream* stream_;
  DeviceBuffer weights_;
  DeviceBuffer x_;
  DeviceBuffer x_staged_;
  DeviceBuffer out_;
};

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

DeviceKernels KernelsOf(const DeviceProperties& device) {
  DeviceKernels kernels;
  kernels.group = device.group_products;
  kernels.wide = device.clusters;
  return kernels;
}

absl::StatusOr<DeviceKernels> KernelsThatAgree(const DeviceKernels& kernels,
                                               Stream& stream) {
  DeviceKernels usable;
  if (!kernels.group && !kernels.wide) return usable;
  BATON_ASSIGN_OR_RETURN(Trial trial, Trial::Create(stream));
  if (kernels.group) {
    usable.group = SameBits(trial.Run(MatmulKernel::kTile128, kManyRows),
                            trial.Run(MatmulKernel::kGroup, kManyRows));
    LOG_IF(WARNING, !usable.group)
        << "wgmma adds with other bits than mma.sync on this device: prompts "
           "go without it, and take longer";
  }
  if (kernels.wide) {
    usable.wide = SameBits(trial.Run(MatmulKernel::kTile64, kSomeRows),
                           trial.Run(MatmulKernel::kWide, kSomeRows));
    LOG_IF(WARNING, !usable.wide)
        << "products by clusters of blocks have other bits than those of one "
           "on this device: batches of 17 to 64 go without them";
  }
  return usable;
}

}  // namespace baton::engine::cuda
