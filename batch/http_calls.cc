#include <curl/curl.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "batch/calls.h"
#include "common/log.h"
#include "common/status_macros.h"

namespace baton::batch {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
constexpr size_t kMaxAnswerBytes = 64 << 20;

void SetUpCurl() {
  static const bool set_up = [] {
    CHECK_EQ(curl_global_init(CURL_GLOBAL_DEFAULT), CURLE_OK);
    return true;
  }();
  static_cast<void>(set_up);
}

// Without a slash or "/v1" at its end.
absl::StatusOr<std::string> BaseUrl(const std::string& text) {
  const auto error = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" ", what));
  };
  if (!absl::StartsWith(text, "http://") &&
      !absl::StartsWith(text, "https://")) {
    return error("does not begin with http:// or https://");
  }
  const std::unique_ptr<CURLU, void (*)(CURLU*)> url(curl_url(),
                                                     curl_url_cleanup);
  if (curl_url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
    return error("is no URL");
  }
  char* query = nullptr;
  if (curl_url_get(url.get(), CURLUPART_QUERY, &query, 0) == CURLUE_OK) {
    curl_free(query);
    return error("has a query");
  }
  absl::string_view base = text;
  while (absl::ConsumeSuffix(&base, "/")) {
  }
  // As clients of the API are configured.
  absl::ConsumeSuffix(&base, "/v1");
  return std::string(base);
}

CallEndKind KindOf(CURLcode code, bool connected) {
  switch (code) {
    case CURLE_OK:
      return CallEndKind::kAnswered;
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_CONNECT:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_PARTIAL_FILE:
    case CURLE_SSL_CONNECT_ERROR:
      return CallEndKind::kBroke;
    case CURLE_OPERATION_TIMEDOUT:
      return connected ? CallEndKind::kGivenUp : CallEndKind::kBroke;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_ISSUER_ERROR:
      return CallEndKind::kRefusedUs;
    default:
      return CallEndKind::kGivenUp;
  }
}

const char* ErrorCode(CURLcode code) {
  if (code == CURLE_OPERATION_TIMEDOUT) return "timeout";
  if (code == CURLE_WRITE_ERROR) return "answer_too_large";
  return "no_answer";
}

std::string HeaderOf(CURL* easy, const char* name) {
  curl_header* header = nullptr;
  return curl_easy_header(easy, name, 0, CURLH_HEADER, -1, &header) == CURLHE_OK
             ? header->value
             : "";
}

std::optional<absl::Duration> RetryAfterOf(CURL* easy) {
  int64_t milliseconds = 0;
  if (absl::SimpleAtoi(HeaderOf(easy, "retry-after-ms"), &milliseconds) &&
      milliseconds >= 0) {
    return absl::Milliseconds(milliseconds);
  }
  curl_off_t seconds = 0;
  curl_easy_getinfo(easy, CURLINFO_RETRY_AFTER, &seconds);
  if (seconds <= 0) return std::nullopt;
  return absl::Seconds(seconds);
}

// One that is open.
struct OpenCall {
  ~OpenCall() { curl_easy_cleanup(easy); }

  int64_t call = 0;
  CURL* easy = nullptr;
  std::string request;
  std::string answer;
  char error[CURL_ERROR_SIZE] = {};
};

size_t TakeBody(char* data, size_t size, size_t count, void* into) {
  auto* const open = static_cast<OpenCall*>(into);
  const size_t bytes = size * count;
  if (open->answer.size() + bytes > kMaxAnswerBytes) return 0;
  open->answer.append(data, bytes);
  return bytes;
}

class HttpCalls final : public Calls {
 public:
  HttpCalls(HttpCallsOptions options, std::string base)
      : options_(std::move(options)),
        base_(std::move(base)),
        multi_(curl_multi_init()) {
    CHECK(multi_ != nullptr) << "libcurl has no memory";
    AddHeader("content-type: application/json");
    AddHeader("x-baton-class: batch");
    if (options_.priority.has_value()) {
      AddHeader(absl::StrCat("x-baton-priority: ", *options_.priority));
    }
    if (!options_.api_key.empty()) {
      AddHeader(absl::StrCat("authorization: Bearer ", options_.api_key));
    }
    // Not "Expect: 100-continue", which costs a turn for each large body.
    AddHeader("Expect:");
    const long most = options_.max_connections;  // NOLINT: libcurl's type
    curl_multi_setopt(multi_, CURLMOPT_MAX_TOTAL_CONNECTIONS, most);
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, most);
  }

  ~HttpCalls() override {
    for (const auto& [easy, open] : open_) {
      curl_multi_remove_handle(multi_, easy);
    }
    open_.clear();
    curl_multi_cleanup(multi_);
    curl_slist_free_all(headers_);
  }

  void Start(int64_t call, const BatchRequest& request) override {
    CURL* const easy = curl_easy_init();
    CHECK(easy != nullptr) << "libcurl has no memory";
    auto open = std::make_unique<OpenCall>();
    open->call = call;
    open->easy = easy;
    open->request = request.body;
    curl_easy_setopt(easy, CURLOPT_URL,
                     absl::StrCat(base_, request.url).c_str());
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, headers_);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, open->request.data());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(open->request.size()));
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, open->error);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &TakeBody);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, open.get());
    curl_easy_setopt(easy, CURLOPT_PRIVATE, open.get());
    SetMilliseconds(easy, CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeout);
    SetMilliseconds(easy, CURLOPT_TIMEOUT_MS, options_.timeout);
    SetFile(easy, CURLOPT_CAINFO, options_.tls_ca_file);
    SetFile(easy, CURLOPT_SSLCERT, options_.tls_cert_file);
    SetFile(easy, CURLOPT_SSLKEY, options_.tls_key_file);
    CHECK_EQ(curl_multi_add_handle(multi_, easy), CURLM_OK);
    open_.emplace(easy, std::move(open));
  }

  std::vector<CallEnd> Wait(absl::Duration timeout) override {
    std::vector<CallEnd> ends;
    int running = 0;
    CHECK_EQ(curl_multi_perform(multi_, &running), CURLM_OK);
    TakeEnds(&ends);
    if (!ends.empty()) return ends;
    const int64_t milliseconds = absl::ToInt64Milliseconds(
        std::clamp(timeout, absl::ZeroDuration(), absl::Seconds(60)));
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(milliseconds),
                    nullptr);
    CHECK_EQ(curl_multi_perform(multi_, &running), CURLM_OK);
    TakeEnds(&ends);
    return ends;
  }

 private:
  void AddHeader(const std::string& line) {
    headers_ = curl_slist_append(headers_, line.c_str());
  }

  static void SetMilliseconds(CURL* easy, CURLoption option,
                              absl::Duration duration) {
    const long value = absl::ToInt64Milliseconds(duration);  // NOLINT
    curl_easy_setopt(easy, option, value);
  }

  static void SetFile(CURL* easy, CURLoption option, const std::string& file) {
    if (!file.empty()) curl_easy_setopt(easy, option, file.c_str());
  }

  void TakeEnds(std::vector<CallEnd>* ends) {
    int queued = 0;
    while (const CURLMsg* message = curl_multi_info_read(multi_, &queued)) {
      if (message->msg != CURLMSG_DONE) continue;
      CURL* const easy = message->easy_handle;
      const CURLcode code = message->data.result;
      ends->push_back(EndOf(*open_.at(easy), code));
      curl_multi_remove_handle(multi_, easy);
      open_.erase(easy);
    }
  }

  static CallEnd EndOf(OpenCall& open, CURLcode code) {
    CallEnd end;
    end.call = open.call;
    long sent = 0;  // NOLINT: libcurl's type
    curl_easy_getinfo(open.easy, CURLINFO_REQUEST_SIZE, &sent);
    end.kind = KindOf(code, sent > 0);
    if (code != CURLE_OK) {
      end.answer.error_code = ErrorCode(code);
      end.answer.error =
          open.error[0] != '\0' ? open.error : curl_easy_strerror(code);
      return end;
    }
    long status = 0;  // NOLINT: libcurl's type
    curl_easy_getinfo(open.easy, CURLINFO_RESPONSE_CODE, &status);
    end.answer.status = static_cast<int>(status);
    end.answer.request_id = HeaderOf(open.easy, "x-request-id");
    end.answer.body = std::move(open.answer);
    end.retry_after = RetryAfterOf(open.easy);
    return end;
  }

  const HttpCallsOptions options_;
  const std::string base_;
  CURLM* const multi_;
  curl_slist* headers_ = nullptr;
  std::map<CURL*, std::unique_ptr<OpenCall>> open_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Calls>> CreateHttpCalls(
    const HttpCallsOptions& options) {
  SetUpCurl();
  if (std::any_of(options.api_key.begin(), options.api_key.end(),
                  [](char c) { return absl::ascii_iscntrl(c); })) {
    return absl::InvalidArgumentError("the API key has a control character");
  }
  BATON_ASSIGN_OR_RETURN(std::string base, BaseUrl(options.url));
  return std::make_unique<HttpCalls>(options, std::move(base));
}

}  // namespace baton::batch
