// One request while its connection reads it: what the parser makes of the
// bytes, what the handler says of the header, and what the body takes of the
// memory that all bodies share. Of the connection's io thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "router/http/answer_text.h"
#include "router/http/body_budget.h"
#include "router/http/http_message.h"
#include "router/http/request_parser.h"
#include "router/http/server_state.h"

namespace baton::router::http {

class RequestReader final {
 public:
  enum class State {
    kHeader,   // more bytes are needed
    kBody,     // the header is read; more bytes are needed
    kWhole,    // Take has the request
    kRefused,  // refusal() is to be answered; the connection is of no more use
  };

  // `state` outlives the reader. `peer` as in Request.
  RequestReader(ServerState* state, std::string peer);

  // As RequestParser::Feed. REQUIRES: state() is kHeader or kBody.
  size_t Feed(absl::string_view bytes);

  State state() const { return state_; }
  // kBody: the client waits for "100 Continue".
  bool wants_continue() const;
  // REQUIRES: kRefused.
  const Response& refusal() const;

  // REQUIRES: kWhole, for those that follow.
  AnswerShape shape() const;  // but for the method
  // What the handler has to say instead of handling the request; once.
  std::optional<Response> TakeVerdict();
  Request Take();  // once

 private:
  // Asks the handler, and counts the body.
  void Judge();
  // Whether a refused request's body is read to its end, so that the connection
  // serves the next one.
  bool IsWorthReading() const;
  // False when the bodies that the server holds are too much.
  bool CountBody();
  void Refuse(Response refusal);

  ServerState* const server_;
  const std::string peer_;
  RequestParser parser_;
  State state_ = State::kHeader;
  bool asked_ = false;               // the handler, about the header;
  std::optional<Response> verdict_;  // it refuses the request
  std::shared_ptr<BodyShare> share_;
};

}  // namespace baton::router::http
