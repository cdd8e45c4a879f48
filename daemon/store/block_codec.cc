#include "daemon/store/block_codec.h"

#include <algorithm>
#include <bit>

#include "daemon/store/frame_codec.h"
#include "daemon/store/word_codec.h"

namespace neuraldbg::store {
namespace {

enum class Layout : std::uint8_t { kColumns = 1, kFrames = 2 };

// More frames than any block has (store_writer.cc closes one at 256); a count beyond it is damage.
constexpr std::size_t kMaxBlockFrames = 4096;

// Samples by column and frame; null where a site is missing.
std::vector<const Sample*> MakeGrid(std::span<const StepFrame> frames, std::span<const ColumnKey> columns) {
  std::vector<const Sample*> grid(columns.size() * frames.size(), nullptr);
  for (std::size_t f = 0; f < frames.size(); ++f) {
    std::size_t column = 0;
    for (const Sample& sample : frames[f].samples) {  // both are sorted: one walk finds every place
      while (columns[column] != KeyOf(sample)) {
        ++column;
      }
      grid[column * frames.size() + f] = &sample;
    }
  }
  return grid;
}

SampleMark MarkOf(const Sample* sample) {
  return sample == nullptr ? SampleMark{} : SampleMark{true, sample->has_bits, sample->flags, sample->present};
}

// Marks rarely change from step to step, so they are kept as runs.
void EncodeMarks(std::span<const Sample* const> row, ByteWriter& writer) {
  for (std::size_t f = 0; f < row.size();) {
    const SampleMark mark = MarkOf(row[f]);
    std::size_t end = f + 1;
    while (end < row.size() && MarkOf(row[end]) == mark) {
      ++end;
    }
    writer.Varint((end - f) << 2 | (mark.exists ? 2u : 0u) | (mark.has_bits ? 1u : 0u));
    if (mark.exists) {
      writer.Varint(mark.flags);
      writer.Varint(mark.present);
    }
    f = end;
  }
}

void DecodeMarks(ByteReader& reader, std::span<SampleMark> row) {
  for (std::size_t f = 0; f < row.size();) {
    const std::uint64_t head = reader.Varint();
    const std::uint64_t length = head >> 2;
    if (!reader.ok() || length == 0 || length > row.size() - f) {
      reader.Fail();
      return;
    }
    SampleMark mark;
    mark.exists = (head & 2) != 0;
    mark.has_bits = (head & 1) != 0;
    if (mark.exists) {
      mark.flags = static_cast<std::uint16_t>(reader.Varint());
      mark.present = static_cast<std::uint32_t>(reader.Varint());
    }
    std::fill_n(row.begin() + static_cast<std::ptrdiff_t>(f), length, mark);
    f += length;
  }
}

void EncodeFingerprints(std::span<const Sample* const> grid, Bytes& out) {
  std::vector<std::uint32_t> low, high;
  for (const Sample* sample : grid) {
    if (sample != nullptr && sample->has_bits) {
      low.push_back(static_cast<std::uint32_t>(sample->bits));
      high.push_back(static_cast<std::uint32_t>(sample->bits >> 32));
    }
  }
  EncodeWords(low, out);
  EncodeWords(high, out);
}

bool HasValue(std::uint32_t present, std::size_t statistic) { return ((present >> statistic) & 1u) != 0; }

}  // namespace

EncodedBlock EncodeBlock(std::span<const StepFrame> frames, std::span<const std::uint64_t> sequences) {
  EncodedBlock block;
  std::vector<ColumnKey> columns;
  const bool sorted = CollectColumns(frames, columns);
  ByteWriter(block.directory).Fixed(sorted ? Layout::kColumns : Layout::kFrames);
  Bytes table;
  ByteWriter writer(table);
  writer.Varint(frames.size());
  std::uint64_t previous = 0;
  for (std::size_t f = 0; f < frames.size(); ++f) {
    writer.Difference(sequences[f], previous);
    previous = sequences[f];
    if (sorted) {
      EncodeFrameHead(frames[f], writer);
    } else {
      Bytes whole;
      EncodeFrame(frames[f], whole);
      writer.Varint(whole.size());
      writer.Append(whole);
    }
  }
  std::vector<const Sample*> grid;
  if (sorted) {
    grid = MakeGrid(frames, columns);
    EncodeColumns(columns, writer);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      EncodeMarks(std::span(grid).subspan(c * frames.size(), frames.size()), writer);
    }
  }
  Compress(table, block.directory);
  if (!sorted) {
    return block;
  }
  std::vector<std::uint32_t> words;
  const auto encode = [&](RecordKind kind, std::size_t statistic, Bytes& out) {
    words.clear();
    for (std::size_t c = 0; c < columns.size(); ++c) {
      if (columns[c].kind != kind) {
        continue;
      }
      for (std::size_t i = c * frames.size(); i < (c + 1) * frames.size(); ++i) {
        if (grid[i] != nullptr && HasValue(grid[i]->present, statistic)) {
          words.push_back(std::bit_cast<std::uint32_t>(grid[i]->value[statistic]));
        }
      }
    }
    EncodeWords(words, out);
  };
  PackStatistics(columns, encode, block.packs);
  EncodeFingerprints(grid, block.fingerprints);
  return block;
}

std::optional<BlockDirectory> DecodeDirectory(ByteSpan bytes, const RankKey& rank) {
  ByteReader outer(bytes);
  const auto layout = static_cast<Layout>(outer.Fixed<std::uint8_t>());
  Bytes table;
  if ((layout != Layout::kColumns && layout != Layout::kFrames) || !Decompress(outer, kMaxTableBytes, table)) {
    return std::nullopt;
  }
  BlockDirectory directory;
  directory.unsorted = layout == Layout::kFrames;
  ByteReader reader(table);
  const std::uint64_t frames = reader.Varint();
  if (frames > kMaxBlockFrames) {
    return std::nullopt;
  }
  std::uint64_t sequence = 0;
  for (std::uint64_t f = 0; f < frames && reader.ok(); ++f) {
    sequence = reader.Difference(sequence);
    directory.sequences.push_back(sequence);
    if (!directory.unsorted) {
      directory.frames.push_back(DecodeFrameHead(reader, rank));
      continue;
    }
    std::optional<StepFrame> frame = DecodeFrame(reader.Take(reader.Varint()), rank);
    if (!frame) {
      return std::nullopt;
    }
    directory.frames.push_back(*std::move(frame));
  }
  if (!directory.unsorted) {
    directory.columns = DecodeColumns(reader);
    if (directory.columns.size() * frames > kMaxTableBytes) {
      return std::nullopt;
    }
    directory.marks.resize(directory.columns.size() * frames);
    for (std::size_t c = 0; c < directory.columns.size() && reader.ok(); ++c) {
      DecodeMarks(reader, std::span(directory.marks).subspan(c * frames, frames));
    }
  }
  return reader.Finished() ? std::optional(std::move(directory)) : std::nullopt;
}

bool DecodeStatistic(const BlockDirectory& directory, RecordKind kind, std::size_t statistic, ByteSpan section,
                     const std::function<void(std::size_t, std::size_t, float)>& visit) {
  const std::size_t frames = directory.frames.size();
  const auto for_each = [&](const auto& act) {
    for (std::size_t c = 0; c < directory.columns.size(); ++c) {
      for (std::size_t f = 0; f < frames && directory.columns[c].kind == kind; ++f) {
        if (HasValue(directory.Mark(c, f).present, statistic)) {
          act(c, f);
        }
      }
    }
  };
  std::size_t count = 0;
  for_each([&](std::size_t, std::size_t) { ++count; });
  std::vector<std::uint32_t> words;
  ByteReader reader(section);
  if (!DecodeWords(reader, count, words) || !reader.Finished()) {
    return false;
  }
  std::size_t next = 0;
  for_each([&](std::size_t c, std::size_t f) { visit(c, f, std::bit_cast<float>(words[next++])); });
  return true;
}

bool DecodeSamples(BlockDirectory& directory, const std::function<ByteSpan(RecordKind, std::size_t)>& section,
                   ByteSpan fingerprints) {
  if (directory.unsorted) {
    return true;
  }
  const std::size_t frames = directory.frames.size();
  std::vector<Sample> grid(directory.marks.size());
  std::size_t with_bits = 0;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    const SampleMark& mark = directory.marks[i];
    const ColumnKey& column = directory.columns[i / frames];
    grid[i].site = column.site;
    grid[i].kind = column.kind;
    grid[i].phase = column.phase;
    grid[i].flags = mark.flags;
    grid[i].present = mark.present;
    grid[i].has_bits = mark.has_bits;
    with_bits += mark.has_bits ? 1 : 0;
  }
  for (std::uint8_t k = 0; k < kRecordKindCount; ++k) {
    const auto kind = static_cast<RecordKind>(k);
    if (std::none_of(directory.columns.begin(), directory.columns.end(),
                     [&](const ColumnKey& c) { return c.kind == kind; })) {
      continue;
    }
    for (std::size_t s = 0; s < kMaxStatistics; ++s) {
      const auto store = [&](std::size_t c, std::size_t f, float value) { grid[c * frames + f].value[s] = value; };
      if (!DecodeStatistic(directory, kind, s, section(kind, s), store)) {
        return false;
      }
    }
  }
  std::vector<std::uint32_t> low, high;
  ByteReader reader(fingerprints);
  if (!DecodeWords(reader, with_bits, low) || !DecodeWords(reader, with_bits, high) || !reader.Finished()) {
    return false;
  }
  std::size_t next = 0;
  for (std::size_t i = 0; i < grid.size(); ++i) {
    if (directory.marks[i].has_bits) {
      grid[i].bits = static_cast<std::uint64_t>(high[next]) << 32 | low[next];
      ++next;
    }
  }
  for (std::size_t f = 0; f < frames; ++f) {
    for (std::size_t c = 0; c < directory.columns.size(); ++c) {
      if (directory.Mark(c, f).exists) {
        directory.frames[f].samples.push_back(grid[c * frames + f]);
      }
    }
  }
  return true;
}

}  // namespace neuraldbg::store
