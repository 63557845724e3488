// An answer pushed through a ToolCallStream, in pieces.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "router/tool_calls/tool_call_stream.h"

namespace baton::router {

// The events, those that continue each other as one. Fails the test if they are
// not as ToolCallStream says.
std::vector<ToolCallEvent> PushPieces(ToolCallFormat format,
                                      const std::vector<std::string>& names,
                                      const std::vector<std::string>& pieces);

// `text` whole; fails the test if any way of cutting it in two, or into its
// bytes, has other events.
std::vector<ToolCallEvent> PushAnswer(
    ToolCallFormat format, absl::string_view text,
    const std::vector<std::string>& names = {});

ToolCallEvent ContentEvent(std::string text);
// A whole call.
std::vector<ToolCallEvent> CallEvents(size_t call, std::string name,
                                      std::string arguments);
// What is in them, in order.
std::vector<ToolCallEvent> JoinEvents(
    std::vector<std::vector<ToolCallEvent>> parts);

// For GoogleTest.
void PrintTo(const ToolCallEvent& event, std::ostream* out);

}  // namespace baton::router
