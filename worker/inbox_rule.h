// What becomes of a router's message when a worker's inbox is full. Pure; any
// thread.
#pragma once

#include "baton/v1/worker.pb.h"

namespace baton::worker {

enum class InboxRule {
  // It asks for something, and is refused.
  kRefused,
  // It is of an attempt or a stream that came in, of which there are so many at
  // most: taken all the same.
  kTaken,
  // It is asked again, or means nothing here: dropped.
  kDropped,
};

inline InboxRule RuleOf(const v1::RouterMessage& message) {
  switch (message.kind_case()) {
    case v1::RouterMessage::kReserve:
    case v1::RouterMessage::kPrefill:
      return InboxRule::kRefused;
    case v1::RouterMessage::kHello:
    case v1::RouterMessage::kGrant:
    case v1::RouterMessage::kCancel:
    case v1::RouterMessage::kVocabulary:
      return InboxRule::kTaken;
    case v1::RouterMessage::kPair:
    case v1::RouterMessage::kSetRole:
    case v1::RouterMessage::kHeartbeat:
    case v1::RouterMessage::KIND_NOT_SET:  // of a later version
      break;
  }
  return InboxRule::kDropped;
}

}  // namespace baton::worker
