#include "router/output_format/string_formats.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace baton::router {
namespace {

using Formats = std::map<std::string, std::string, std::less<>>;

// Years, months and days; the 29th of February in leap years only.
std::string Date() {
  return R"((\d{4}-((0[13578]|1[02])-(0[1-9]|[12]\d|3[01])|)"
         R"((0[469]|11)-(0[1-9]|[12]\d|30)|02-(0[1-9]|1\d|2[0-8]))|)"
         R"((\d{2}(0[48]|[2468][048]|[13579][26])|)"
         R"(([02468][048]|[13579][26])00)-02-29))";
}

std::string Time() {
  return R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?)"
         R"((Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
}

// No unit is left out between two others.
std::string Duration() {
  const std::string date =
      R"((\d{1,4}Y(\d{1,4}M(\d{1,4}D)?)?|\d{1,4}M(\d{1,4}D)?|\d{1,4}D))";
  const std::string time =
      R"(T(\d{1,4}H(\d{1,4}M(\d{1,4}S)?)?|\d{1,4}M(\d{1,4}S)?|\d{1,4}S))";
  return absl::StrCat("P(", date, "(", time, ")?|", time, R"(|\d{1,4}W))");
}

// Labels of letters, digits and hyphens, which do not stand at an end of one.
std::string Host() {
  const std::string label = "[0-9A-Za-z]([0-9A-Za-z-]{0,61}[0-9A-Za-z])?";
  return absl::StrCat(label, R"((\.)", label, "){0,3}");
}

std::string Mail() {
  const std::string atom = "[0-9A-Za-z_%+-]{1,32}";
  return absl::StrCat(atom, R"((\.)", atom, "){0,2}@", Host());
}

std::string Ipv4() {
  const std::string byte = R"((25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))";
  return absl::StrCat(byte, R"((\.)", byte, "){3}");
}

// Eight groups, or fewer with one :: for those that are missing.
std::string Ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  std::string all = absl::StrCat("(", group, ":){7}", group);
  for (int behind = 0; behind < 7; ++behind) {
    absl::StrAppend(&all, "|(", group, ":){1,", 7 - behind, "}");
    absl::StrAppend(
        &all, behind == 0 ? ":" : absl::StrCat("(:", group, "){", behind, "}"));
  }
  return absl::StrCat(all, "|:((:", group, "){1,7}|:)");
}

// A scheme, then "//" and who has it, then a path, a query and a fragment
// (RFC 3986, appendix A), but for addresses of future versions of IP.
std::string Uri() {
  const std::string escaped = "%[0-9A-Fa-f]{2}";
  const auto any = [&](absl::string_view others) {
    return absl::StrCat("([0-9A-Za-z._~!$&'()*+,;=", others, "-]|", escaped,
                        ")");
  };
  const std::string character = any(":@");
  const std::string user = absl::StrCat("(", any(":"), "*@)?");
  const std::string host =
      absl::StrCat("(", any(""), R"(*|\[()", Ipv6(), R"()\]))");
  const std::string segments = absl::StrCat("(/", character, "*)*");
  const std::string rootless = absl::StrCat(character, "+", segments);
  return absl::StrCat("[A-Za-z][0-9A-Za-z+.-]*:(//", user, host, "(:\\d*)?",
                      segments, "|/(", rootless, ")?|", rootless, "|)(\\?",
                      any(":@/?"), "*)?(#", any(":@/?"), "*)?");
}

Formats MakeFormats() {
  const std::string hex = "[0-9A-Fa-f]";
  return {
      {"date", Date()},
      {"time", Time()},
      {"date-time", absl::StrCat(Date(), "T", Time())},
      {"duration", Duration()},
      {"uuid", absl::StrCat(hex, "{8}(-", hex, "{4}){3}-", hex, "{12}")},
      {"hostname", Host()},
      {"email", Mail()},
      {"ipv4", Ipv4()},
      {"ipv6", Ipv6()},
      {"uri", Uri()},
  };
}

}  // namespace

std::optional<absl::string_view> FormatPattern(absl::string_view format) {
  static const auto* formats = new Formats(MakeFormats());
  const auto found = formats->find(format);
  if (found == formats->end()) return std::nullopt;
  return found->second;
}

}  // namespace baton::router
