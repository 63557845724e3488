// Clients of a router that hold many streams open and count what comes.
//
// One thread calls them; others of theirs receive.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "tests/bench/router_benchmark_setup.h"

namespace baton::bench {

class StreamClients {
 public:
  struct Options {
    // Of the protocol's server.
    std::string address;
    // Of each stream.
    int prompt_tokens = 16;
    int max_tokens = 100000;
  };

  virtual ~StreamClients() = default;

  // Opens the streams [first, first + count), a few at a time, and waits until
  // each has had its first token. The error is the first that a stream got.
  absl::Status Open(int first, int count);

  // Leaves a stream as a client does that goes away, and notes when on the
  // board.
  virtual void Leave(int stream) = 0;

  // Streams that had their first token, and those that ended by themselves.
  virtual int NumBegun() const = 0;
  virtual int NumEnded() const = 0;
  // Why the first of those ended; empty: none did.
  virtual std::string FirstError() const = 0;

 private:
  // Sends the request.
  virtual void Begin(int stream) = 0;
};

// Over HTTP: non-blocking sockets and one epoll thread. Counts tokens by the
// text of the events.
std::unique_ptr<StreamClients> MakeHttpClients(
    const StreamClients::Options& options, TokenBoard* board, Window* window);

// Over gRPC, by the callback API.
std::unique_ptr<StreamClients> MakeGrpcClients(
    const StreamClients::Options& options, TokenBoard* board, Window* window);

}  // namespace baton::bench
