// A page for a browser that needs nothing else: what was found, as text, and
// plots. Pure; any thread.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "model_tools/svg_plot.h"

namespace baton::cli {

// Two plots side by side.
std::string ReportPage(const std::string& title, const std::string& heading,
                       const std::string& text,
                       absl::Span<const model_tools::PlotPanel> panels);

}  // namespace baton::cli
