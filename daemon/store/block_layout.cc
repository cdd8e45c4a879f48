#include "daemon/store/block_layout.h"

#include <algorithm>
#include <functional>
#include <iterator>

namespace neuraldbg::store {
namespace {

// A row smaller than this wastes the rest of its database page (4 KiB); a larger one makes a query for one statistic
// read others. Four pages keep the waste under an eighth.
constexpr std::size_t kPackBytes = 16384;

}  // namespace

ColumnKey KeyOf(const Sample& sample) { return {sample.phase, sample.site, sample.kind}; }

void EncodeColumns(std::span<const ColumnKey> columns, ByteWriter& writer) {
  writer.Varint(columns.size());
  std::uint32_t previous_site = 0;
  for (const ColumnKey& column : columns) {
    writer.Fixed(
        static_cast<std::uint8_t>(static_cast<unsigned>(column.phase) << 4 | static_cast<unsigned>(column.kind)));
    writer.Difference(column.site, previous_site);
    previous_site = column.site;
  }
}

std::vector<ColumnKey> DecodeColumns(ByteReader& reader) {
  std::vector<ColumnKey> columns;
  const std::uint64_t count = reader.Varint();
  if (count > reader.remaining() / 2) {  // a column takes at least two bytes
    reader.Fail();
    return columns;
  }
  columns.reserve(count);
  std::uint32_t previous_site = 0;
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
    const auto head = reader.Fixed<std::uint8_t>();
    const auto site = static_cast<std::uint32_t>(reader.Difference(previous_site));
    if ((head >> 4) >= kPhaseCount || (head & 0xf) >= kRecordKindCount) {
      reader.Fail();
      break;
    }
    const ColumnKey column{static_cast<Phase>(head >> 4), site, static_cast<RecordKind>(head & 0xf)};
    if (!columns.empty() && columns.back() >= column) {
      reader.Fail();
      break;
    }
    columns.push_back(column);
    previous_site = site;
  }
  return columns;
}

bool CollectColumns(std::span<const StepFrame> frames, std::vector<ColumnKey>& columns) {
  std::vector<ColumnKey> keys, merged;
  columns.clear();
  bool sorted = true;
  for (const StepFrame& frame : frames) {
    keys.clear();
    std::transform(frame.samples.begin(), frame.samples.end(), std::back_inserter(keys), KeyOf);
    if (std::adjacent_find(keys.begin(), keys.end(), std::greater_equal<>()) != keys.end()) {
      sorted = false;
      std::sort(keys.begin(), keys.end());
      keys.erase(std::unique(keys.begin(), keys.end()), keys.end());
    }
    if (!std::includes(columns.begin(), columns.end(), keys.begin(), keys.end())) {
      merged.clear();
      std::set_union(columns.begin(), columns.end(), keys.begin(), keys.end(), std::back_inserter(merged));
      columns.swap(merged);
    }
  }
  return sorted;
}

void PackStatistics(std::span<const ColumnKey> columns,
                    const std::function<void(RecordKind, std::size_t, Bytes&)>& encode, std::vector<Pack>& packs) {
  Bytes section;
  for (std::uint8_t k = 0; k < kRecordKindCount; ++k) {
    const auto kind = static_cast<RecordKind>(k);
    if (std::none_of(columns.begin(), columns.end(), [&](const ColumnKey& c) { return c.kind == kind; })) {
      continue;
    }
    for (std::uint8_t statistic = 0; statistic < kMaxStatistics; ++statistic) {
      section.clear();
      encode(kind, statistic, section);
      if (packs.empty() || packs.back().kind != kind ||
          (packs.back().data.size() + section.size() > kPackBytes && !section.empty())) {
        packs.push_back({kind, statistic, statistic, {}});
      }
      ByteWriter writer(packs.back().data);
      writer.Varint(section.size());
      writer.Append(section);
      packs.back().last_statistic = statistic;
    }
  }
}

ByteSpan FindInPack(ByteSpan pack, std::size_t first_statistic, std::size_t statistic) {
  ByteReader reader(pack);
  for (std::size_t i = first_statistic; i < statistic; ++i) {
    reader.Take(reader.Varint());
  }
  return reader.Take(reader.Varint());
}

}  // namespace neuraldbg::store
