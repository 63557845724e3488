#include "model_tools/svg_plot.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/log.h"

namespace baton::model_tools {
namespace {

// In pixels.
constexpr double kPanelWidth = 460;
constexpr double kPlotHeight = 260;
constexpr double kLeft = 76;
constexpr double kRight = 16;
constexpr double kTop = 76;
constexpr double kAxisHeight = 48;
constexpr double kLegendLine = 18;

// Okabe and Ito's colours, which most people can tell apart.
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#56b4e9", "#e69f00", "#000000"};
constexpr size_t kNumColours = sizeof(kColours) / sizeof(kColours[0]);

std::string Text(double x, double y, const std::string& text,
                 const std::string& attributes) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y,
                         attributes, EscapeXml(text));
}

// One panel, drawn at `x0`.
class PanelPainter final {
 public:
  PanelPainter(const PlotPanel& panel, double x0) : panel_(panel), x0_(x0) {
    double max_y = 0;
    for (const PlotLine& line : panel.lines) {
      for (const PlotPoint& point : line.points) {
        ticks_.insert(point.x);
        max_y = std::max(max_y, point.y);
      }
    }
    if (panel.x_axis == PlotPanel::XAxis::kLinear) SetLinearTicks();
    step_y_ = NiceStep(std::max(max_y, 1e-9) / 5);
    max_y_ = std::max(1.0, std::ceil(max_y / step_y_)) * step_y_;
  }

  std::string Paint() const {
    std::string svg;
    PaintAxes(&svg);
    for (size_t i = 0; i < panel_.lines.size(); ++i) PaintLine(i, &svg);
    return svg;
  }

 private:
  // From zero to the first tick that nothing is beyond.
  void SetLinearTicks() {
    const double most = ticks_.empty() ? 0 : *ticks_.rbegin();
    const double step = NiceStep(std::max(most, 1e-9) / 6);
    ticks_ = {0};
    while (*ticks_.rbegin() < most * (1 - 1e-9)) {
      ticks_.insert(static_cast<double>(ticks_.size()) * step);
    }
  }

  // Where x is along the axis, in units that are even there.
  double Along(double x) const {
    return panel_.x_axis == PlotPanel::XAxis::kLinear ? x : std::log2(x);
  }
  double X(double x) const {
    const double begin = x0_ + kLeft + 14;
    const double end = x0_ + kPanelWidth - kRight - 14;
    if (ticks_.size() < 2) return (begin + end) / 2;
    const double low = Along(*ticks_.begin());
    const double high = Along(*ticks_.rbegin());
    return begin + (Along(x) - low) / (high - low) * (end - begin);
  }
  double Y(double y) const { return kTop + kPlotHeight * (1.0 - y / max_y_); }

  void PaintAxes(std::string* svg) const {
    const double left = x0_ + kLeft;
    const double right = x0_ + kPanelWidth - kRight;
    const double bottom = kTop + kPlotHeight;
    absl::StrAppend(svg, Text((left + right) / 2, kTop - 14, panel_.title,
                              "text-anchor=\"middle\" font-weight=\"bold\""));
    for (int i = 0; i * step_y_ <= max_y_ * 1.0001; ++i) {
      const double y = Y(i * step_y_);
      absl::StrAppendFormat(svg,
                            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                            "y2=\"%.1f\" stroke=\"#ddd\"/>\n",
                            left, y, right, y);
      absl::StrAppend(
          svg, Text(left - 8, y + 4, absl::StrFormat("%.6g", i * step_y_),
                    "text-anchor=\"end\""));
    }
    for (const double x : ticks_) {
      absl::StrAppendFormat(svg,
                            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                            "y2=\"%.1f\" stroke=\"#444\"/>\n",
                            X(x), bottom, X(x), bottom + 5);
      absl::StrAppend(svg, Text(X(x), bottom + 19, absl::StrFormat("%.6g", x),
                                "text-anchor=\"middle\""));
    }
    absl::StrAppendFormat(svg,
                          "<path d=\"M%.1f %.1fV%.1fH%.1f\" fill=\"none\" "
                          "stroke=\"#444\"/>\n",
                          left, kTop, bottom, right);
    absl::StrAppend(svg, Text((left + right) / 2, bottom + 40, panel_.x_label,
                              "text-anchor=\"middle\""));
    const double middle = kTop + kPlotHeight / 2;
    absl::StrAppend(svg,
                    Text(x0_ + 16, middle, panel_.y_label,
                         absl::StrFormat("text-anchor=\"middle\" "
                                         "transform=\"rotate(-90 %.1f %.1f)\"",
                                         x0_ + 16, middle)));
  }

  void PaintLine(size_t index, std::string* svg) const {
    const PlotLine& line = panel_.lines[index];
    const char* colour = kColours[index % kNumColours];
    std::vector<PlotPoint> points = line.points;
    std::sort(points.begin(), points.end(),
              [](const auto& a, const auto& b) { return a.x < b.x; });
    if (panel_.marks != PlotPanel::Marks::kDots) {
      PaintPath(points, colour, svg);
    }
    if (panel_.marks != PlotPanel::Marks::kLines) {
      const double radius = panel_.marks == PlotPanel::Marks::kDots ? 2 : 3.5;
      for (const PlotPoint& point : points) {
        absl::StrAppendFormat(
            svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" fill=\"%s\"/>\n",
            X(point.x), Y(point.y), radius, colour);
      }
    }
    const double y =
        kTop + kPlotHeight + kAxisHeight + 16 + index * kLegendLine;
    absl::StrAppendFormat(svg,
                          "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
                          "y2=\"%.1f\" stroke=\"%s\" stroke-width=\"2\"/>\n",
                          x0_ + kLeft, y - 4, x0_ + kLeft + 24, y - 4, colour);
    absl::StrAppend(svg, Text(x0_ + kLeft + 32, y, line.name, ""));
  }

  void PaintPath(const std::vector<PlotPoint>& points, const char* colour,
                 std::string* svg) const {
    std::string path;
    for (const PlotPoint& point : points) {
      absl::StrAppendFormat(&path, "%s%.1f %.1f", path.empty() ? "M" : "L",
                            X(point.x), Y(point.y));
    }
    absl::StrAppendFormat(svg,
                          "<path d=\"%s\" fill=\"none\" stroke=\"%s\" "
                          "stroke-width=\"2\"/>\n",
                          path, colour);
  }

  const PlotPanel& panel_;
  const double x0_;
  std::set<double> ticks_;
  double step_y_ = 1;
  double max_y_ = 1;
};

}  // namespace

double NiceStep(double value) {
  CHECK_GT(value, 0.0);
  const double power = std::pow(10.0, std::floor(std::log10(value)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= value * (1 - 1e-9)) return factor * power;
  }
  return 10.0 * power;
}

std::string EscapeXml(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string RenderSvg(const std::string& title,
                      absl::Span<const PlotPanel> panels) {
  size_t legend_lines = 0;
  for (const PlotPanel& panel : panels) {
    legend_lines = std::max(legend_lines, panel.lines.size());
  }
  const double width = kPanelWidth * std::max<size_t>(1, panels.size());
  const double height =
      kTop + kPlotHeight + kAxisHeight + 16 + kLegendLine * legend_lines;
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
      "height=\"%.0f\" viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" "
      "font-size=\"12\" fill=\"#222\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      width, height, width, height);
  absl::StrAppend(&svg, Text(width / 2, 26, title,
                             "text-anchor=\"middle\" font-size=\"16\""));
  for (size_t i = 0; i < panels.size(); ++i) {
    absl::StrAppend(&svg, PanelPainter(panels[i], kPanelWidth * i).Paint());
  }
  absl::StrAppend(&svg, "</svg>\n");
  return svg;
}

}  // namespace baton::model_tools
