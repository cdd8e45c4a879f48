// Bytes in and out, little endian, with variable-length integers: what every blob of the store is made of.
//
// Reading is for damaged files too: a reader that ran out of bytes stays failed, returns zeros, and never reads beyond
// its span, so a decoder may read a whole structure and check ok() once, as long as it bounds its loops by remaining().
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

namespace neuraldbg::store {

using Bytes = std::vector<std::byte>;
using ByteSpan = std::span<const std::byte>;

class ByteWriter {
 public:
  explicit ByteWriter(Bytes& out) : out_(out) {}

  template <typename T>
  void Fixed(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    const std::size_t at = out_.size();
    out_.resize(at + sizeof(T));
    std::memcpy(out_.data() + at, &value, sizeof(T));
  }

  void Varint(std::uint64_t value) {
    std::byte buffer[10];
    std::size_t size = 0;
    while (value >= 0x80) {
      buffer[size++] = static_cast<std::byte>(value | 0x80);
      value >>= 7;
    }
    buffer[size++] = static_cast<std::byte>(value);
    Append({buffer, size});
  }

  // Small for neighbours in either direction; wraps around, so every pair of values round-trips.
  void Difference(std::uint64_t value, std::uint64_t previous) {
    const std::uint64_t delta = value - previous;
    Varint((delta << 1) ^ (0 - (delta >> 63)));
  }

  void Append(ByteSpan bytes) {
    const std::size_t at = out_.size();
    out_.resize(at + bytes.size());
    if (!bytes.empty()) {
      std::memcpy(out_.data() + at, bytes.data(), bytes.size());
    }
  }

 private:
  Bytes& out_;
};

class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}

  bool ok() const { return ok_; }
  bool Finished() const { return ok_ && bytes_.empty(); }
  std::size_t remaining() const { return bytes_.size(); }

  template <typename T>
  T Fixed() {
    T value{};
    if (const ByteSpan taken = Take(sizeof(T)); taken.size() == sizeof(T)) {
      std::memcpy(&value, taken.data(), sizeof(T));
    }
    return value;
  }

  std::uint64_t Varint() {
    std::uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      const auto byte = Fixed<std::uint8_t>();
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) {
        return ok_ ? value : 0;
      }
    }
    Fail();
    return 0;
  }

  std::uint64_t Difference(std::uint64_t previous) {
    const std::uint64_t coded = Varint();
    return previous + ((coded >> 1) ^ (0 - (coded & 1)));
  }

  // Empty (and failed) when fewer than `size` bytes are left.
  ByteSpan Take(std::size_t size) {
    if (!ok_ || size > bytes_.size()) {
      Fail();
      return {};
    }
    const ByteSpan taken = bytes_.first(size);
    bytes_ = bytes_.subspan(size);
    return taken;
  }

  void Fail() {
    ok_ = false;
    bytes_ = {};
  }

 private:
  ByteSpan bytes_;
  bool ok_ = true;
};

}  // namespace neuraldbg::store
