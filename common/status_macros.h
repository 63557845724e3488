// Early return on errors, for functions that return absl::Status or
// absl::StatusOr.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define BATON_RETURN_IF_ERROR(expr)                \
  do {                                             \
    absl::Status baton_status_ = (expr);           \
    if (!baton_status_.ok()) return baton_status_; \
  } while (false)

#define BATON_CONCAT_INNER_(a, b) a##b
#define BATON_CONCAT_(a, b) BATON_CONCAT_INNER_(a, b)

// BATON_ASSIGN_OR_RETURN(auto value, MakeValue());
#define BATON_ASSIGN_OR_RETURN(lhs, expr) \
  BATON_ASSIGN_OR_RETURN_IMPL_(BATON_CONCAT_(baton_or_, __LINE__), lhs, expr)
#define BATON_ASSIGN_OR_RETURN_IMPL_(var, lhs, expr) \
  auto var = (expr);                                 \
  if (!var.ok()) return std::move(var).status();     \
  lhs = *std::move(var)
