#include "router/http/request_reader.h"

#include <cstdint>
#include <utility>

#include "common/clock.h"
#include "common/log.h"

namespace baton::router::http {

RequestReader::RequestReader(ServerState* state, std::string peer)
    : server_(state),
      peer_(std::move(peer)),
      parser_(RequestParser::Limits{state->options.max_header_bytes,
                                    state->options.max_body_bytes}) {}

size_t RequestReader::Feed(absl::string_view bytes) {
  CHECK(state_ == State::kHeader || state_ == State::kBody);
  const size_t used = parser_.Feed(bytes);
  switch (parser_.state()) {
    case RequestParser::State::kHeader:
      break;
    case RequestParser::State::kBody:
      state_ = State::kBody;
      Judge();
      break;
    case RequestParser::State::kComplete:
      state_ = State::kWhole;
      Judge();
      break;
    case RequestParser::State::kFailed:
      Refuse(
          ErrorResponse(parser_.failure().status, parser_.failure().message));
      break;
  }
  return used;
}

void RequestReader::Judge() {
  if (!asked_) {
    asked_ = true;
    Request* const head = parser_.head();
    head->peer = peer_;
    head->loopback = server_->loopback;
    verdict_ = server_->handler->Check(*head);
    if (verdict_.has_value() && !IsWorthReading()) {
      return Refuse(*std::move(verdict_));
    }
  }
  if (!CountBody()) {
    Refuse(server_->handler->NoRoom(*parser_.head())
               .value_or(ErrorResponse(
                   503, "The server holds too many large requests.")));
  }
}

bool RequestReader::IsWorthReading() const {
  if (state_ == State::kWhole) return true;
  // Its body may never come.
  if (wants_continue()) return false;
  const std::optional<uint64_t> length = parser_.body_length();
  return length.has_value() && *length <= server_->options.small_body_bytes;
}

bool RequestReader::CountBody() {
  const size_t body = parser_.body_bytes();
  if (body <= server_->options.small_body_bytes) return true;
  if (share_ == nullptr) share_ = std::make_shared<BodyShare>(server_->bodies);
  return share_->GrowTo(body);
}

void RequestReader::Refuse(Response refusal) {
  state_ = State::kRefused;
  verdict_ = std::move(refusal);
}

bool RequestReader::wants_continue() const {
  return parser_.expects_continue() && parser_.body_bytes() == 0;
}

const Response& RequestReader::refusal() const {
  CHECK(state_ == State::kRefused);
  return *verdict_;
}

AnswerShape RequestReader::shape() const {
  CHECK(state_ == State::kWhole);
  AnswerShape shape;
  shape.http11 = parser_.http11();
  shape.keep_alive = parser_.keep_alive();
  return shape;
}

std::optional<Response> RequestReader::TakeVerdict() {
  return std::exchange(verdict_, std::nullopt);
}

Request RequestReader::Take() {
  CHECK(state_ == State::kWhole);
  Request request = parser_.TakeRequest();
  request.body_share = std::move(share_);
  request.received_at = Clock::Monotonic()->Now();
  return request;
}

}  // namespace baton::router::http
