#include "router/output_format/json_schema.h"

#include <memory>

#include "common/status_macros.h"
#include "router/output_format/json_text.h"
#include "router/output_format/schema_document.h"
#include "router/output_format/schema_writer.h"

namespace baton::router {

absl::Status WriteJsonSchema(absl::string_view schema,
                             scheduling::GrammarBuilder::Rule rule,
                             scheduling::GrammarBuilder* grammar) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<SchemaDocument> document,
                         SchemaDocument::Parse(schema));
  return SchemaWriter(document.get(), grammar).Write(rule);
}

void WriteAnyJsonObject(scheduling::GrammarBuilder::Rule rule,
                        scheduling::GrammarBuilder* grammar) {
  grammar->Define(rule, JsonText(grammar).Object());
}

}  // namespace baton::router
