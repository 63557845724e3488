#include "router/http/exchange.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::router::http {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using Next = Exchange::Next;

class ExchangeTest : public testing::Test {
 protected:
  std::shared_ptr<Exchange> Make(AnswerShape shape = {}) {
    return std::make_shared<Exchange>(shape, /*max_pending_bytes=*/100, &queue_,
                                      nullptr);
  }
  // How many exchanges wait in the queue, which is emptied.
  size_t TakeQueue() {
    size_t taken = 0;
    std::vector<std::shared_ptr<Exchange>> ready;
    while (queue_.Take(&ready)) {
      taken += ready.size();
      ready.clear();
    }
    return taken;
  }
  // What is to be sent.
  std::string Take(Exchange* exchange) {
    std::string text;
    output_ = exchange->Take(&text);
    return text;
  }

  int wakes_ = 0;
  AnswerQueue queue_{[this] { ++wakes_; }};
  Exchange::Output output_;
};

TEST_F(ExchangeTest, SendsAWholeAnswer) {
  auto exchange = Make();
  Response response;
  response.status = 404;
  response.headers = {{"X-A", "b"}, {"Content-Length", "9"}, {"X-B", "c\r\nd"}};
  response.body = "nothing";
  exchange->Send(response);
  EXPECT_EQ(TakeQueue(), 1u);
  const std::string text = Take(exchange.get());
  EXPECT_THAT(text, StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(text, HasSubstr("\r\nX-A: b\r\n"));
  EXPECT_THAT(text, HasSubstr("\r\nContent-Length: 7\r\n"));
  EXPECT_THAT(text, HasSubstr("\r\nDate: "));
  EXPECT_THAT(text, testing::Not(HasSubstr("X-B")));
  EXPECT_THAT(text, EndsWith("\r\n\r\nnothing"));
  EXPECT_EQ(output_.next, Next::kKeepAlive);
  EXPECT_EQ(output_.status, 404);
}

TEST_F(ExchangeTest, WakesOnceAndSendsAllThatIsThereAsOneChunk) {
  auto exchange = Make();
  Response head;
  head.body = "first ";
  exchange->Start(head);
  EXPECT_TRUE(exchange->Write("second "));
  EXPECT_TRUE(exchange->Write(""));
  EXPECT_TRUE(exchange->Write("third"));
  EXPECT_EQ(wakes_, 1);
  EXPECT_EQ(TakeQueue(), 1u);
  const std::string text = Take(exchange.get());
  EXPECT_THAT(text, HasSubstr("\r\nTransfer-Encoding: chunked\r\n"));
  EXPECT_THAT(text, EndsWith("\r\n\r\n12\r\nfirst second third\r\n"));
  EXPECT_EQ(output_.next, Next::kMore);
  EXPECT_EQ(output_.status, 200);

  EXPECT_TRUE(exchange->Write("x"));
  EXPECT_EQ(wakes_, 2);
  exchange->End();
  EXPECT_EQ(wakes_, 2);
  EXPECT_EQ(Take(exchange.get()), "1\r\nx\r\n0\r\n\r\n");
  EXPECT_EQ(output_.next, Next::kKeepAlive);
  EXPECT_EQ(output_.status, 0);
  EXPECT_FALSE(exchange->Write("late"));
}

TEST_F(ExchangeTest, OneWakeForManyExchanges) {
  std::vector<std::shared_ptr<Exchange>> streams;
  for (int i = 0; i < 100; ++i) {
    streams.push_back(Make());
    streams.back()->Start({});
  }
  EXPECT_EQ(wakes_, 1);
  EXPECT_EQ(TakeQueue(), 100u);
}

TEST_F(ExchangeTest, OldClientsGetTheBytesAlone) {
  AnswerShape shape;
  shape.http11 = false;
  auto exchange = Make(shape);
  exchange->Start({});
  exchange->Write("abc");
  exchange->End();
  const std::string text = Take(exchange.get());
  EXPECT_THAT(text, testing::Not(HasSubstr("Transfer-Encoding")));
  EXPECT_THAT(text, HasSubstr("\r\nConnection: close\r\n"));
  EXPECT_THAT(text, EndsWith("\r\n\r\nabc"));
  EXPECT_EQ(output_.next, Next::kClose);
}

TEST_F(ExchangeTest, HeadAndNoContentHaveNoBody) {
  AnswerShape shape;
  shape.head = true;
  auto whole = Make(shape);
  Response response;
  response.body = "abc";
  whole->Send(response);
  const std::string text = Take(whole.get());
  EXPECT_THAT(text, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_THAT(text, EndsWith("\r\n\r\n"));

  auto stream = Make(shape);
  stream->Start({});
  EXPECT_TRUE(stream->Write("abc"));
  stream->End();
  EXPECT_THAT(Take(stream.get()), EndsWith("chunked\r\n\r\n"));

  auto empty = Make();
  response.status = 204;
  empty->Send(response);
  const std::string no_content = Take(empty.get());
  EXPECT_THAT(no_content, testing::Not(HasSubstr("Content-Length")));
  EXPECT_THAT(no_content, EndsWith("\r\n\r\n"));
}

TEST_F(ExchangeTest, GivesUpWhenTooMuchWaits) {
  auto exchange = Make();
  int gone = 0;
  exchange->OnGone([&] { ++gone; });
  exchange->Start({});
  EXPECT_TRUE(exchange->Write(std::string(60, 'x')));
  Take(exchange.get());
  exchange->SetUnsent(70);
  EXPECT_TRUE(exchange->Write(std::string(60, 'x')));
  EXPECT_TRUE(exchange->Write(std::string(40, 'x')));
  EXPECT_FALSE(exchange->Write("x"));
  EXPECT_FALSE(exchange->Write("x"));
  EXPECT_EQ(Take(exchange.get()), "");
  EXPECT_EQ(output_.next, Next::kGiveUp);
  EXPECT_EQ(gone, 0);
  exchange->Detach();
  EXPECT_EQ(gone, 1);
}

// The client is not to blame for what it was not offered yet.
TEST_F(ExchangeTest, CountsOnlyWhatIsWrittenWhileBytesAreUnsent) {
  auto exchange = Make();
  exchange->Start({});
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(exchange->Write(std::string(1000, 'x')));
    exchange->SetUnsent(1);
    EXPECT_TRUE(exchange->Write(std::string(100, 'x')));
    exchange->SetUnsent(0);
    Take(exchange.get());
  }
  exchange->SetUnsent(1);
  EXPECT_TRUE(exchange->Write(std::string(100, 'x')));
  EXPECT_FALSE(exchange->Write("x"));
}

TEST_F(ExchangeTest, BoundsWhatIsWrittenAtOnce) {
  auto exchange = Make();
  exchange->Start({});
  EXPECT_TRUE(exchange->Write(std::string(6400, 'x')));
  EXPECT_FALSE(exchange->Write("x"));
  Take(exchange.get());
  EXPECT_EQ(output_.next, Next::kGiveUp);
}

TEST_F(ExchangeTest, MoreMayWaitWhereItIsAllowed) {
  auto slow = Make();
  slow->AllowPending(50);
  slow->Start({});
  slow->SetUnsent(1);
  slow->AllowPending(20);
  EXPECT_TRUE(slow->Write(std::string(170, 'x')));
  EXPECT_FALSE(slow->Write("x"));
  auto at_once = Make();
  at_once->AllowPending(50);
  at_once->Start({});
  EXPECT_TRUE(at_once->Write(std::string(6450, 'x')));
  EXPECT_FALSE(at_once->Write("x"));
}

// A connection that sends takes nothing; that the end came it must see at once.
TEST_F(ExchangeTest, AnEndByForceIsOnTheListAgain) {
  auto given_up = Make();
  given_up->Start({});
  EXPECT_EQ(TakeQueue(), 1u);
  given_up->SetUnsent(1);
  EXPECT_TRUE(given_up->Write(std::string(100, 'x')));
  EXPECT_EQ(TakeQueue(), 0u);
  EXPECT_FALSE(given_up->Write("x"));
  EXPECT_EQ(TakeQueue(), 1u);
  EXPECT_FALSE(given_up->Write("x"));
  EXPECT_EQ(TakeQueue(), 0u);
  auto aborted = Make();
  aborted->Start({});
  EXPECT_EQ(TakeQueue(), 1u);
  aborted->Abort();
  EXPECT_EQ(TakeQueue(), 1u);
}

TEST_F(ExchangeTest, SaysWhetherAnAnswerHasBegun) {
  auto exchange = Make();
  EXPECT_FALSE(exchange->begun());
  exchange->Start({});
  EXPECT_TRUE(exchange->begun());
}

TEST_F(ExchangeTest, TellsOnceThatTheClientIsGone) {
  auto exchange = Make();
  int gone = 0;
  exchange->OnGone([&] { ++gone; });
  exchange->Start({});
  exchange->Detach();
  exchange->Detach();
  EXPECT_EQ(gone, 1);
  EXPECT_FALSE(exchange->Write("x"));
  exchange->End();
  exchange->OnGone([&] { gone += 10; });
  EXPECT_EQ(gone, 11);
  EXPECT_EQ(TakeQueue(), 1u);  // of Start
}

TEST_F(ExchangeTest, NobodyIsGoneAfterTheEnd) {
  int gone = 0;
  auto ended = Make();
  ended->OnGone([&] { ++gone; });
  ended->Start({});
  ended->End();
  ended->Detach();
  ended->OnGone([&] { ++gone; });
  auto aborted = Make();
  aborted->OnGone([&] { ++gone; });
  aborted->Start({});
  aborted->Write("abc");
  aborted->Abort();
  EXPECT_THAT(Take(aborted.get()), EndsWith("3\r\nabc\r\n"));
  EXPECT_EQ(output_.next, Next::kAbort);
  aborted->Detach();
  EXPECT_EQ(gone, 0);
}

TEST_F(ExchangeTest, AResponderThatDiesUnansweredTellsTheClient) {
  auto waiting = Make();
  MakeResponder(waiting).reset();
  EXPECT_THAT(Take(waiting.get()), StartsWith("HTTP/1.1 500 "));
  auto streaming = Make();
  {
    const std::shared_ptr<Responder> responder = MakeResponder(streaming);
    responder->Start({});
  }
  Take(streaming.get());
  EXPECT_EQ(output_.next, Next::kAbort);
  auto ended = Make();
  {
    const std::shared_ptr<Responder> responder = MakeResponder(ended);
    responder->Send({});
  }
  Take(ended.get());
  EXPECT_EQ(output_.next, Next::kKeepAlive);
}

Response Head() {
  Response head;
  head.headers = {{"X-A", "b"}};
  return head;
}

TEST_F(ExchangeTest, ASilentAnswerIsKeptAlive) {
  auto exchange = Make();
  exchange->SayAlive();  // nobody asked for it
  EXPECT_EQ(TakeQueue(), 0u);
  exchange->KeepAlive(Head(), "ping");
  EXPECT_EQ(TakeQueue(), 0u);
  exchange->SayAlive();
  EXPECT_EQ(TakeQueue(), 1u);
  const std::string text = Take(exchange.get());
  EXPECT_THAT(text, StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(text, HasSubstr("\r\nX-A: b\r\n"));
  EXPECT_THAT(text, EndsWith("\r\n\r\n4\r\nping\r\n"));
  EXPECT_EQ(output_.status, 200);
  exchange->SayAlive();
  EXPECT_EQ(Take(exchange.get()), "4\r\nping\r\n");
  // The answer goes on where it began.
  Response head = Head();
  head.body = "first";
  exchange->Start(std::move(head));
  EXPECT_EQ(Take(exchange.get()), "5\r\nfirst\r\n");
  EXPECT_TRUE(exchange->Write("next"));
  EXPECT_EQ(Take(exchange.get()), "4\r\nnext\r\n");
  exchange->SayAlive();
  EXPECT_EQ(Take(exchange.get()), "4\r\nping\r\n");
  exchange->End();
  exchange->SayAlive();
  EXPECT_EQ(Take(exchange.get()), "0\r\n\r\n");
}

TEST_F(ExchangeTest, WhatSaysSomethingInTimeIsAsWithoutKeepAlive) {
  auto exchange = Make();
  exchange->KeepAlive(Head(), "ping");
  Response head;
  head.body = "first";
  exchange->Start(std::move(head));
  EXPECT_THAT(Take(exchange.get()), EndsWith("\r\n\r\n5\r\nfirst\r\n"));
  // An answer that is an error keeps its status.
  auto refused = Make();
  refused->KeepAlive(Head(), "ping");
  EXPECT_TRUE(refused->SendUnlessBegun(ErrorResponse(503, "full")));
  EXPECT_THAT(Take(refused.get()), StartsWith("HTTP/1.1 503 "));
  refused->SayAlive();
  EXPECT_EQ(Take(refused.get()), "");
  // One that has begun cannot.
  auto begun = Make();
  begun->KeepAlive(Head(), "ping");
  begun->SayAlive();
  EXPECT_FALSE(begun->SendUnlessBegun(ErrorResponse(503, "full")));
  EXPECT_TRUE(begun->Write("error"));
  begun->End();
  EXPECT_THAT(Take(begun.get()), EndsWith("9\r\npingerror\r\n0\r\n\r\n"));
}

// For TSan: writes, takes and the client's leaving race.
TEST_F(ExchangeTest, AllSidesAtOnce) {
  for (int round = 0; round < 50; ++round) {
    auto exchange = Make();
    exchange->KeepAlive({}, "y");
    std::thread writer([&] {
      exchange->Start({});
      while (exchange->Write("x")) {
      }
      exchange->End();
    });
    std::string text;
    for (int i = 0; i < 20; ++i) {
      exchange->SayAlive();
      exchange->Take(&text);
    }
    exchange->Detach();
    writer.join();
    TakeQueue();
  }
}

}  // namespace
}  // namespace baton::router::http
