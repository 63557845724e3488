#include "cli/report_page.h"

#include <cstddef>

#include "absl/strings/str_cat.h"

namespace baton::cli {

std::string ReportPage(const std::string& title, const std::string& heading,
                       const std::string& text,
                       absl::Span<const model_tools::PlotPanel> panels) {
  std::string plots;
  for (size_t i = 0; i < panels.size(); i += 2) {
    absl::StrAppend(&plots, model_tools::RenderSvg("", panels.subspan(i, 2)));
  }
  return absl::StrCat(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<title>",
      model_tools::EscapeXml(title),
      "</title>\n<style>body{font-family:sans-serif;"
      "color:#222;max-width:960px;margin:2em auto;padding:0 1em}"
      "pre{background:#f6f6f6;padding:1em;overflow-x:auto}"
      "svg{max-width:100%;height:auto}</style></head><body>\n<h1>",
      model_tools::EscapeXml(heading), "</h1>\n<pre>",
      model_tools::EscapeXml(text), "</pre>\n", plots, "</body></html>\n");
}

}  // namespace baton::cli
