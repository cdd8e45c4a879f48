#include "daemon/ingest/rank_reader.h"

#include <cstring>
#include <span>
#include <utility>

#include "daemon/ingest/topology_builder.h"

namespace neuraldbg {
namespace {

std::uint64_t Consumed(const std::vector<LaneCheckpoint>& heads) {
  std::uint64_t consumed = 0;
  for (const LaneCheckpoint& lane : heads) consumed += lane.head;
  return consumed;
}

}  // namespace

Result<std::unique_ptr<RankReader>> RankReader::Open(const std::string& path, const SegmentAccess& access,
                                                     const HistoryLookup& history) {
  std::optional<SegmentHistory> known;
  auto segment = SegmentReader::Attach(path, access, [&](const SegmentIdentity& identity) {
    if (history) known = history(identity.uuid);
    return known ? known->lane_heads : std::vector<LaneCheckpoint>{};
  });
  if (!segment.ok()) return segment.error();
  const std::uint64_t consumed = Consumed(segment.value()->heads());
  std::unique_ptr<RankReader> reader(new RankReader(std::move(segment).value(), consumed));
  // Where shared memory is ahead of what is stored, another daemon took records: the state of ours does not fit any
  // more.
  if (known && Consumed(known->lane_heads) == consumed) {
    reader->RestoreState(known->state);
  }
  if (known) reader->resumed_key_ = known->key;
  return reader;
}

RankReader::RankReader(std::unique_ptr<SegmentReader> segment, std::uint64_t already_consumed)
    : segment_(std::move(segment)), assembler_(segment_->identity().sites, already_consumed) {}

bool RankReader::PollManifest() {
  if (manifest_corrupt_) return false;
  bool changed = false;
  const Error error = segment_->manifest().Poll([&](const ManifestEntry& raw) {
    ManifestEntry entry = Sanitized(raw);
    if (!ApplyEntry(entry, segment_->identity().sites, topology_)) return;
    changed = true;
    if (++entries_seen_ > entries_stored_) new_entries_.push_back(std::move(entry));
  });
  manifest_corrupt_ = error.code != Errc::kOk;
  return changed;
}

std::vector<ManifestEntry> RankReader::TakeManifest() {
  entries_stored_ += new_entries_.size();
  return std::exchange(new_entries_, {});
}

std::size_t RankReader::Drain() {
  const std::vector<LaneCheckpoint> before = segment_->heads();
  const std::size_t consumed =
      segment_->Drain([this](std::uint32_t, std::span<const Record> records) { assembler_.Add(records); }, kDrainMax);
  const std::vector<LaneCheckpoint> after = segment_->heads();
  bool emptied = !segment_->poisoned();
  for (std::size_t lane = 0; lane < after.size(); ++lane) {
    emptied = emptied && after[lane].head - before[lane].head < kDrainMax;
  }
  assembler_.EndPass(emptied, frames_);
  return consumed;
}

void RankReader::FinishSteps() {
  assembler_.AddRecovered(segment_->ReadBlackBox());
  assembler_.Finish(frames_);
}

std::vector<StepFrame> RankReader::TakeFrames() { return std::exchange(frames_, {}); }

std::vector<std::byte> RankReader::State() const {
  std::vector<std::byte> state(sizeof entries_stored_);
  std::memcpy(state.data(), &entries_stored_, sizeof entries_stored_);
  assembler_.Serialize(state);
  return state;
}

bool RankReader::RestoreState(const std::vector<std::byte>& state) {
  if (state.size() < sizeof entries_stored_) return false;
  if (!assembler_.Restore(std::span(state).subspan(sizeof entries_stored_))) return false;
  std::memcpy(&entries_stored_, state.data(), sizeof entries_stored_);
  return true;
}

std::vector<LastPlace> RankReader::LastPlaces() const {
  std::vector<LastPlace> places;
  for (const LaneEnd& end : segment_->LaneEnds()) {
    places.push_back({end.owner_tid, end.last.site, end.last.step, end.last.phase});
  }
  return places;
}

std::uint64_t RankReader::invalid() const {
  std::uint64_t invalid = 0;
  for (const LaneCounters& lane : segment_->counters()) invalid += lane.invalid;
  return invalid;
}

std::uint64_t RankReader::lanes_quarantined() const {
  std::uint64_t lanes = 0;
  for (const LaneCounters& lane : segment_->counters()) lanes += lane.quarantined ? 1 : 0;
  return lanes;
}

}  // namespace neuraldbg
