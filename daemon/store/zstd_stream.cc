#include "daemon/store/zstd_stream.h"

#include <zstd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/store/status_macros.h"

namespace neuraldbg::store {
namespace {

// Level 19 made recordings 3 to 4 % smaller in eight to ten times the processor time.
constexpr int kLevel = 9;
// The reader's memory. 2^23 is what level 19 would use; a file that asks for more was not written by us.
constexpr int kWindowLogMax = 23;

// Where a few bytes become gigabytes, somebody wants to fill a disk or hold a processor. Recordings shrink to a third
// or a tenth; a run in which nothing changes may shrink to a thousandth.
constexpr std::uint64_t kRatioMax = 2000;
constexpr std::uint64_t kAlwaysAllowedBytes = std::uint64_t{16} << 20;
constexpr std::uint64_t kBytesMax = std::uint64_t{64} << 30;

constexpr std::size_t kBufferBytes = std::size_t{128} << 10;

absl::Status BytesBehindTheEnd() { return absl::DataLossError("it has bytes behind its end"); }

}  // namespace

ZstdCompressor::ZstdCompressor(Sink sink)
    : sink_(std::move(sink)), context_(ZSTD_createCCtx(), &ZSTD_freeCCtx), buffer_(kBufferBytes) {
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_compressionLevel, kLevel);
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_windowLog, kWindowLogMax);
  ZSTD_CCtx_setParameter(context_.get(), ZSTD_c_checksumFlag, 1);
}

absl::Status ZstdCompressor::Feed(ByteSpan bytes, bool end) {
  ZSTD_inBuffer in{bytes.data(), bytes.size(), 0};
  for (;;) {
    ZSTD_outBuffer out{buffer_.data(), buffer_.size(), 0};
    const std::size_t left = ZSTD_compressStream2(context_.get(), &out, &in, end ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left) != 0) return absl::ResourceExhaustedError(ZSTD_getErrorName(left));
    if (out.pos > 0) STORE_RETURN_IF_ERROR(sink_(ByteSpan(buffer_).first(out.pos)));
    if (end ? left == 0 : in.pos == in.size) return absl::OkStatus();
  }
}

ZstdDecompressor::ZstdDecompressor(Source source)
    : source_(std::move(source)), context_(ZSTD_createDCtx(), &ZSTD_freeDCtx), buffer_(kBufferBytes) {
  ZSTD_DCtx_setParameter(context_.get(), ZSTD_d_windowLogMax, kWindowLogMax);
}

absl::Status ZstdDecompressor::Refill() {
  STORE_ASSIGN_OR_RETURN(const std::size_t size, source_(buffer_));
  begin_ = 0;
  end_ = size;
  bytes_in_ += size;
  return absl::OkStatus();
}

absl::Status ZstdDecompressor::CheckGrowth() const {
  if (bytes_out_ > kBytesMax || bytes_out_ > kAlwaysAllowedBytes + kRatioMax * bytes_in_) {
    return absl::DataLossError(absl::StrCat("it grows to more than ", bytes_out_ >> 20, " MiB out of ", bytes_in_,
                                            " bytes, as no recording does"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::size_t> ZstdDecompressor::Read(std::span<std::byte> to) {
  ZSTD_outBuffer out{to.data(), to.size(), 0};
  while (out.pos == 0 && !to.empty()) {
    if (begin_ == end_ && !unflushed_) STORE_RETURN_IF_ERROR(Refill());
    if (whole_) return begin_ == end_ ? absl::StatusOr<std::size_t>(0) : BytesBehindTheEnd();
    if (begin_ == end_ && !unflushed_) return absl::DataLossError("it is cut short");
    ZSTD_inBuffer in{buffer_.data(), end_, begin_};
    const std::size_t left = ZSTD_decompressStream(context_.get(), &out, &in);
    if (ZSTD_isError(left) != 0) return absl::DataLossError("it is damaged");
    begin_ = in.pos;
    whole_ = left == 0;
    unflushed_ = left != 0 && out.pos == out.size;
    bytes_out_ += out.pos;
    STORE_RETURN_IF_ERROR(CheckGrowth());
  }
  return out.pos;
}

}  // namespace neuraldbg::store
