#include "router/output_format/other_names.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common/utf8.h"
#include "router/output_format/characters.h"

namespace baton::router {
namespace {

using Expression = scheduling::GrammarBuilder::Expression;
using scheduling::ByteSet;
using scheduling::GrammarBuilder;

// One byte in a JSON string: it stands for itself.
bool IsPlain(char32_t character) {
  return character >= 0x20 && character < 0x80 && character != '"' &&
         character != '\\';
}

// The names as a tree by their characters.
struct NameTree {
  struct Node {
    std::map<char32_t, size_t> children;
    bool is_name = false;
  };
  std::vector<Node> nodes = {Node{}};  // the root first

  void Add(absl::string_view name) {
    size_t at = 0;
    for (size_t pos = 0; pos < name.size();) {
      const Utf8Step step = NextUtf8(name, pos);
      pos += static_cast<size_t>(step.size);
      const auto [child, is_new] =
          nodes[at].children.try_emplace(step.code_point, nodes.size());
      at = child->second;
      if (is_new) nodes.emplace_back();
    }
    nodes[at].is_name = true;
  }
};

class OtherNameWriter final {
 public:
  OtherNameWriter(JsonText* text, GrammarBuilder* grammar)
      : text_(*text), grammar_(*grammar) {}

  // A rule per node, which says how a name may go on that has come there: deep
  // trees would make deep expressions.
  Expression Write(const NameTree& tree) {
    std::vector<GrammarBuilder::Rule> rules;
    for (size_t i = 0; i < tree.nodes.size() && !grammar_.full(); ++i) {
      rules.push_back(grammar_.NewRule());
    }
    for (size_t i = 0; i < rules.size() && !grammar_.full(); ++i) {
      grammar_.Define(rules[i], Node(tree.nodes[i], rules));
    }
    return grammar_.Sequence({grammar_.Literal("\""), grammar_.Call(rules[0])});
  }

 private:
  Expression Node(const NameTree::Node& node,
                  const std::vector<GrammarBuilder::Rule>& rules) {
    std::vector<Expression> choices;
    if (!node.is_name) choices.push_back(grammar_.Literal("\""));
    choices.push_back(grammar_.Sequence({Leaving(node), text_.StringEnd()}));
    for (const auto& [character, child] : node.children) {
      std::string written;
      AppendCharacter(character, Writing::kJsonString, &written);
      choices.push_back(grammar_.Sequence(
          {grammar_.Literal(written), grammar_.Call(rules[child])}));
    }
    return grammar_.Choice(choices);
  }

  // A character that is none of the node's children.
  Expression Leaving(const NameTree::Node& node) {
    if (node.children.empty()) return text_.Character();
    ByteSet plain;
    for (char32_t c = 0; c < 0x80; ++c) {
      if (IsPlain(c)) plain.set(static_cast<size_t>(c));
    }
    CharacterSet children;
    bool all_plain = true;
    for (const auto& [character, child] : node.children) {
      children.Add(character, character);
      all_plain = all_plain && IsPlain(character);
      if (IsPlain(character)) plain.reset(static_cast<size_t>(character));
    }
    if (!all_plain || plain.none()) {
      return WriteCharacter(children.Complement(), Writing::kJsonString,
                            &grammar_);
    }
    return grammar_.Choice({grammar_.Byte(plain), NotPlain()});
  }

  // Shared by the nodes, nearly all of which have plain children only.
  Expression NotPlain() {
    if (!not_plain_.has_value()) {
      CharacterSet plain;
      for (char32_t c = 0; c < 0x80; ++c) {
        if (IsPlain(c)) plain.Add(c, c);
      }
      const GrammarBuilder::Rule rule = grammar_.NewRule();
      grammar_.Define(rule, WriteCharacter(plain.Complement(),
                                           Writing::kJsonString, &grammar_));
      not_plain_ = grammar_.Call(rule);
    }
    return *not_plain_;
  }

  JsonText& text_;
  GrammarBuilder& grammar_;
  std::optional<Expression> not_plain_;
};

}  // namespace

Expression WriteOtherName(const std::vector<absl::string_view>& names,
                          JsonText* text, GrammarBuilder* grammar) {
  if (names.empty()) return text->String();
  NameTree tree;
  for (const absl::string_view name : names) tree.Add(name);
  return OtherNameWriter(text, grammar).Write(tree);
}

}  // namespace baton::router
