#include "model_tools/svg_plot.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::model_tools {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(SvgPlotTest, StepsAreNice) {
  EXPECT_DOUBLE_EQ(NiceStep(1.0), 1.0);
  EXPECT_DOUBLE_EQ(NiceStep(1.1), 2.0);
  EXPECT_DOUBLE_EQ(NiceStep(3.0), 5.0);
  EXPECT_DOUBLE_EQ(NiceStep(720.0), 1000.0);
  EXPECT_DOUBLE_EQ(NiceStep(0.04), 0.05);
}

TEST(SvgPlotTest, HasAxesAndLegend) {
  const std::string svg =
      RenderSvg("a <b> & \"c\"", {{"left",
                                   "length",
                                   "speed",
                                   {
                                       {"one", {{128, 10}, {512, 40}}},
                                       {"two", {{128, 20}, {512, 37}}},
                                   }},
                                  {"right", "batch", "more", {}}});
  EXPECT_THAT(svg, HasSubstr("<svg xmlns=\"http://www.w3.org/2000/svg\""));
  EXPECT_THAT(svg, HasSubstr("a &lt;b&gt; &amp; &quot;c&quot;"));
  for (const char* text : {"left", "length", "speed", "one", "two", "right",
                           "batch", "more", "128", "512", "40"}) {
    EXPECT_THAT(svg, HasSubstr(std::string(">") + text + "</text>")) << text;
  }
  EXPECT_THAT(svg, HasSubstr("</svg>\n"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(SvgPlotTest, DrawsASinglePointAndZeros) {
  for (const double y : {0.0, 1.0, 1e7}) {
    const std::string svg =
        RenderSvg("t", {{"p", "x", "y", {{"line", {{1, y}}}}}});
    EXPECT_THAT(svg, HasSubstr("<circle"));
    EXPECT_THAT(svg, Not(HasSubstr("nan")));
    EXPECT_THAT(svg, Not(HasSubstr("inf")));
  }
}

}  // namespace
}  // namespace baton::model_tools
