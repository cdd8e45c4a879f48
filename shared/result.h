// Errors in shared/ and agent/: an error code and a static sentence, without exceptions or allocation, because this
// code runs inside other people's training jobs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

namespace neuraldbg {

enum class Errc : std::uint8_t {
  kOk = 0,
  kInvalidArgument,
  kIo,       // errno is in Error::system_errno
  kNoSpace,  // the shared-memory directory is full
  kNotFound,
  kAlreadyExists,
  kPermission,
  kBadMagic,    // not a segment of ours
  kBadVersion,  // written by an incompatible release
  kBadLayout,   // layout hash, checksum or geometry does not match
  kBadOwner,    // file owner, type or mode is not acceptable
  kFull,        // a bounded region has no room left
  kDisabled,
  kCorrupt,  // contents contradict themselves
};
inline constexpr std::size_t kErrcCount = 14;

// The code as a label: metrics use it, so a name never changes.
constexpr std::string_view ErrcName(Errc code) noexcept {
  constexpr std::array<std::string_view, kErrcCount> kNames = {
      "ok",    "invalid_argument", "io",     "no_space", "not_found", "already_exists", "permission",
      "magic", "version",          "layout", "owner",    "full",      "disabled",       "corrupt"};
  static_assert(static_cast<std::size_t>(Errc::kCorrupt) + 1 == kErrcCount);
  const auto index = static_cast<std::size_t>(code);
  return index < kErrcCount ? kNames[index] : "unknown";
}

struct Error {
  Errc code = Errc::kOk;
  int system_errno = 0;
  const char* message = "";  // static storage, one sentence
};

// Either a value or an Error. Movable; never throws.
template <typename T>
class Result {
 public:
  Result(T value) noexcept
      : value_(std::move(value)) {}                // NOLINT(google-explicit-constructor): reads as a return value
  Result(Error error) noexcept : error_(error) {}  // NOLINT(google-explicit-constructor)
  bool ok() const noexcept { return value_.has_value(); }
  explicit operator bool() const noexcept { return ok(); }
  // As with std::optional, whoever asks for the value has looked at ok() first.
  // NOLINTBEGIN(bugprone-unchecked-optional-access)
  T& value() & noexcept { return *value_; }
  const T& value() const& noexcept { return *value_; }
  T&& value() && noexcept { return std::move(*value_); }
  // NOLINTEND(bugprone-unchecked-optional-access)
  const Error& error() const noexcept { return error_; }

 private:
  std::optional<T> value_;
  Error error_;
};

}  // namespace neuraldbg
