#include "router/http/request_parser.h"

#include <algorithm>
#include <cstdint>
#include <utility>

// Beast is in this file alone: its headers take seconds to compile. Its
// assertions are off (CMakeLists.txt): one of them does not hold for a chunked
// body that is empty and comes a byte at a time.
#include <boost/beast/http/basic_parser.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/log.h"
#include "router/http/request_target.h"

namespace baton::router::http {
namespace {

namespace beast = boost::beast;
namespace wire = boost::beast::http;

constexpr int kMaxHeaders = 100;
// A body takes its memory as it comes, not as the client announces it.
constexpr uint64_t kMaxReservedBytes = 64 << 10;
constexpr size_t kMaxChunkExtensionBytes = 256;

absl::string_view View(beast::string_view text) {
  return absl::string_view(text.data(), text.size());
}

RequestParser::Failure FailureOf(const beast::error_code& error) {
  if (error == wire::error::header_limit) {
    return {431, "The request's headers are too large."};
  }
  if (error == wire::error::body_limit) {
    return {413, "The request's body is too large."};
  }
  if (error == wire::error::bad_version) {
    return {505, "The server speaks HTTP/1.0 and HTTP/1.1."};
  }
  return {400, absl::StrCat("Malformed request: ", error.message(), ".")};
}

}  // namespace

// What Beast calls as it reads. Beast knows the grammar; what follows from the
// values, and the bounds that it lacks, are here.
class RequestParser::Impl final : public wire::basic_parser<true> {
 public:
  explicit Impl(const Limits& limits) {
    header_limit(static_cast<uint32_t>(
        std::min<size_t>(limits.header_bytes + 1, UINT32_MAX)));
    body_limit(static_cast<uint64_t>(limits.body_bytes));
  }

  Request request;
  Failure failure;
  bool expects_continue = false;
  bool http11 = true;

 private:
  // Ends the parsing; `error` only has to be something.
  void Refuse(int status, absl::string_view message, beast::error_code& error) {
    failure = {status, std::string(message)};
    error = wire::error::bad_value;
  }

  void on_request_impl(wire::verb, beast::string_view method,
                       beast::string_view target, int version,
                       beast::error_code& error) override {
    http11 = version >= 11;
    absl::StatusOr<RequestTarget> parsed = ParseRequestTarget(View(target));
    if (!parsed.ok()) return Refuse(400, parsed.status().message(), error);
    request.method = std::string(View(method));
    request.path = std::move(parsed->path);
    request.query = std::move(parsed->query);
  }

  void on_response_impl(int, beast::string_view, int,
                        beast::error_code&) override {
    LOG(FATAL) << "a parser of requests read a response";
  }

  void on_field_impl(wire::field field, beast::string_view name,
                     beast::string_view value,
                     beast::error_code& error) override {
    if (header_done_) return;  // A trailer; nobody asked for it.
    if (request.headers.size() >= kMaxHeaders) {
      return Refuse(431, "The request has too many headers.", error);
    }
    CheckField(field, View(value), error);
    if (error) return;
    request.headers.emplace_back(absl::AsciiStrToLower(View(name)),
                                 std::string(View(value)));
  }

  void CheckField(wire::field field, absl::string_view value,
                  beast::error_code& error) {
    if (field == wire::field::content_length) {
      // Beast takes "5, 5" and repeated ones.
      if (has_content_length_ ||
          !std::all_of(value.begin(), value.end(), absl::ascii_isdigit)) {
        return Refuse(400, "The request's Content-Length is not a number.",
                      error);
      }
      has_content_length_ = true;
    } else if (field == wire::field::transfer_encoding) {
      // Beast takes a coding that it does not know for no body at all.
      if (!http11) {
        return Refuse(400, "HTTP/1.0 has no Transfer-Encoding.", error);
      }
      if (!absl::EqualsIgnoreCase(value, "chunked")) {
        return Refuse(501, "The only Transfer-Encoding served is chunked.",
                      error);
      }
    } else if (field == wire::field::host) {
      if (has_host_) return Refuse(400, "The request has two Hosts.", error);
      has_host_ = true;
    } else if (field == wire::field::expect && http11) {
      if (!absl::EqualsIgnoreCase(value, "100-continue")) {
        return Refuse(417, "The only Expect served is 100-continue.", error);
      }
      expects_continue = true;
    }
  }

  void on_header_impl(beast::error_code& error) override {
    header_done_ = true;
    if (http11 && !has_host_) {
      Refuse(400, "The request has no Host.", error);
    }
  }

  void on_body_init_impl(const boost::optional<uint64_t>& length,
                         beast::error_code&) override {
    if (length) request.body.reserve(std::min(*length, kMaxReservedBytes));
  }

  size_t on_body_impl(beast::string_view bytes, beast::error_code&) override {
    request.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }

  void on_chunk_header_impl(uint64_t, beast::string_view extension,
                            beast::error_code& error) override {
    // A quoted one may hold a line end, which others could take for one.
    if (extension.size() > kMaxChunkExtensionBytes ||
        extension.find_first_of("\r\n") != beast::string_view::npos) {
      Refuse(400, "The request has a bad chunk extension.", error);
    }
  }

  size_t on_chunk_body_impl(uint64_t, beast::string_view bytes,
                            beast::error_code&) override {
    request.body.append(bytes.data(), bytes.size());
    return bytes.size();
  }

  void on_finish_impl(beast::error_code&) override {}

  bool header_done_ = false;
  bool has_content_length_ = false;
  bool has_host_ = false;
};

RequestParser::RequestParser(const Limits& limits)
    : max_header_bytes_(limits.header_bytes),
      impl_(std::make_unique<Impl>(limits)) {}

RequestParser::~RequestParser() = default;

size_t RequestParser::EmptyLines(absl::string_view bytes) {
  const size_t given = bytes.size();
  while (absl::StartsWith(bytes, "\r\n")) bytes.remove_prefix(2);
  return given - bytes.size();
}

size_t RequestParser::Feed(absl::string_view bytes) {
  CHECK(state_ == State::kHeader || state_ == State::kBody);
  const size_t given = bytes.size();
  if (!impl_->got_some()) {
    bytes.remove_prefix(EmptyLines(bytes));
    if (bytes == "\r") return given - bytes.size();
  }
  // Beast may not be given an empty buffer in the middle of a request.
  while (!bytes.empty() && state_ != State::kComplete) {
    const bool in_header = !impl_->is_header_done();
    const size_t body_before = body_bytes();
    beast::error_code error;
    const size_t used = impl_->put(
        boost::asio::const_buffer(bytes.data(), bytes.size()), error);
    bytes.remove_prefix(used);
    const bool wants_more = error == wire::error::need_more;
    if (error && !wants_more) {
      Fail(impl_->failure.message.empty() ? FailureOf(error) : impl_->failure);
      break;
    }
    // Beast bounds each line of a header, and neither all of them together nor
    // the lines around chunks. These bounds do not depend on the pieces.
    const size_t unused = wants_more ? bytes.size() : 0;
    if (in_header) {
      header_bytes_ += used;
      if (header_bytes_ + unused > max_header_bytes_) {
        Fail({431, "The request's headers are too large."});
        break;
      }
    } else if (body_bytes() == body_before &&
               used + unused > max_header_bytes_) {
      Fail({431, "The request's chunk headers or trailers are too large."});
      break;
    }
    if (impl_->is_done()) state_ = State::kComplete;
    if (wants_more) break;
  }
  if (state_ == State::kHeader && impl_->is_header_done()) {
    state_ = State::kBody;
  }
  return given - bytes.size();
}

void RequestParser::Fail(Failure failure) {
  state_ = State::kFailed;
  impl_->failure = std::move(failure);
}

const RequestParser::Failure& RequestParser::failure() const {
  CHECK(state_ == State::kFailed);
  return impl_->failure;
}

Request* RequestParser::head() {
  CHECK(state_ == State::kBody || state_ == State::kComplete);
  return &impl_->request;
}

std::optional<uint64_t> RequestParser::body_length() const {
  CHECK(state_ == State::kBody || state_ == State::kComplete);
  const boost::optional<uint64_t> length = impl_->content_length();
  if (!length) return std::nullopt;
  return *length;
}

bool RequestParser::expects_continue() const { return impl_->expects_continue; }

size_t RequestParser::body_bytes() const { return impl_->request.body.size(); }

bool RequestParser::keep_alive() const {
  CHECK(state_ == State::kComplete);
  return impl_->keep_alive();
}

bool RequestParser::http11() const {
  CHECK(state_ == State::kComplete);
  return impl_->http11;
}

Request RequestParser::TakeRequest() {
  CHECK(state_ == State::kComplete);
  return std::move(impl_->request);
}

}  // namespace baton::router::http
