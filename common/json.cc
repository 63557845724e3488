#include "common/json.h"

BATON_JSON_PARTS(template, nlohmann::json)
BATON_JSON_PARTS(template, nlohmann::ordered_json)
