#include "shared/ring_layout.h"

#include <bit>
#include <cstring>
#include <initializer_list>

#include "shared/checksum.h"

namespace neuraldbg {
namespace {

constexpr std::uint64_t HashOf(std::initializer_list<std::uint64_t> values) {
  std::uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (const std::uint64_t value : values) {
    for (unsigned byte = 0; byte < 8; ++byte) {
      hash ^= (value >> (8 * byte)) & 0xff;
      hash *= 1099511628211ull;
    }
  }
  return hash;
}

constexpr std::uint64_t kLayoutHash = HashOf({
    kLayoutPage,
    kLayoutLine,
    sizeof(SegmentHeader),
    offsetof(SegmentHeader, layout_hash),
    offsetof(SegmentHeader, geometry),
    offsetof(SegmentHeader, offsets),
    offsetof(SegmentHeader, uuid),
    offsetof(SegmentHeader, pid),
    offsetof(SegmentHeader, crc),
    sizeof(ProducerState),
    offsetof(ProducerState, heartbeat_ns),
    offsetof(ProducerState, no_lane_drops),
    sizeof(ProducerLane),
    offsetof(ProducerLane, tail),
    offsetof(ProducerLane, dropped),
    offsetof(ProducerLane, black_box),
    offsetof(ProducerLane, owner_tid),
    sizeof(ConsumerState),
    sizeof(ConsumerLane),
    sizeof(Record),
    offsetof(Record, step),
    offsetof(Record, attempt),
    offsetof(Record, site),
    offsetof(Record, tag),
    offsetof(Record, kind),
    offsetof(Record, phase),
    offsetof(Record, dtype),
    offsetof(Record, flags),
    offsetof(Record, call),
    offsetof(Record, validity),
    offsetof(Record, microbatch),
    offsetof(Record, payload),
});

constexpr std::uint64_t PageUp(std::uint64_t bytes) { return (bytes + kLayoutPage - 1) / kLayoutPage * kLayoutPage; }

}  // namespace

std::uint64_t LayoutHash() noexcept { return kLayoutHash; }

std::uint32_t HeaderChecksum(const SegmentHeader& header) noexcept {
  return Crc32(std::as_bytes(std::span(&header, 1)).first(offsetof(SegmentHeader, crc)));
}

bool IsAcceptable(const SegmentGeometry& geometry) noexcept {
  return geometry.lanes >= 1 && geometry.lanes <= kMaxLanes && std::has_single_bit(geometry.lane_capacity) &&
         geometry.lane_capacity <= kMaxLaneCapacity && geometry.sites >= 1 && geometry.sites <= kMaxSites &&
         geometry.manifest_bytes >= kMinManifestBytes && geometry.manifest_bytes <= kMaxManifestBytes &&
         geometry.black_box_records == kBlackBoxRecords;
}

SegmentOffsets ComputeOffsets(const SegmentGeometry& geometry) noexcept {
  const std::uint64_t lanes = geometry.lanes;
  SegmentOffsets offsets;
  offsets.producer = kLayoutPage;
  offsets.consumer = PageUp(offsets.producer + sizeof(ProducerState) + lanes * sizeof(ProducerLane));
  offsets.site_drops = PageUp(offsets.consumer + sizeof(ConsumerState) + lanes * sizeof(ConsumerLane));
  offsets.manifest = PageUp(offsets.site_drops + (std::uint64_t{geometry.sites} + 1) * sizeof(std::uint64_t));
  offsets.black_boxes = PageUp(offsets.manifest + geometry.manifest_bytes);
  offsets.records = offsets.black_boxes + PageUp(lanes * geometry.black_box_records * kRecordBytes);
  offsets.total = offsets.records + PageUp(lanes * geometry.lane_capacity * kRecordBytes);
  return offsets;
}

Error CheckHeader(const SegmentHeader& header, std::uint64_t file_bytes) noexcept {
  if (std::memcmp(header.magic, kSegmentMagic, sizeof kSegmentMagic) != 0) {
    return {Errc::kBadMagic, 0, "the file is not a NeuralDBG segment"};
  }
  if (header.major != kLayoutMajor || header.header_bytes != sizeof(SegmentHeader)) {
    return {Errc::kBadVersion, 0, "the segment was written by a release with another major layout version"};
  }
  if (header.layout_hash != kLayoutHash) {
    return {Errc::kBadLayout, 0, "the segment's layout hash differs from this release's"};
  }
  if (header.crc != HeaderChecksum(header)) return {Errc::kBadLayout, 0, "the segment header fails its checksum"};
  if (header.record_bytes != kRecordBytes || !IsAcceptable(header.geometry)) {
    return {Errc::kBadLayout, 0, "the segment's geometry is out of bounds"};
  }
  const SegmentOffsets expected = ComputeOffsets(header.geometry);
  if (header.offsets != expected || file_bytes != expected.total) {
    return {Errc::kBadLayout, 0, "the segment's offsets or file size do not follow from its geometry"};
  }
  return {};
}

std::uint64_t RecordTagSalt(const std::uint8_t* uuid) noexcept {
  std::uint64_t salt = 0;
  std::memcpy(&salt, uuid, sizeof salt);
  return salt;
}

}  // namespace neuraldbg
