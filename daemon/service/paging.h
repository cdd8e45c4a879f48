// Pages of lists: a token is the decimal number of what to skip (an offset, or the last id that was sent).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace neuraldbg {

// Requests name the default and maximum in proto/neuraldbg/v1/*_service.proto.
inline constexpr std::uint32_t kRunsPerPageDefault = 100;
inline constexpr std::uint32_t kPageSizeMax = 1000;

inline std::uint32_t PageSize(std::uint32_t requested, std::uint32_t otherwise) {
  return requested == 0 ? otherwise : std::min(requested, kPageSizeMax);
}

inline absl::StatusOr<std::uint64_t> ParsePageToken(const std::string& token) {
  if (token.empty()) return 0;
  std::uint64_t value = 0;
  if (absl::SimpleAtoi(token, &value)) return value;
  return absl::InvalidArgumentError(absl::StrCat("page_token: '", token, "' does not come from an earlier page."));
}

struct PageRange {
  std::size_t begin = 0, end = 0;
  bool more = false;
};

inline PageRange PageOf(std::uint64_t offset, std::uint32_t page_size, std::size_t total) {
  const std::size_t begin = static_cast<std::size_t>(std::min<std::uint64_t>(offset, total));
  const std::size_t end = std::min<std::size_t>(begin + page_size, total);
  return {begin, end, end < total};
}

}  // namespace neuraldbg
