// Fields of a struct as bytes and back: the two ends of one list of fields, as row_fields.h is for rows.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "daemon/store/byte_stream.h"
#include "shared/manifest.h"

namespace neuraldbg::store {

class FieldEncoder {
 public:
  explicit FieldEncoder(Bytes& out) : writer_(out) {}

  template <typename... T>
  void operator()(const T&... values) {
    (Save(values), ...);
  }
  template <typename T>
  void Enum(T value, std::int64_t /*count*/) {
    writer_.Varint(static_cast<std::uint64_t>(value));
  }
  // A list: its length, then what `item` makes of each.
  template <typename T, typename Item>
  void List(const std::vector<T>& list, std::size_t /*smallest*/, Item item) {
    writer_.Varint(list.size());
    for (const T& one : list) item(*this, one);
  }
  ByteWriter& writer() { return writer_; }

 private:
  template <typename T>
    requires std::is_integral_v<T>
  void Save(T value) {
    writer_.Difference(static_cast<std::uint64_t>(value), 0);  // small for -1 and kNoSite's neighbours alike
  }
  void Save(double value) { writer_.Fixed(value); }
  void Save(const std::string& text) {
    writer_.Varint(text.size());
    writer_.Append(std::as_bytes(std::span(text)));
  }

  ByteWriter writer_;
};

class FieldDecoder {
 public:
  // Of all lists together: small items as bytes are large ones in memory.
  static constexpr std::uint64_t kItemsMax = std::uint64_t{1} << 19;
  FieldDecoder(ByteReader& reader, std::size_t text_bytes_max) : reader_(reader), text_bytes_max_(text_bytes_max) {}

  template <typename... T>
  void operator()(T&... values) {
    (Load(values), ...);
  }
  template <typename T>
  void Enum(T& value, std::int64_t count) {
    const std::uint64_t number = reader_.Varint();
    if (number >= static_cast<std::uint64_t>(count)) {
      reader_.Fail();
      return;
    }
    value = static_cast<T>(number);
  }
  // `smallest`: bytes of the smallest item, which bounds a claimed length before memory is taken for it.
  template <typename T, typename Item>
  void List(std::vector<T>& list, std::size_t smallest, Item item) {
    const std::uint64_t count = reader_.Varint();
    if (count > reader_.remaining() / smallest || count > items_left_) reader_.Fail();
    items_left_ -= std::min(items_left_, count);
    for (std::uint64_t i = 0; i < count && reader_.ok(); ++i) item(*this, list.emplace_back());
  }
  ByteReader& reader() { return reader_; }

 private:
  // A number that does not fit was not written by us.
  template <typename T>
    requires std::is_integral_v<T>
  void Load(T& value) {
    const std::uint64_t raw = reader_.Difference(0);
    if constexpr (std::is_same_v<T, bool>) {
      value = raw == 1;
      if (raw > 1) reader_.Fail();
    } else {
      value = static_cast<T>(raw);
      if (static_cast<std::uint64_t>(value) != raw) reader_.Fail();
    }
  }
  void Load(double& value) { value = reader_.Fixed<double>(); }
  void Load(std::string& text) {
    const std::uint64_t size = reader_.Varint();
    if (size > text_bytes_max_) reader_.Fail();
    const ByteSpan bytes = reader_.Take(static_cast<std::size_t>(size));
    text = SanitizeString({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, text_bytes_max_);
  }

  ByteReader& reader_;
  std::size_t text_bytes_max_;
  std::uint64_t items_left_ = kItemsMax;
};

}  // namespace neuraldbg::store
