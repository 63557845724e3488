#include "router/output_format/string_formats.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "router/output_format/regular_expression_parser.h"

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
// REQUIRES: a label may have two characters.
std::string Host(uint32_t label_characters) {
  const std::string label = absl::StrCat(
      "[0-9A-Za-z]([0-9A-Za-z-]{0,", label_characters - 2, "}[0-9A-Za-z])?");
  return absl::StrCat(label, R"((\.)", label, "){0,3}");
}

std::string Mail(uint32_t atom_characters, uint32_t label_characters) {
  const std::string atom =
      absl::StrCat("[0-9A-Za-z_%+-]{1,", atom_characters, "}");
  return absl::StrCat(atom, R"((\.)", atom, "){0,2}@", Host(label_characters));
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

// A character of a URI, among them `others`, or one that is escaped.
std::string UriCharacter(absl::string_view others) {
  return absl::StrCat("([0-9A-Za-z._~!$&'()*+,;=", others,
                      "-]|%[0-9A-Fa-f]{2})");
}

// How often characters of these parts are repeated, and digits of the port.
std::string UserAndHost(absl::string_view user, absl::string_view host,
                        bool may_be_ipv6, absl::string_view port) {
  return absl::StrCat(
      "//(", UriCharacter(":"), user, "@)?(", UriCharacter(""), host,
      may_be_ipv6 ? absl::StrCat(R"(|\[()", Ipv6(), R"()\])") : "", R"()(:\d)",
      port, ")?");
}

std::string QueryAndFragment(absl::string_view query,
                             absl::string_view fragment) {
  return absl::StrCat("(\\?", UriCharacter(":@/?"), query, ")?(#",
                      UriCharacter(":@/?"), fragment, ")?");
}

// A scheme, then "//" and who has it, then a path, a query and a fragment
// (RFC 3986, appendix A), but for addresses of future versions of IP.
std::string Uri() {
  const std::string character = UriCharacter(":@");
  const std::string segments = absl::StrCat("(/", character, "*)*");
  const std::string rootless = absl::StrCat(character, "+", segments);
  return absl::StrCat(
      "[A-Za-z][0-9A-Za-z+.-]*:(", UserAndHost("*", "*", true, "*"), segments,
      "|/(", rootless, ")?|", rootless, "|)", QueryAndFragment("*", "*"));
}

// "{0,7}".
std::string UpTo(uint32_t most) { return absl::StrCat("{0,", most, "}"); }

// Some, of at most `most` characters, which are 24 or more: with a host, and
// with what escapes take three characters for.
std::string ShorterUri(uint32_t most) {
  const bool may_be_ipv6 = most >= 200;
  const uint32_t scheme = may_be_ipv6 ? 15 : 7;
  // With its first letter, an address, a port, and what stands between parts.
  const uint32_t others = 1 + scheme + (may_be_ipv6 ? 41 : 0) + 6 + 7;
  const uint32_t rest = (most - others) / 3;
  return absl::StrCat(
      "[A-Za-z][0-9A-Za-z+.-]", UpTo(scheme), ":",
      UserAndHost(UpTo(rest / 16), UpTo(rest / 4), may_be_ipv6, UpTo(5)), "(/",
      UriCharacter(":@/"), UpTo(rest / 2), ")?",
      QueryAndFragment(UpTo(rest / 8), UpTo(rest / 16)));
}

// Of DNS (RFC 1035) and of mail (a half of RFC 5321's).
constexpr uint32_t kLabel = 63;
constexpr uint32_t kAtom = 32;

Formats MakeFormats() {
  const std::string hex = "[0-9A-Fa-f]";
  return {
      {"date", Date()},
      {"time", Time()},
      {"date-time", absl::StrCat(Date(), "T", Time())},
      {"duration", Duration()},
      {"uuid", absl::StrCat(hex, "{8}(-", hex, "{4}){3}-", hex, "{12}")},
      {"hostname", Host(kLabel)},
      {"email", Mail(kAtom, kLabel)},
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

std::optional<std::string> ShorterFormatPattern(absl::string_view format,
                                                uint32_t least, uint32_t most) {
  most = std::min<uint32_t>(most, 4 * kMaxPatternRepeat);
  if (format == "uri" && least <= 4 && most >= 24) return ShorterUri(most);
  // Four labels and three dots.
  const auto label = [](uint32_t characters) {
    return std::min(kLabel, (characters - 3) / 4);
  };
  if (format == "hostname" && least <= 1 && most >= 11) {
    return Host(label(most));
  }
  if (format == "email" && least <= 3 && most >= 22) {
    // Three atoms, two dots and an @.
    const uint32_t half = most / 2;
    return Mail(std::min(kAtom, (half - 3) / 3), label(most - half));
  }
  return std::nullopt;
}

}  // namespace baton::router
