#include "daemon/store/portable_codec.h"

#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>
#include <variant>

#include "daemon/store/diagnosis_fields.h"
#include "daemon/store/frame_codec.h"
#include "daemon/store/portable_fields.h"
#include "shared/ring_layout.h"
#include "shared/segment_name.h"

namespace neuraldbg::store {
namespace {

// What a segment can have: with fewer, some recordings could not be read.
constexpr std::uint32_t kSitesMax = kMaxSites;
constexpr std::int64_t kStateCount = 3;  // of a run and of a rank
constexpr std::size_t kSmallestManifestEntry = 2;
constexpr std::size_t kSmallestItem = 2;

template <typename Io, typename T>
void RunFields(Io& io, T& run) {
  io(run.display_name, run.name, run.launch, run.owner_uid, run.world_size, run.created_realtime_ns,
     run.updated_realtime_ns, run.framework);
  io.Enum(run.state, kStateCount);
}

// Not its segment: that is one of the host it ran on, which may still drain it.
template <typename Io, typename T>
void RankFields(Io& io, T& r) {
  io(r.rank.key.rank, r.rank.key.incarnation, r.rank.host, r.rank.pid);
  io.Enum(r.rank.state, kStateCount);
  io(r.rank.last_step, r.rank.last_site, r.rank.records_produced, r.rank.records_received, r.rank.records_dropped,
     r.frames);
  io.List(r.site_totals, 3, [](Io& list, auto& total) { list(total.site, total.records, total.last_step); });
  io.List(r.last_places, 4, [](Io& list, auto& place) {
    list(place.thread, place.site, place.step);
    list.Enum(place.phase, kPhaseCount);
  });
}

template <typename Io, typename T>
void DiagnosisFields(Io& io, T& d) {
  io.Enum(d.verdict, kVerdictCount);
  io(d.warm, d.steps_seen);
  io.List(d.ranks_seen, 1, [](Io& list, auto& rank) { list(rank); });
  io.List(d.through_steps, 1, [](Io& list, auto& step) { list(step); });
  io.List(d.hypotheses, kSmallestItem, [](Io& list, auto& hypothesis) {
    HypothesisFields(list, hypothesis);
    list.List(hypothesis.evidence, kSmallestItem, [](Io& inner, auto& item) { EvidenceFields(inner, item); });
    list.List(hypothesis.chain, kSmallestItem, [](Io& inner, auto& item) { ChainFields(inner, item); });
    list.List(hypothesis.equivalents, 1, [](Io& inner, auto& item) { inner(item); });
  });
  io.List(d.notices, kSmallestItem, [](Io& list, auto& notice) { NoticeFields(list, notice); });
  io.List(d.blind_spots, kSmallestItem, [](Io& list, auto& spot) { BlindSpotFields(list, spot); });
}

template <typename Io, typename T>
void CountFields(Io& io, T& counts) {
  io(counts.ranks, counts.transitions, counts.frames, counts.diagnoses);
}

bool IsSite(std::uint32_t site) { return site < kSitesMax; }
bool IsSiteOrNone(std::uint32_t site) { return site == kNoSite || IsSite(site); }

// As ingest has it: no entry speaks of a site that no segment can have.
bool WithinBounds(const ManifestEntry& entry) {
  return std::visit(
      [](const auto& e) {
        using T = std::decay_t<decltype(e)>;
        if constexpr (std::is_same_v<T, SiteEntry>) {
          return IsSite(e.id) && IsSiteOrNone(e.twin) && IsSiteOrNone(e.covered_by);
        } else if constexpr (std::is_same_v<T, EdgeEntry>) {
          return IsSite(e.producer) && IsSite(e.consumer);
        } else if constexpr (std::is_same_v<T, SinkEntry> || std::is_same_v<T, ParameterInitEntry>) {
          return IsSite(e.site);
        } else {
          return true;
        }
      },
      entry);
}

void EncodeManifest(const std::vector<ManifestEntry>& manifest, FieldEncoder& io) {
  Bytes body;
  io.List(manifest, kSmallestManifestEntry, [&body](FieldEncoder& list, const ManifestEntry& entry) {
    body.clear();
    EncodeManifestEntry(entry, body);
    list.writer().Varint(ManifestEntryType(entry));
    list.writer().Varint(body.size());
    list.writer().Append(body);
  });
}

// Decoding makes the strings printable. A type of a later release is left out, as ingest does.
void DecodeManifest(std::vector<ManifestEntry>& manifest, ByteReader& reader) {
  const std::uint64_t count = reader.Varint();
  if (count > reader.remaining() / kSmallestManifestEntry || count > FieldDecoder::kItemsMax) reader.Fail();
  for (std::uint64_t i = 0; i < count && reader.ok(); ++i) {
    const std::uint64_t type = reader.Varint();
    const std::uint64_t size = reader.Varint();
    const ByteSpan body = reader.Take(static_cast<std::size_t>(size));
    if (!reader.ok() || type > 0xffff) return reader.Fail();
    Result<ManifestEntry> entry = DecodeManifestEntry(static_cast<std::uint16_t>(type), body);
    if (!entry.ok() && entry.error().code == Errc::kNotFound) continue;
    if (!entry.ok() || !WithinBounds(entry.value())) return reader.Fail();
    manifest.push_back(std::move(entry).value());
  }
}

// Indices of the frames by rank and size.
std::map<std::pair<std::uint64_t, std::size_t>, std::vector<std::size_t>> Alike(
    const std::vector<PackedFrame>& frames) {
  std::map<std::pair<std::uint64_t, std::size_t>, std::vector<std::size_t>> alike;
  for (std::size_t i = 0; i < frames.size(); ++i) alike[{frames[i].rank, frames[i].bytes.size()}].push_back(i);
  return alike;
}

template <typename T, typename Fields>
std::optional<T> DecodeWhole(ByteSpan body, std::size_t text_bytes_max, Fields fields) {
  T value;
  ByteReader reader(body);
  FieldDecoder io(reader, text_bytes_max);
  fields(io, value);
  return reader.Finished() ? std::optional(std::move(value)) : std::nullopt;
}

}  // namespace

void EncodeRun(const StoredRun& run, Bytes& out) {
  FieldEncoder io(out);
  RunFields(io, run);
}

std::optional<StoredRun> DecodeRun(ByteSpan body) {
  std::optional<StoredRun> run =
      DecodeWhole<StoredRun>(body, kMaxStringBytes, [](FieldDecoder& io, StoredRun& r) { RunFields(io, r); });
  if (!run || !IsValidRunName(run->name)) return std::nullopt;
  return run;
}

void EncodeRank(const RecordedRank& rank, Bytes& out) {
  FieldEncoder io(out);
  RankFields(io, rank);
  EncodeManifest(rank.manifest, io);
}

std::optional<RecordedRank> DecodeRank(ByteSpan body) {
  std::optional<RecordedRank> rank =
      DecodeWhole<RecordedRank>(body, kMaxStringBytes, [](FieldDecoder& io, RecordedRank& r) {
        RankFields(io, r);
        DecodeManifest(r.manifest, io.reader());
      });
  if (!rank || rank->rank.key.rank >= kRanksMax) return std::nullopt;
  const auto& totals = rank->site_totals;
  const bool within = std::all_of(totals.begin(), totals.end(), [](const SiteSummary& t) { return IsSite(t.site); });
  return within ? std::move(rank) : std::nullopt;
}

std::uint64_t SitesOf(const RecordedRank& rank) {
  std::uint64_t end = 0;
  for (const ManifestEntry& entry : rank.manifest) {
    if (const auto* site = std::get_if<SiteEntry>(&entry)) end = std::max<std::uint64_t>(end, site->id + 1);
  }
  return end;
}

void AppendTransition(const Transition& transition, Bytes& out) {
  FieldEncoder io(out);
  TransitionFields(io, transition);
}

std::optional<Transition> TakeTransition(ByteReader& section) {
  Transition transition;
  FieldDecoder io(section, kMaxStringBytes);
  TransitionFields(io, transition);
  return section.ok() ? std::optional(std::move(transition)) : std::nullopt;
}

void EncodeFrames(const std::vector<PackedFrame>& frames, Bytes& out) {
  ByteWriter writer(out);
  writer.Varint(frames.size());
  for (const PackedFrame& frame : frames) {
    writer.Varint(frame.rank);
    writer.Varint(frame.bytes.size());
  }
  for (const auto& [kind, alike] : Alike(frames)) {
    for (std::size_t place = 0; place < kind.second; ++place) {
      for (const std::size_t index : alike) writer.Fixed(frames[index].bytes[place]);
    }
  }
}

std::optional<std::vector<PackedFrame>> DecodeFrames(ByteSpan body) {
  ByteReader reader(body);
  const std::uint64_t count = reader.Varint();
  if (count > kFramesPerSectionMax) return std::nullopt;
  std::vector<PackedFrame> frames(static_cast<std::size_t>(count));
  std::vector<std::uint64_t> sizes;
  std::uint64_t total = 0;
  for (PackedFrame& frame : frames) {
    frame.rank = reader.Varint();
    sizes.push_back(reader.Varint());
    if (!reader.ok() || sizes.back() > kFrameBytesMax) return std::nullopt;
    total += sizes.back();
  }
  if (!reader.ok() || total != reader.remaining()) return std::nullopt;
  for (std::size_t i = 0; i < frames.size(); ++i) frames[i].bytes.resize(static_cast<std::size_t>(sizes[i]));
  for (const auto& [kind, alike] : Alike(frames)) {
    for (std::size_t place = 0; place < kind.second; ++place) {
      for (const std::size_t index : alike) frames[index].bytes[place] = reader.Fixed<std::byte>();
    }
  }
  return frames;
}

std::optional<StepFrame> UnpackFrame(const PackedFrame& packed, const std::vector<RankKey>& ranks) {
  if (packed.rank >= ranks.size()) return std::nullopt;
  std::optional<StepFrame> frame = DecodeFrame(packed.bytes, ranks[packed.rank]);
  if (!frame) return std::nullopt;
  const auto& samples = frame->samples;
  const bool within = std::all_of(samples.begin(), samples.end(), [](const Sample& s) { return IsSite(s.site); });
  return within ? std::move(frame) : std::nullopt;
}

void EncodeDiagnosis(const Diagnosis& diagnosis, Bytes& out) {
  FieldEncoder io(out);
  DiagnosisFields(io, diagnosis);
}

std::optional<Diagnosis> DecodeDiagnosis(ByteSpan body) {
  return DecodeWhole<Diagnosis>(body, kTextBytesMax, [](FieldDecoder& io, Diagnosis& d) { DiagnosisFields(io, d); });
}

void EncodeCounts(const RecordedCounts& counts, Bytes& out) {
  FieldEncoder io(out);
  CountFields(io, counts);
}

std::optional<RecordedCounts> DecodeCounts(ByteSpan body) {
  return DecodeWhole<RecordedCounts>(body, 0, [](FieldDecoder& io, RecordedCounts& c) { CountFields(io, c); });
}

}  // namespace neuraldbg::store
