#include "router/http/answer_text.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/log.h"

namespace baton::router::http {
namespace {

absl::string_view ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 301:
      return "Moved Permanently";
    case 302:
      return "Found";
    case 304:
      return "Not Modified";
    case 307:
      return "Temporary Redirect";
    case 308:
      return "Permanent Redirect";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 411:
      return "Length Required";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Content";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    case 529:
      return "Site Is Overloaded";
    default:
      return "Status";
  }
}

// "Sun, 06 Nov 1994 08:49:37 GMT", made once a second in each thread.
absl::string_view HttpDate() {
  thread_local int64_t second = -1;
  thread_local std::string text;
  const absl::Time now = absl::Now();
  if (absl::ToUnixSeconds(now) != second) {
    second = absl::ToUnixSeconds(now);
    text =
        absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT", now, absl::UTCTimeZone());
  }
  return text;
}

bool IsServersOwn(absl::string_view name) {
  for (absl::string_view own : {"content-length", "transfer-encoding",
                                "connection", "keep-alive", "date"}) {
    if (absl::EqualsIgnoreCase(name, own)) return true;
  }
  return false;
}

// Whether a header can be written without ending the line, or the head.
bool IsClean(absl::string_view name, absl::string_view value) {
  const auto is_name = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_';
  };
  const auto is_text = [](unsigned char c) {
    return (c >= ' ' && c != 127) || c == '\t';
  };
  return !name.empty() && std::all_of(name.begin(), name.end(), is_name) &&
         std::all_of(value.begin(), value.end(), is_text);
}

void AppendJsonString(absl::string_view text, std::string* out) {
  constexpr char kDigits[] = "0123456789abcdef";
  out->push_back('"');
  for (const unsigned char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c < ' ') {
      absl::StrAppend(out, "\\u00");
      out->push_back(kDigits[c >> 4]);
      out->push_back(kDigits[c & 15]);
    } else {
      out->push_back(static_cast<char>(c));
    }
  }
  out->push_back('"');
}

}  // namespace

bool HasBody(int status) {
  return status >= 200 && status != 204 && status != 304;
}

void AppendHead(const Response& response, const AnswerShape& shape,
                Framing framing, bool keep_alive, std::string* out) {
  absl::StrAppend(out, "HTTP/1.1 ", response.status, " ",
                  ReasonPhrase(response.status), "\r\nDate: ", HttpDate(),
                  "\r\n");
  for (const auto& [name, value] : response.headers) {
    if (IsServersOwn(name)) continue;
    if (!IsClean(name, value)) {
      LOG_EVERY_N(ERROR, 100) << "an answer's header was left out: its name or "
                                 "value has characters that it must not have";
      continue;
    }
    absl::StrAppend(out, name, ": ", value, "\r\n");
  }
  if (HasBody(response.status)) {
    if (framing == Framing::kLength) {
      absl::StrAppend(out, "Content-Length: ", response.body.size(), "\r\n");
    } else if (framing == Framing::kChunked) {
      absl::StrAppend(out, "Transfer-Encoding: chunked\r\n");
    }
  }
  if (!keep_alive) {
    absl::StrAppend(out, "Connection: close\r\n");
  } else if (!shape.http11) {
    absl::StrAppend(out, "Connection: keep-alive\r\n");
  }
  absl::StrAppend(out, "\r\n");
}

void AppendChunk(absl::string_view bytes, std::string* out) {
  CHECK(!bytes.empty());
  absl::StrAppend(out, absl::Hex(bytes.size()), "\r\n", bytes, "\r\n");
}

Response ErrorResponse(int status, absl::string_view message) {
  Response response;
  response.status = status;
  response.headers.emplace_back("Content-Type", "application/json");
  // For want of room, which there may be soon.
  if (status == 503) response.headers.emplace_back("Retry-After", "1");
  response.body = "{\"error\":{\"message\":";
  AppendJsonString(message, &response.body);
  absl::StrAppend(&response.body, ",\"type\":\"",
                  status < 500 ? "invalid_request_error" : "server_error",
                  "\",\"param\":null,\"code\":null}}");
  return response;
}

std::string LastText(const Response& response) {
  std::string text;
  AppendHead(response, AnswerShape(), Framing::kLength, /*keep_alive=*/false,
             &text);
  text += response.body;
  return text;
}

std::string ErrorText(int status, absl::string_view message) {
  return LastText(ErrorResponse(status, message));
}

}  // namespace baton::router::http
