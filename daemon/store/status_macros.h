// Early return for absl::Status, so that the steps of a transaction read as a list.
#pragma once

#include "absl/status/status.h"

#define STORE_RETURN_IF_ERROR(expression)                       \
  do {                                                          \
    if (absl::Status returned = (expression); !returned.ok()) { \
      return returned;                                          \
    }                                                           \
  } while (false)

// A declaration cannot stand in parentheses. NOLINTBEGIN(bugprone-macro-parentheses)
#define STORE_CONCATENATE_INNER(a, b) a##b
#define STORE_CONCATENATE(a, b) STORE_CONCATENATE_INNER(a, b)
#define STORE_ASSIGN_OR_RETURN(declaration, expression) \
  STORE_ASSIGN_OR_RETURN_AS(STORE_CONCATENATE(result_, __LINE__), declaration, expression)
#define STORE_ASSIGN_OR_RETURN_AS(result, declaration, expression) \
  auto result = (expression);                                      \
  if (!result.ok()) {                                              \
    return result.status();                                        \
  }                                                                \
  declaration = std::move(result).value()
// NOLINTEND(bugprone-macro-parentheses)
