#include "router/tracing/http_post.h"

#include <curl/curl.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "common/log.h"

namespace baton::router::tracing {
namespace {

// How late a Cancel may be noticed, at most.
constexpr absl::Duration kLook = absl::Milliseconds(50);

// Longer wishes of a server are cut.
constexpr absl::Duration kMaxRetryAfter = absl::Minutes(5);

absl::Time MonotonicNow() { return Clock::Monotonic()->Now(); }

void SetUpCurlOnce() {
  static const bool set_up = [] {
    CHECK_EQ(curl_global_init(CURL_GLOBAL_DEFAULT), CURLE_OK);
    return true;
  }();
  static_cast<void>(set_up);
}

struct Answer {
  std::string body;
  size_t max_bytes = 0;
};

size_t TakeBody(char* data, size_t size, size_t count, void* into) {
  auto* const answer = static_cast<Answer*>(into);
  const size_t bytes = size * count;
  const size_t room = answer->max_bytes - answer->body.size();
  answer->body.append(data, std::min(bytes, room));
  return bytes;
}

}  // namespace

// What libcurl has: one connection's worth of handles.
class HttpPost::Handles final {
 public:
  explicit Handles(const Options& options) {
    SetUpCurlOnce();
    easy = curl_easy_init();
    multi = curl_multi_init();
    CHECK(easy != nullptr && multi != nullptr) << "libcurl has no memory";
    for (const auto& [key, value] : options.headers) {
      // "Key;" is how libcurl is told of an empty value.
      const std::string line = value.empty() ? absl::StrCat(key, ";")
                                             : absl::StrCat(key, ": ", value);
      lines = curl_slist_append(lines, line.c_str());
    }
    // Not "Expect: 100-continue": collectors are slow to answer that.
    lines = curl_slist_append(lines, "Expect:");
    curl_easy_setopt(easy, CURLOPT_URL, options.url.c_str());
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, lines);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_POST, 1L);
    // No signals in a program with threads, and no wait for a resolver that
    // hangs.
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
    curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, error);
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &TakeBody);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, &answer);
    if (!options.ca_file.empty()) {
      curl_easy_setopt(easy, CURLOPT_CAINFO, options.ca_file.c_str());
    }
    answer.max_bytes = options.max_answer_bytes;
  }

  ~Handles() {
    curl_easy_cleanup(easy);
    curl_multi_cleanup(multi);
    curl_slist_free_all(lines);
  }

  CURL* easy = nullptr;
  CURLM* multi = nullptr;
  curl_slist* lines = nullptr;
  Answer answer;
  char error[CURL_ERROR_SIZE] = {};
};

HttpPost::HttpPost(const Options& options)
    : options_(options),
      handles_(std::make_unique<Handles>(options_)),
      cancel_at_(std::numeric_limits<int64_t>::max()) {}

HttpPost::~HttpPost() = default;

void HttpPost::Cancel(absl::Time deadline) {
  cancel_at_ = absl::ToUnixNanos(deadline);
  curl_multi_wakeup(handles_->multi);
}

HttpPost::Result HttpPost::Post(const std::string& body,
                                absl::Duration timeout) {
  Handles& h = *handles_;
  h.answer.body.clear();
  h.error[0] = '\0';
  curl_easy_setopt(h.easy, CURLOPT_POSTFIELDS, body.data());
  curl_easy_setopt(h.easy, CURLOPT_POSTFIELDSIZE_LARGE,
                   static_cast<curl_off_t>(body.size()));
  const absl::Time deadline = MonotonicNow() + timeout;
  Result result;
  CHECK_EQ(curl_multi_add_handle(h.multi, h.easy), CURLM_OK);
  int running = 1;
  while (true) {
    if (curl_multi_perform(h.multi, &running) != CURLM_OK || running == 0) {
      break;
    }
    const absl::Time until =
        std::min(deadline, absl::FromUnixNanos(cancel_at_.load()));
    const absl::Duration left = until - MonotonicNow();
    if (left <= absl::ZeroDuration()) break;
    curl_multi_poll(
        h.multi, nullptr, 0,
        static_cast<int>(absl::ToInt64Milliseconds(std::min(left, kLook))) + 1,
        nullptr);
  }
  int queued = 0;
  const CURLMsg* const message = curl_multi_info_read(h.multi, &queued);
  if (message == nullptr) {
    result.error = "no answer in time";
  } else if (message->data.result != CURLE_OK) {
    result.error =
        h.error[0] != '\0' ? h.error : curl_easy_strerror(message->data.result);
  } else {
    long status = 0;  // NOLINT: libcurl's type
    curl_off_t seconds = 0;
    curl_easy_getinfo(h.easy, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(h.easy, CURLINFO_RETRY_AFTER, &seconds);
    result.status = static_cast<int>(status);
    result.body = h.answer.body;
    if (seconds > 0) {
      result.retry_after = std::min(absl::Seconds(seconds), kMaxRetryAfter);
    }
  }
  curl_multi_remove_handle(h.multi, h.easy);
  return result;
}

}  // namespace baton::router::tracing
