// What executes kernels as the compiler made them does what PTX says, and finds
// what it is there to find.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/support/emulated_device/ptx/cluster.h"
#include "tests/support/emulated_device/ptx/program.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

using ::testing::ElementsAre;

// A kernel that gets a pointer, in %rd1, and has the thread's number in %r1.
Kernel KernelOf(const std::string& body,
                const std::string& begin = "griddepcontrol.wait;\n") {
  static std::string text;
  text = absl::StrCat(R"(
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 baton_shared_memory[];
.visible .entry test(
	.param .u64 test_param_0
)
.maxntid 128, 1, 1
{
	.reg .pred 	%p<9>;
	.reg .b16 	%rs<9>;
	.reg .f32 	%f<99>;
	.reg .b32 	%r<99>;
	.reg .b64 	%rd<99>;
	ld.param.u64 	%rd1, [test_param_0];
	mov.u32 	%r1, %tid.x;
)",
                      begin, body, "\tret;\n\n}\n");
  const std::vector<KernelText> kernels = FindKernels(text);
  EXPECT_EQ(kernels.size(), 1u);
  EXPECT_EQ(kernels[0].name, "test");
  return ParseKernel(kernels[0]);
}

// What a block of so many threads, with 1 KB of memory, leaves in `out`.
template <typename T>
std::vector<T> Results(const Kernel& kernel, int threads, int results,
                       bool falling = false) {
  LaunchShape shape;
  shape.threads = threads;
  shape.shared_bytes = 1024;
  std::vector<T> out(results);
  const T* const at = out.data();
  std::vector<std::byte> params(sizeof(at));
  std::memcpy(params.data(), &at, sizeof(at));
  Cluster(kernel, shape, params, /*races=*/true).Run({}, falling);
  return out;
}

template <typename T>
std::vector<T> Results(const std::string& body, int threads, int results,
                       bool falling = false) {
  return Results<T>(KernelOf(body), threads, results, falling);
}

// The result of one instruction or more that leave it in %r9, as the first
// thread has it.
uint32_t Word(const std::string& body) {
  return Results<uint32_t>(absl::StrCat(body, "setp.eq.s32 %p8, %r1, 0;\n",
                                        "@%p8 st.global.u32 [%rd1], %r9;\n"),
                           32, 1)[0];
}
float Float(const std::string& body) {
  const uint32_t word = Word(absl::StrCat(body, "mov.b32 %r9, %f9;\n"));
  float value;
  std::memcpy(&value, &word, sizeof(value));
  return value;
}

TEST(PtxTest, Integers) {
  EXPECT_EQ(Word("add.s32 %r9, 2147483647, 1;\n"), 0x80000000u);
  EXPECT_EQ(Word("mul.hi.s32 %r9, -2, 1073741824;\n"), 0xffffffffu);
  EXPECT_EQ(Word("mad.lo.s32 %r9, 7, -3, 2;\n"), static_cast<uint32_t>(-19));
  EXPECT_EQ(Word("div.s32 %r9, -7, 2;\n"), static_cast<uint32_t>(-3));
  EXPECT_EQ(Word("rem.s32 %r9, -7, 2;\n"), static_cast<uint32_t>(-1));
  EXPECT_EQ(Word("shr.s32 %r9, -8, 1;\n"), static_cast<uint32_t>(-4));
  // Shifts stop at the width.
  EXPECT_EQ(Word("shr.s32 %r9, -8, 99;\n"), 0xffffffffu);
  EXPECT_EQ(Word("shr.u32 %r9, -8, 32;\n"), 0u);
  EXPECT_EQ(Word("shl.b32 %r9, 1, 32;\n"), 0u);
  // Bits 4 to 11 of the second.
  EXPECT_EQ(Word("bfi.b32 %r9, 171, -1, 4, 8;\n"), 0xfffffabfu);
  EXPECT_EQ(Word("mov.u32 %r2, 0x33221100;\nmov.u32 %r3, 0x77665588;\n"
                 "prmt.b32 %r9, %r2, %r3, 0xc035;\n"),
            0xff003355u);
  EXPECT_EQ(Word("mul.wide.s32 %rd2, -3, 5;\nshr.s64 %rd3, %rd2, 1;\n"
                 "cvt.u32.u64 %r9, %rd3;\n"),
            static_cast<uint32_t>(-8));
}

TEST(PtxTest, Conversions) {
  // To nearest, even; away from nothing: the value decides.
  EXPECT_EQ(Word("cvt.rzi.s32.f32 %r9, 0fBFF33333;\n"),  // -1.9
            static_cast<uint32_t>(-1));
  EXPECT_EQ(Word("cvt.rni.s32.f32 %r9, 0f40200000;\n"), 2u);  // 2.5
  EXPECT_EQ(Word("cvt.rzi.s32.f32 %r9, 0f7FC00000;\n"), 0u);  // NaN
  EXPECT_EQ(Word("cvt.rzi.s32.f32 %r9, 0f7F800000;\n"), 0x7fffffffu);
  EXPECT_EQ(Word("mov.u32 %r2, 511;\ncvt.u16.u32 %rs1, %r2;\n"
                 "cvt.s16.s8 %rs2, %rs1;\ncvt.s32.s16 %r9, %rs2;\n"),
            0xffffffffu);
  // 1 and 2, the second one in the low half.
  EXPECT_EQ(Word("cvt.rn.bf16x2.f32 %r9, 0f3F800000, 0f40000000;\n"),
            0x3f804000u);
  EXPECT_EQ(Float("cvt.rn.f32.s32 %f9, -3;\n"), -3.0f);
}

TEST(PtxTest, Floats) {
  const std::string nan = "0f7FC00000";
  EXPECT_EQ(Float("max.f32 %f9, 0f7FC00000, 0fBF800000;\n"), -1.0f);
  EXPECT_TRUE(std::signbit(Float("min.f32 %f9, 0f00000000, 0f80000000;\n")));
  EXPECT_EQ(Float("fma.rn.f32 %f9, 0f40000000, 0f40400000, 0f3F800000;\n"),
            7.0f);
  EXPECT_EQ(Float("ex2.approx.ftz.f32 %f9, 0fFF800000;\n"), 0.0f);
  const auto holds = [&](const std::string& compare) {
    return Word(absl::StrCat("setp.", compare, ".f32 %p1, ", nan,
                             ", 0f3F800000;\nselp.u32 %r9, 1, 0, %p1;\n")) == 1;
  };
  EXPECT_FALSE(holds("lt"));
  EXPECT_FALSE(holds("ge"));
  EXPECT_FALSE(holds("eq"));
  EXPECT_FALSE(holds("ne"));
  EXPECT_TRUE(holds("gtu"));
  EXPECT_TRUE(holds("leu"));
}

// Each lane loops as often as its number says; then all meet.
constexpr char kLoop[] = R"(
	mov.u32 	%r2, 0;
	mov.u32 	%r3, 0;
$loop:
	setp.ge.s32 	%p1, %r2, %r1;
	@%p1 bra 	$out;
	add.s32 	%r3, %r3, %r2;
	add.s32 	%r2, %r2, 1;
	bra.uni 	$loop;
$out:
	shfl.sync.bfly.b32 	%r4|%p2, %r3, 1, 31, -1;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.u32 	[%rd3], %r4;
)";

TEST(PtxTest, LanesPartAndMeet) {
  for (const bool falling : {false, true}) {
    const std::vector<uint32_t> out = Results<uint32_t>(kLoop, 64, 64, falling);
    for (int i = 0; i < 64; ++i) {
      const int other = i ^ 1;
      EXPECT_EQ(out[i], static_cast<uint32_t>(other * (other - 1) / 2)) << i;
    }
  }
}

// Each thread writes a word, and reads that of another warp's.
std::string Turn(const std::string& barrier) {
  return absl::StrCat(R"(
	mov.u32 	%r2, baton_shared_memory;
	shl.b32 	%r3, %r1, 2;
	add.s32 	%r4, %r2, %r3;
	st.shared.u32 	[%r4], %r1;
)",
                      barrier, R"(
	xor.b32 	%r5, %r3, 252;
	add.s32 	%r6, %r2, %r5;
	ld.shared.u32 	%r7, [%r6];
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	st.global.u32 	[%rd3], %r7;
)");
}

TEST(PtxTest, BarriersOrderThreads) {
  const std::vector<uint32_t> out =
      Results<uint32_t>(Turn("bar.sync 0;\n"), 64, 64);
  for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], 63 - i);
}

TEST(PtxDeathTest, AccessesThatNothingOrdersAreFound) {
  EXPECT_DEATH(Results<uint32_t>(Turn(""), 64, 64),
               "nothing orders this and line");
  // That of a warp is too little between warps, not within one.
  EXPECT_DEATH(Results<uint32_t>(Turn("bar.warp.sync -1;\n"), 64, 64),
               "nothing orders this and line");
  // Within 128 bytes, where all is one warp's.
  std::string within = Turn("bar.warp.sync -1;\n");
  within.replace(within.find("252"), 3, "124");
  const std::vector<uint32_t> out = Results<uint32_t>(within, 64, 64);
  for (uint32_t i = 0; i < 64; ++i) EXPECT_EQ(out[i], i ^ 31);
  // Lanes of a warp that do the same at the same time are not ordered by that.
  within.replace(within.find("bar.warp.sync -1;"), 17, "");
  EXPECT_DEATH(Results<uint32_t>(within, 64, 64),
               "nothing orders this and line");
}

// The first thread waits for a barrier that the second warp's first arrives at.
std::string HandOver(const std::string& arrive) {
  return absl::StrCat(R"(
	mov.u32 	%r2, baton_shared_memory;
	add.s32 	%r8, %r2, 64;
	setp.eq.s32 	%p1, %r1, 0;
	@%p1 mbarrier.init.shared::cta.b64 [%r2], 1;
	bar.sync 	0;
	@%p1 bra 	$reader;
	setp.ne.s32 	%p2, %r1, 32;
	@%p2 bra 	$end;
	st.shared.u32 	[%r8], 42;
)",
                      arrive, R"(
	bra.uni 	$end;
$reader:
	{
	.reg .pred done;
again:
	mbarrier.try_wait.parity.shared::cta.b64 done, [%r2], 0;
	@!done bra again;
	}
	ld.shared.u32 	%r7, [%r8];
	st.global.u32 	[%rd1], %r7;
$end:
)");
}

TEST(PtxTest, ArrivalsOrderThreads) {
  EXPECT_THAT(
      Results<uint32_t>(HandOver("mbarrier.arrive.shared::cta.b64 _, [%r2];\n"),
                        64, 1),
      ElementsAre(42));
}

TEST(PtxDeathTest, WaitsForWhatDoesNotCome) {
  EXPECT_DEATH(Results<uint32_t>(HandOver(""), 64, 1),
               "wait for what does not come");
  EXPECT_DEATH(Results<uint32_t>("setp.lt.s32 %p1, %r1, 32;\n@%p1 bra $end;\n"
                                 "bar.sync 0;\n$end:\n",
                                 64, 1),
               "wait for what does not come");
}

TEST(PtxDeathTest, WhatIsNotAwaited) {
  constexpr char kCopy[] =
      "mov.u32 %r2, baton_shared_memory;\n"
      "shl.b32 %r3, %r1, 4;\nadd.s32 %r4, %r2, %r3;\n"
      "cp.async.cg.shared.global [%r4], [%rd1], 16, 16;\n"
      "cp.async.commit_group;\n";
  EXPECT_DEATH(Results<uint32_t>(kCopy, 32, 4),
               "copies that nobody waited for");
  // What is read too early is not there.
  const std::string read =
      "ld.shared.u32 %r9, [%r4];\ncp.async.wait_group 0;\n"
      "setp.eq.s32 %p1, %r1, 0;\n@%p1 st.global.u32 [%rd1], %r9;\n";
  EXPECT_THAT(Results<uint32_t>(absl::StrCat(kCopy, read), 32, 4),
              ElementsAre(0xffffffffu, 0, 0, 0));
}

TEST(PtxDeathTest, WrongAddresses) {
  EXPECT_DEATH(Word("mov.u32 %r2, baton_shared_memory;\n"
                    "ld.shared.u32 %r9, [%r2+1024];\n"),
               "not of the block's memory");
  EXPECT_DEATH(Word("mov.u32 %r2, baton_shared_memory;\n"
                    "ld.shared.u32 %r9, [%r2+2];\n"),
               "not aligned");
}

TEST(PtxDeathTest, KernelsBefore) {
  const auto run = [](const std::string& begin, const std::string& body) {
    return Results<uint32_t>(KernelOf(body, begin), 32, 4);
  };
  const char kWhy[] = "does not wait for the kernels before it";
  EXPECT_DEATH(run("", ""), kWhy);
  EXPECT_DEATH(run("", "st.global.u32 [%rd1], %r1;\ngriddepcontrol.wait;\n"),
               kWhy);
  // What no kernel writes.
  run("",
      "ld.global.nc.L1::no_allocate.v4.u32 {%r5, %r6, %r7, %r8}, [%rd1];\n"
      "griddepcontrol.wait;\n");
}

TEST(PtxDeathTest, WordsThatAreNotKnown) {
  EXPECT_DEATH(KernelOf("popc.b32 %r9, %r1;\n"), "test, line [0-9]+: popc");
  EXPECT_DEATH(KernelOf("add.s32 %r9, %q1, 1;\n"), "%q1");
}

// A value that a loop's next turn needs keeps its place.
TEST(PtxTest, RegistersThatShareAPlace) {
  const std::vector<uint32_t> out = Results<uint32_t>(R"(
	mov.u32 	%r2, 0;
	mov.u32 	%r3, 1;
$loop:
	add.s32 	%r4, %r3, %r2;
	mov.u32 	%r2, %r3;
	mov.u32 	%r3, %r4;
	mul.lo.s32 	%r5, %r4, 0;
	add.s32 	%r6, %r5, 100;
	setp.lt.s32 	%p1, %r3, %r6;
	@%p1 bra 	$loop;
	setp.eq.s32 	%p2, %r1, 0;
	@%p2 st.global.u32 	[%rd1], %r3;
)",
                                                      32, 1);
  EXPECT_THAT(out, ElementsAre(144));
}

}  // namespace
}  // namespace baton::engine::cuda::emulated::ptx
