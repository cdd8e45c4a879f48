#include "shared/ring_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "shared/owner_lock.h"
#include "shared/ring_layout.h"
#include "shared/sigbus_guard.h"
#include "shared/writer_registry.h"

namespace neuraldbg {
namespace {

// Slots copied at once: 32 KiB stay in the first-level cache between the copy and the validation.
constexpr std::size_t kBatchRecords = 256;

// An impossible tail is skipped over this often (a reader that attached to a producer in trouble may recover); after
// that the lane is ignored for good.
constexpr std::uint64_t kMaxResyncs = 8;

struct Lane {
  std::uint64_t head = 0;
  std::uint64_t published_head = ~std::uint64_t{0};
  std::uint64_t next_attempt = 0;
  std::uint64_t consumed = 0, invalid = 0, resyncs = 0;
  bool quarantined = false;
};

Error OpenError(int code) noexcept {
  if (code == ENOENT) return {Errc::kNotFound, code, "the segment's file is gone"};
  if (code == EACCES || code == EPERM) return {Errc::kPermission, code, "the segment's file may not be opened"};
  if (code == ELOOP) return {Errc::kBadOwner, code, "the segment's name is a symbolic link"};
  return {Errc::kIo, code, "the segment's file cannot be opened"};
}

Error CheckFile(const struct stat& status, const SegmentAccess& access) noexcept {
  if (!S_ISREG(status.st_mode)) return {Errc::kBadOwner, 0, "the segment is not a regular file"};
  if (!access.Covers(status)) {
    return {Errc::kBadOwner, 0, "the segment belongs to another user"};
  }
  if ((status.st_mode & S_IWOTH) != 0) return {Errc::kBadOwner, 0, "every user of the host may write the segment"};
  return {};
}

}  // namespace

struct SegmentReader::Impl {
  // A segment of this process is read through the writer's own mapping and descriptor: opening it again would drop the
  // owner's lock on close, and race detectors can only pair accesses at one address.
  std::shared_ptr<SharedMapping> own;
  FileDescriptor fd;
  std::unique_ptr<Mapping> whole;           // read-only
  std::unique_ptr<Mapping> consumer;        // read-write
  SigbusGuard whole_guard, consumer_guard;  // declared after the mappings: dropped before them
  SegmentView view;
  std::byte* consumer_base = nullptr;
  SegmentIdentity identity;
  dev_t device = 0;
  ino_t inode = 0;
  std::uint64_t salt = 0;
  std::vector<Lane> lanes;
  std::vector<Record> batch;
  ManifestReader manifest{{}};
  bool resized = false;

  Error Open(const std::string& path, const SegmentAccess& access);
  Error OpenFile(const std::string& path, const SegmentAccess& access, SegmentHeader& header, struct stat& status);
  Error MapFile(const SegmentHeader& header);
  void SetIdentity(const std::string& path, const SegmentHeader& header, const struct stat& status);
  void Resume(const std::vector<LaneCheckpoint>& durable);
  bool Poisoned() const noexcept { return resized || whole_guard.Poisoned() || consumer_guard.Poisoned(); }
  bool CheckSize() noexcept;
  bool IsValid(const Record& record, const Lane& lane) const noexcept;
  std::size_t DrainLane(std::uint32_t index, std::size_t limit,
                        const std::function<void(std::uint32_t, std::span<const Record>)>& deliver);
  std::size_t Validate(Lane& lane, std::size_t count) noexcept;
  void ReadBlackBox(std::uint32_t lane, std::vector<Record>& out) const;
  bool ReadNewest(std::uint32_t lane, Record& newest) const;
};

Error SegmentReader::Impl::OpenFile(const std::string& path, const SegmentAccess& access, SegmentHeader& header,
                                    struct stat& status) {
  if (::stat(path.c_str(), &status) == 0) own = FindOwnSegment(status.st_dev, status.st_ino);
  if (own) {
    header = own->header;
    return CheckFile(status, access);
  }
  fd = FileDescriptor(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return OpenError(errno);
  if (::fstat(fd.get(), &status) != 0) return {Errc::kIo, errno, "the segment's file cannot be examined"};
  if (const Error error = CheckFile(status, access); error.code != Errc::kOk) return error;
  const ssize_t got = ::pread(fd.get(), &header, sizeof header, 0);
  if (got < 0) return {Errc::kIo, errno, "the segment's header cannot be read"};
  if (got != static_cast<ssize_t>(sizeof header)) {
    return {Errc::kBadMagic, 0, "the file is too short to be a NeuralDBG segment"};
  }
  return {};
}

Error SegmentReader::Impl::MapFile(const SegmentHeader& header) {
  view.geometry = header.geometry;
  view.offsets = ComputeOffsets(header.geometry);
  if (own) {
    view.base = own->mapping->data();
    consumer_base = view.base + view.offsets.consumer;
    whole_guard = SigbusGuard({view.base, view.offsets.total});
  } else {
    const std::size_t consumer_bytes = view.offsets.site_drops - view.offsets.consumer;
    Result<std::unique_ptr<Mapping>> all = Mapping::Map(fd.get(), 0, view.offsets.total, MapAccess::kReadOnly, false);
    if (!all) return all.error();
    Result<std::unique_ptr<Mapping>> pages =
        Mapping::Map(fd.get(), view.offsets.consumer, consumer_bytes, MapAccess::kReadWrite, false);
    if (!pages) return pages.error();
    whole = std::move(all).value();
    consumer = std::move(pages).value();
    view.base = whole->data();
    consumer_base = consumer->data();
    whole_guard = SigbusGuard({view.base, view.offsets.total});
    consumer_guard = SigbusGuard({consumer_base, consumer_bytes});
    if (!consumer_guard.active()) return {Errc::kFull, 0, "too many segments are mapped"};
  }
  if (!whole_guard.active()) return {Errc::kFull, 0, "too many segments are mapped"};
  manifest = ManifestReader(view.manifest());
  return {};
}

void SegmentReader::Impl::SetIdentity(const std::string& path, const SegmentHeader& header, const struct stat& status) {
  device = status.st_dev;
  inode = status.st_ino;
  salt = RecordTagSalt(header.uuid);
  std::memcpy(identity.uuid.data(), header.uuid, identity.uuid.size());
  identity.path = path;
  identity.owner_uid = status.st_uid;
  identity.pid = header.pid;
  identity.rank = header.rank;
  identity.world_size = header.world_size;
  identity.incarnation = header.incarnation;
  identity.created_realtime_ns = header.created_realtime_ns;
  identity.major = header.major;
  identity.minor = header.minor;
  identity.lanes = header.geometry.lanes;
  identity.lane_capacity = header.geometry.lane_capacity;
  identity.sites = header.geometry.sites;
}

Error SegmentReader::Impl::Open(const std::string& path, const SegmentAccess& access) {
  SegmentHeader header{};
  struct stat status{};
  if (const Error error = OpenFile(path, access, header, status); error.code != Errc::kOk) return error;
  if (const Error error = CheckHeader(header, static_cast<std::uint64_t>(status.st_size)); error.code != Errc::kOk) {
    return error;
  }
  if (const Error error = MapFile(header); error.code != Errc::kOk) return error;
  SetIdentity(path, header, status);
  lanes.resize(view.geometry.lanes);
  batch.resize(kBatchRecords);
  return {};
}

// The daemon's own durable heads win over those in shared memory, which anybody with the file could have moved; but
// never backwards: what was released may have been overwritten.
void SegmentReader::Impl::Resume(const std::vector<LaneCheckpoint>& durable) {
  for (std::uint32_t index = 0; index < view.geometry.lanes; ++index) {
    Lane& lane = lanes[index];
    lane.head = ConsumerLaneAt(consumer_base, index).head.load(std::memory_order_acquire);
    if (index < durable.size() && static_cast<std::int64_t>(durable[index].head - lane.head) >= 0) {
      lane.head = durable[index].head;
      lane.next_attempt = durable[index].next_attempt;
    }
  }
}

// A cut inside a page raises no signal: the rest of the page reads as zeros, and a record whose head lies before the
// cut would pass for whole. False: the file has not the size that it was attached with, and nothing more of it counts.
bool SegmentReader::Impl::CheckSize() noexcept {
  struct stat status{};
  const int file = own ? own->fd.get() : fd.get();
  resized = resized || ::fstat(file, &status) != 0 || static_cast<std::uint64_t>(status.st_size) != view.offsets.total;
  return !resized;
}

bool SegmentReader::Impl::IsValid(const Record& record, const Lane& lane) const noexcept {
  return record.attempt >= lane.next_attempt && record.site < view.geometry.sites && record.kind > RecordKind::kNone &&
         record.kind < static_cast<RecordKind>(kRecordKindCount) && record.phase < static_cast<Phase>(kPhaseCount) &&
         record.dtype <= DType::kFloat8 && record.tag == RecordTag(salt, record.attempt, record.site, record.kind);
}

// Moves the valid records of the first `count` in the batch to its front; returns how many there are.
std::size_t SegmentReader::Impl::Validate(Lane& lane, std::size_t count) noexcept {
  std::size_t valid = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (!IsValid(batch[i], lane)) {
      ++lane.invalid;
      continue;
    }
    lane.next_attempt = batch[i].attempt + 1;
    if (valid != i) batch[valid] = batch[i];
    ++valid;
  }
  return valid;
}

std::size_t SegmentReader::Impl::DrainLane(std::uint32_t index, std::size_t limit,
                                           const std::function<void(std::uint32_t, std::span<const Record>)>& deliver) {
  Lane& lane = lanes[index];
  if (lane.quarantined) return 0;
  const std::uint64_t capacity = view.geometry.lane_capacity;
  const std::uint64_t tail = view.producer_lane(index).tail.load(std::memory_order_acquire);
  std::uint64_t available = tail - lane.head;
  if (available > capacity) {
    if (Poisoned()) return 0;
    lane.quarantined = ++lane.resyncs > kMaxResyncs;
    lane.head = tail;
    return 0;
  }
  available = std::min<std::uint64_t>(available, limit);
  std::size_t taken = 0;
  while (available > 0) {
    const std::uint64_t slot = lane.head & (capacity - 1);
    const auto count = static_cast<std::size_t>(std::min<std::uint64_t>({available, capacity - slot, kBatchRecords}));
    std::memcpy(batch.data(), view.records(index) + slot * kRecordBytes, count * kRecordBytes);
    // Asked after the copy: what was read through a hole or behind a cut is zeros, not records.
    if (Poisoned() || !CheckSize()) return taken;
    const std::size_t valid = Validate(lane, count);
    lane.head += count;
    lane.consumed += valid;
    available -= count;
    taken += count;
    if (valid > 0) deliver(index, {batch.data(), valid});
  }
  return taken;
}

void SegmentReader::Impl::ReadBlackBox(std::uint32_t lane, std::vector<Record>& out) const {
  const std::uint64_t slots = view.geometry.black_box_records;
  const std::uint64_t written = view.producer_lane(lane).black_box.load(std::memory_order_acquire);
  // The oldest slot is left out: the owner may have died while it overwrote it.
  const std::uint64_t count = std::min<std::uint64_t>(written, slots - 1);
  Lane order;
  for (std::uint64_t i = written - count; i != written; ++i) {
    Record record;
    std::memcpy(&record, view.black_box(lane) + i % slots * kRecordBytes, sizeof record);
    if (Poisoned()) return;
    if (!IsValid(record, order)) continue;
    order.next_attempt = record.attempt + 1;
    out.push_back(record);
  }
}

// A published slot stays as it is once nobody writes any more, drained or not. The black box goes on where the lane was
// full, so the newer of the two by attempt number counts.
bool SegmentReader::Impl::ReadNewest(std::uint32_t lane, Record& newest) const {
  const std::uint64_t tail = view.producer_lane(lane).tail.load(std::memory_order_acquire);
  Record published;
  std::memcpy(&published, view.records(lane) + ((tail - 1) & (view.geometry.lane_capacity - 1)) * kRecordBytes,
              sizeof published);
  std::vector<Record> dropped;
  ReadBlackBox(lane, dropped);
  if (Poisoned()) return false;
  const bool any = tail > 0 && IsValid(published, Lane{});
  if (any) newest = published;
  if (dropped.empty() || (any && dropped.back().attempt < published.attempt)) return any;
  newest = dropped.back();
  return true;
}

SegmentReader::SegmentReader(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}
SegmentReader::~SegmentReader() = default;

Result<std::unique_ptr<SegmentReader>> SegmentReader::Attach(
    const std::string& path, const SegmentAccess& access,
    const std::function<std::vector<LaneCheckpoint>(const SegmentIdentity&)>& durable) {
  auto impl = std::make_unique<Impl>();
  if (const Error error = impl->Open(path, access); error.code != Errc::kOk) return error;
  impl->Resume(durable ? durable(impl->identity) : std::vector<LaneCheckpoint>{});
  return std::unique_ptr<SegmentReader>(new SegmentReader(std::move(impl)));
}

const SegmentIdentity& SegmentReader::identity() const noexcept { return impl_->identity; }

ManifestReader& SegmentReader::manifest() noexcept { return impl_->manifest; }

std::size_t SegmentReader::Drain(const std::function<void(std::uint32_t, std::span<const Record>)>& deliver,
                                 std::size_t max_per_lane) {
  std::size_t taken = 0;
  if (!impl_->CheckSize()) return 0;
  for (std::uint32_t lane = 0; lane < impl_->view.geometry.lanes && !impl_->Poisoned(); ++lane) {
    taken += impl_->DrainLane(lane, max_per_lane, deliver);
  }
  return taken;
}

void SegmentReader::Release() noexcept {
  if (impl_->Poisoned()) return;
  for (std::uint32_t index = 0; index < impl_->view.geometry.lanes; ++index) {
    Lane& lane = impl_->lanes[index];
    if (lane.head == lane.published_head) continue;
    ConsumerLaneAt(impl_->consumer_base, index).head.store(lane.head, std::memory_order_release);
    lane.published_head = lane.head;
  }
}

std::vector<LaneCheckpoint> SegmentReader::heads() const {
  std::vector<LaneCheckpoint> heads;
  heads.reserve(impl_->lanes.size());
  for (const Lane& lane : impl_->lanes) heads.push_back({lane.head, lane.next_attempt});
  return heads;
}

std::vector<LaneCounters> SegmentReader::counters() const {
  std::vector<LaneCounters> counters;
  counters.reserve(impl_->lanes.size());
  for (std::uint32_t index = 0; index < impl_->view.geometry.lanes; ++index) {
    const ProducerLane& shared_lane = impl_->view.producer_lane(index);
    const Lane& lane = impl_->lanes[index];
    counters.push_back({lane.consumed, shared_lane.dropped.load(std::memory_order_relaxed), lane.invalid, lane.resyncs,
                        shared_lane.owner_tid.load(std::memory_order_relaxed), lane.quarantined});
  }
  return counters;
}

std::uint64_t SegmentReader::dropped_total() const noexcept {
  std::uint64_t total = impl_->view.producer().no_lane_drops.load(std::memory_order_relaxed);
  for (std::uint32_t index = 0; index < impl_->view.geometry.lanes; ++index) {
    total += impl_->view.producer_lane(index).dropped.load(std::memory_order_relaxed);
  }
  return total;
}

std::uint64_t SegmentReader::SiteDropped(std::uint32_t site) const noexcept {
  return impl_->view.site_drops(site).load(std::memory_order_relaxed);
}

std::uint64_t SegmentReader::heartbeat_ns() const noexcept {
  return impl_->view.producer().heartbeat_ns.load(std::memory_order_relaxed);
}

OwnerState SegmentReader::owner_state() const noexcept {
  const bool held =
      impl_->own ? FindOwnSegment(impl_->device, impl_->inode) != nullptr : OwnerLockHeld(impl_->fd.get());
  // The flag is read after the lock: an owner that closes in between has set the flag before its lock went away.
  const std::uint32_t state = impl_->view.producer().state.load(std::memory_order_acquire);
  if (state == static_cast<std::uint32_t>(SegmentState::kClosed)) return OwnerState::kClosed;
  return held ? OwnerState::kAlive : OwnerState::kDead;
}

bool SegmentReader::poisoned() const noexcept { return impl_->Poisoned(); }

bool SegmentReader::Pending() const noexcept {
  if (impl_->Poisoned()) return false;
  for (std::uint32_t index = 0; index < impl_->view.geometry.lanes; ++index) {
    const Lane& lane = impl_->lanes[index];
    if (!lane.quarantined && impl_->view.producer_lane(index).tail.load(std::memory_order_acquire) != lane.head) {
      return true;
    }
  }
  return false;
}

std::vector<Record> SegmentReader::ReadBlackBox() const {
  std::vector<Record> records;
  if (owner_state() == OwnerState::kAlive) return records;
  for (std::uint32_t lane = 0; lane < impl_->view.geometry.lanes; ++lane) impl_->ReadBlackBox(lane, records);
  return records;
}

std::vector<LaneEnd> SegmentReader::LaneEnds() const {
  std::vector<LaneEnd> ends;
  if (owner_state() == OwnerState::kAlive) return ends;
  for (std::uint32_t lane = 0; lane < impl_->view.geometry.lanes; ++lane) {
    LaneEnd end;
    if (impl_->ReadNewest(lane, end.last)) {
      end.owner_tid = impl_->view.producer_lane(lane).owner_tid.load(std::memory_order_relaxed);
      ends.push_back(end);
    }
  }
  return ends;
}

void SegmentReader::Unlink() noexcept {
  struct stat status{};
  const char* path = impl_->identity.path.c_str();
  // Only our file: somebody may have put another one under the name.
  if (::lstat(path, &status) != 0 || status.st_dev != impl_->device || status.st_ino != impl_->inode) return;
  if (::unlink(path) == 0 || impl_->own) return;
  // In a sticky directory a daemon of another user may not. It gives the memory back instead: a hole, not a cut,
  // because processes of the owner may still have the file mapped. The owner's next sweep removes the name.
  (void)::fallocate(impl_->fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, status.st_size);
}

}  // namespace neuraldbg
