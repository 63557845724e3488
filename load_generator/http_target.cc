#include "load_generator/http_target.h"

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/connect.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/status_macros.h"
#include "load_generator/openai_stream.h"
#include "load_generator/sse_reader.h"

namespace baton::load_generator {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace bhttp = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

constexpr size_t kMaxErrorBody = 64 << 10;

struct Url {
  std::string host;
  std::string port;
  std::string path;  // before "/v1"; without a slash at its end
};

absl::StatusOr<Url> ParseUrl(const std::string& text) {
  const auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" ", what));
  };
  absl::string_view rest = text;
  if (!absl::ConsumePrefix(&rest, "http://")) {
    return error("does not begin with http://");
  }
  Url url;
  const size_t slash = rest.find('/');
  if (slash != absl::string_view::npos) {
    url.path = std::string(rest.substr(slash));
    while (absl::EndsWith(url.path, "/")) url.path.pop_back();
    // As clients of the API are configured.
    if (absl::EndsWith(url.path, "/v1")) {
      url.path.resize(url.path.size() - 3);
    }
    rest = rest.substr(0, slash);
  }
  const size_t colon = rest.rfind(':');
  const bool has_port = colon != absl::string_view::npos &&
                        rest.find(']', colon) == absl::string_view::npos;
  url.host = std::string(has_port ? rest.substr(0, colon) : rest);
  url.port = has_port ? std::string(rest.substr(colon + 1)) : "80";
  if (absl::StartsWith(url.host, "[") && absl::EndsWith(url.host, "]")) {
    url.host = url.host.substr(1, url.host.size() - 2);
  }
  if (url.host.empty() || url.port.empty()) return error("names no host");
  return url;
}

// What all calls share; used by the io thread once it runs.
struct Server {
  tcp::resolver::results_type endpoints;
  std::string host_header;
  std::string path;
  std::string model;
  std::string authorization;
  // Connected and without a call.
  std::vector<std::unique_ptr<beast::tcp_stream>> idle;
};

class Call final : public std::enable_shared_from_this<Call> {
 public:
  Call(asio::io_context* io, Server* server, std::set<Call*>* open,
       TargetRequest request, std::shared_ptr<TargetListener> listener)
      : server_(server),
        open_(open),
        timeout_(request.timeout),
        request_(std::move(request)),
        listener_(std::move(listener)),
        stream_(std::make_unique<beast::tcp_stream>(*io)),
        timer_(*io) {
    open_->insert(this);
  }
  ~Call() { open_->erase(this); }

  void Start() {
    timer_.expires_after(absl::ToChronoNanoseconds(timeout_));
    timer_.async_wait([self = weak_from_this()](error_code error) {
      const auto alive = self.lock();
      if (!error && alive) {
        alive->Finish({.kind = OutcomeKind::kTimedOut,
                       .error = "no end before the timeout"});
      }
    });
    MakeMessage();
    if (server_->idle.empty()) return Connect();
    stream_ = std::move(server_->idle.back());
    server_->idle.pop_back();
    reused_ = true;
    Write();
  }

  void Abandon() {
    Finish({.kind = OutcomeKind::kFailed, .error = "the load generator ends"});
  }

 private:
  void MakeMessage() {
    message_.method(bhttp::verb::post);
    message_.version(11);
    message_.target(absl::StrCat(server_->path, "/v1/completions"));
    message_.set(bhttp::field::host, server_->host_header);
    message_.set(bhttp::field::content_type, "application/json");
    message_.set(bhttp::field::accept, "text/event-stream");
    if (!server_->authorization.empty()) {
      message_.set(bhttp::field::authorization, server_->authorization);
    }
    message_.body() = CompletionBody(request_, server_->model);
    message_.prepare_payload();
  }

  void Connect() {
    reused_ = false;
    stream_->async_connect(
        server_->endpoints,
        [self = shared_from_this()](error_code error, const tcp::endpoint&) {
          if (self->ended_) return;
          if (error) return self->Broke("cannot connect", error);
          error_code ignored;
          self->stream_->socket().set_option(tcp::no_delay(true), ignored);
          self->Write();
        });
  }

  void Write() {
    bhttp::async_write(*stream_, message_,
                       [self = shared_from_this()](error_code error, size_t) {
                         if (self->ended_) return;
                         if (error) return self->Broke("cannot send", error);
                         self->parser_.emplace();
                         self->parser_->body_limit(boost::none);
                         self->Read();
                       });
  }

  void Read() {
    parser_->get().body().data = piece_.data();
    parser_->get().body().size = piece_.size();
    bhttp::async_read_some(
        *stream_, buffer_, *parser_,
        [self = shared_from_this()](error_code error, size_t) {
          if (self->ended_) return;
          const absl::Time now = Clock::Monotonic()->Now();
          if (error == bhttp::error::need_buffer) error = {};
          if (error) return self->Broke("the answer broke off", error);
          self->TakePiece(now);
        });
  }

  void TakePiece(absl::Time now) {
    const absl::string_view bytes(piece_.data(),
                                  piece_.size() - parser_->get().body().size);
    const bool ok = parser_->is_header_done() &&
                    parser_->get().result() == bhttp::status::ok;
    if (!bytes.empty()) got_some_ = true;
    if (ok) {
      bool output = false;
      if (!sse_.Feed(bytes, [&](absl::string_view data) {
            output = answer_.Take(data) || output;
          })) {
        return Finish({.kind = OutcomeKind::kFailed,
                       .error = "an event of more than 16 MiB"});
      }
      if (output) listener_->OnTokens(now);
    } else if (error_body_.size() < kMaxErrorBody) {
      absl::StrAppend(&error_body_, bytes);
    }
    if (!parser_->is_done()) return Read();
    if (parser_->keep_alive() && buffer_.size() == 0) {
      server_->idle.push_back(std::move(stream_));
    }
    Finish(ok ? answer_.End()
              : EndOfError(parser_->get().result_int(), error_body_));
  }

  // A connection that was kept may have been closed meanwhile: that is no
  // failure of the server.
  void Broke(absl::string_view what, error_code error) {
    if (reused_ && !got_some_) {
      stream_->close();
      buffer_.clear();
      return Connect();
    }
    Finish({.kind = OutcomeKind::kFailed,
            .error = absl::StrCat(what, ": ", error.message())});
  }

  void Finish(TargetEnd end) {
    if (ended_) return;
    ended_ = true;
    timer_.cancel();
    if (stream_ != nullptr) stream_->close();  // else it was kept
    listener_->OnEnd(Clock::Monotonic()->Now(), end);
  }

  Server* const server_;
  std::set<Call*>* const open_;
  const absl::Duration timeout_;
  const TargetRequest request_;
  const std::shared_ptr<TargetListener> listener_;
  std::unique_ptr<beast::tcp_stream> stream_;  // null when it was given back
  asio::steady_timer timer_;
  bhttp::request<bhttp::string_body> message_;
  beast::flat_buffer buffer_;
  std::optional<bhttp::response_parser<bhttp::buffer_body>> parser_;
  std::array<char, 16384> piece_;
  SseReader sse_;
  OpenAiStream answer_;
  std::string error_body_;
  bool reused_ = false;
  bool got_some_ = false;
  bool ended_ = false;
};

class HttpTarget final : public Target {
 public:
  explicit HttpTarget(Server server)
      : server_(std::move(server)),
        work_(asio::make_work_guard(io_)),
        thread_([this] { io_.run(); }) {}

  ~HttpTarget() override {
    asio::post(io_, [this] {
      const std::set<Call*> open = open_;
      for (Call* call : open) {
        // Its own handlers hold it; it may go with the last of them.
        if (open_.contains(call)) call->shared_from_this()->Abandon();
      }
      server_.idle.clear();
      work_.reset();
    });
    thread_.join();
  }

  void Send(TargetRequest request,
            std::shared_ptr<TargetListener> listener) override {
    asio::post(io_, [this, request = std::move(request),
                     listener = std::move(listener)]() mutable {
      std::make_shared<Call>(&io_, &server_, &open_, std::move(request),
                             std::move(listener))
          ->Start();
    });
  }

 private:
  asio::io_context io_{1};
  Server server_;
  std::set<Call*> open_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  std::thread thread_;
};

absl::StatusOr<Server> MakeServer(const std::string& text,
                                  const std::string& api_key) {
  BATON_ASSIGN_OR_RETURN(const Url url, ParseUrl(text));
  Server server;
  asio::io_context resolving;
  error_code error;
  server.endpoints =
      tcp::resolver(resolving).resolve(url.host, url.port, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot find \"", url.host, "\": ", error.message()));
  }
  server.host_header = absl::StrCat(absl::StrContains(url.host, ":")
                                        ? absl::StrCat("[", url.host, "]")
                                        : url.host,
                                    ":", url.port);
  server.path = url.path;
  if (!api_key.empty()) server.authorization = absl::StrCat("Bearer ", api_key);
  return server;
}

// One small answer, by an io_context that runs no longer than `timeout`.
absl::StatusOr<bhttp::response<bhttp::string_body>> Get(
    const Server& server, const std::string& path, absl::Duration timeout) {
  asio::io_context io;
  beast::tcp_stream stream(io);
  stream.expires_after(absl::ToChronoNanoseconds(timeout));
  bhttp::request<bhttp::empty_body> request(bhttp::verb::get,
                                            server.path + path, 11);
  request.set(bhttp::field::host, server.host_header);
  if (!server.authorization.empty()) {
    request.set(bhttp::field::authorization, server.authorization);
  }
  beast::flat_buffer buffer;
  bhttp::response<bhttp::string_body> response;
  error_code failed = asio::error::timed_out;
  stream.async_connect(
      server.endpoints, [&](error_code error, const tcp::endpoint&) {
        failed = error;
        if (error) return;
        bhttp::async_write(stream, request, [&](error_code written, size_t) {
          failed = written;
          if (written) return;
          bhttp::async_read(stream, buffer, response,
                            [&](error_code read, size_t) { failed = read; });
        });
      });
  io.run();
  if (failed) return absl::UnavailableError(failed.message());
  return response;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Target>> CreateHttpTarget(
    const HttpTargetOptions& options) {
  BATON_ASSIGN_OR_RETURN(Server server,
                         MakeServer(options.url, options.api_key));
  server.model = options.model;
  return std::make_unique<HttpTarget>(std::move(server));
}

absl::StatusOr<std::string> FirstModel(const std::string& url,
                                       const std::string& api_key,
                                       absl::Duration timeout) {
  BATON_ASSIGN_OR_RETURN(const Server server, MakeServer(url, api_key));
  const auto response = Get(server, "/v1/models", timeout);
  if (!response.ok()) {
    return absl::UnavailableError(
        absl::StrCat(url, " does not answer: ", response.status().message()));
  }
  if (response->result() != bhttp::status::ok) {
    return absl::UnavailableError(absl::StrCat(
        url, ": ",
        EndOfError(static_cast<int>(response->result_int()), response->body())
            .error));
  }
  const nlohmann::json models = nlohmann::json::parse(
      response->body(), nullptr, /*allow_exceptions=*/false);
  const nlohmann::json::json_pointer id("/data/0/id");
  if (!models.is_object() || !models.contains(id) || !models[id].is_string()) {
    return absl::NotFoundError(absl::StrCat(url, " lists no models"));
  }
  return models[id].get<std::string>();
}

}  // namespace baton::load_generator
