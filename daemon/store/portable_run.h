// One run as one file, to take away, to send, to replay: magic and version, then one zstd stream of sections.
//
// Exact: what is read equals what was written bit for bit, NaN payloads included. The reader is for files of strangers:
// it bounds what it decompresses and what it keeps, checks every number, makes every string printable, and holds one
// section at a time. docs/store.md has the layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/store/run_sink.h"

namespace neuraldbg {

// Writes beside `path` and renames, so that `path` is whole or not there.
class PortableRunWriter : public RunSink {
 public:
  enum class Existing : std::uint8_t { kRefuse, kReplace };
  // ALREADY_EXISTS where `path` is there and may not be replaced, INVALID_ARGUMENT where it is no regular file.
  static absl::StatusOr<std::unique_ptr<PortableRunWriter>> Create(const std::string& path, Existing existing);
  // The name beside `path` that the file may have until it is whole: what a process that is ended early removes.
  static std::string TemporaryPath(const std::string& path);
  // Without it nothing is left of the file.
  virtual absl::Status Finish() = 0;
  virtual std::uint64_t bytes_written() const = 0;
};

// Everything up to `sink`'s first error. DATA_LOSS: the file is damaged, not one, of another release, or larger than
// what is read of strangers; the sink has then seen a part of it. One sentence.
absl::Status ReadPortableRun(const std::string& path, RunSink& sink);

// The same from bytes that come from elsewhere; the sentence then lacks its beginning, which names the file. Fills as
// much of the span as it can, 0 at the end.
using ByteSource = std::function<absl::StatusOr<std::size_t>(std::span<std::byte>)>;
absl::Status ReadPortableRun(const ByteSource& file, RunSink& sink);
// The sections alone, as they lie inside the zstd stream.
absl::Status ReadPortableSections(const ByteSource& sections, RunSink& sink);

}  // namespace neuraldbg
