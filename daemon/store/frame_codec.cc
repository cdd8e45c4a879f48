#include "daemon/store/frame_codec.h"

#include <bit>
#include <cstring>

namespace neuraldbg::store {
namespace {

// First byte of every frame; another layout gets another number, and old rows stay readable.
constexpr std::uint8_t kFormat = 1;

constexpr std::uint8_t kComplete = 1, kApplied = 2, kTraining = 4;
constexpr std::uint8_t kHasBits = 0x80;  // in the byte of the phase

// Smallest encoding of a sample (site, kind, phase, flags, present): bounds a claimed count before memory is reserved.
constexpr std::size_t kSmallestSample = 6;

void EncodeSample(const Sample& sample, std::uint32_t previous_site, ByteWriter& writer) {
  writer.Difference(sample.site, previous_site);
  writer.Fixed(sample.kind);
  writer.Fixed(static_cast<std::uint8_t>(static_cast<std::uint8_t>(sample.phase) | (sample.has_bits ? kHasBits : 0)));
  writer.Fixed(sample.flags);
  writer.Varint(sample.present);
  if (sample.has_bits) {
    writer.Fixed(sample.bits);
  }
  std::array<float, kMaxStatistics> packed;
  std::size_t count = 0;
  for (std::uint32_t rest = sample.present & kValueMask; rest != 0; rest &= rest - 1) {
    std::memcpy(&packed[count++], &sample.value[static_cast<std::size_t>(std::countr_zero(rest))], sizeof(float));
  }
  writer.Append(std::as_bytes(std::span(packed.data(), count)));
}

Sample DecodeSample(std::uint32_t previous_site, ByteReader& reader) {
  Sample sample;
  sample.site = static_cast<std::uint32_t>(reader.Difference(previous_site));
  const auto kind = reader.Fixed<std::uint8_t>();
  const auto phase = reader.Fixed<std::uint8_t>();
  sample.has_bits = (phase & kHasBits) != 0;
  if (kind >= kRecordKindCount || (phase & ~kHasBits) >= kPhaseCount) {
    reader.Fail();
    return sample;
  }
  sample.kind = static_cast<RecordKind>(kind);
  sample.phase = static_cast<Phase>(phase & ~kHasBits);
  sample.flags = reader.Fixed<std::uint16_t>();
  sample.present = static_cast<std::uint32_t>(reader.Varint());
  if (sample.has_bits) {
    sample.bits = reader.Fixed<std::uint64_t>();
  }
  const std::uint32_t valued = sample.present & kValueMask;
  const ByteSpan values = reader.Take(static_cast<std::size_t>(std::popcount(valued)) * sizeof(float));
  std::size_t at = 0;
  for (std::uint32_t rest = values.empty() ? 0 : valued; rest != 0; rest &= rest - 1, at += sizeof(float)) {
    std::memcpy(&sample.value[static_cast<std::size_t>(std::countr_zero(rest))], values.data() + at, sizeof(float));
  }
  return sample;
}

}  // namespace

bool IsEncodable(const StepFrame& frame) {
  for (const Sample& sample : frame.samples) {
    if (static_cast<std::uint8_t>(sample.kind) >= kRecordKindCount ||
        static_cast<std::uint8_t>(sample.phase) >= kPhaseCount) {
      return false;
    }
  }
  return true;
}

void EncodeFrameHead(const StepFrame& frame, ByteWriter& writer) {
  writer.Varint(frame.step);
  writer.Fixed(static_cast<std::uint8_t>((frame.complete ? kComplete : 0) | (frame.applied ? kApplied : 0) |
                                         (frame.training ? kTraining : 0)));
  writer.Varint(frame.records_received);
  writer.Varint(frame.records_missing);
  writer.Fixed(frame.time_ns);
}

StepFrame DecodeFrameHead(ByteReader& reader, const RankKey& rank) {
  StepFrame frame;
  frame.rank = rank;
  frame.step = reader.Varint();
  const auto flags = reader.Fixed<std::uint8_t>();
  frame.complete = (flags & kComplete) != 0;
  frame.applied = (flags & kApplied) != 0;
  frame.training = (flags & kTraining) != 0;
  frame.records_received = reader.Varint();
  frame.records_missing = reader.Varint();
  frame.time_ns = reader.Fixed<std::uint64_t>();
  return frame;
}

void EncodeFrame(const StepFrame& frame, Bytes& out) {
  ByteWriter writer(out);
  writer.Fixed(kFormat);
  EncodeFrameHead(frame, writer);
  writer.Varint(frame.samples.size());
  std::uint32_t previous_site = 0;
  for (const Sample& sample : frame.samples) {
    EncodeSample(sample, previous_site, writer);
    previous_site = sample.site;
  }
}

std::optional<StepFrame> DecodeFrame(ByteSpan bytes, const RankKey& rank) {
  ByteReader reader(bytes);
  if (reader.Fixed<std::uint8_t>() != kFormat) {
    return std::nullopt;
  }
  StepFrame frame = DecodeFrameHead(reader, rank);
  const std::uint64_t count = reader.Varint();
  if (count > reader.remaining() / kSmallestSample) {
    return std::nullopt;
  }
  frame.samples.reserve(count);
  std::uint32_t previous_site = 0;
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
    frame.samples.push_back(DecodeSample(previous_site, reader));
    previous_site = frame.samples.back().site;
  }
  return reader.Finished() ? std::optional(std::move(frame)) : std::nullopt;
}

}  // namespace neuraldbg::store
