#include "common/command_line/completion.h"

#include <iterator>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/log.h"

namespace baton::command_line {
namespace {

using Words = std::vector<std::string>;

struct Flag {
  Words names;  // "--model", "-m"
  std::string description;
  bool takes_value = false;
  Words values;  // that it may have; empty: any
};

// A command: the program, or a subcommand of one.
struct Node {
  // " bench serve"; empty: the program.
  std::string path;
  std::string name;
  std::string description;
  Words subcommands;
  std::vector<Flag> flags;
};

// A word for a shell without quotes.
bool IsPlain(absl::string_view word) {
  for (const char c : word) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains("-_.:/+", c)) {
      return false;
    }
  }
  return !word.empty();
}

// The values that CLI11 names in an option's type: "{text,json}", or "value in
// {on->1,off->0} OR {1,0}", of which the words before the arrows are for
// people.
Words ValuesIn(const std::string& type) {
  const size_t begin = type.find('{');
  const size_t end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos) return {};
  Words values;
  for (absl::string_view value :
       absl::StrSplit(type.substr(begin + 1, end - begin - 1), ',')) {
    value = value.substr(0, value.find("->"));
    if (!IsPlain(value)) return {};
    values.emplace_back(value);
  }
  return values;
}

std::string FirstLine(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

Flag DescribeFlag(const CLI::Option& option) {
  Flag flag;
  for (const std::string& name : option.get_lnames()) {
    flag.names.push_back(absl::StrCat("--", name));
  }
  for (const std::string& name : option.get_snames()) {
    flag.names.push_back(absl::StrCat("-", name));
  }
  flag.description = FirstLine(option.get_description());
  flag.takes_value = option.get_expected_max() > 0;
  flag.values = ValuesIn(option.get_type_name());
  return flag;
}

void AddNodes(const CLI::App& app, const std::string& path,
              std::vector<Node>* nodes) {
  Node node{.path = path,
            .name = app.get_name(),
            .description = FirstLine(app.get_description())};
  for (const CLI::Option* option : app.get_options()) {
    const Flag flag = DescribeFlag(*option);
    if (!flag.names.empty()) node.flags.push_back(flag);  // else: positional
  }
  const auto subcommands =
      app.get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* subcommand : subcommands) {
    if (!subcommand->get_name().empty()) {
      node.subcommands.push_back(subcommand->get_name());
    }
  }
  nodes->push_back(std::move(node));
  for (const CLI::App* subcommand : subcommands) {
    if (subcommand->get_name().empty()) continue;
    AddNodes(*subcommand, absl::StrCat(path, " ", subcommand->get_name()),
             nodes);
  }
}

std::vector<Node> NodesOf(const CLI::App& app) {
  std::vector<Node> nodes;
  AddNodes(app, "", &nodes);
  return nodes;
}

Words NamesOf(const std::vector<Flag>& flags) {
  Words names;
  for (const Flag& flag : flags) {
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  return names;
}

// In single quotes, for fish.
std::string Quoted(absl::string_view text) {
  return absl::StrCat(
      "'", absl::StrReplaceAll(text, {{"\\", "\\\\"}, {"'", "\\'"}}), "'");
}

// The cases of a `case`: which words follow, which flag's value is asked for.
struct BashCases {
  std::string paths;   // of subcommands
  std::string words;   // of a command
  std::string values;  // of a flag of a command
};

BashCases MakeCases(const std::vector<Node>& nodes) {
  BashCases cases;
  for (const Node& node : nodes) {
    if (!node.path.empty()) {
      absl::StrAppend(&cases.paths, "      \"", node.path,
                      "\") path=\"$path $word\" ;;\n");
    }
    absl::StrAppend(&cases.words, "    \"", node.path, "\")\n      flags=\"",
                    absl::StrJoin(NamesOf(node.flags), " "),
                    "\"\n      commands=\"",
                    absl::StrJoin(node.subcommands, " "), "\" ;;\n");
    for (const Flag& flag : node.flags) {
      if (!flag.takes_value) continue;
      for (const std::string& name : flag.names) {
        // Any value: bash completes names of files when there is no word.
        absl::StrAppend(&cases.values, "    \"", node.path, ":", name,
                        "\") values=\"", absl::StrJoin(flag.values, " "),
                        "\"; given=1 ;;\n");
      }
    }
  }
  return cases;
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  const std::string name = app.get_name();
  const BashCases cases = MakeCases(NodesOf(app));
  return absl::StrReplaceAll(
      R"(# Completion of @NAME@ for bash: written by @NAME@ itself.
_@FUNCTION@() {
  local cur="${COMP_WORDS[COMP_CWORD]}" prev="" path="" word i
  local flags="" commands="" values="" given=""
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    prev="$word"
    case "$path $word" in
@PATHS@    esac
  done
  case "$path:$prev" in
@VALUES@  esac
  COMPREPLY=()
  if [[ -n $given ]]; then
    COMPREPLY=($(compgen -W "$values" -- "$cur"))
    return 0
  fi
  case "$path" in
@WORDS@  esac
  if [[ $cur == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$cur"))
  else
    COMPREPLY=($(compgen -W "$commands" -- "$cur"))
  fi
  return 0
}
complete -o default -F _@FUNCTION@ @NAME@
)",
      {{"@NAME@", name},
       {"@FUNCTION@", absl::StrReplaceAll(name, {{"-", "_"}})},
       {"@PATHS@", cases.paths},
       {"@VALUES@", cases.values},
       {"@WORDS@", cases.words}});
}

std::string ZshCompletion(const CLI::App& app) {
  return absl::StrCat("#compdef ", app.get_name(),
                      "\nautoload -U +X bashcompinit && bashcompinit\n",
                      BashCompletion(app));
}

std::string FishCompletion(const CLI::App& app) {
  const std::string name = app.get_name();
  std::string script = absl::StrCat(
      "# Completion of ", name, " for fish: written by ", name, " itself.\n");
  std::map<std::string, std::string> conditions;  // of the path
  for (const Node& node : NodesOf(app)) {
    const Words path = absl::StrSplit(node.path, ' ', absl::SkipEmpty());
    Words seen;
    for (const std::string& word : path) {
      seen.push_back(absl::StrCat("__fish_seen_subcommand_from ", word));
    }
    const std::string here =
        path.empty() ? "__fish_use_subcommand" : absl::StrJoin(seen, "; and ");
    conditions[node.path] = here;
    if (!path.empty()) {
      const std::string parent = node.path.substr(0, node.path.rfind(' '));
      absl::StrAppend(&script, "complete -c ", name, " -n ",
                      Quoted(conditions[parent]), " -a ", node.name, " -d ",
                      Quoted(node.description), "\n");
    }
    for (const Flag& flag : node.flags) {
      absl::StrAppend(&script, "complete -c ", name, " -n ", Quoted(here));
      for (absl::string_view flag_name : flag.names) {
        const bool is_long = absl::StartsWith(flag_name, "--");
        absl::StrAppend(&script, is_long ? " -l " : " -s ",
                        flag_name.substr(is_long ? 2 : 1));
      }
      if (flag.takes_value) absl::StrAppend(&script, " -r");
      if (!flag.values.empty()) {
        absl::StrAppend(&script, " -f -a ",
                        Quoted(absl::StrJoin(flag.values, " ")));
      }
      absl::StrAppend(&script, " -d ", Quoted(flag.description), "\n");
    }
  }
  return script;
}

std::string CompletionFor(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return BashCompletion(app);
  if (shell == "zsh") return ZshCompletion(app);
  CHECK_EQ(shell, "fish");
  return FishCompletion(app);
}

void AddCompletionFlag(CLI::App* app) {
  app->add_option_function<std::string>(
         "--completion",
         [app](const std::string& shell) {
           // Before what is missing is missed; ends the line by itself.
           std::string script = CompletionFor(*app, shell);
           if (absl::EndsWith(script, "\n")) script.pop_back();
           throw CLI::CallForVersion(script, 0);
         },
         "Print what a shell needs to complete these words, and exit")
      ->check(CLI::IsMember(Words(std::begin(kShells), std::end(kShells))))
      ->trigger_on_parse();
}

}  // namespace baton::command_line
