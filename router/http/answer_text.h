// Answers as bytes of HTTP/1. Pure, except for the date; any thread.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "router/http/http_message.h"

namespace baton::router::http {

// What the request says about the form of its answer.
struct AnswerShape {
  bool http11 = true;      // else the client is an HTTP/1.0 one
  bool keep_alive = true;  // the client wants to go on with the connection
  bool head = false;       // the method was HEAD: headers only
};

// How the client sees the end of the body.
enum class Framing {
  kLength,   // Content-Length
  kChunked,  // a chunk of length zero
  kClose,    // the end of the connection, for HTTP/1.0
};

// Appends the status line and the headers. Headers of `response` that are the
// server's, or that would break the head, are left out. Its body gives the
// Content-Length, and is not appended.
void AppendHead(const Response& response, const AnswerShape& shape,
                Framing framing, bool keep_alive, std::string* out);

// Appends one chunk. REQUIRES: `bytes` is not empty, which would end the body.
void AppendChunk(absl::string_view bytes, std::string* out);
inline constexpr absl::string_view kLastChunk = "0\r\n\r\n";

// Whether answers of that status have a body.
bool HasBody(int status);

// What the server itself says to a request it does not serve, in the shape that
// clients of OpenAI's API know.
Response ErrorResponse(int status, absl::string_view message);

// The whole text of an answer after which the connection is closed.
std::string LastText(const Response& response);
std::string ErrorText(int status, absl::string_view message);

}  // namespace baton::router::http
