// One side of a dual worker, to the other one. Both have one device, on which
// their steps take turns: while both have work, a step of one side is over when
// one of the other side has run besides.
//
// So a step takes what it takes alone and what the step takes that the other
// side runs when it begins: an approximation, since that one may be half over,
// and the next one another.
//
// Seconds of the virtual clock. One thread.
#pragma once

namespace baton::planner {

class DeviceSide {
 public:
  virtual ~DeviceSide() = default;

  // The other side changes what it does: the step that runs at `now` is the
  // last one of its run, as those after it are other ones. Returns what it
  // takes by itself; 0: idle.
  virtual double Share(double now) = 0;
};

}  // namespace baton::planner
