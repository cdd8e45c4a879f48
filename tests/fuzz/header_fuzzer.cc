// Fuzz target: a header over a file of some size (bounded). The first byte says which of checksum, offsets and size are
// put right, or nothing behind the first check would ever be reached.
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include "shared/ring_layout.h"
#include "shared/ring_reader.h"
#include "tests/shared/scratch_directory.h"

namespace {

using namespace neuraldbg;

constexpr std::uint64_t kMaxFileBytes = 64u << 20;  // sparse: nothing is written but the header

// Whatever is accepted must lie within the file.
void Require(bool holds) {
  if (!holds) std::abort();
}

void CheckAccepted(const SegmentHeader& header, std::uint64_t file_bytes) {
  const SegmentGeometry& geometry = header.geometry;
  Require(header.offsets.total == file_bytes);
  Require(geometry.lanes >= 1 && geometry.lanes <= kMaxLanes && geometry.lane_capacity <= kMaxLaneCapacity);
  const SegmentOffsets& at = header.offsets;
  Require(at.producer + sizeof(ProducerState) + geometry.lanes * sizeof(ProducerLane) <= at.consumer);
  Require(at.consumer + sizeof(ConsumerState) + geometry.lanes * sizeof(ConsumerLane) <= at.site_drops);
  Require(at.site_drops + 8 * (std::uint64_t{geometry.sites} + 1) <= at.manifest);
  Require(at.manifest + geometry.manifest_bytes <= at.black_boxes);
  Require(at.black_boxes + std::uint64_t{geometry.lanes} * geometry.black_box_records * kRecordBytes <= at.records);
  Require(at.records + std::uint64_t{geometry.lanes} * geometry.lane_capacity * kRecordBytes <= at.total);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  static const testing::ScratchDirectory directory;
  static const std::string path = directory.path() + "/segment";
  std::uint64_t file_bytes = 0;
  if (bytes < 1 + sizeof file_bytes + sizeof(SegmentHeader)) return 0;
  const unsigned right = data[0];
  std::memcpy(&file_bytes, data + 1, sizeof file_bytes);
  SegmentHeader header{};
  std::memcpy(&header, data + 1 + sizeof file_bytes, sizeof header);
  const bool acceptable = IsAcceptable(header.geometry);
  if ((right & 1u) != 0 && acceptable) header.offsets = ComputeOffsets(header.geometry);
  if ((right & 2u) != 0 && acceptable) header.offsets.total = ComputeOffsets(header.geometry).total;
  if ((right & 4u) != 0) file_bytes = header.offsets.total;
  if ((right & 8u) != 0) header.crc = HeaderChecksum(header);
  if (CheckHeader(header, file_bytes).code == Errc::kOk) CheckAccepted(header, file_bytes);
  if (file_bytes > kMaxFileBytes) return 0;
  static const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  Require(::ftruncate(file, 0) == 0 && ::ftruncate(file, static_cast<off_t>(file_bytes)) == 0);
  const std::size_t written = static_cast<std::size_t>(std::min<std::uint64_t>(file_bytes, sizeof header));
  Require(::pwrite(file, &header, written, 0) == static_cast<ssize_t>(written));
  const auto reader = SegmentReader::Attach(path);
  if (!reader.ok()) return 0;
  SegmentReader& segment = *reader.value();
  segment.Drain([](std::uint32_t, std::span<const Record>) { std::abort(); });
  segment.manifest().Poll([](const ManifestEntry&) { std::abort(); });
  Require(segment.ReadBlackBox().empty() && segment.counters().size() == header.geometry.lanes);
  segment.SiteDropped(0xffffffffu);
  segment.Release();
  return 0;
}
