// Baton's gRPC API for C++ programs: connect to a router, stream answers, ask
// what is served. Needs no gRPC header; messages are those of
// proto/baton/v1/inference.proto, documented in docs/grpc.md.
//
//   auto client = baton::client::Client::Connect({.address = "host:8600"});
//   baton::v1::GenerateRequest request;
//   request.set_text("Once upon a time");
//   absl::Status status = (*client)->Generate(
//       request, {}, [](const baton::v1::GenerateResponse& response) {
//         std::fputs(response.text().c_str(), stdout);
//         return true;
//       });
//
// Errors are absl::Status with the router's code and message, as
// inference.proto says; Unavailable also when the connection is lost. A router
// that is overloaded says when to come back: RetryAfter(). Nothing here throws
// or retries, and keys are never logged.
//
// A Client may be used from any thread, by many calls at once: all of them
// share one connection, which comes back by itself when it was lost.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"

namespace baton::client {

struct ClientOptions {
  // "host:port", or another name that gRPC knows ("dns:///host:port",
  // "unix:/path"). Proxies of the environment are not used.
  std::string address;

  // TLS with the system's certificate authorities. Any of the files below
  // turns it on, too.
  bool tls = false;
  // PEM files: the authorities to trust in place of the system's, and the
  // certificate and key to show to a router that asks for them (both or none).
  std::string tls_ca_file;
  std::string tls_cert_file;
  std::string tls_key_file;

  // Sent with each call as "authorization: Bearer KEY"; empty: not sent.
  // Without TLS, whoever sees the network sees it.
  std::string api_key;

  // How long Connect waits.
  absl::Duration connect_timeout = absl::Seconds(5);
};

// Ends calls from outside. Copies are one token: give a copy to any number of
// calls, and keep one.
class CancelToken final {
 public:
  CancelToken();

  // Ends the calls that have the token, and those that get it later. Any
  // thread, any number of times; does not wait. Not in a signal handler.
  void Cancel();

  // What a token is inside.
  class State;
  const std::shared_ptr<State>& state() const { return state_; }

 private:
  std::shared_ptr<State> state_;
};

struct GenerateOptions {
  // How long the whole call may take. The router and the workers hear of it,
  // and stop at the same time. At most a year.
  absl::Duration timeout = absl::Minutes(10);
  // A W3C trace context that the cluster's logs go on with; empty: the router
  // begins a new one.
  std::string traceparent;
  CancelToken cancel;
};

// Sees each response as it comes; returning false ends the call.
using OnResponse = std::function<bool(const v1::GenerateResponse&)>;
// Sees how the call ended.
using OnDone = std::function<void(const absl::Status&)>;

// An answer on its way (Client::StartGenerate). May outlive its Client. All
// functions from any thread, except that Wait() and the destructor must not be
// called from callbacks, of whatever call: they wait for those, and the last
// one to hold a connection must not be one of the threads that serve it.
class GenerateCall final {
 public:
  // Cancels and waits.
  ~GenerateCall();
  GenerateCall(const GenerateCall&) = delete;
  GenerateCall& operator=(const GenerateCall&) = delete;

  // Ends the call; does not wait. No-op when it has ended.
  void Cancel();

  // Until the call has ended and its callbacks have returned; then how it
  // ended, as Client::Generate says it. Bounded by the call's timeout.
  absl::Status Wait();

 private:
  friend class Client;
  class Stream;
  explicit GenerateCall(std::unique_ptr<Stream> stream);

  const std::unique_ptr<Stream> stream_;
};

class Client final {
 public:
  // Waits until connected.
  //
  // Unavailable, with the reason, when nobody listens there, the TLS handshake
  // fails, or connect_timeout is over. InvalidArgument, naming the field, when
  // an option cannot be used; NotFound when a file is not there.
  static absl::StatusOr<std::unique_ptr<Client>> Connect(
      const ClientOptions& options);

  // Calls that have not ended go on. Not from callbacks.
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Streams an answer: calls `on_response` on this thread with each response,
  // and returns when the call has ended. While it runs, the router holds
  // later responses back (a bounded number: a reader that is too slow for too
  // long loses the call).
  //
  // OK: the last response had a finish_reason, FINISH_REASON_STOP or
  // FINISH_REASON_LENGTH. Cancelled: `on_response` returned false, or the token
  // was used. DeadlineExceeded: the timeout is over. With any error, what came
  // before it stands, and is not the whole answer.
  absl::Status Generate(
      const v1::GenerateRequest& request, const GenerateOptions& options,
      absl::FunctionRef<bool(const v1::GenerateResponse&)> on_response);

  // The same without waiting, for many streams at once: the callbacks are
  // called on threads of the library, one at a time for each call, and must not
  // block. `on_done` comes once, last, and may be empty; before this returns
  // when an option cannot be sent. Destroying what comes back ends the call.
  [[nodiscard]] std::unique_ptr<GenerateCall> StartGenerate(
      const v1::GenerateRequest& request, const GenerateOptions& options,
      OnResponse on_response, OnDone on_done = nullptr);

  // What the router serves.
  absl::StatusOr<v1::GetModelResponse> GetModel(
      absl::Duration timeout = absl::Seconds(10));
  // Its workers and the links between them.
  absl::StatusOr<v1::GetClusterResponse> GetCluster(
      absl::Duration timeout = absl::Seconds(10));
  // Where a request was placed and why, and where its time went. NotFound when
  // the router does not know it (any more).
  absl::StatusOr<v1::ExplainRequestResponse> Explain(
      const std::string& request_id,
      absl::Duration timeout = absl::Seconds(10));

 private:
  class Connection;
  explicit Client(std::unique_ptr<const Connection> connection);

  const std::unique_ptr<const Connection> connection_;
};

// When to come back, where the router said so with this error. Any thread.
std::optional<absl::Duration> RetryAfter(const absl::Status& status);

}  // namespace baton::client
