// The layout of a segment: an ABI between processes that may have been built from different releases.
//
// Rules that keep it one. They are checked by the static_asserts below and by the layout hash, which both ends compare:
//   * Every field has an explicitly sized type and a fixed offset; little endian; no pointers, no bool, no size_t.
//   * Every atomic is lock-free, and lies in a page that exactly one of the two processes writes.
//   * A meaning never changes. New fields take reserved bytes and raise kLayoutMinor; anything else raises
//   kLayoutMajor.
//   * A reader recomputes all offsets from the geometry and refuses a file whose own offsets differ.
//
//   page-aligned part   written by             content
//   header              agent, before rename   SegmentHeader; constant afterwards
//   producer            agent                  ProducerState, then one ProducerLane per lane
//   consumer            daemon                 ConsumerState, then one ConsumerLane per lane (the daemon's only RW
//   pages) site drops          agent (drop path)      u64 per site, and one more for sites beyond the table manifest
//   agent                  shared/manifest.h black boxes         lane's thread          kBlackBoxRecords per lane,
//   overwriting; read only once the owner is dead records             lane's thread          lane_capacity records per
//   lane
//
// Byte by byte: docs/ring-format.md.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "shared/record.h"
#include "shared/result.h"

namespace neuraldbg {

inline constexpr char kSegmentMagic[8] = {'N', 'D', 'B', 'G', 'S', 'E', 'G', '\0'};
inline constexpr std::uint16_t kLayoutMajor = 1;
inline constexpr std::uint16_t kLayoutMinor = 0;

inline constexpr std::size_t kLayoutPage = 4096;
// 128, not 64: the adjacent-line prefetcher of x86 pulls lines in pairs, so that neighbours would share after all.
inline constexpr std::size_t kLayoutLine = 128;

// Bounds that a reader accepts. They only keep a hostile header from asking for absurd amounts of address space.
inline constexpr std::uint32_t kMaxLanes = 64;
inline constexpr std::uint32_t kMaxLaneCapacity = 1u << 20;
inline constexpr std::uint32_t kMaxSites = 1u << 20;
inline constexpr std::uint32_t kMinManifestBytes = 4096;
inline constexpr std::uint32_t kMaxManifestBytes = 256u << 20;
inline constexpr std::uint32_t kBlackBoxRecords = 512;  // 64 KiB per lane: the last steps of a mid-sized model

enum class SegmentState : std::uint32_t { kInitial = 0, kReady = 1, kClosed = 2 };

struct SegmentGeometry {
  std::uint32_t lanes = 0;
  std::uint32_t lane_capacity = 0;  // a power of two
  std::uint32_t sites = 0;
  std::uint32_t manifest_bytes = 0;  // rounded up to whole pages in the file
  std::uint32_t black_box_records = kBlackBoxRecords;
};

struct SegmentOffsets {
  std::uint64_t producer = 0, consumer = 0, site_drops = 0, manifest = 0, black_boxes = 0, records = 0, total = 0;
  bool operator==(const SegmentOffsets&) const = default;
};

struct SegmentHeader {
  char magic[8];
  std::uint16_t major, minor;
  std::uint32_t header_bytes;
  std::uint64_t layout_hash;
  std::uint32_t record_bytes;
  SegmentGeometry geometry;
  SegmentOffsets offsets;
  std::uint8_t uuid[16];
  std::uint64_t created_realtime_ns;
  std::uint64_t created_monotonic_ns;
  std::uint64_t reserved_run;
  std::uint32_t pid;  // as the owner saw it: information only, another PID namespace counts differently
  std::uint32_t rank, world_size, incarnation;
  std::uint32_t reserved;
  std::uint32_t crc;  // of everything before
};

struct alignas(kLayoutLine) ProducerState {
  std::atomic<std::uint32_t> state;  // SegmentState
  std::uint32_t reserved;
  std::atomic<std::uint64_t> heartbeat_ns;   // CLOCK_MONOTONIC
  std::atomic<std::uint64_t> no_lane_drops;  // pushes by threads that found every lane taken
};

struct alignas(kLayoutLine) ProducerLane {
  std::atomic<std::uint64_t> tail;       // records published; the next one goes to slot tail % lane_capacity
  std::atomic<std::uint64_t> dropped;    // attempts that were not published; attempts = tail + dropped
  std::atomic<std::uint64_t> black_box;  // records written to the black box
  std::atomic<std::uint32_t> owner_tid;  // information only; 0: free
  std::atomic<std::uint32_t> claims;     // threads that have owned this lane
};

struct alignas(kLayoutLine) ConsumerState {
  std::uint64_t reserved[16];
};

struct alignas(kLayoutLine) ConsumerLane {
  std::atomic<std::uint64_t> head;  // records consumed and durable; slots below may be overwritten
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(sizeof(SegmentGeometry) == 20 && sizeof(SegmentOffsets) == 56);
static_assert(offsetof(SegmentHeader, crc) == 164 && sizeof(SegmentHeader) == 168);
static_assert(sizeof(SegmentHeader) <= kLayoutPage && std::is_standard_layout_v<SegmentHeader>);
static_assert(sizeof(ProducerState) == kLayoutLine && sizeof(ProducerLane) == kLayoutLine);
static_assert(sizeof(ConsumerState) == kLayoutLine && sizeof(ConsumerLane) == kLayoutLine);
static_assert(kLayoutLine == kRecordBytes, "records keep the alignment of lines");

// Hash of every size and offset that the two ends must agree on, taken at compile time.
std::uint64_t LayoutHash() noexcept;
std::uint32_t HeaderChecksum(const SegmentHeader& header) noexcept;
bool IsAcceptable(const SegmentGeometry& geometry) noexcept;
SegmentOffsets ComputeOffsets(const SegmentGeometry& geometry) noexcept;

// Whether this release can read a segment with that header in a file of `file_bytes`; the error names the first reason.
Error CheckHeader(const SegmentHeader& header, std::uint64_t file_bytes) noexcept;

// Typed access to the parts of a mapped segment. A view: owns nothing, valid as long as the mapping.
struct SegmentView {
  std::byte* base = nullptr;
  SegmentGeometry geometry;
  SegmentOffsets offsets;

  ProducerState& producer() const noexcept { return *reinterpret_cast<ProducerState*>(base + offsets.producer); }
  ProducerLane& producer_lane(std::uint32_t lane) const noexcept {
    return reinterpret_cast<ProducerLane*>(base + offsets.producer + sizeof(ProducerState))[lane];
  }
  // Index `geometry.sites` counts for every site beyond the table.
  std::atomic<std::uint64_t>& site_drops(std::uint32_t site) const noexcept {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(
        base + offsets.site_drops)[site < geometry.sites ? site : geometry.sites];
  }
  std::span<std::byte> manifest() const noexcept { return {base + offsets.manifest, geometry.manifest_bytes}; }
  std::byte* black_box(std::uint32_t lane) const noexcept {
    return base + offsets.black_boxes + std::uint64_t{lane} * geometry.black_box_records * kRecordBytes;
  }
  std::byte* records(std::uint32_t lane) const noexcept {
    return base + offsets.records + std::uint64_t{lane} * geometry.lane_capacity * kRecordBytes;
  }
};

// `consumer_base` is where the consumer part is mapped: read-write in the daemon, apart from the read-only whole.
inline ConsumerLane& ConsumerLaneAt(std::byte* consumer_base, std::uint32_t lane) noexcept {
  return reinterpret_cast<ConsumerLane*>(consumer_base + sizeof(ConsumerState))[lane];
}

// The tag binds a slot's content to its attempt number, site, kind and segment: a stale, foreign or zero slot fails it.
// It costs about 1 ns where a checksum over the payload costs 10.
inline std::uint32_t RecordTag(std::uint64_t salt, std::uint64_t attempt, std::uint32_t site,
                               RecordKind kind) noexcept {
  std::uint64_t x = (attempt + salt + 0x9e3779b97f4a7c15ull) * 0xff51afd7ed558ccdull;
  x ^= (std::uint64_t{site} << 17) ^ (std::uint64_t{static_cast<std::uint8_t>(kind)} << 5);
  return static_cast<std::uint32_t>(x ^ (x >> 29));
}
std::uint64_t RecordTagSalt(const std::uint8_t* uuid) noexcept;  // 16 bytes

}  // namespace neuraldbg
