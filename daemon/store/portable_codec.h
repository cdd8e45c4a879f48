// The sections of a portable file as bytes (docs/store.md). A decoder survives any bytes: it returns nothing for what
// no encoder of ours writes, and what it returns is within the bounds that ingest keeps: sites, ranks, enumerations,
// printable strings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "daemon/store/byte_stream.h"
#include "daemon/store/run_sink.h"

namespace neuraldbg::store {

// First bytes of a file: magic, then the version of everything behind it, a little-endian u32.
inline constexpr char kPortableMagic[8] = {'N', 'D', 'B', 'G', 'R', 'U', 'N', '\n'};
inline constexpr std::uint32_t kPortableVersion = 1;

// A section is its type, the u32 size of its body, its body. Any number of frames and transitions share one.
enum class Section : std::uint8_t {
  kRun = 1,
  kRank = 2,
  kTransitions = 3,
  kFrames = 4,
  kDiagnosis = 5,
  kEnd = 6,  // how many of each there were: a file that was cut between two sections has none
};

// A section is held whole, and so is what it decodes to. A frame of 8192 sites has 0.7 MiB, the manifest of a rank with
// as many sites 2 MiB.
inline constexpr std::size_t kSectionBytesMax = std::size_t{16} << 20;
inline constexpr std::size_t kFrameBytesMax = std::size_t{4} << 20;
// More frames side by side gain nothing.
inline constexpr std::size_t kFramesPerSectionMax = 256;
// What is kept while the file is read (64 ranks of 4096 sites, started four times).
inline constexpr std::uint64_t kRecordedRanksMax = 4096;
inline constexpr std::uint64_t kRecordedSitesMax = std::uint64_t{1} << 20;
inline constexpr std::uint64_t kRecordedEntriesMax = 4 * kRecordedSitesMax;  // sites, edges, initial values
// Sentences of a diagnosis; names are bounded by kMaxStringBytes.
inline constexpr std::size_t kTextBytesMax = 4096;

struct RecordedCounts {
  std::uint64_t ranks = 0, transitions = 0, frames = 0;
  std::uint64_t diagnoses = 0;  // 0 or 1
  bool operator==(const RecordedCounts&) const = default;
};

void EncodeRun(const StoredRun& run, Bytes& out);
std::optional<StoredRun> DecodeRun(ByteSpan body);

void EncodeRank(const RecordedRank& rank, Bytes& out);
std::optional<RecordedRank> DecodeRank(ByteSpan body);
// The place after the last site that the manifest speaks of.
std::uint64_t SitesOf(const RecordedRank& rank);

// Appends to what the section holds so far.
void AppendTransition(const Transition& transition, Bytes& out);
std::optional<Transition> TakeTransition(ByteReader& section);

// A frame as the frame codec has it; `rank` is the number of its rank among those of the file.
struct PackedFrame {
  std::uint64_t rank = 0;
  Bytes bytes;
};
// Frames of one rank that are equally long have the same fields at the same places, so their bytes go place by place:
// what hardly changes from step to step comes together, which makes a file a quarter smaller.
void EncodeFrames(const std::vector<PackedFrame>& frames, Bytes& out);
std::optional<std::vector<PackedFrame>> DecodeFrames(ByteSpan body);
std::optional<StepFrame> UnpackFrame(const PackedFrame& frame, const std::vector<RankKey>& ranks);

void EncodeDiagnosis(const Diagnosis& diagnosis, Bytes& out);
std::optional<Diagnosis> DecodeDiagnosis(ByteSpan body);

void EncodeCounts(const RecordedCounts& counts, Bytes& out);
std::optional<RecordedCounts> DecodeCounts(ByteSpan body);

}  // namespace neuraldbg::store
