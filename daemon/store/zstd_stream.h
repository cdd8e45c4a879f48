// zstd as a stream: into a sink of bytes, out of a source of them. Memory is bounded by the window, which a reader
// limits, and by two buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/store/byte_stream.h"

struct ZSTD_CCtx_s;
struct ZSTD_DCtx_s;

namespace neuraldbg::store {

class ZstdCompressor {
 public:
  using Sink = std::function<absl::Status(ByteSpan)>;
  explicit ZstdCompressor(Sink sink);
  absl::Status Write(ByteSpan bytes) { return Feed(bytes, false); }
  absl::Status Finish() { return Feed({}, true); }

 private:
  absl::Status Feed(ByteSpan bytes, bool end);

  Sink sink_;
  std::unique_ptr<ZSTD_CCtx_s, std::size_t (*)(ZSTD_CCtx_s*)> context_;
  Bytes buffer_;
};

// One zstd frame, and nothing behind it. DATA_LOSS for anything else, and for one that grows beyond all reason.
class ZstdDecompressor {
 public:
  using Source = std::function<absl::StatusOr<std::size_t>(std::span<std::byte>)>;
  explicit ZstdDecompressor(Source source);
  // As many bytes as fit; 0 at the end, when the frame and its checksum were found whole.
  absl::StatusOr<std::size_t> Read(std::span<std::byte> out);

 private:
  absl::Status Refill();
  absl::Status CheckGrowth() const;

  Source source_;
  std::unique_ptr<ZSTD_DCtx_s, std::size_t (*)(ZSTD_DCtx_s*)> context_;
  Bytes buffer_;
  std::size_t begin_ = 0, end_ = 0;  // of what is unread in the buffer
  std::uint64_t bytes_in_ = 0, bytes_out_ = 0;
  bool whole_ = false;      // the frame has ended
  bool unflushed_ = false;  // more may come out without anything going in
};

}  // namespace neuraldbg::store
