// Kernels that not all devices have are used where they give the bits of the
// others.
#include "engine/cuda/device_kernels.h"

#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tests/engine/cuda/device_fixture.h"
#if defined(BATON_EMULATED_DEVICE)
#include "tests/support/emulated_device/fibers.h"
#include "tests/support/emulated_device/tensor_cores.h"
#include "tests/support/scratch_dir.h"
#include "tests/support/tiny_model.h"
#endif

namespace baton::engine::cuda {
namespace {

class DeviceKernelsTest : public DeviceTest {
 protected:
  DeviceKernels Agreeing(const DeviceKernels& of) {
    const auto agreeing = KernelsThatAgree(of, trials_, stream());
    CHECK(agreeing.ok()) << agreeing.status();
    return *agreeing;
  }

#if defined(BATON_EMULATED_DEVICE)
  void TearDown() override {
    emulated::SetGroupFractionBits(emulated::kFractionBits);
    DeviceTest::TearDown();
  }
#endif

  KernelTrials trials_;
};

TEST_F(DeviceKernelsTest, ThoseOfTheDeviceAgree) {
  const int32_t repeats = emulated() ? 1 : 50;
  for (const KernelTrials& trials :
       {KernelTrials{{WeightFormat::kBf16}, 128, KvDtype::kBf16, repeats},
        KernelTrials{{WeightFormat::kFp8}, 64, KvDtype::kFp8, repeats},
        KernelTrials{{WeightFormat::kInt8}, 128, KvDtype::kInt8, repeats},
        KernelTrials{{WeightFormat::kInt4, WeightFormat::kBf16},
                     64,
                     KvDtype::kBf16,
                     repeats,
                     /*experts=*/true},
        KernelTrials{
            {WeightFormat::kFp8}, 64, KvDtype::kBf16, repeats, true}}) {
    trials_ = trials;
    const DeviceKernels agreeing = Agreeing(kernels());
    EXPECT_EQ(agreeing.group, kernels().group);
    EXPECT_EQ(agreeing.wide, kernels().wide);
    EXPECT_EQ(agreeing.flow, kernels().flow);
    EXPECT_EQ(agreeing.group_attention, kernels().group_attention);
  }
  // For which there is none.
  trials_.stored_head_dim = 96;
  EXPECT_FALSE(Agreeing(kernels()).group_attention);
}

TEST_F(DeviceKernelsTest, NoneIsTriedThatIsNotThere) {
  const DeviceKernels agreeing = Agreeing({});
  EXPECT_FALSE(agreeing.group);
  EXPECT_FALSE(agreeing.wide);
  EXPECT_FALSE(agreeing.flow);
  EXPECT_FALSE(agreeing.group_attention);
}

#if defined(BATON_EMULATED_DEVICE)
// One bit less of each product is enough.
TEST_F(DeviceKernelsTest, TensorCoresThatAddOtherwiseAreLeftOut) {
  trials_.repeats = 1;
  emulated::SetGroupFractionBits(emulated::kFractionBits - 1);
  const DeviceKernels agreeing = Agreeing(kernels());
  EXPECT_FALSE(agreeing.group);
  EXPECT_FALSE(agreeing.flow);
  EXPECT_FALSE(agreeing.group_attention);
  EXPECT_TRUE(agreeing.wide);
}

// What an engine does that is not told which kernels to use.
TEST_F(DeviceKernelsTest, EnginesUseWhatAgrees) {
  test::TinyModelOptions model;  // no inputs are padded
  model.hidden = 128;
  model.heads = 8;
  model.kv_heads = 4;
  model.intermediate = 192;
  const test::ScratchDir scratch;
  const std::string dir = scratch.path() + "/model";
  ASSERT_TRUE(test::WriteTinyModel(dir, model).ok());
  ForwardPassOptions pass = SmallPass();
  pass.kernels.reset();
  pass.kernel_trials = 1;
  const std::vector<BlockId> blocks = BlockRange(0, 5);
  std::vector<float> first;
  for (const bool agree : {true, false}) {
    emulated::SetGroupFractionBits(emulated::kFractionBits - (agree ? 0 : 1));
    const auto engine = MakeCuda(dir, pass);
    const auto runs = [] {
      return emulated::TimesRun("matmul (groups of warps)");
    };
    const int64_t before = runs();
    const std::vector<float> logits = RunWhole(*engine, Prompt(70, 3), blocks);
    EXPECT_EQ(runs() > before, agree);
    if (agree) first = logits;
    EXPECT_TRUE(SameBits(logits, first));
  }
  emulated::SetGroupFractionBits(emulated::kFractionBits);
}
#endif

}  // namespace
}  // namespace baton::engine::cuda
