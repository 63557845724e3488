// How fast a model comes from its files to a GPU, beside how fast the same
// threads read the same files into pinned memory: cold, with nothing of them in
// the page cache, and warm.
//
//   engine_cuda_gpu_load_benchmark [--dir DIR] [--layers N] [--threads N]
//   engine_cuda_gpu_load_benchmark --model MODEL [--threads N]
//   engine_emulated_load_benchmark --host, and these
//   engine_emulated_load_benchmark --tiny
//
// Writes a model of N layers of Llama-3-8B's shapes (436 MB each, in bfloat16)
// to a folder in DIR, and removes it; or takes a model that has one
// model.safetensors. "auto" is as that has its weights. "host" is the host's
// part alone, which needs no GPU: rows into pinned memory. Medians of five.
// --host: that alone.
// --tiny: a small model, to see that it runs.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/log.h"
#include "engine/cpu/thread_team.h"
#include "engine/cuda/device_runtime.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/output_rows.h"
#include "engine/cuda/weight_format.h"
#include "engine/model_config.h"
#include "engine/weights.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"

namespace baton::engine::cuda {
namespace {

constexpr int kRuns = 5;
constexpr int64_t kPieceBytes = int64_t{1} << 20;
constexpr int64_t kPinnedBytes = int64_t{32} << 20;

double Seconds() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class LoadBenchmark final {
 public:
  LoadBenchmark(const std::string& dir, int32_t threads)
      : dir_(dir), file_(dir + "/model.safetensors"), team_(threads) {
    auto config = LoadModelConfig(dir_);
    CHECK(config.ok()) << config.status();
    config_ = *std::move(config);
    auto pinned = PinnedBuffer::Allocate(
        std::max(kPinnedBytes, team_.num_threads() * kPieceBytes),
        "what is read");
    CHECK(pinned.ok()) << pinned.status();
    pinned_ = *std::move(pinned);
    descriptor_ = open(file_.c_str(), O_RDONLY);
    CHECK_GE(descriptor_, 0) << file_;
    bytes_ = lseek(descriptor_, 0, SEEK_END);
  }
  ~LoadBenchmark() { close(descriptor_); }

  void Run(bool host_alone) {
    std::printf("%.2f GB, %d threads\n%-6s %-10s %9s %7s %7s\n",
                static_cast<double>(bytes_) / 1e9, team_.num_threads(), "files",
                "what", "s", "GB/s", "ratio");
    for (const bool cold : {true, false}) {
      const double read = Time(cold, [this] { Read(); });
      Print(cold, "read", read, read);
      Print(cold, "host", Time(cold, [this] { CopyOnHost(); }), read);
      if (host_alone) continue;
      Print(cold, "auto", Time(cold, [this] { Load(std::nullopt); }), read);
      for (const WeightFormat format : kWeightFormats) {
        Print(cold, WeightFormatName(format).data(),
              Time(cold, [&] { Load(format); }), read);
      }
    }
  }

 private:
  double Time(bool cold, const std::function<void()>& run) {
    std::vector<double> times;
    // The first run is not counted.
    for (int i = 0; i <= kRuns; ++i) {
      if (cold) {
        fsync(descriptor_);
        CHECK_EQ(posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED), 0);
      }
      const double start = Seconds();
      run();
      if (i > 0) times.push_back(Seconds() - start);
    }
    std::sort(times.begin(), times.end());
    return times[kRuns / 2];
  }
  void Print(bool cold, const char* what, double seconds, double read) {
    std::printf("%-6s %-10s %9.4f %7.2f %7.2f\n", cold ? "cold" : "warm", what,
                seconds, static_cast<double>(bytes_) / seconds / 1e9,
                read / seconds);
    std::fflush(stdout);
  }

  // The ceiling: all threads read pieces one after another.
  void Read() {
    const int64_t pieces = (bytes_ + kPieceBytes - 1) / kPieceBytes;
    team_.ParallelFor(pieces, [&](int64_t piece, int32_t thread) {
      std::byte* const to = pinned_.data() + thread * kPieceBytes;
      const int64_t begin = piece * kPieceBytes;
      const int64_t count = std::min(kPieceBytes, bytes_ - begin);
      CHECK_EQ(pread(descriptor_, to, count, begin), count);
    });
  }

  // As LoadDeviceWeights copies them, some tiles at a time.
  void CopyOnHost() {
    const ModelWeights weights = Open();
    for (const WeightMatrix* matrix : weights.AllMatrices()) {
      const std::vector<OutputRows> rows = {{matrix, 0, matrix->rows}};
      const WeightFormat format = FormatOf(rows);
      const DType type = CopiedType(rows, format);
      const auto inputs = static_cast<int32_t>(matrix->columns);
      const int64_t row_bytes = kTileOutputs * inputs * DTypeBytes(type);
      const int64_t grid_bytes =
          HasSliceGrids(format) ? TileGridBytes(inputs) : 0;
      const int64_t tiles = matrix->rows / kTileOutputs;
      const int64_t in_buffer = kPinnedBytes / (row_bytes + grid_bytes);
      const int64_t together =
          std::clamp<int64_t>(in_buffer / (4 * team_.num_threads()), 1, 64);
      const int64_t places = in_buffer / together;
      team_.ParallelFor((tiles + together - 1) / together, [&](int64_t item,
                                                               int32_t) {
        const int64_t first = item * together;
        const int64_t output = first * kTileOutputs;
        const int64_t outputs =
            std::min(together, tiles - first) * kTileOutputs;
        const int64_t place = item % places * together;
        CopyOutputs(rows, type, output, outputs, inputs,
                    pinned_.data() + place * row_bytes);
        if (grid_bytes == 0) return;
        CopyGrids(rows, output, outputs, inputs,
                  reinterpret_cast<Int4Grid*>(pinned_.data() +
                                              places * together * row_bytes +
                                              place * grid_bytes));
      });
      ReleasePages(*matrix);
    }
  }

  void Load(std::optional<WeightFormat> format) {
    const ModelWeights weights = Open();
    Stream stream;
    const auto loaded = LoadDeviceWeights(config_, weights, format, Shard(),
                                          team_, stream, [](double) {});
    CHECK(loaded.ok()) << loaded.status();
    stream.Wait();
  }

  ModelWeights Open() const {
    auto weights = LoadModelWeights(dir_, config_);
    CHECK(weights.ok()) << weights.status();
    return *std::move(weights);
  }

  const std::string dir_;
  const std::string file_;
  cpu::ThreadTeam team_;
  ModelConfig config_;
  PinnedBuffer pinned_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
};

int LoadBenchmarkMain(int argc, char** argv) {
  std::string dir = "/tmp";
  std::string given;
  int layers = 8;
  int threads = 0;
  bool tiny = false;
  bool host_alone = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const char* const value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--tiny") {
      tiny = true;
    } else if (flag == "--host") {
      host_alone = true;
    } else if (flag == "--dir") {
      dir = value;
      ++i;
    } else if (flag == "--model") {
      given = value;
      ++i;
    } else if ((flag == "--layers" && absl::SimpleAtoi(value, &layers) &&
                layers > 0) ||
               (flag == "--threads" && absl::SimpleAtoi(value, &threads) &&
                threads > 0)) {
      ++i;
    } else {
      std::fprintf(stderr, "%s: what is %s %s?\n", argv[0], flag.c_str(),
                   value);
      return 2;
    }
  }
  const absl::StatusOr<DeviceProperties> device = OpenDevice(0);
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", device.status().ToString().c_str());
    return 1;
  }
  std::printf("%s, files in %s\n", device->name.c_str(), dir.c_str());
  test::TinyModelOptions model;
  if (!tiny) {
    model.layers = layers;
    model.hidden = 4096;
    model.heads = 32;
    model.kv_heads = 8;
    model.head_dim = 128;
    model.intermediate = 14336;
    model.vocab_size = 8192;
    model.tie_word_embeddings = false;
  }
  if (!given.empty()) {
    LoadBenchmark(given, threads).Run(host_alone);
    return 0;
  }
  const test::ScratchDir scratch(dir);
  const std::string path = scratch.path() + "/model";
  const absl::Status written = test::WriteTinyModel(path, model);
  if (!written.ok()) {
    std::fprintf(stderr, "%s\n", written.ToString().c_str());
    return 1;
  }
  LoadBenchmark(path, threads).Run(host_alone);
  return 0;
}

}  // namespace
}  // namespace baton::engine::cuda

int main(int argc, char** argv) {
  return baton::engine::cuda::LoadBenchmarkMain(argc, argv);
}
