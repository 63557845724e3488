// What the compiler made of the kernels (PTX, as cuobjdump prints it), ready to
// be executed: device.h. The words are those of NVIDIA's "Parallel Thread
// Execution ISA"; of it, what Baton's kernels are compiled to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace baton::engine::cuda::emulated::ptx {

enum class Op {
  kAdd,
  kSub,
  kMul,      // .lo, or of floats
  kMulHigh,  // .hi
  kMulWide,
  kMad,  // .lo
  kDiv,
  kRemainder,
  kNegate,
  kAbs,
  kNot,
  kMin,
  kMax,
  kAnd,
  kOr,
  kXor,
  kShiftLeft,
  kShiftRight,
  kInsertBits,  // bfi
  kPermute,     // prmt
  kSelect,
  kSetPredicate,
  kConvert,
  kConvertBf16x2,
  kMove,
  kPack,    // mov of a vector to a scalar
  kUnpack,  // and back
  kLoad,
  kStore,
  kAtomicAdd,
  kAtomicMin,
  kAtomicMax,
  kFma,
  kFmaBf16x2,
  kExp2,
  kReciprocal,
  kSqrt,
  kBranch,
  kReturn,
  kSyncBlock,
  kSyncWarp,
  kClusterArrive,
  kClusterWait,
  kShuffle,
  kMma,
  kGroupMma,  // wgmma, and what belongs to it
  kGroupFence,
  kGroupCommit,
  kGroupWait,
  kCopyAsync,
  kCopyCommit,
  kCopyWait,
  kCopyBulk,
  kBarrierInit,
  kBarrierArrive,
  kBarrierExpect,
  kBarrierTryWait,
  kMapRank,
  kFenceProxy,
  kAwaitKernels,  // griddepcontrol.wait
  kNothing,  // of no meaning here: fences, prefetches, numbers of registers
};

// ".u32" is {'u', 4}; predicates are {'p', 4}, a bit for each lane.
struct Type {
  char kind = 'b';
  int bytes = 4;
};

enum class Space { kGeneric, kGlobal, kShared, kLocal, kParam };

enum class Compare { kEq, kNe, kLt, kLe, kGt, kGe };

struct Instruction;
struct Warp;
// Executes an instruction for the lanes of `mask`.
using Handler = void (*)(const Instruction& instruction, uint32_t mask,
                         Warp& warp);

struct Instruction {
  Op op = Op::kNothing;
  Type type;
  Type source;  // of kConvert
  Compare compare = Compare::kEq;
  bool unordered = false;  // true of NaN
  char mode = 0;           // of kShuffle b, u, d, i; of kConvert n, z, m, p
  bool integral = false;   // of kConvert: the float that results is an integer
  bool flush = false;      // subnormal numbers are zero
  bool early = false;      // of kCopyAsync: of what no kernel writes
  Space space = Space::kGeneric;
  // Registers by number, constants among them, those that are written first.
  // Vectors one element after another; -1 for what is thrown away.
  std::vector<int> operands;
  int vector = 1;      // elements of kLoad, kStore, kPack, kUnpack
  int64_t offset = 0;  // of the address
  int guard = -1;      // the predicate that says which lanes do it
  bool guard_negated = false;
  int target = -1;        // of kBranch
  int line = 0;           // in the text
  Handler run = nullptr;  // of what needs nothing but registers
};

// What a register holds before the kernel begins.
enum class Preset {
  kConstant,
  kThreadX,
  kThreadsX,
  kBlockX,
  kBlockY,
  kBlockZ,
  kBlocksX,
  kClusterRank,
  kSharedAddress,  // + value
  kLocalAddress,   // + value
  kParamAddress,   // + value
};
struct PresetRegister {
  int number = 0;
  Preset preset = Preset::kConstant;
  int64_t value = 0;
};

struct Param {
  std::string name;
  int64_t offset = 0;
  int64_t bytes = 0;
};

struct Kernel {
  std::string name;  // mangled
  std::vector<Instruction> code;
  std::vector<int> widths;  // bytes of each register
  // Where its 32 lanes' values lie in a warp's memory, and all of that.
  std::vector<size_t> offsets;
  size_t register_bytes = 0;
  std::vector<PresetRegister> presets;
  std::vector<Param> params;
  int64_t local_bytes = 0;
  int max_threads = 0;
  // Of each instruction, whether it was executed.
  mutable std::vector<char> executed;
};

// A kernel that was not parsed yet.
struct KernelText {
  std::string name;  // mangled
  absl::string_view text;
  int line = 0;  // where it begins
};

// All kernels of a text, of architectures sm_90a.
std::vector<KernelText> FindKernels(absl::string_view text);

// Ends the process, naming the line, at a word that is not known.
Kernel ParseKernel(const KernelText& text);

// Sets where registers lie; those that are not in use at the same time may
// share their place.
void PlaceRegisters(Kernel* kernel);

}  // namespace baton::engine::cuda::emulated::ptx
