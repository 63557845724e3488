#include "router/http/request_parser.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace baton::router::http {
namespace {

using State = RequestParser::State;

// Feeds `text` in pieces of `piece` bytes, as a connection would.
size_t FeedInPieces(absl::string_view text, size_t piece,
                    RequestParser* parser) {
  size_t used = 0;
  size_t given = 0;
  while (given < text.size() && parser->state() != State::kComplete &&
         parser->state() != State::kFailed) {
    given = std::min(text.size(), given + piece);
    // On the heap and of that size, so that sanitizers see reads past the end.
    const std::string bytes(text.substr(used, given - used));
    used += parser->Feed(bytes);
  }
  return used;
}

TEST(RequestParserTest, ReadsARequestWithoutABody) {
  const std::string text =
      "GET /v1/models%20x?limit=3&after=%41 HTTP/1.1\r\nHost: a\r\n"
      "X-Mixed-CASE:  two words \r\n\r\n";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    RequestParser parser({});
    EXPECT_EQ(FeedInPieces(text, piece, &parser), text.size());
    ASSERT_EQ(parser.state(), State::kComplete) << piece;
    EXPECT_TRUE(parser.keep_alive());
    EXPECT_TRUE(parser.http11());
    const Request request = parser.TakeRequest();
    EXPECT_EQ(request.method, "GET");
    EXPECT_EQ(request.path, "/v1/models x");
    EXPECT_EQ(request.query, "limit=3&after=%41");
    EXPECT_EQ(request.Header("x-mixed-case"), "two words");
    EXPECT_EQ(request.body, "");
  }
}

TEST(RequestParserTest, LeavesTheNextRequestAlone) {
  const std::string first =
      "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello";
  const std::string second = "GET /b HTTP/1.1\r\nHost: a\r\n\r\n";
  RequestParser parser({});
  EXPECT_EQ(parser.Feed(first + second), first.size());
  ASSERT_EQ(parser.state(), State::kComplete);
  EXPECT_EQ(parser.TakeRequest().body, "hello");
}

TEST(RequestParserTest, ReadsChunksInPiecesOfAnySize) {
  const std::string text =
      "\r\nPOST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n"
      "5\r\nhello\r\n00a;name=\"va;lue\"\r\n, wide wor\r\n2\r\nld\r\n0\r\n"
      "Content-MD5: x\r\nHost: trailer\r\n\r\nGET";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    RequestParser parser({});
    EXPECT_EQ(FeedInPieces(text, piece, &parser), text.size() - 3) << piece;
    ASSERT_EQ(parser.state(), State::kComplete) << piece;
    const Request request = parser.TakeRequest();
    EXPECT_EQ(request.body, "hello, wide world");
    EXPECT_EQ(request.Header("content-md5"), "");
  }
}

TEST(RequestParserTest, ReadsAnEmptyChunkedBodyByteByByte) {
  const std::string text =
      "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "0\r\n\r\n";
  RequestParser parser({});
  EXPECT_EQ(FeedInPieces(text, 1, &parser), text.size());
  ASSERT_EQ(parser.state(), State::kComplete);
  EXPECT_EQ(parser.TakeRequest().body, "");
}

TEST(RequestParserTest, KnowsWhoWantsToGoOn) {
  const std::vector<std::pair<std::string, bool>> cases = {
      {"GET / HTTP/1.1\r\nHost: a\r\n\r\n", true},
      {"GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n", false},
      {"GET / HTTP/1.0\r\n\r\n", false},
      {"GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true},
  };
  for (const auto& [text, keep_alive] : cases) {
    RequestParser parser({});
    parser.Feed(text);
    ASSERT_EQ(parser.state(), State::kComplete) << text;
    EXPECT_EQ(parser.keep_alive(), keep_alive) << text;
  }
}

TEST(RequestParserTest, TellsWhoWaitsForContinue) {
  RequestParser parser({});
  parser.Feed(
      "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n"
      "Expect: 100-Continue\r\n\r\n");
  EXPECT_EQ(parser.state(), State::kBody);
  EXPECT_TRUE(parser.expects_continue());
  EXPECT_EQ(parser.body_bytes(), 0u);
  parser.Feed("o");
  EXPECT_EQ(parser.body_bytes(), 1u);
  parser.Feed("k");
  EXPECT_EQ(parser.state(), State::kComplete);
}

struct BadRequest {
  std::string text;
  int status;
};

std::vector<BadRequest> BadRequests() {
  const std::string post = "POST / HTTP/1.1\r\nHost: a\r\n";
  const std::string chunked = post + "Transfer-Encoding: chunked\r\n\r\n";
  return {
      {"GARBAGE\r\n\r\n", 400},
      {"GET /\r\n\r\n", 400},
      {"GET  / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\nHost: a\n\n", 505},
      {"GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n", 400},
      {"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505},
      {"GET / HTTP/0.9\r\nHost: a\r\n\r\n", 505},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {"GET / HTTPS/1.1\r\nHost: a\r\n\r\n", 505},
      {"G@T / HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"CONNECT host:80 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /a%4 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET /a%00 HTTP/1.1\r\nHost: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n\r\n", 400},  // no Host
      {"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nX : y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\n: y\r\n\r\n", 400},
      {"GET / HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", 400},
      {absl::StrCat("GET / HTTP/1.1\r\nHost: a\r\nX: ",
                    absl::string_view("\0", 1), "\r\n\r\n"),
       400},
      // Requests whose end others could see elsewhere.
      {post + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {post + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nContent-Length: 4\r\n\r\n", 400},
      {post + "Content-Length: 3\r\nContent-Length: 3\r\n\r\n", 400},
      {post + "Content-Length: 3, 3\r\n\r\n", 400},
      {post + "Content-Length: +3\r\n\r\n", 400},
      {post + "Content-Length: -3\r\n\r\n", 400},
      {post + "Content-Length: 0x3\r\n\r\n", 400},
      {post + "Content-Length: \r\n\r\n", 400},
      {post + "Content-Length: 99999999999999999999\r\n\r\n", 400},
      {post + "Transfer-Encoding: gzip, chunked\r\n\r\n", 501},
      {post + "Transfer-Encoding: chunked, identity\r\n\r\n", 501},
      {post + "Transfer-Encoding: xchunked\r\n\r\n", 501},
      {post + "Transfer-Encoding: identity\r\n\r\n", 501},
      {post + "Transfer-Encoding:\r\n\r\n", 501},
      {post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n",
       400},
      {"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
      {chunked + "x\r\n", 400},
      {chunked + "\r\n", 400},
      {chunked + "-1\r\n", 400},
      {chunked + "0x5\r\nhello\r\n", 400},
      {chunked + "5 x\r\nhello\r\n", 400},
      {chunked + "5\nhello\r\n0\r\n\r\n", 400},
      {chunked + "5\r\nhelloXX3\r\n", 400},
      {chunked + "5\r\nhello3\r\nabc\r\n", 400},
      {chunked + "5;a=\"\n\"\r\nhello\r\n", 400},
      {chunked + "FFFFFFFFFFFFFFFFF\r\n", 400},
      {chunked + "0\r\nbad trailer\r\n\r\n", 400},
      {chunked + "0\r\nContent-Length: 5\r\n\r\n", 400},
      {post + "Expect: tea\r\nContent-Length: 1\r\n\r\n", 417},
  };
}

TEST(RequestParserTest, RefusesMalformedRequestsInPiecesOfAnySize) {
  for (const BadRequest& bad : BadRequests()) {
    for (const size_t piece : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}}) {
      RequestParser parser({});
      // In pieces some are seen to be bad at their end only.
      FeedInPieces(bad.text + "\r\n\r\n", piece, &parser);
      ASSERT_EQ(parser.state(), State::kFailed) << piece << " " << bad.text;
      EXPECT_EQ(parser.failure().status, bad.status) << bad.text;
      EXPECT_THAT(parser.failure().message, testing::EndsWith("."));
    }
  }
}

TEST(RequestParserTest, BoundsHeaders) {
  const RequestParser::Limits limits = {1000, 100};
  const std::string begin = "GET / HTTP/1.1\r\nHost: a\r\n";
  std::string many = begin;
  while (many.size() < 1100) many += "Abcdefg: 12345\r\n";
  std::string count = begin;
  for (int i = 0; i < 101; ++i) count += "A:\r\n";
  const std::vector<std::string> large = {
      begin + "Long: " + std::string(1100, 'x') + "\r\n\r\n",
      "GET /" + std::string(1100, 'x') + " HTTP/1.1\r\nHost: a\r\n\r\n",
      std::string(1100, 'x'),
      begin + std::string(1100, 'x'),
      many + "\r\n",
      count + "\r\n",
  };
  for (const std::string& text : large) {
    for (const size_t piece : {size_t{1}, size_t{300}, size_t{10000}}) {
      RequestParser parser(limits);
      FeedInPieces(text, piece, &parser);
      ASSERT_EQ(parser.state(), State::kFailed) << piece << " " << text;
      EXPECT_EQ(parser.failure().status, 431) << text;
    }
  }
  RequestParser parser(limits);
  parser.Feed(begin + "Long: " + std::string(900, 'x') + "\r\n\r\n");
  EXPECT_EQ(parser.state(), State::kComplete);
}

TEST(RequestParserTest, BoundsBodies) {
  const RequestParser::Limits limits = {1000, 10};
  const std::string begin = "POST / HTTP/1.1\r\nHost: a\r\n";
  for (const std::string& text :
       {begin + "Content-Length: 11\r\n\r\n",
        begin + "Transfer-Encoding: chunked\r\n\r\nb\r\n",
        begin + "Transfer-Encoding: chunked\r\n\r\n6\r\n123456\r\n5\r\n"}) {
    RequestParser parser(limits);
    FeedInPieces(text, 7, &parser);
    ASSERT_EQ(parser.state(), State::kFailed) << text;
    EXPECT_EQ(parser.failure().status, 413);
  }
  RequestParser parser(limits);
  parser.Feed(begin + "Content-Length: 10\r\n\r\n0123456789");
  EXPECT_EQ(parser.state(), State::kComplete);
}

// Before the body has come.
TEST(RequestParserTest, ShowsTheHead) {
  RequestParser parser({});
  parser.Feed(
      "POST /a HTTP/1.1\r\nHost: a\r\nX-B: c\r\nContent-Length: 9\r\n\r\nd");
  ASSERT_EQ(parser.state(), State::kBody);
  EXPECT_EQ(parser.head()->path, "/a");
  EXPECT_EQ(parser.head()->Header("x-b"), "c");
  EXPECT_EQ(parser.body_length(), 9u);
  EXPECT_EQ(parser.body_bytes(), 1u);
  RequestParser chunked({});
  chunked.Feed(
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  ASSERT_EQ(chunked.state(), State::kBody);
  EXPECT_EQ(chunked.body_length(), std::nullopt);
}

TEST(RequestParserTest, CountsEmptyLines) {
  EXPECT_EQ(RequestParser::EmptyLines(""), 0u);
  EXPECT_EQ(RequestParser::EmptyLines("\r"), 0u);
  EXPECT_EQ(RequestParser::EmptyLines("\r\n\r\n\r"), 4u);
  EXPECT_EQ(RequestParser::EmptyLines("\r\nGET"), 2u);
  EXPECT_EQ(RequestParser::EmptyLines("\nGET"), 0u);
}

// The framing of chunks is not in the limit of bodies.
TEST(RequestParserTest, BoundsTheFramingOfChunks) {
  const std::string begin =
      "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string& endless :
       {"5;x=" + std::string(2000, 'y'), "0\r\nA: " + std::string(2000, 'y'),
        "5;x=\"" + std::string(2000, '\n')}) {
    RequestParser parser({1000, 100});
    FeedInPieces(begin + endless, 100, &parser);
    ASSERT_EQ(parser.state(), State::kFailed) << endless;
  }
}

}  // namespace
}  // namespace baton::router::http
