// What a hand-off tells its worker about the workers that it is connected to.
#pragma once

#include <string>

#include "common/ids.h"
#include "kv_transfer/link_probe.h"
#include "kv_transfer/transport.h"

namespace baton::kv_transfer {

// Paired: fingerprints and pages fit, both sides agree.
struct PeerReady {
  PeerId peer{};
  Incarnation incarnation{};
  std::string worker_name;
  // As given to Pair(); for a peer that connected to us, where it came from.
  std::string address;
};

// Could not be paired: not reached, no answer, or does not fit. The connection
// is gone or going.
struct PeerRefused {
  std::string address;
  // Empty when it never said hello.
  std::string worker_name;
  // Names each field that differs, with both values, or what went wrong.
  std::string reason;
};

// The link to a ready peer was measured, or measured again and found to be
// other than what was last said (link_meter.h). Comes to the side that asked
// for the connection.
struct LinkMeasured {
  PeerId peer{};
  Incarnation incarnation{};
  std::string worker_name;
  std::string transport;  // "ucx/tcp"
  LinkSpeed speed;
};

// A peer that was ready is gone. Its transfers have Failed events of their own.
struct PeerLost {
  PeerId peer{};
  Incarnation incarnation{};
  std::string worker_name;
  std::string address;
  std::string reason;
};

}  // namespace baton::kv_transfer
