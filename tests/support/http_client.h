// A plain HTTP/1.1 client on a blocking socket that reads an answer piece by
// piece, so that a test sees what was streamed when.
//
// One thread at a time. Every wait ends after kPatience with a failed test.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace baton::test {

class HttpClient final {
 public:
  static constexpr absl::Duration kPatience = absl::Seconds(20);

  struct Reply {
    int status = 0;
    std::vector<std::pair<std::string, std::string>> headers;  // lower case
    std::string body;

    // Empty when there is none.
    std::string Header(absl::string_view name) const;
  };
  using Headers = std::vector<std::pair<std::string, std::string>>;

  // Connects to "127.0.0.1:PORT".
  explicit HttpClient(const std::string& address);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  // Sends a request and reads the whole answer.
  Reply Get(const std::string& path, const Headers& headers = {});
  Reply Post(const std::string& path, const std::string& body,
             const Headers& headers = {});

  // In steps: sends a request; reads the head of its answer; reads events of a
  // stream ("data: X" gives X) until it ends.
  void Send(const std::string& method, const std::string& path,
            const std::string& body, const Headers& headers = {});
  Reply ReadHead();
  // Head and body.
  Reply ReadReply();
  // Passes over comments.
  std::optional<std::string> ReadEvent();
  // How many there were.
  int comments() const { return comments_; }
  // Of the event that was read last, where it has one ("event: X").
  const std::string& event_name() const { return event_name_; }

  // Ends the connection at once.
  void Close();

 private:
  // More bytes into buffer_; false at the end of the connection.
  bool Fill();
  std::string ReadLine();
  // The next chunk of a chunked body; empty at its end.
  std::string ReadChunk();
  std::string ReadBody(const Reply& head);

  int fd_ = -1;
  std::string buffer_;
  std::string events_;  // of the body, not yet read by ReadEvent
  std::string event_name_;
  int comments_ = 0;
  bool chunked_ = false;
  bool body_over_ = false;
};

}  // namespace baton::test
