#include "common/metrics/metrics.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <exception>
#include <thread>
#include <utility>

#include <prometheus/text_serializer.h>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "common/log.h"

namespace baton::metrics {
namespace {

Buckets Geometric(double first, double factor, int count) {
  Buckets edges;
  for (int i = 0; i < count; ++i, first *= factor) edges.push_back(first);
  return edges;
}

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

}  // namespace

Buckets TtftBuckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
}

Buckets InterTokenBuckets() {
  return {.002, .004, .006, .008, .01, .015, .02, .025, .03, .035, .04, .05,
          .06,  .075, .08,  .1,   .15, .2,   .3,  .4,   .5,  .6,   .75, .8,
          1,    2,    2.5,  4,    5,   6,    7.5, 8,    10,  20,   40,  80};
}

Buckets RequestBuckets() {
  return {.01, .03, .1, .3, .5, .8, 1,   1.5, 2,   2.5, 5,    10,
          15,  20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}

Buckets TransferBuckets() {
  return {50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3,
          50e-3, .1,     .2,     .5,     1,    2,    5,    10};
}

Buckets StepBuckets() {
  return {.0002, .0005, .001, .002, .004, .006, .008, .01, .015, .02, .03, .04,
          .06,   .08,   .1,   .15,  .2,   .3,   .5,   1,   2,    5,   10};
}

Buckets ByteBuckets() { return Geometric(4096, 4, 13); }

Buckets TokenBuckets() { return Geometric(1, 2, 15); }

Metrics::Metrics(Labels labels)
    : labels_(std::move(labels)),
      registry_(std::make_shared<prometheus::Registry>()) {}

Metrics::~Metrics() {
  if (exposer_ == nullptr) return;
  // civetweb's listening thread looks whether it is to stop when a connection
  // comes, and otherwise every two seconds: too long for the end of a program.
  absl::Notification stopped;
  std::thread stopper([this, &stopped] {
    exposer_.reset();
    stopped.Notify();
  });
  while (!stopped.WaitForNotificationWithTimeout(absl::Milliseconds(5))) {
    Knock(served_host_, served_port_);
  }
  stopper.join();
}

prometheus::Counter* Metrics::Counter(const std::string& name,
                                      const std::string& help,
                                      const Labels& extra) {
  return &prometheus::BuildCounter()
              .Name(name)
              .Help(help)
              .Labels(labels_)
              .Register(*registry_)
              .Add(extra);
}

prometheus::Gauge* Metrics::Gauge(const std::string& name,
                                  const std::string& help,
                                  const Labels& extra) {
  return &prometheus::BuildGauge()
              .Name(name)
              .Help(help)
              .Labels(labels_)
              .Register(*registry_)
              .Add(extra);
}

prometheus::Histogram* Metrics::Histogram(const std::string& name,
                                          const std::string& help,
                                          const Buckets& buckets,
                                          const Labels& extra) {
  return &prometheus::BuildHistogram()
              .Name(name)
              .Help(help)
              .Labels(labels_)
              .Register(*registry_)
              .Add(extra, buckets);
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

absl::StatusOr<int> Metrics::Serve(const std::string& address) {
  CHECK(exposer_ == nullptr) << "Serve is called once";
  try {
    // One thread is enough for a scraper; civetweb throws when it cannot bind.
    exposer_ = std::make_unique<prometheus::Exposer>(address,
                                                     /*num_threads=*/1);
  } catch (const std::exception& e) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve /metrics on ", address,
                     ": the address is in use or not one of this machine's (",
                     e.what(), ")"));
  }
  exposer_->RegisterCollectable(registry_);
  const std::vector<int> ports = exposer_->GetListeningPorts();
  if (ports.empty()) {
    return absl::UnavailableError(
        absl::StrCat("cannot serve /metrics on ", address));
  }
  served_host_ = address.substr(0, address.rfind(':'));
  served_port_ = ports.front();
  return served_port_;
}

}  // namespace baton::metrics
