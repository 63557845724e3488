// nlohmann's JSON. Files include this in the place of its own header: what
// reads and writes texts is then compiled once (json.cc), not again by each of
// them, which took a sanitizer's build ten seconds a file.
#pragma once

#include <string>

#include <nlohmann/json.hpp>

// Of the texts that are read here: string_views, strings and streams.
// `instance` is `extern template` in files that use them.
#define BATON_JSON_READER(instance, Json, Adapter)        \
  instance class nlohmann::detail::parser<Json, Adapter>; \
  instance class nlohmann::detail::lexer<Json, Adapter>;
#define BATON_JSON_PARTS(instance, Json)                                     \
  instance class nlohmann::detail::serializer<Json>;                         \
  instance class nlohmann::detail::json_sax_dom_parser<Json>;                \
  instance class nlohmann::detail::json_sax_dom_callback_parser<Json>;       \
  BATON_JSON_READER(instance, Json,                                          \
                    nlohmann::detail::iterator_input_adapter<const char*>)   \
  BATON_JSON_READER(                                                         \
      instance, Json,                                                        \
      nlohmann::detail::iterator_input_adapter<std::string::const_iterator>) \
  BATON_JSON_READER(instance, Json, nlohmann::detail::input_stream_adapter)

BATON_JSON_PARTS(extern template, nlohmann::json)
BATON_JSON_PARTS(extern template, nlohmann::ordered_json)
