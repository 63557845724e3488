// Charts as a self-contained SVG file: panels side by side, with labelled axes
// (y from zero) and a legend each. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace baton::model_tools {

struct PlotPoint {
  double x = 0;  // not below zero; above it where the axis is in powers of two
  double y = 0;  // not below zero
};

struct PlotLine {
  std::string name;
  std::vector<PlotPoint> points;
};

struct PlotPanel {
  enum class XAxis {
    kPowersOfTwo,  // a tick for each x
    kLinear,       // from zero
  };
  enum class Marks { kLinesAndDots, kLines, kDots };

  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotLine> lines;
  XAxis x_axis = XAxis::kPowersOfTwo;
  Marks marks = Marks::kLinesAndDots;
};

std::string RenderSvg(const std::string& title,
                      absl::Span<const PlotPanel> panels);

// The least of 1, 2 or 5 times a power of ten that is not below `value`; a step
// for ticks. REQUIRES: value > 0.
double NiceStep(double value);

// `text` with the characters replaced that XML gives a meaning.
std::string EscapeXml(const std::string& text);

}  // namespace baton::model_tools
