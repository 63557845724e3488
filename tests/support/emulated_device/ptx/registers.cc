// Where the registers of a kernel lie: the text has a new one for nearly every
// value, thousands in all, of which few are in use at a time.
#include <algorithm>
#include <climits>
#include <map>
#include <utility>
#include <vector>

#include "tests/support/emulated_device/ptx/program.h"

namespace baton::engine::cuda::emulated::ptx {
namespace {

// The first operands, which are written; what else is written is read, too.
int Written(const Instruction& i) {
  switch (i.op) {
    case Op::kStore:
    case Op::kCopyAsync:
    case Op::kCopyBulk:
    case Op::kBarrierInit:
    case Op::kBarrierArrive:
    case Op::kBarrierExpect:
    case Op::kGroupMma:
      return 0;
    case Op::kLoad:
    case Op::kUnpack:
      return i.vector;
    case Op::kMma:
      return 4;
    default:
      return 1;
  }
}

// The instructions from the first that names a register to the last one.
struct Interval {
  int begin = INT_MAX;
  int end = -1;
  bool begins_written = false;
  // Holds its value for longer than the text shows.
  bool always = false;
};

struct Loop {
  int begin = 0;
  int end = 0;
};

std::vector<Interval> FindIntervals(const Kernel& kernel) {
  std::vector<Interval> intervals(kernel.widths.size());
  const auto name = [&](int number, int at, bool written) {
    if (number < 0) return;
    Interval& interval = intervals[number];
    if (interval.end < 0) {
      interval.begin = at;
      interval.begins_written = written;
    }
    interval.end = at;
  };
  for (int at = 0; at < static_cast<int>(kernel.code.size()); ++at) {
    const Instruction& i = kernel.code[at];
    name(i.guard, at, false);
    // Read before it is written, where it is both.
    const int written = Written(i);
    for (int k = written; k < static_cast<int>(i.operands.size()); ++k) {
      name(i.operands[k], at, false);
    }
    for (int k = 0; k < std::min<int>(written, i.operands.size()); ++k) {
      name(i.operands[k], at, i.guard < 0);
    }
    if (i.op != Op::kGroupMma) continue;
    // Until it is awaited, somewhere.
    for (const int number : i.operands) intervals[number].always = true;
  }
  for (const PresetRegister& preset : kernel.presets) {
    intervals[preset.number].always = true;
  }
  return intervals;
}

// What is in use somewhere in a loop and also before or behind it, or in the
// loop's next turn, is in use in all of it.
void Extend(const std::vector<Loop>& loops, Interval* interval) {
  for (bool changed = true; changed;) {
    changed = false;
    for (const Loop& loop : loops) {
      if (interval->end < loop.begin || interval->begin > loop.end) continue;
      const bool inside =
          interval->begin >= loop.begin && interval->end <= loop.end;
      if (inside && interval->begins_written) continue;
      const Interval before = *interval;
      interval->begin = std::min(interval->begin, loop.begin);
      interval->end = std::max(interval->end, loop.end);
      changed |= before.begin != interval->begin || before.end != interval->end;
    }
  }
}

}  // namespace

void PlaceRegisters(Kernel* kernel) {
  constexpr size_t kLanes = 32;
  std::vector<Interval> intervals = FindIntervals(*kernel);
  std::vector<Loop> loops;
  for (int at = 0; at < static_cast<int>(kernel->code.size()); ++at) {
    const int target = kernel->code[at].target;
    if (target >= 0 && target <= at) loops.push_back({target, at});
  }
  std::vector<int> order;
  for (int number = 0; number < static_cast<int>(intervals.size()); ++number) {
    Extend(loops, &intervals[number]);
    order.push_back(number);
  }
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return intervals[a].begin < intervals[b].begin;
  });
  kernel->offsets.resize(intervals.size());
  // By width: places, and the last instruction that needs each.
  std::map<int, std::multimap<int, size_t>> places;
  for (const int number : order) {
    const int width = kernel->widths[number];
    const Interval& interval = intervals[number];
    std::multimap<int, size_t>& taken = places[width];
    size_t offset = kernel->register_bytes;
    if (!interval.always && !taken.empty() &&
        taken.begin()->first < interval.begin) {
      offset = taken.begin()->second;
      taken.erase(taken.begin());
    } else {
      kernel->register_bytes += width * kLanes;
    }
    kernel->offsets[number] = offset;
    if (!interval.always) taken.emplace(interval.end, offset);
  }
}

}  // namespace baton::engine::cuda::emulated::ptx
