#include "common/metrics/page_server.h"

#include <civetweb.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace baton::metrics {
namespace {

// Opens a connection and closes it again. Whether it works does not matter.
void Knock(const std::string& host, int port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.empty() ? nullptr : host.c_str(),
                  absl::StrCat(port).c_str(), &hints, &found) != 0) {
    return;
  }
  const int fd =
      socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd >= 0) {
    // Not blocking: the kernel takes the connection without the server's help.
    if (connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
      shutdown(fd, SHUT_RDWR);
    }
    close(fd);
  }
  freeaddrinfo(found);
}

void Send(mg_connection* connection, const Page& page) {
  const std::string head =
      absl::StrCat("HTTP/1.1 ", page.status, " ",
                   mg_get_response_code_text(connection, page.status),
                   "\r\nContent-Type: ", page.content_type,
                   "\r\nContent-Length: ", page.body.size(),
                   "\r\nCache-Control: no-store\r\nConnection: close\r\n",
                   page.status == 405 ? "Allow: GET\r\n" : "", "\r\n");
  // A client that is gone is no concern of the server.
  if (mg_write(connection, head.data(), head.size()) > 0 &&
      !page.body.empty()) {
    mg_write(connection, page.body.data(), page.body.size());
  }
}

// The server's callback for every request; returns the status that was sent.
int Answer(mg_connection* connection, void* pages_argument) {
  const auto& pages =
      *static_cast<const std::map<std::string, MakePage>*>(pages_argument);
  const mg_request_info* const request = mg_get_request_info(connection);
  const auto found = pages.find(request->local_uri);
  Page page;
  if (found == pages.end()) {
    page.status = 404;
    page.body = "no such page\n";
  } else if (std::string_view(request->request_method) != "GET") {
    page.status = 405;
    page.body = "only GET\n";
  } else {
    page = found->second();
  }
  Send(connection, page);
  return page.status;
}

}  // namespace

PageServer::PageServer(std::map<std::string, MakePage> pages)
    : pages_(std::move(pages)) {
  mg_init_library(MG_FEATURES_DEFAULT);
}

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Start(
    const std::string& address, std::map<std::string, MakePage> pages) {
  std::unique_ptr<PageServer> server(new PageServer(std::move(pages)));
  // So many threads that a probe waits neither for a scraper nor for some who
  // send nothing; those have a thread for a second and a half at most.
  const char* options[] = {
      "listening_ports",    address.c_str(), "num_threads", "8",
      "request_timeout_ms", "1500",          nullptr};
  const mg_callbacks callbacks = {};
  server->context_ = mg_start(&callbacks, nullptr, options);
  mg_server_port ports[1] = {};
  if (server->context_ == nullptr ||
      mg_get_server_ports(server->context_, 1, ports) < 1) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve /metrics on ", address,
                     ": the address is in use or not one of this machine's"));
  }
  server->host_ = address.substr(0, address.rfind(':'));
  server->port_ = ports[0].port;
  mg_set_request_handler(
      server->context_, "**", &Answer,
      const_cast<std::map<std::string, MakePage>*>(&server->pages_));
  return server;
}

PageServer::~PageServer() {
  if (context_ != nullptr) {
    // civetweb's listening thread looks whether it is to stop when a connection
    // comes, and otherwise every two seconds: too long for the end of a
    // program.
    absl::Notification stopped;
    std::thread stopper([this, &stopped] {
      mg_stop(context_);
      stopped.Notify();
    });
    while (!stopped.WaitForNotificationWithTimeout(absl::Milliseconds(5))) {
      Knock(host_, port_);
    }
    stopper.join();
  }
  mg_exit_library();
}

}  // namespace baton::metrics
