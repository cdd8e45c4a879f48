#include "daemon/store/rollup.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>

#include "daemon/store/word_codec.h"

namespace neuraldbg::store {
namespace {

constexpr std::size_t kMaxBuckets = 4096;  // a block has at most 16; more is damage

// A step as its distance from the first step of its bucket. Only a producer that lies about steps can make it exceed
// 32 bits; then the point is drawn at the end of what fits, its value is still exact.
std::uint32_t StepOffset(std::uint64_t step, const RollupBucket& bucket) {
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(step - bucket.min_step, UINT32_MAX));
}

// Collects one field of the cells of a statistic after another, in the order of kinds' columns.
class CellWalk {
 public:
  CellWalk(const Rollup& rollup, RecordKind kind, std::size_t statistic)
      : rollup_(rollup), kind_(kind), statistic_(statistic) {}

  template <typename Act>
  void ForEach(const Act& act) const {
    for (std::size_t c = 0; c < rollup_.columns.size(); ++c) {
      for (std::size_t b = 0; b < rollup_.buckets.size() && rollup_.columns[c].kind == kind_; ++b) {
        act(rollup_.Cell(c, statistic_, b), rollup_.buckets[b]);
      }
    }
  }

  template <typename Get>
  void Encode(Bytes& out, const Get& get) const {
    std::vector<std::uint32_t> words;
    ForEach([&](const RollupCell& cell, const RollupBucket& bucket) { words.push_back(get(cell, bucket)); });
    EncodeWords(words, out);
  }

 private:
  const Rollup& rollup_;
  RecordKind kind_;
  std::size_t statistic_;
};

std::uint32_t Bits(float value) { return std::bit_cast<std::uint32_t>(value); }
float Value(std::uint32_t bits) { return std::bit_cast<float>(bits); }

}  // namespace

void RollupCell::Add(std::uint64_t step, float value) {
  last = value;
  last_step = step;
  if (std::isfinite(value)) {
    if (finite == 0 || value < min) {
      min = value;
      min_step = step;
    }
    if (finite == 0 || value > max) {
      max = value;
      max_step = step;
    }
    ++finite;
    mean += (static_cast<double>(value) - mean) / finite;
  } else if (std::isnan(value)) {
    nan_step = nan == 0 ? step : nan_step;
    ++nan;
  } else {
    inf_step = inf == 0 ? step : inf_step;
    inf_value = inf == 0 ? value : inf_value;
    ++inf;
  }
}

void RollupCell::Merge(const RollupCell& other) {
  if (other.empty()) {
    return;
  }
  if (empty()) {
    *this = other;
    return;
  }
  if (other.last_step >= last_step) {
    last = other.last;
    last_step = other.last_step;
  }
  if (other.finite != 0) {
    if (finite == 0 || other.min < min || (other.min == min && other.min_step < min_step)) {
      min = other.min;
      min_step = other.min_step;
    }
    if (finite == 0 || other.max > max || (other.max == max && other.max_step < max_step)) {
      max = other.max;
      max_step = other.max_step;
    }
    mean += (other.mean - mean) * other.finite / (static_cast<double>(finite) + other.finite);
  }
  if (other.nan != 0) {
    nan_step = nan == 0 ? other.nan_step : std::min(nan_step, other.nan_step);
  }
  if (other.inf != 0 && (inf == 0 || other.inf_step < inf_step)) {
    inf_step = other.inf_step;
    inf_value = other.inf_value;
  }
  finite += other.finite;
  nan += other.nan;
  inf += other.inf;
}

Rollup RollUp(std::span<const StepFrame> frames, std::size_t frames_per_bucket) {
  Rollup rollup;
  CollectColumns(frames, rollup.columns);
  rollup.buckets.resize((frames.size() + frames_per_bucket - 1) / frames_per_bucket);
  rollup.cells.resize(rollup.columns.size() * kMaxStatistics * rollup.buckets.size());
  for (std::size_t f = 0; f < frames.size(); ++f) {
    const std::size_t bucket = f / frames_per_bucket;
    const std::uint64_t step = frames[f].step;
    rollup.buckets[bucket].min_step = std::min(rollup.buckets[bucket].min_step, step);
    rollup.buckets[bucket].max_step = std::max(rollup.buckets[bucket].max_step, step);
    auto column = rollup.columns.begin();
    for (const Sample& sample : frames[f].samples) {
      const ColumnKey key = KeyOf(sample);
      if (column == rollup.columns.end() || *column != key) {  // mostly it is the next one
        column = std::lower_bound(rollup.columns.begin(), rollup.columns.end(), key);
      }
      const auto c = static_cast<std::size_t>(column - rollup.columns.begin());
      for (std::uint32_t rest = sample.present & ((1u << kMaxStatistics) - 1); rest != 0; rest &= rest - 1) {
        const auto statistic = static_cast<std::size_t>(std::countr_zero(rest));
        rollup.Cell(c, statistic, bucket).Add(step, sample.value[statistic]);
      }
      ++column;
    }
  }
  return rollup;
}

EncodedBlock EncodeRollup(const Rollup& rollup) {
  EncodedBlock block;
  Bytes table;
  ByteWriter writer(table);
  writer.Varint(rollup.buckets.size());
  for (const RollupBucket& bucket : rollup.buckets) {
    writer.Varint(bucket.min_step);
    writer.Varint(bucket.max_step);
  }
  EncodeColumns(rollup.columns, writer);
  Compress(table, block.directory);
  const auto encode = [&](RecordKind kind, std::size_t statistic, Bytes& out) {
    using Cell = RollupCell;
    using Bucket = RollupBucket;
    const CellWalk walk(rollup, kind, statistic);
    bool any = false, nonfinite = false;
    walk.ForEach([&](const Cell& c, const Bucket&) {
      any |= !c.empty();
      nonfinite |= c.nan + c.inf != 0;
    });
    if (!any) {
      return;
    }
    ByteWriter(out).Fixed(nonfinite);
    walk.Encode(out, [](const Cell& c, const Bucket&) { return c.finite; });
    walk.Encode(out, [](const Cell& c, const Bucket&) { return Bits(c.min); });
    walk.Encode(out, [](const Cell& c, const Bucket&) { return Bits(c.max); });
    walk.Encode(out, [](const Cell& c, const Bucket&) { return Bits(static_cast<float>(c.mean)); });
    walk.Encode(out, [](const Cell& c, const Bucket&) { return Bits(c.last); });
    walk.Encode(out, [](const Cell& c, const Bucket& b) { return c.finite == 0 ? 0 : StepOffset(c.min_step, b); });
    walk.Encode(out, [](const Cell& c, const Bucket& b) { return c.finite == 0 ? 0 : StepOffset(c.max_step, b); });
    walk.Encode(out, [](const Cell& c, const Bucket& b) { return c.empty() ? 0 : StepOffset(c.last_step, b); });
    if (nonfinite) {
      walk.Encode(out, [](const Cell& c, const Bucket&) { return c.nan; });
      walk.Encode(out, [](const Cell& c, const Bucket&) { return c.inf; });
      walk.Encode(out, [](const Cell& c, const Bucket&) { return Bits(c.inf_value); });
      walk.Encode(out, [](const Cell& c, const Bucket& b) { return c.nan == 0 ? 0 : StepOffset(c.nan_step, b); });
      walk.Encode(out, [](const Cell& c, const Bucket& b) { return c.inf == 0 ? 0 : StepOffset(c.inf_step, b); });
    }
  };
  PackStatistics(rollup.columns, encode, block.packs);
  return block;
}

std::optional<Rollup> DecodeRollupDirectory(ByteSpan bytes) {
  ByteReader outer(bytes);
  Bytes table;
  if (!Decompress(outer, kMaxTableBytes, table)) {
    return std::nullopt;
  }
  Rollup rollup;
  ByteReader reader(table);
  const std::uint64_t buckets = reader.Varint();
  if (buckets > kMaxBuckets) {
    return std::nullopt;
  }
  for (std::uint64_t b = 0; b < buckets && reader.ok(); ++b) {
    const std::uint64_t min_step = reader.Varint();
    rollup.buckets.push_back({min_step, reader.Varint()});
  }
  rollup.columns = DecodeColumns(reader);
  return reader.Finished() ? std::optional(std::move(rollup)) : std::nullopt;
}

bool DecodeRollupSection(const Rollup& directory, RecordKind kind, ByteSpan section,
                         const std::function<void(std::size_t, std::size_t, const RollupCell&)>& visit) {
  if (section.empty()) {
    return true;  // no value in any bucket
  }
  const std::size_t buckets = directory.buckets.size();
  std::vector<std::size_t> columns;
  for (std::size_t c = 0; c < directory.columns.size(); ++c) {
    if (directory.columns[c].kind == kind) {
      columns.push_back(c);
    }
  }
  std::vector<RollupCell> cells(columns.size() * buckets);
  ByteReader reader(section);
  std::vector<std::uint32_t> words;
  bool sound = true;
  const auto decode = [&](const auto& set) {
    sound = sound && DecodeWords(reader, cells.size(), words);
    for (std::size_t i = 0; i < cells.size() && sound; ++i) {
      set(cells[i], words[i], directory.buckets[i % buckets].min_step + words[i]);
    }
  };
  using Cell = RollupCell;
  const bool nonfinite = reader.Fixed<std::uint8_t>() != 0;
  decode([](Cell& c, std::uint32_t word, std::uint64_t) { c.finite = word; });
  decode([](Cell& c, std::uint32_t word, std::uint64_t) { c.min = Value(word); });
  decode([](Cell& c, std::uint32_t word, std::uint64_t) { c.max = Value(word); });
  decode([](Cell& c, std::uint32_t word, std::uint64_t) { c.mean = static_cast<double>(Value(word)); });
  decode([](Cell& c, std::uint32_t word, std::uint64_t) { c.last = Value(word); });
  decode([](Cell& c, std::uint32_t, std::uint64_t step) { c.min_step = step; });
  decode([](Cell& c, std::uint32_t, std::uint64_t step) { c.max_step = step; });
  decode([](Cell& c, std::uint32_t, std::uint64_t step) { c.last_step = step; });
  if (nonfinite) {
    decode([](Cell& c, std::uint32_t word, std::uint64_t) { c.nan = word; });
    decode([](Cell& c, std::uint32_t word, std::uint64_t) { c.inf = word; });
    decode([](Cell& c, std::uint32_t word, std::uint64_t) { c.inf_value = Value(word); });
    decode([](Cell& c, std::uint32_t, std::uint64_t step) { c.nan_step = step; });
    decode([](Cell& c, std::uint32_t, std::uint64_t step) { c.inf_step = step; });
  }
  for (std::size_t i = 0; i < cells.size() && sound; ++i) {
    if (!cells[i].empty()) {
      visit(columns[i / buckets], i % buckets, cells[i]);
    }
  }
  return sound && reader.Finished();
}

Rollup MergedDirectory(std::span<const Rollup> parts) {
  Rollup merged;
  RollupBucket& whole = merged.buckets.emplace_back();
  std::vector<ColumnKey> columns;
  for (const Rollup& part : parts) {
    columns.clear();
    std::set_union(merged.columns.begin(), merged.columns.end(), part.columns.begin(), part.columns.end(),
                   std::back_inserter(columns));
    merged.columns.swap(columns);
    for (const RollupBucket& bucket : part.buckets) {
      whole.min_step = std::min(whole.min_step, bucket.min_step);
      whole.max_step = std::max(whole.max_step, bucket.max_step);
    }
  }
  merged.cells.resize(merged.columns.size() * kMaxStatistics);
  return merged;
}

bool MergeStatistic(Rollup& merged, const Rollup& part, RecordKind kind, std::size_t statistic, ByteSpan section) {
  auto at = merged.columns.begin();
  return DecodeRollupSection(part, kind, section, [&](std::size_t column, std::size_t, const RollupCell& cell) {
    at = std::lower_bound(at, merged.columns.end(), part.columns[column]);
    merged.Cell(static_cast<std::size_t>(at - merged.columns.begin()), statistic, 0).Merge(cell);
  });
}

}  // namespace neuraldbg::store
