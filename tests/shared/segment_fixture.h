// What the segment tests share: a directory of their own, small segments and records whose content can be checked.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shared/ring_layout.h"
#include "shared/ring_reader.h"
#include "shared/ring_writer.h"
#include "tests/shared/scratch_directory.h"

namespace neuraldbg::testing {

// A record that is determined by (site, step), down to the last payload byte.
inline Record MakeRecord(std::uint32_t site, std::uint64_t step) {
  Record record{};
  record.kind = RecordKind::kTensor;
  record.phase = Phase::kForward;
  record.dtype = DType::kFloat32;
  record.site = site;
  record.step = step;
  record.time_ns = step * 1000 + site;
  std::uint64_t word = step * 0x9e3779b97f4a7c15ull + site;
  for (std::size_t at = 0; at < kPayloadBytes; at += sizeof word) {
    word ^= word << 13;
    word ^= word >> 7;
    word ^= word << 17;
    std::memcpy(record.payload + at, &word, sizeof word);
  }
  return record;
}

// Whether a received record is what MakeRecord made, but for the two fields that the writer sets.
inline bool IsIntact(const Record& received) {
  Record expected = MakeRecord(received.site, received.step);
  expected.attempt = received.attempt;
  expected.tag = received.tag;
  return std::memcmp(&expected, &received, sizeof expected) == 0;
}

inline std::unique_ptr<SegmentWriter> CreateOrFail(const SegmentOptions& options) {
  Result<std::unique_ptr<SegmentWriter>> writer = SegmentWriter::Create(options);
  if (!writer) {
    ADD_FAILURE() << writer.error().message << ", errno " << writer.error().system_errno;
    return nullptr;
  }
  return std::move(writer).value();
}

inline std::unique_ptr<SegmentReader> AttachOrFail(const std::string& path) {
  Result<std::unique_ptr<SegmentReader>> reader = SegmentReader::Attach(path);
  if (!reader) {
    ADD_FAILURE() << reader.error().message << ", errno " << reader.error().system_errno;
    return nullptr;
  }
  return std::move(reader).value();
}

// Everything that is published now, in order of lanes, released to the producer.
inline std::vector<Record> DrainAll(SegmentReader& reader) {
  std::vector<Record> received;
  while (reader.Drain([&received](std::uint32_t, std::span<const Record> records) {
    received.insert(received.end(), records.begin(), records.end());
  }) > 0) {
  }
  reader.Release();
  return received;
}

class SegmentTest : public ::testing::Test {
 protected:
  SegmentOptions Options() const {
    SegmentOptions options;
    options.directory = directory_.path();
    options.run_name = "segment-test";
    options.launch = "launch-1";
    options.lanes = 2;
    options.lane_capacity = 64;
    options.sites = 16;
    options.manifest_bytes = 1u << 16;
    return options;
  }
  const std::string& directory() const { return directory_.path(); }

 private:
  ScratchDirectory directory_;
};

// A closed, valid segment that no process owns any more, with one record and one manifest entry in it.
inline std::string MakeClosedSegment(const SegmentOptions& options) {
  const auto writer = CreateOrFail(options);
  if (writer == nullptr) return {};
  writer->Push(MakeRecord(1, 1));
  writer->manifest().Append(MarkEntry{1, "made"});
  return writer->path();
}

inline SegmentHeader ReadHeader(const std::string& path) {
  SegmentHeader header{};
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
  return header;
}

}  // namespace neuraldbg::testing
