#include "tests/fuzz/arbitrary_writer.h"

#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "shared/ring_writer.h"

namespace neuraldbg::testing {
namespace {

std::vector<std::byte> Image(const Mapping& mapping) { return {mapping.data(), mapping.data() + mapping.size()}; }

}  // namespace

ArbitraryWriter::ArbitraryWriter() {
  SegmentOptions options;
  options.directory = directory_.path();
  options.run_name = "arbitrary";
  options.lanes = 2;
  options.lane_capacity = kCapacity;
  options.sites = kSites;
  options.manifest_bytes = kMinManifestBytes;
  {
    const auto writer = SegmentWriter::Create(options);
    if (!writer.ok()) std::abort();
    path_ = writer.value()->path();
  }
  file_ = FileDescriptor(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  SegmentHeader header{};
  std::ifstream(path_, std::ios::binary).read(reinterpret_cast<char*>(&header), sizeof header);
  auto mapped = Mapping::Map(file_.get(), 0, header.offsets.total, MapAccess::kReadWrite, true);
  if (!mapped.ok()) std::abort();
  mapping_ = std::move(mapped).value();
  view_ = {mapping_->data(), header.geometry, header.offsets};
  salt_ = RecordTagSalt(header.uuid);
  empty_ = Image(*mapping_);
}

std::string ArbitraryWriter::Play(std::span<const Operation> operations) {
  std::memcpy(mapping_->data(), empty_.data(), empty_.size());
  durable_.clear();
  honest_attempts_.clear();
  honest_tail_ = honest_dropped_ = delivered_ = committed_ = 0;
  std::string broken = Attach();
  for (const Operation& operation : operations) {
    if (!broken.empty()) return broken;
    broken = Apply(operation);
  }
  // The end: whatever happened elsewhere, lane 1 is whole.
  for (int pass = 0; pass < 4 && broken.empty(); ++pass) broken = Drain(4096);
  if (broken.empty() && delivered_ != honest_tail_) broken = "records of the honest lane are missing";
  reader_.reset();
  return broken;
}

std::string ArbitraryWriter::Apply(const Operation& operation) {
  ProducerLane& lane = view_.producer_lane(0);
  const std::uint64_t tail = lane.tail.load();
  switch (operation.kind % kOperationKinds) {
    case 0:
      lane.tail.store(operation.value);
      return {};
    case 1:
      lane.tail.store(tail + operation.value % (kCapacity + 2));
      return {};
    case 2:  // as an honest one, but at any attempt
      WriteRecord(0, operation.where, operation.value % 1024,
                  static_cast<std::uint32_t>(operation.value >> 32) % kSites);
      return {};
    case 3:
      WriteRecord(0, tail, tail, operation.where);
      lane.tail.store(tail + 1);
      return {};
    case 4:
      ConsumerLaneAt(view_.base + view_.offsets.consumer, 0).head.store(operation.value);
      return {};
    case 5:
      lane.black_box.store(operation.value);
      return {};
    case 6:
    case 7:
      Scribble(operation);
      return {};
    case 8:
      return Drain(operation.value % 200);
    case 9:
      Commit();
      return {};
    case 10:
      return Attach();
    default:
      PushHonestly(operation.value % 70);
      return {};
  }
}

// One word anywhere but in the header and in lane 1.
void ArbitraryWriter::Scribble(const Operation& operation) {
  const std::array<std::pair<std::byte*, std::size_t>, 6> places{{
      {reinterpret_cast<std::byte*>(&view_.producer()), sizeof(ProducerState) + sizeof(ProducerLane)},
      {view_.base + view_.offsets.consumer, sizeof(ConsumerState) + sizeof(ConsumerLane)},
      {view_.base + view_.offsets.site_drops, (kSites + 1) * 8},
      {view_.manifest().data(), view_.manifest().size()},
      {view_.black_box(0), 2 * std::size_t{kBlackBoxRecords} * kRecordBytes},
      {view_.records(0), kCapacity * kRecordBytes},
  }};
  const auto& [begin, bytes] = places.at(operation.where % places.size());
  std::byte* at = begin + (operation.where / places.size()) % (bytes / 8) * 8;
  std::memcpy(at, &operation.value, sizeof operation.value);
}

void ArbitraryWriter::WriteRecord(std::uint32_t lane, std::uint64_t index, std::uint64_t attempt, std::uint32_t site) {
  Record record{};
  record.step = attempt;
  record.attempt = attempt;
  record.site = site;
  record.kind = RecordKind::kTensor;
  record.phase = Phase::kForward;
  record.dtype = DType::kFloat32;
  record.tag = RecordTag(salt_, attempt, site, record.kind);
  std::memcpy(view_.records(lane) + index % kCapacity * kRecordBytes, &record, sizeof record);
}

void ArbitraryWriter::PushHonestly(std::uint64_t count) {
  ProducerLane& lane = view_.producer_lane(1);
  const std::uint64_t head = ConsumerLaneAt(view_.base + view_.offsets.consumer, 1).head.load();
  for (; count > 0; --count) {
    if (honest_tail_ - head >= kCapacity) {
      lane.dropped.store(++honest_dropped_);
      continue;
    }
    const std::uint64_t attempt = honest_tail_ + honest_dropped_;
    WriteRecord(1, honest_tail_, attempt, 7);
    honest_attempts_.push_back(attempt);
    lane.tail.store(++honest_tail_);
  }
}

// A daemon that was killed: what it had not committed is delivered again.
std::string ArbitraryWriter::Attach() {
  auto attached = SegmentReader::Attach(path_, {}, [this](const SegmentIdentity&) { return durable_; });
  if (!attached.ok()) return "the segment is refused though its header is right";
  reader_ = std::move(attached).value();
  next_attempt_ = {};
  delivered_ = committed_;
  return {};
}

void ArbitraryWriter::Commit() {
  durable_ = reader_->heads();
  committed_ = delivered_;
  reader_->Release();
}

std::string ArbitraryWriter::Drain(std::size_t limit) {
  std::string broken;
  const std::size_t taken = reader_->Drain(
      [&](std::uint32_t lane, std::span<const Record> records) {
        if (broken.empty()) broken = Check(lane, records);
      },
      limit);
  if (broken.empty() && taken > 2 * std::min<std::size_t>(limit, kCapacity))
    broken = "more slots were taken than allowed";
  if (broken.empty() && reader_->poisoned()) broken = "nothing was cut, and the segment is given up";
  reader_->manifest().Poll([](const ManifestEntry&) {});
  for (const Record& record : reader_->ReadBlackBox()) {
    if (record.site >= kSites) broken = "an impossible site came out of the black box";
  }
  if (reader_->counters()[1].invalid + reader_->counters()[1].resyncs != 0) broken = "the honest lane is in doubt";
  reader_->Pending();
  reader_->dropped_total();
  return broken;
}

std::string ArbitraryWriter::Check(std::uint32_t lane, std::span<const Record> records) {
  if (lane > 1) return "a lane that the segment does not have";
  for (const Record& record : records) {
    if (record.site >= kSites || record.kind == RecordKind::kNone ||
        static_cast<std::uint8_t>(record.kind) >= kRecordKindCount ||
        static_cast<std::uint8_t>(record.phase) >= kPhaseCount || record.dtype > DType::kFloat8) {
      return "what is no record was delivered";
    }
    if (record.tag != RecordTag(salt_, record.attempt, record.site, record.kind)) return "a foreign slot was delivered";
    if (record.attempt < next_attempt_.at(lane)) return "attempts go back within a lane";
    next_attempt_.at(lane) = record.attempt + 1;
    if (lane == 0) continue;
    if (delivered_ >= honest_tail_) return "more was delivered than published";
    if (record.attempt != honest_attempts_[delivered_]) return "the honest lane lost, repeated or swapped a record";
    ++delivered_;
  }
  return {};
}

}  // namespace neuraldbg::testing
