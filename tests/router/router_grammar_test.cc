// What the router tells workers of requests whose answers are to be something.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "router/text/tokenizer.h"
#include "tests/router/router_fixture.h"
#include "tests/support/await_that.h"

namespace baton::router {
namespace {

using test::AwaitThat;
using test::FakeWorker;

class GrammarTest : public RouterTest {
 protected:
  FakeWorker* AddWorker(v1::WorkerRole role, const std::string& name,
                        bool takes_grammars = true) {
    FakeWorker::Options options;
    options.hello = FakeWorker::Hello(role, name);
    options.hello.set_takes_grammars(takes_grammars);
    return Add(options);
  }
  static v1::GenerateRequest Guided(const std::string& regex) {
    v1::GenerateRequest request = Request();
    request.mutable_response_format()->set_regex(regex);
    return request;
  }
};

TEST_F(GrammarTest, WorkersHearOfTheVocabularyOnceAndOnlyIfTheyNeedIt) {
  FakeWorker* const prefill = AddWorker(v1::WORKER_ROLE_PREFILL, "p0");
  FakeWorker* const decode = AddWorker(v1::WORKER_ROLE_DECODE, "d0");
  StartRouter();
  AwaitPairs(1);
  const auto plain = Generate();
  EXPECT_FALSE(decode->NextReserve().sequence().has_grammar());
  EXPECT_FALSE(decode->HasVocabulary());
  const auto first = Generate(Guided("a"));
  const v1::Vocabulary vocabulary = decode->NextVocabulary();
  EXPECT_EQ(vocabulary.texts_size(), 2048);
  EXPECT_EQ(vocabulary.texts(kEos), "");
  EXPECT_TRUE(decode->NextReserve().sequence().has_grammar());
  const auto second = Generate(Guided("b"));
  EXPECT_TRUE(decode->NextReserve().sequence().has_grammar());
  EXPECT_FALSE(decode->HasVocabulary());
  // A prompt may be computed on either side.
  if (prefill->HasPrefill()) {
    while (!prefill->NextPrefill().sequence().has_grammar()) {
    }
    EXPECT_EQ(prefill->NextVocabulary().texts_size(), 2048);
  }
}

TEST_F(GrammarTest, AStreamThatBeginsAnewHearsItAgain) {
  FakeWorker* const decode = AddWorker(v1::WORKER_ROLE_DECODE, "d0");
  StartRouter();
  AwaitServing(true);
  const auto first = Generate(Guided("a"));
  decode->NextVocabulary();
  const v1::Reserve reserve = decode->NextReserve();
  decode->SendGrant(reserve.attempt());
  decode->SendToken(reserve.attempt(), 0, 'x');
  ASSERT_TRUE(first->ReadTokens(1));
  // Its stream breaks; the request goes on, with the token that there is.
  decode->Break();
  EXPECT_EQ(decode->NextVocabulary().texts_size(), 2048);
  const v1::Reserve again = decode->NextReserve();
  EXPECT_EQ(again.sequence().tokens_size(), 4);
  EXPECT_TRUE(again.sequence().has_grammar());
}

TEST_F(GrammarTest, WhatAWorkerCannotFollowIsNamed) {
  FakeWorker* const decode = AddWorker(v1::WORKER_ROLE_DECODE, "d0");
  StartRouter();
  AwaitServing(true);
  const auto refused = Generate(Guided("a"));
  decode->SendGrammarRefusal(decode->NextReserve().attempt());
  grpc::Status status = refused->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "regex cannot be kept to: no worker can hold the request: d0: "
            "refused by the test");

  // In the middle of an answer.
  const auto failed = Generate(Guided("a"));
  const uint64_t attempt = decode->NextReserve().attempt();
  decode->SendGrant(attempt);
  decode->SendToken(attempt, 0, 'x');
  ASSERT_TRUE(failed->ReadTokens(1));
  v1::Outcome outcome;
  outcome.set_attempt(attempt);
  outcome.set_error("it takes too long");
  outcome.set_failure(v1::FAILURE_KIND_REQUEST);
  decode->SendOutcome(outcome);
  status = failed->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(status.error_message(),
            "regex cannot be kept to: d0: it takes too long");
  // Of a request without a format nothing is said of it.
  const auto plain = Generate();
  outcome.set_attempt(decode->NextReserve().attempt());
  decode->SendOutcome(outcome);
  EXPECT_EQ(plain->Finish().error_message(), "d0: it takes too long");
}

// Workers of an earlier version would not heed a grammar: they and others never
// serve together, so that no answer goes from one to the other.
TEST_F(GrammarTest, FewWorkersOfAnEarlierVersionAreLeftOut) {
  FakeWorker* const old =
      AddWorker(v1::WORKER_ROLE_DECODE, "d0", /*takes_grammars=*/false);
  FakeWorker* const one = AddWorker(v1::WORKER_ROLE_DECODE, "d1");
  FakeWorker* const other = AddWorker(v1::WORKER_ROLE_DECODE, "d2");
  StartRouter();
  AwaitWhyNot("d1", "");
  AwaitWhyNot("d2", "");
  AwaitWhyNot("d0", "grammars (are not taken here, are taken there)");
  const auto guided = Generate(Guided("a"));
  EXPECT_TRUE(
      AwaitThat([&] { return one->HasReserve() || other->HasReserve(); }));
  EXPECT_FALSE(old->HasReserve());
}

TEST_F(GrammarTest, WhereTheyAreMoreNoneIsPromised) {
  AddWorker(v1::WORKER_ROLE_DECODE, "d0", /*takes_grammars=*/false);
  AddWorker(v1::WORKER_ROLE_DECODE, "d1", /*takes_grammars=*/false);
  FakeWorker* const last = AddWorker(v1::WORKER_ROLE_DECODE, "d2");
  StartRouter();
  AwaitWhyNot("d0", "");
  AwaitWhyNot("d1", "");
  ASSERT_TRUE(AwaitThat([&] {
    const grpc::Status status = Generate(Guided("a"))->Finish();
    return status.error_code() == grpc::StatusCode::UNAVAILABLE &&
           status.error_message() ==
               "response_format is not heeded by all workers: some are of an "
               "earlier version";
  }));
  EXPECT_FALSE(last->HasReserve());
}

}  // namespace
}  // namespace baton::router
