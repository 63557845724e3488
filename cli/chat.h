// The work of `baton chat`: a conversation, a line of input for each message of
// the user, whose answer is written as it comes.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "cli/router_connection.h"
#include "cli/sampling_flags.h"

namespace baton::cli {

struct ChatOptions {
  RouterFlags router;
  std::string model;
  // What the conversation begins with, said by nobody; empty: nothing.
  std::string system;
  // Of each answer.
  std::optional<uint32_t> max_tokens;
  SamplingFlags sampling;
  double timeout_seconds = 600;  // of each answer
  // Where the time went, after each answer.
  bool summary = false;
};

// Reads the file descriptor `in` until its end, writes answers to `out`, errors
// to `err`, and returns the exit code.
//
// Where `in` is a terminal: asks for each message, takes lines that begin with
// "/" as commands, and goes on after an error. SIGINT ends the answer that is
// coming, of which the conversation keeps what came; while nothing comes it
// ends the chat, as SIGTERM always does. Elsewhere each line is a message, as
// it is, and the first error ends the chat.
//
// Blocks; one call per process at a time. REQUIRES: process::SetUpSignals was
// called.
int RunChat(const ChatOptions& options, int in, std::FILE* out, std::FILE* err);

}  // namespace baton::cli
