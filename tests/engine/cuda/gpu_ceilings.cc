#include "tests/engine/cuda/gpu_ceilings.h"

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "common/log.h"
#include "engine/float_convert.h"

#if defined(BATON_HAVE_CUBLASLT)
#include <cublasLt.h>

#include "engine/cuda/target/stream_handle.h"
#endif

namespace baton::engine::cuda {
namespace {

DeviceBuffer Memory(int64_t bytes) {
  auto buffer = DeviceBuffer::Allocate(bytes, "a ceiling");
  CHECK(buffer.ok()) << buffer.status();
  return *std::move(buffer);
}

// The median seconds of `runs` runs after some that warm up.
template <typename Run>
double MedianSeconds(Stream& stream, int runs, const Run& run) {
  std::vector<double> seconds;
  for (int i = 0; i < runs + 3; ++i) {
    const Event begin(/*timed=*/true);
    const Event end(/*timed=*/true);
    stream.Record(begin);
    run();
    stream.Record(end);
    end.Wait();
    if (i >= 3) seconds.push_back(end.MillisecondsSince(begin) / 1e3);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

double CopyBytesPerSecond(Stream& stream, int64_t bytes) {
  const DeviceBuffer from = Memory(bytes);
  const DeviceBuffer to = Memory(bytes);
  stream.Fill(from.data(), 1, bytes);
  const double seconds = MedianSeconds(
      stream, 20, [&] { stream.CopyOnDevice(to.data(), from.data(), bytes); });
  return 2.0 * static_cast<double>(bytes) / seconds;
}

#if defined(BATON_HAVE_CUBLASLT)

namespace {

void CheckLt(cublasStatus_t status, const char* call) {
  CHECK_EQ(status, CUBLAS_STATUS_SUCCESS) << call;
}

}  // namespace

double MatmulOpsPerSecond(Stream& stream, int64_t size) {
  // Random: products of zeros are faster than those of weights.
  std::mt19937 bits(1);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> values(size * size);
  for (uint16_t& value : values) value = FloatToBf16(normal(bits));
  const int64_t bytes = size * size * 2;
  const DeviceBuffer a = Memory(bytes);
  const DeviceBuffer b = Memory(bytes);
  const DeviceBuffer c = Memory(bytes);
  stream.CopyToDevice(a.data(), values.data(), bytes);
  stream.CopyToDevice(b.data(), values.data(), bytes);
  stream.Wait();
  constexpr size_t kWorkspace = size_t{64} << 20;
  const DeviceBuffer workspace = Memory(kWorkspace);

  cublasLtHandle_t handle;
  CheckLt(cublasLtCreate(&handle), "cublasLtCreate");
  cublasLtMatmulDesc_t product;
  CheckLt(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "cublasLtMatmulDescCreate");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  CheckLt(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA,
                                         &transposed, sizeof(transposed)),
          "cublasLtMatmulDescSetAttribute");
  cublasLtMatrixLayout_t layout;
  CheckLt(cublasLtMatrixLayoutCreate(&layout, CUDA_R_16BF, size, size, size),
          "cublasLtMatrixLayoutCreate");
  cublasLtMatmulPreference_t preference;
  CheckLt(cublasLtMatmulPreferenceCreate(&preference),
          "cublasLtMatmulPreferenceCreate");
  CheckLt(cublasLtMatmulPreferenceSetAttribute(
              preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
              sizeof(kWorkspace)),
          "cublasLtMatmulPreferenceSetAttribute");
  cublasLtMatmulHeuristicResult_t found[8];
  int count = 0;
  CheckLt(
      cublasLtMatmulAlgoGetHeuristic(handle, product, layout, layout, layout,
                                     layout, preference, 8, found, &count),
      "cublasLtMatmulAlgoGetHeuristic");
  double best = 0;
  for (int i = 0; i < count; ++i) {
    if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
    const float one = 1.0f;
    const float zero = 0.0f;
    const double seconds = MedianSeconds(stream, 10, [&] {
      CheckLt(cublasLtMatmul(handle, product, &one, a.data(), layout, b.data(),
                             layout, &zero, c.data(), layout, c.data(), layout,
                             &found[i].algo, workspace.data(), kWorkspace,
                             stream.handle()->native),
              "cublasLtMatmul");
    });
    const double n = static_cast<double>(size);
    best = std::max(best, 2.0 * n * n * n / seconds);
  }
  cublasLtMatmulPreferenceDestroy(preference);
  cublasLtMatrixLayoutDestroy(layout);
  cublasLtMatmulDescDestroy(product);
  cublasLtDestroy(handle);
  return best;
}

#else

double MatmulOpsPerSecond(Stream&, int64_t) { return 0; }

#endif

double MicrosecondsInGraph(Stream& stream, int repeats, int32_t count,
                           absl::FunctionRef<void(int32_t)> run) {
  stream.BeginGraph();
  for (int32_t i = 0; i < count; ++i) run(i);
  const Graph graph = stream.EndGraph();
  stream.Launch(graph);
  std::vector<double> times;
  const Event begin(/*timed=*/true);
  const Event end(/*timed=*/true);
  for (int repeat = 0; repeat < repeats; ++repeat) {
    stream.Record(begin);
    stream.Launch(graph);
    stream.Record(end);
    stream.Wait();
    times.push_back(1e3 * end.MillisecondsSince(begin) / count);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

}  // namespace baton::engine::cuda
