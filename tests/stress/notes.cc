#include "tests/stress/notes.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/log.h"

namespace baton::stress {
namespace {

constexpr size_t kMaxNoteBytes = 512;

}  // namespace

std::string FormatNote(const Note& note) {
  std::string text = note.word;
  for (uint64_t number : note.numbers) absl::StrAppend(&text, " ", number);
  CHECK_LE(text.size(), kMaxNoteBytes);
  return text;
}

Note ParseNote(const std::string& text) {
  std::vector<std::string> parts = absl::StrSplit(text, ' ');
  Note note{.word = parts[0]};
  for (size_t i = 1; i < parts.size(); ++i) {
    uint64_t number = 0;
    CHECK(absl::SimpleAtoi(parts[i], &number)) << text;
    note.numbers.push_back(number);
  }
  return note;
}

NoteSocket::NoteSocket(ScopedFd fd) : fd_(std::move(fd)) {
  PCHECK(fcntl(fd_.get(), F_SETFL, O_NONBLOCK) == 0);
}

void NoteSocket::Send(Note note) {
  unsent_.push_back(FormatNote(note));
  Flush();
}

void NoteSocket::Flush() {
  while (!unsent_.empty()) {
    const std::string& text = unsent_.front();
    if (send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN) return;
      // The other side is gone, as Receive() will find out.
      unsent_.clear();
      return;
    }
    unsent_.pop_front();
  }
}

std::optional<Note> NoteSocket::Receive() {
  char buffer[kMaxNoteBytes];
  for (;;) {
    const ssize_t size = recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (size > 0) return ParseNote(std::string(buffer, size));
    if (size < 0 && errno == EINTR) continue;
    if (size < 0 && errno == EAGAIN) return std::nullopt;
    closed_ = true;
    return std::nullopt;
  }
}

void Violate(const std::string& what) {
  std::fprintf(stderr, "VIOLATION: %s\n", what.c_str());
  std::fflush(stderr);
  _exit(kViolationStatus);
}

}  // namespace baton::stress
