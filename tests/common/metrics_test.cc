#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton::metrics {
namespace {

using ::testing::HasSubstr;

std::string Http(int port, const std::string& method, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
            0);
  const std::string request = absl::StrCat(
      method, " ", path, " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(write(fd, request.data(), request.size()),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  close(fd);
  return answer;
}

std::string HttpGet(int port, const std::string& path) {
  return Http(port, "GET", path);
}

TEST(MetricsTest, ServesWhatIsCounted) {
  Metrics metrics(Labels{{"role", "router"}});
  metrics.Counter("baton_things_total", "Things.", {{"kind", "a"}})
      ->Increment(3);
  metrics.Histogram("baton_wait_seconds", "Waits.", {0.5, 1})->Observe(0.7);
  const absl::StatusOr<int> port = metrics.Serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  const std::string page = HttpGet(*port, "/metrics");
  EXPECT_THAT(page, HasSubstr("200 OK"));
  EXPECT_THAT(page,
              HasSubstr("baton_things_total{role=\"router\",kind=\"a\"} 3"));
  EXPECT_THAT(page, HasSubstr("baton_wait_seconds_bucket{role=\"router\","
                              "le=\"1\"} 1"));
}

TEST(MetricsTest, ServesOtherPagesAndNothingElse) {
  Metrics metrics(Labels{});
  int calls = 0;
  metrics.AddPage("/healthz", [&calls] {
    return Page{.status = ++calls == 1 ? 200 : 503,
                .content_type = "application/json",
                .body = absl::StrCat("{\"calls\":", calls, "}")};
  });
  const absl::StatusOr<int> port = metrics.Serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok()) << port.status();
  const std::string first = HttpGet(*port, "/healthz");
  EXPECT_THAT(first, HasSubstr("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(first, HasSubstr("Content-Type: application/json\r\n"));
  EXPECT_THAT(first, HasSubstr("\r\n\r\n{\"calls\":1}"));
  const std::string second = HttpGet(*port, "/healthz?verbose");
  EXPECT_THAT(second, HasSubstr("HTTP/1.1 503 "));
  EXPECT_THAT(second, HasSubstr("{\"calls\":2}"));
  for (const char* path : {"/", "/metric", "/metrics/more", "/healthz/",
                           "/../metrics/x", "/%00"}) {
    EXPECT_THAT(HttpGet(*port, path), ::testing::Not(HasSubstr("200 OK")))
        << path;
  }
  EXPECT_THAT(HttpGet(*port, "/elsewhere"), HasSubstr("HTTP/1.1 404 "));
  EXPECT_THAT(Http(*port, "POST", "/healthz"), HasSubstr("HTTP/1.1 405 "));
  EXPECT_EQ(calls, 2);
}

TEST(MetricsTest, TheServerEndsAtOnce) {
  absl::Duration fastest = absl::InfiniteDuration();
  for (int i = 0; i < 5; ++i) {
    auto metrics = std::make_unique<Metrics>(Labels{});
    ASSERT_TRUE(metrics->Serve("127.0.0.1:0").ok());
    const absl::Time before = Clock::Monotonic()->Now();
    metrics.reset();
    fastest = std::min(fastest, Clock::Monotonic()->Now() - before);
  }
  // Left to itself civetweb takes up to two seconds each time. The machine may
  // be busy, but not five times.
  EXPECT_LT(fastest, absl::Seconds(1));
}

TEST(MetricsTest, TheSameNameAndLabelsAreTheSameMetric) {
  Metrics metrics(Labels{});
  EXPECT_EQ(metrics.Counter("c", "h", {{"k", "v"}}),
            metrics.Counter("c", "h", {{"k", "v"}}));
}

TEST(MetricsTest, APortInUseIsAClearError) {
  Metrics first(Labels{}), second(Labels{});
  const absl::StatusOr<int> port = first.Serve("127.0.0.1:0");
  ASSERT_TRUE(port.ok());
  const std::string address = absl::StrCat("127.0.0.1:", *port);
  const absl::StatusOr<int> again = second.Serve(address);
  EXPECT_EQ(again.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(again.status().message()), HasSubstr(address));
}

TEST(MetricsTest, BucketEdgesRise) {
  for (const Buckets& edges :
       {TtftBuckets(), InterTokenBuckets(), RequestBuckets(), TransferBuckets(),
        StepBuckets(), ByteBuckets(), TokenBuckets(), ExtentBuckets(),
        ShareBuckets()}) {
    EXPECT_TRUE(std::is_sorted(edges.begin(), edges.end(),
                               [](double a, double b) { return a <= b; }));
  }
}

TEST(MetricsTest, APartHasLabelsOfItsOwn) {
  Metrics whole(Labels{{"worker", "w"}});
  Metrics one(whole, {{"role", "one"}}), two(whole, {{"role", "two"}});
  EXPECT_NE(one.Counter("c_total", "Things."),
            two.Counter("c_total", "Things."));
  one.Counter("c_total", "Things.")->Increment();
  one.Gauge("g", "Others.", {{"peer", "p"}})->Set(3);
  one.Gauge("g", "Others.", {{"peer", "q"}})->Set(4);
  two.Gauge("g", "Others.", {{"peer", "p"}})->Set(5);
  one.RemoveGauge("g", "Others.", {{"peer", "p"}});
  const std::string text = whole.Text();
  EXPECT_EQ(text, one.Text());
  EXPECT_THAT(text, HasSubstr("c_total{worker=\"w\",role=\"one\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("c_total{worker=\"w\",role=\"two\"} 0\n"));
  EXPECT_THAT(text,
              testing::Not(HasSubstr("g{worker=\"w\",peer=\"p\",role=\"one")));
  EXPECT_THAT(text, HasSubstr("g{worker=\"w\",peer=\"q\",role=\"one\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("g{worker=\"w\",peer=\"p\",role=\"two\"} 5\n"));
  // One family, with one line of help.
  EXPECT_EQ(text.find("# HELP c_total"), text.rfind("# HELP c_total"));
  // A full family of one part says so with that part's label.
  for (int i = 0; i < 1200; ++i) {
    one.Counter("m_total", "Many.", {{"peer", absl::StrCat(i)}})->Increment();
  }
  EXPECT_THAT(
      whole.Text(),
      HasSubstr("m_total{worker=\"w\",peer=\"other\",role=\"one\"} 200\n"));
}

// Labels that come from outside cannot fill the memory of a scraper.
TEST(MetricsTest, MembersOfAFamilyAreBounded) {
  Metrics metrics(Labels{{"role", "router"}});
  const auto counter = [&](int i) {
    return metrics.Counter("baton_things_total", "Things.",
                           {{"peer", absl::StrCat("p", i)}});
  };
  for (int i = 0; i < 1200; ++i) counter(i)->Increment();
  // Those that there are stay what they are.
  EXPECT_NE(counter(3), counter(4));
  EXPECT_EQ(counter(1100), counter(1101));
  counter(3)->Increment();
  const std::string text = metrics.Text();
  EXPECT_THAT(text, HasSubstr("{role=\"router\",peer=\"p3\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("{role=\"router\",peer=\"other\"} 200\n"));
  EXPECT_THAT(text, testing::Not(HasSubstr("\"p1100\"")));
}

}  // namespace
}  // namespace baton::metrics
