#include "router/http/openai_writer.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/json_text.h"
#include "common/utf8.h"

namespace baton::router::http {
namespace {

using Logprobs = google::protobuf::RepeatedPtrField<v1::TokenLogprobs>;

const char* ObjectName(bool chat, bool chunk) {
  if (!chat) return "text_completion";
  return chunk ? "chat.completion.chunk" : "chat.completion";
}

std::string HeadJson(const AnswerHead& head, bool chunk) {
  std::string out = "{\"id\":";
  AppendJsonString(head.id, &out);
  absl::StrAppend(&out, ",\"object\":\"", ObjectName(head.chat, chunk),
                  "\",\"created\":", head.created_unix_seconds, ",\"model\":");
  AppendJsonString(head.model, &out);
  return out;
}

void AppendUsage(const AnswerUsage& usage, std::string* out) {
  absl::StrAppend(
      out, "{\"prompt_tokens\":", usage.prompt_tokens,
      ",\"completion_tokens\":", usage.output_tokens,
      ",\"total_tokens\":", usage.prompt_tokens + usage.output_tokens,
      ",\"prompt_tokens_details\":{\"cached_tokens\":",
      usage.cached_prompt_tokens, "}");
  if (usage.reasoning_tokens.has_value()) {
    absl::StrAppend(out, ",\"completion_tokens_details\":{",
                    "\"reasoning_tokens\":", *usage.reasoning_tokens, "}");
  }
  out->push_back('}');
}

// A token's bytes as text; where they are not text, as OpenAI writes them.
std::string TokenText(const v1::TokenLogprob& token) {
  if (IsValidUtf8(token.token())) return token.token();
  std::string out = "bytes:";
  for (const char c : token.token()) {
    absl::StrAppend(&out, "\\x",
                    absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
  }
  return out;
}

// {"token": ..., "logprob": ..., "bytes": [...] without the last brace.
void AppendChatToken(const v1::TokenLogprob& token, std::string* out) {
  out->append("{\"token\":");
  AppendJsonString(ReplaceIllFormedUtf8(token.token()), out);
  out->append(",\"logprob\":");
  AppendJsonFloat(token.logprob(), out);
  out->append(",\"bytes\":[");
  const char* comma = "";
  for (const char c : token.token()) {
    absl::StrAppend(out, comma, static_cast<int>(static_cast<uint8_t>(c)));
    comma = ",";
  }
  out->push_back(']');
}

template <typename List>
void AppendChatTokens(const List& logprobs, std::string* out) {
  out->push_back('[');
  const char* comma = "";
  for (const v1::TokenLogprobs& token : logprobs) {
    out->append(comma);
    comma = ",";
    AppendChatToken(token.chosen(), out);
    out->append(",\"top_logprobs\":[");
    const char* inner_comma = "";
    for (const v1::TokenLogprob& top : token.top()) {
      out->append(inner_comma);
      inner_comma = ",";
      AppendChatToken(top, out);
      out->push_back('}');
    }
    out->append("]}");
  }
  out->push_back(']');
}

template <typename List>
void AppendChatLogprobs(const List& logprobs, std::string* out) {
  out->append("{\"content\":");
  AppendChatTokens(logprobs, out);
  out->append(",\"refusal\":null}");
}

// "id": ..., "type": "function", "function": {...}
void AppendToolCall(absl::string_view id, absl::string_view name,
                    absl::string_view arguments, std::string* out) {
  out->append("\"id\":");
  AppendJsonString(id, out);
  out->append(",\"type\":\"function\",\"function\":{\"name\":");
  AppendJsonString(name, out);
  out->append(",\"arguments\":");
  AppendJsonString(arguments, out);
  out->push_back('}');
}

void AppendToolCalls(const std::vector<ToolCall>& calls, std::string* out) {
  out->append(",\"tool_calls\":[");
  const char* comma = "{";
  for (const ToolCall& call : calls) {
    out->append(comma);
    AppendToolCall(call.id, call.name, call.arguments, out);
    out->push_back('}');
    comma = ",{";
  }
  out->push_back(']');
}

// `offset` is moved on by the tokens' own texts, but for those that the text is
// without.
template <typename List>
void AppendCompletionLogprobs(const List& logprobs, const Tokenizer* tokenizer,
                              TextOffset* offset, std::string* out) {
  std::string tokens, values, top, offsets;
  const char* comma = "";
  for (const v1::TokenLogprobs& token : logprobs) {
    const std::string text = TokenText(token.chosen());
    tokens.append(comma);
    AppendJsonString(text, &tokens);
    values.append(comma);
    top.append(comma);
    absl::StrAppend(&offsets, comma, offset->characters());
    comma = ",";
    if (tokenizer == nullptr ||
        !tokenizer->IsSpecial(static_cast<TokenId>(token.chosen().id()))) {
      offset->Add(token.chosen().token());
    }
    if (std::isnan(token.chosen().logprob())) {
      values.append("null");
      top.append("null");
      continue;
    }
    AppendJsonFloat(token.chosen().logprob(), &values);
    top.push_back('{');
    const char* inner_comma = "";
    for (const v1::TokenLogprob& other : token.top()) {
      top.append(inner_comma);
      inner_comma = ",";
      AppendJsonString(TokenText(other), &top);
      top.push_back(':');
      AppendJsonFloat(other.logprob(), &top);
    }
    top.push_back('}');
  }
  absl::StrAppend(out, "{\"tokens\":[", tokens, "],\"token_logprobs\":[",
                  values, "],\"top_logprobs\":[", top, "],\"text_offset\":[",
                  offsets, "]}");
}

}  // namespace

void TextOffset::Add(absl::string_view bytes) {
  const std::string text = absl::StrCat(open_, bytes);
  open_.clear();
  for (size_t pos = 0; pos < text.size();) {
    const Utf8Step step = NextUtf8(text, pos);
    if (step.kind == Utf8Kind::kIncomplete) {
      open_ = text.substr(pos);
      return;
    }
    ++characters_;
    pos += step.size;
  }
}

void AppendTokenList(const Logprobs& logprobs, std::string* out) {
  AppendChatTokens(logprobs, out);
}

const char* FinishName(v1::FinishReason reason, bool called) {
  if (reason == v1::FINISH_REASON_LENGTH) return "length";
  return called ? "tool_calls" : "stop";
}

std::string WholeBody(const AnswerHead& head,
                      const std::vector<Choice>& choices,
                      const AnswerUsage& usage) {
  std::string out = HeadJson(head, /*chunk=*/false);
  out.append(",\"choices\":[");
  for (size_t i = 0; i < choices.size(); ++i) {
    const Choice& choice = choices[i];
    absl::StrAppend(&out, i == 0 ? "" : ",", "{\"index\":", i);
    if (head.chat) {
      out.append(",\"message\":{\"role\":\"assistant\",\"content\":");
      const bool called = !choice.tool_calls.empty();
      if (called && choice.text.empty()) {
        out.append("null");
      } else {
        AppendJsonString(choice.text, &out);
      }
      out.append(",\"refusal\":null");
      if (!choice.reasoning.empty()) {
        out.append(",\"reasoning_content\":");
        AppendJsonString(choice.reasoning, &out);
      }
      if (called) AppendToolCalls(choice.tool_calls, &out);
      out.push_back('}');
    } else {
      out.append(",\"text\":");
      AppendJsonString(choice.text, &out);
    }
    out.append(",\"logprobs\":");
    if (!choice.has_logprobs) {
      out.append("null");
    } else if (head.chat) {
      AppendChatLogprobs(choice.logprobs, &out);
    } else {
      TextOffset offset = choice.text_offset;
      AppendCompletionLogprobs(choice.logprobs, head.tokenizer, &offset, &out);
    }
    absl::StrAppend(&out, ",\"finish_reason\":\"",
                    FinishName(choice.finish_reason,
                               !choice.tool_calls.empty() && !choice.cut),
                    "\"}");
  }
  out.append("],\"usage\":");
  AppendUsage(usage, &out);
  out.push_back('}');
  return out;
}

ChunkWriter::ChunkWriter(const AnswerHead& head, bool usage_follows)
    : chat_(head.chat), tokenizer_(head.tokenizer) {
  const std::string start =
      absl::StrCat("data: ", HeadJson(head, /*chunk=*/true), ",\"choices\":[");
  prefix_ = absl::StrCat(start, "{\"index\":");
  suffix_ = usage_follows ? "}],\"usage\":null}\n\n" : "}]}\n\n";
  usage_prefix_ = absl::StrCat(start, "],\"usage\":");
}

void ChunkWriter::Role(int index, std::string* out) const {
  absl::StrAppend(out, prefix_, index,
                  ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},"
                  "\"logprobs\":null,\"finish_reason\":null",
                  suffix_);
}

void ChunkWriter::Text(int index, absl::string_view text,
                       const Logprobs* logprobs, TextOffset* offset,
                       std::string* out) const {
  absl::StrAppend(out, prefix_, index,
                  chat_ ? ",\"delta\":{\"content\":\"" : ",\"text\":\"");
  AppendJsonEscaped(text, out);
  out->append(chat_ ? "\"},\"logprobs\":" : "\",\"logprobs\":");
  if (logprobs == nullptr) {
    out->append("null");
  } else if (chat_) {
    AppendChatLogprobs(*logprobs, out);
  } else {
    AppendCompletionLogprobs(*logprobs, tokenizer_, offset, out);
  }
  absl::StrAppend(out, ",\"finish_reason\":null", suffix_);
}

void ChunkWriter::Reasoning(int index, absl::string_view text,
                            const Logprobs* logprobs, std::string* out) const {
  absl::StrAppend(out, prefix_, index, ",\"delta\":{\"reasoning_content\":\"");
  AppendJsonEscaped(text, out);
  out->append("\"},\"logprobs\":");
  if (logprobs == nullptr) {
    out->append("null");
  } else {
    AppendChatLogprobs(*logprobs, out);
  }
  absl::StrAppend(out, ",\"finish_reason\":null", suffix_);
}

void ChunkWriter::ToolCallBegun(int index, size_t call, absl::string_view id,
                                absl::string_view name,
                                std::string* out) const {
  absl::StrAppend(out, prefix_, index,
                  ",\"delta\":{\"tool_calls\":[{\"index\":", call, ",");
  AppendToolCall(id, name, "", out);
  absl::StrAppend(out, "}]},\"logprobs\":null,\"finish_reason\":null", suffix_);
}

void ChunkWriter::ToolCallArguments(int index, size_t call,
                                    absl::string_view text,
                                    std::string* out) const {
  absl::StrAppend(out, prefix_, index,
                  ",\"delta\":{\"tool_calls\":[{\"index\":", call,
                  ",\"function\":{\"arguments\":");
  AppendJsonString(text, out);
  absl::StrAppend(out, "}}]},\"logprobs\":null,\"finish_reason\":null",
                  suffix_);
}

void ChunkWriter::Finish(int index, v1::FinishReason reason, bool called,
                         std::string* out) const {
  absl::StrAppend(out, prefix_, index,
                  chat_ ? ",\"delta\":{}" : ",\"text\":\"\"",
                  ",\"logprobs\":null,\"finish_reason\":\"",
                  FinishName(reason, called), "\"", suffix_);
}

void ChunkWriter::Usage(const AnswerUsage& usage, std::string* out) const {
  out->append(usage_prefix_);
  AppendUsage(usage, out);
  out->append("}\n\n");
}

void ChunkWriter::Error(absl::string_view error, std::string* out) {
  absl::StrAppend(out, "data: ", error, "\n\n");
}

void ChunkWriter::Done(std::string* out) { out->append("data: [DONE]\n\n"); }

}  // namespace baton::router::http
