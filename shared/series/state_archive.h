// Serialisation of detector state for snapshots: one `Visit` per struct serves both directions, so that what is written
// and what is read can never drift apart. Fields are written one by one (never whole structs: padding is not state).
//
// A reader is fed bytes from disk and trusts none of them: every read is bounded, and after the first failure
// everything reads as zero and `ok()` stays false.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace neuraldbg {

class StateWriter {
 public:
  static constexpr bool kReading = false;
  void Raw(const void* data, std::size_t bytes) {
    const auto* first = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), first, first + bytes);
  }
  std::uint64_t Count(std::uint64_t count, std::size_t /*element_bytes*/) {
    Raw(&count, sizeof count);
    return count;
  }
  bool ok() const { return true; }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

class StateReader {
 public:
  static constexpr bool kReading = true;
  explicit StateReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  void Raw(void* data, std::size_t bytes) {
    if (!ok_ || bytes > bytes_.size()) {
      ok_ = false;
      std::memset(data, 0, bytes);
      return;
    }
    std::memcpy(data, bytes_.data(), bytes);
    bytes_ = bytes_.subspan(bytes);
  }
  // A count is believed only if as many elements could follow.
  std::uint64_t Count(std::uint64_t /*current*/, std::size_t element_bytes) {
    std::uint64_t count = 0;
    Raw(&count, sizeof count);
    if (count > bytes_.size() / (element_bytes == 0 ? 1 : element_bytes)) {
      ok_ = false;
      return 0;
    }
    return count;
  }
  bool ok() const { return ok_; }
  void Fail() { ok_ = false; }
  bool AtEnd() const { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

template <typename T>
concept PlainField = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <typename Archive, PlainField T>
void Field(Archive& archive, T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    std::uint8_t byte = value ? 1 : 0;
    archive.Raw(&byte, 1);
    value = byte != 0;
  } else {
    archive.Raw(&value, sizeof value);
  }
}

template <typename Archive>
void Field(Archive& archive, std::string& text) {
  text.resize(archive.Count(text.size(), 1));
  if (!text.empty()) archive.Raw(text.data(), text.size());
}

template <typename Archive, typename T>
  requires requires(T& value, Archive& archive) { value.Visit(archive); }
void Field(Archive& archive, T& value) {
  value.Visit(archive);
}

template <typename Archive, typename T>
void Field(Archive& archive, std::vector<T>& values);

template <typename Archive, typename T, std::size_t N>
void Field(Archive& archive, std::array<T, N>& values) {
  if constexpr (PlainField<T> && !std::is_same_v<T, bool>) {
    archive.Raw(values.data(), sizeof values);
  } else {
    for (T& value : values) Field(archive, value);
  }
}

template <typename Archive, typename T>
void Field(Archive& archive, std::vector<T>& values) {
  constexpr std::size_t kElementBytes = PlainField<T> ? sizeof(T) : 1;
  const std::uint64_t count = archive.Count(values.size(), kElementBytes);
  values.resize(count);
  if constexpr (PlainField<T> && !std::is_same_v<T, bool>) {
    if (count > 0) archive.Raw(values.data(), count * sizeof(T));
  } else {
    for (T& value : values) Field(archive, value);
  }
}

// Visits several fields in order.
template <typename Archive, typename... T>
void Fields(Archive& archive, T&... values) {
  (Field(archive, values), ...);
}

}  // namespace neuraldbg
