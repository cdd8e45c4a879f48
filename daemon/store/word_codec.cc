#include "daemon/store/word_codec.h"

#include <zstd.h>

#include <algorithm>
#include <memory>

namespace neuraldbg::store {
namespace {

constexpr std::size_t kPlanes = sizeof(std::uint32_t);

// Level 1: on byte planes of noise the higher levels gain under 1 % and take 3 to 10 times as long (store_benchmark).
constexpr int kLevel = 1;

enum class PlaneMode : std::uint8_t { kConstant = 0, kPlain = 1, kZstd = 2 };

struct FreeContext {
  void operator()(ZSTD_CCtx* context) const { ZSTD_freeCCtx(context); }
  void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
};

// Making a context costs more than compressing a plane; one a thread is enough.
ZSTD_CCtx* Compressor() {
  thread_local const std::unique_ptr<ZSTD_CCtx, FreeContext> context(ZSTD_createCCtx());
  return context.get();
}
ZSTD_DCtx* Decompressor() {
  thread_local const std::unique_ptr<ZSTD_DCtx, FreeContext> context(ZSTD_createDCtx());
  return context.get();
}

// Bytes written at `at`, or 0 if zstd cannot make it smaller than `plain`.
std::size_t CompressInto(ByteSpan plain, std::vector<std::byte>& scratch) {
  scratch.resize(ZSTD_compressBound(plain.size()));
  const std::size_t size =
      ZSTD_compressCCtx(Compressor(), scratch.data(), scratch.size(), plain.data(), plain.size(), kLevel);
  return ZSTD_isError(size) != 0 || size >= plain.size() ? 0 : size;
}

void EncodePlane(ByteSpan plane, ByteWriter& writer, std::vector<std::byte>& scratch) {
  if (std::all_of(plane.begin(), plane.end(), [&](std::byte b) { return b == plane.front(); })) {
    writer.Fixed(PlaneMode::kConstant);
    writer.Fixed(plane.front());
    return;
  }
  if (const std::size_t size = CompressInto(plane, scratch); size != 0) {
    writer.Fixed(PlaneMode::kZstd);
    writer.Varint(size);
    writer.Append({scratch.data(), size});
    return;
  }
  writer.Fixed(PlaneMode::kPlain);
  writer.Append(plane);
}

bool DecodePlane(ByteReader& reader, std::span<std::byte> plane) {
  switch (static_cast<PlaneMode>(reader.Fixed<std::uint8_t>())) {
    case PlaneMode::kConstant:
      std::fill(plane.begin(), plane.end(), reader.Fixed<std::byte>());
      return reader.ok();
    case PlaneMode::kPlain: {
      const ByteSpan bytes = reader.Take(plane.size());
      std::copy(bytes.begin(), bytes.end(), plane.begin());
      return reader.ok();
    }
    case PlaneMode::kZstd: {
      const ByteSpan bytes = reader.Take(reader.Varint());
      return reader.ok() && ZSTD_decompressDCtx(Decompressor(), plane.data(), plane.size(), bytes.data(),
                                                bytes.size()) == plane.size();
    }
  }
  return false;
}

}  // namespace

void EncodeWords(std::span<const std::uint32_t> words, Bytes& out) {
  if (words.empty()) {
    return;
  }
  ByteWriter writer(out);
  const std::size_t count = words.size();
  thread_local std::vector<std::byte> planes, scratch;
  planes.resize(count * kPlanes);
  std::uint32_t previous = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t delta = words[i] - previous;
    const std::uint32_t coded = (delta << 1) ^ (0u - (delta >> 31));
    previous = words[i];
    planes[i] = static_cast<std::byte>(coded);
    planes[count + i] = static_cast<std::byte>(coded >> 8);
    planes[2 * count + i] = static_cast<std::byte>(coded >> 16);
    planes[3 * count + i] = static_cast<std::byte>(coded >> 24);
  }
  for (std::size_t plane = 0; plane < kPlanes; ++plane) {
    EncodePlane({planes.data() + plane * count, count}, writer, scratch);
  }
}

bool DecodeWords(ByteReader& reader, std::size_t count, std::vector<std::uint32_t>& out) {
  out.resize(count);
  if (count == 0) {
    return reader.ok();
  }
  thread_local std::vector<std::byte> planes;
  planes.resize(count * kPlanes);
  for (std::size_t plane = 0; plane < kPlanes; ++plane) {
    if (!DecodePlane(reader, {planes.data() + plane * count, count})) {
      return false;
    }
  }
  std::uint32_t previous = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t coded = static_cast<std::uint32_t>(planes[i]) |
                                static_cast<std::uint32_t>(planes[count + i]) << 8 |
                                static_cast<std::uint32_t>(planes[2 * count + i]) << 16 |
                                static_cast<std::uint32_t>(planes[3 * count + i]) << 24;
    previous += (coded >> 1) ^ (0u - (coded & 1u));
    out[i] = previous;
  }
  return true;
}

void Compress(ByteSpan bytes, Bytes& out) {
  thread_local std::vector<std::byte> scratch;
  ByteWriter writer(out);
  writer.Varint(bytes.size());
  if (bytes.empty()) {
    return;
  }
  const std::size_t size = CompressInto(bytes, scratch);
  writer.Varint(size);  // 0: plain
  writer.Append(size == 0 ? bytes : ByteSpan(scratch.data(), size));
}

bool Decompress(ByteReader& reader, std::size_t limit, Bytes& out) {
  const std::uint64_t plain = reader.Varint();
  if (!reader.ok() || plain > limit) {
    return false;
  }
  out.resize(plain);
  if (plain == 0) {
    return true;
  }
  const std::uint64_t size = reader.Varint();
  const ByteSpan bytes = reader.Take(size == 0 ? plain : size);
  if (!reader.ok()) {
    return false;
  }
  if (size == 0) {
    std::copy(bytes.begin(), bytes.end(), out.begin());
    return true;
  }
  return ZSTD_decompressDCtx(Decompressor(), out.data(), out.size(), bytes.data(), bytes.size()) == plain;
}

}  // namespace neuraldbg::store
