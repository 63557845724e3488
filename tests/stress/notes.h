// What the driver of a stress run and its workers tell each other: a word and
// some numbers, as text in one datagram.
//
//   to a receiver    open TAG SENDER BLOCKS DEADLINE_MS HOLDER
//   to a sender      pair PORT
//                    start TAG TRANSFER GENERATION RECEIVER BLOCKS DEADLINE_MS
//                      HOLDER
//   to both          abort TAG; lease HOLDER MS; report; quit
//   from both        up PORT; failed TAG OUTCOME; quiesced TAG
//                    state OPEN QUARANTINED BLOCKS_IN_USE LATE_WRITES
//   from a receiver  opened TAG TRANSFER GENERATION; full TAG; landed TAG
//   from a sender    ready RECEIVER; lost RECEIVER; refused TAG; acked TAG
//
// TAG names a transfer for the whole run; its KV is made from it. SENDER and
// RECEIVER are incarnations.
//
// One thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "common/scoped_fd.h"

namespace baton::stress {

struct Note {
  std::string word;
  std::vector<uint64_t> numbers;
};

std::string FormatNote(const Note& note);
// CHECK-fails on what FormatNote did not make.
Note ParseNote(const std::string& text);

// One end of a connection (SOCK_SEQPACKET). Never blocks: what the other side
// does not take yet waits here.
class NoteSocket final {
 public:
  NoteSocket() = default;
  explicit NoteSocket(ScopedFd fd);

  int fd() const { return fd_.get(); }
  // For poll: whether to wait for room, too.
  bool has_unsent() const { return !unsent_.empty(); }
  // The other side is gone, and all that it said was received.
  bool closed() const { return closed_; }

  void Send(Note note);
  void Flush();
  // Nothing: none is there now.
  std::optional<Note> Receive();

 private:
  ScopedFd fd_;
  std::deque<std::string> unsent_;
  bool closed_ = false;
};

// Says that something happened that must never happen, and ends this process
// with kViolationStatus. Any thread.
inline constexpr int kViolationStatus = 3;
[[noreturn]] void Violate(const std::string& what);

}  // namespace baton::stress
