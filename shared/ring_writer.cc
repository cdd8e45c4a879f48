#include "shared/ring_writer.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <utility>

#include "shared/ring_layout.h"
#include "shared/segment_creation.h"
#include "shared/writer_registry.h"

namespace neuraldbg {

struct SegmentWriter::Impl {
  WriterState state;
  std::string path;
  std::uint64_t salt = 0;
};

namespace {

constexpr std::uint64_t kNoWriter = ~std::uint64_t{0};

// The lane that this thread used last. Matched by the writer's id, not its address: ids are never used again, so that
// pointers into a destroyed writer's mapping are never followed. Trivial, so that reading it needs no wrapper call.
struct LaneCursor {
  std::uint64_t writer_id = kNoWriter;
  ProducerLane* lane = nullptr;
  const std::atomic<std::uint64_t>* head = nullptr;
  std::byte* slots = nullptr;
  std::byte* black_box = nullptr;
  std::uint64_t tail = 0;
  std::uint64_t dropped = 0;
  std::uint64_t head_seen = 0;  // head as last loaded: spares the line that the daemon writes
  std::uint64_t capacity = 0;
  std::uint64_t salt = 0;
  std::uint32_t sites = 0;
};

constinit thread_local LaneCursor t_cursor;
constinit thread_local std::uint64_t t_thread_serial = 0;  // 0: none yet
constinit thread_local bool t_thread_ended = false;

std::atomic<std::uint64_t> g_next_writer{1};
std::atomic<std::uint64_t> g_next_thread{1};

// Gives the thread's lanes back when it ends.
struct ThreadEnd {
  ~ThreadEnd() {
    t_thread_ended = true;  // destructors that run after this one must not claim a lane that nobody would release
    t_cursor = LaneCursor{};
    ReleaseLanesOfThread(t_thread_serial);
  }
};

std::uint64_t ThreadSerial() noexcept {
  if (t_thread_serial == 0) {
    t_thread_serial = g_next_thread.fetch_add(1, std::memory_order_relaxed);
    static thread_local ThreadEnd end;
    (void)end;
  }
  return t_thread_serial;
}

// The lane of `state` that this thread owns, claiming one if need be.
bool FindLane(WriterState& state, std::uint32_t& found) noexcept {
  if (t_thread_ended) return false;
  const std::uint64_t serial = ThreadSerial();
  const std::uint32_t lanes = state.view.geometry.lanes;
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    if (state.lane_owner[lane].load(std::memory_order_relaxed) == serial) {
      found = lane;
      return true;
    }
  }
  for (std::uint32_t lane = 0; lane < lanes; ++lane) {
    std::uint64_t free = 0;
    // Pairs with the release in ReleaseLanesOfThread: the indices of the lane's last owner are visible.
    if (!state.lane_owner[lane].compare_exchange_strong(free, serial, std::memory_order_acq_rel)) continue;
    ProducerLane& shared_lane = state.view.producer_lane(lane);
    shared_lane.owner_tid.store(static_cast<std::uint32_t>(::syscall(SYS_gettid)), std::memory_order_relaxed);
    shared_lane.claims.fetch_add(1, std::memory_order_relaxed);
    found = lane;
    return true;
  }
  return false;
}

// Points this thread's cursor at its lane in `state`; false if there is none.
[[gnu::noinline]] bool Enter(WriterState& state, std::uint64_t salt, LaneCursor& cursor) noexcept {
  std::uint32_t index = 0;
  if (!FindLane(state, index)) return false;
  const SegmentView& view = state.view;
  ProducerLane& lane = view.producer_lane(index);
  cursor.lane = &lane;
  cursor.head = &ConsumerLaneAt(view.base + view.offsets.consumer, index).head;
  cursor.slots = view.records(index);
  cursor.black_box = view.black_box(index);
  cursor.tail = lane.tail.load(std::memory_order_relaxed);
  cursor.dropped = lane.dropped.load(std::memory_order_relaxed);
  cursor.head_seen = cursor.head->load(std::memory_order_acquire);
  cursor.capacity = view.geometry.lane_capacity;
  cursor.salt = salt;
  cursor.sites = view.geometry.sites;
  cursor.writer_id = state.id;
  return true;
}

// A slot comes round once in a lap; by then its lines are in another core's cache or in none. They are asked for this
// many pushes ahead, for writing; sixteen take about as long as a line is on its way (./run bench prints both). Behind
// the lane's last slot the address may be a neighbour's or nobody's: a prefetch never faults, and the first slots are
// asked for by nobody.
constexpr std::uint64_t kSlotsAhead = 16;

inline void AskForSlot(std::byte* slot) noexcept {
#if defined(__x86_64__)
  // Not __builtin_prefetch: without -mprfchw it asks for the line to read, and the write has to ask again. Processors
  // that lack the instruction take it as no operation.
  asm volatile("prefetchw %0" : : "m"(*slot));
  asm volatile("prefetchw %0" : : "m"(*(slot + kRecordBytes / 2)));
#else
  __builtin_prefetch(slot, 1);
  __builtin_prefetch(slot + kRecordBytes / 2, 1);
#endif
}

void WriteSlot(std::byte* slot, const Record& record, std::uint64_t attempt, std::uint64_t salt) noexcept {
  const std::uint32_t tag = RecordTag(salt, attempt, record.site, record.kind);
  std::memcpy(slot, &record, sizeof record);
  std::memcpy(slot + offsetof(Record, attempt), &attempt, sizeof attempt);
  std::memcpy(slot + offsetof(Record, tag), &tag, sizeof tag);
}

// Counts the record, and keeps it in the lane's black box: with drop-newest, the ring holds the oldest records of an
// outage while the ones that explain a crash are the last.
[[gnu::noinline]] void Drop(WriterState& state, LaneCursor& cursor, const Record& record) noexcept {
  const std::uint64_t written = cursor.lane->black_box.load(std::memory_order_relaxed);
  WriteSlot(cursor.black_box + written % kBlackBoxRecords * kRecordBytes, record, cursor.tail + cursor.dropped,
            cursor.salt);
  // Read only after this process is dead, and a death cuts program order, so it is the compiler alone that must not
  // move the slot behind the count.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  cursor.lane->black_box.store(written + 1, std::memory_order_relaxed);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  state.view.site_drops(record.site).fetch_add(1, std::memory_order_relaxed);
  cursor.lane->dropped.store(++cursor.dropped, std::memory_order_relaxed);
}

[[gnu::noinline]] void DropWithoutLane(WriterState& state, const Record& record) noexcept {
  state.view.site_drops(record.site).fetch_add(1, std::memory_order_relaxed);
  state.view.producer().no_lane_drops.fetch_add(1, std::memory_order_relaxed);
}

bool IsUsable(const SegmentOptions& options) noexcept {
  return IsAcceptable(
             {options.lanes, options.lane_capacity, options.sites, options.manifest_bytes, kBlackBoxRecords}) &&
         options.lane_capacity_min >= 1 && options.lane_capacity_min <= options.lane_capacity &&
         !options.directory.empty() && (options.mode & 0002u) == 0;
}

}  // namespace

SegmentWriter::SegmentWriter(std::unique_ptr<Impl> impl) noexcept : impl_(std::move(impl)) {}

Result<std::unique_ptr<SegmentWriter>> SegmentWriter::Create(const SegmentOptions& options) noexcept {
  if (!IsUsable(options)) return Error{Errc::kInvalidArgument, 0, "the segment options are out of bounds"};
  try {
    auto impl = std::make_unique<Impl>();
    WriterState& state = impl->state;
    state.id = g_next_writer.fetch_add(1, std::memory_order_relaxed);
    state.pid = ::getpid();
    state.shared = std::make_shared<SharedMapping>();
    if (const Error error = RegisterWriter(state); error.code != Errc::kOk) return error;
    // From here on the destructor of the writer unregisters, whatever happens.
    std::unique_ptr<SegmentWriter> writer(new SegmentWriter(std::move(impl)));
    const Error error = CreateSegmentFile(options, state, writer->impl_->path);
    if (error.code != Errc::kOk) return error;
    writer->impl_->salt = RecordTagSalt(state.shared->header.uuid);
    state.active_id.store(state.id, std::memory_order_release);
    return writer;
  } catch (...) {
    return Error{Errc::kNoSpace, 0, "no memory to create the segment"};
  }
}

SegmentWriter::~SegmentWriter() {
  if (!impl_) return;
  Close();
  UnregisterWriter(impl_->state);
}

PushOutcome SegmentWriter::Push(const Record& record) noexcept {
  LaneCursor& cursor = t_cursor;
  WriterState& state = impl_->state;
  const std::uint64_t active = state.active_id.load(std::memory_order_relaxed);
  if (cursor.writer_id != active) [[unlikely]] {
    if (active == 0) return PushOutcome::kDisabled;
    if (!Enter(state, impl_->salt, cursor)) {
      DropWithoutLane(state, record);
      return PushOutcome::kNoLane;
    }
  }
  const std::uint64_t tail = cursor.tail;
  if (tail - cursor.head_seen >= cursor.capacity) [[unlikely]] {
    cursor.head_seen = cursor.head->load(std::memory_order_acquire);
    // Full, or a corrupt head ahead of the tail, whose difference wraps to a huge number: never overwrite.
    if (tail - cursor.head_seen >= cursor.capacity) {
      Drop(state, cursor, record);
      return PushOutcome::kDropped;
    }
  }
  if (record.site >= cursor.sites) [[unlikely]] {
    Drop(state, cursor, record);
    return PushOutcome::kDropped;
  }
  std::byte* const slot = cursor.slots + (tail & (cursor.capacity - 1)) * kRecordBytes;
  AskForSlot(slot + kSlotsAhead * kRecordBytes);
  WriteSlot(slot, record, tail + cursor.dropped, cursor.salt);
  cursor.tail = tail + 1;
  cursor.lane->tail.store(tail + 1, std::memory_order_release);
  return PushOutcome::kPushed;
}

std::uint64_t SegmentWriter::attempts() const noexcept {
  const SegmentView& view = impl_->state.view;
  std::uint64_t published = 0;
  for (std::uint32_t lane = 0; lane < view.geometry.lanes; ++lane) {
    published += view.producer_lane(lane).tail.load(std::memory_order_acquire);
  }
  return published + dropped();
}

std::uint64_t SegmentWriter::dropped() const noexcept {
  const SegmentView& view = impl_->state.view;
  std::uint64_t total = view.producer().no_lane_drops.load(std::memory_order_relaxed);
  for (std::uint32_t lane = 0; lane < view.geometry.lanes; ++lane) {
    total += view.producer_lane(lane).dropped.load(std::memory_order_relaxed);
  }
  return total;
}

ManifestWriter& SegmentWriter::manifest() noexcept { return impl_->state.manifest; }

void SegmentWriter::Heartbeat() noexcept {
  if (enabled()) impl_->state.view.producer().heartbeat_ns.store(MonotonicNanoseconds(), std::memory_order_relaxed);
}

bool SegmentWriter::Unlinked() const noexcept {
  struct stat status{};
  return ::fstat(impl_->state.shared->fd.get(), &status) == 0 && status.st_nlink == 0;
}

bool SegmentWriter::Claimed() const noexcept {
  const int fd = impl_->state.shared->fd.get();
  if (::flock(fd, LOCK_SH | LOCK_NB) != 0) return true;
  ::flock(fd, LOCK_UN);
  return false;
}

SegmentWriter::Lost SegmentWriter::CountLost(const SegmentWriter& lost) noexcept {
  const SegmentView& from = lost.impl_->state.view;
  WriterState& state = impl_->state;
  Lost counted;
  std::uint64_t consumed = 0;
  for (std::uint32_t index = 0; index < from.geometry.lanes; ++index) {
    const std::uint64_t capacity = from.geometry.lane_capacity;
    const std::uint64_t tail = from.producer_lane(index).tail.load(std::memory_order_acquire);
    std::uint64_t head = ConsumerLaneAt(from.base + from.offsets.consumer, index).head.load(std::memory_order_acquire);
    if (head > tail || tail - head > capacity) head = tail > capacity ? tail - capacity : 0;  // scribbled on
    consumed += head;
    for (; head != tail; ++head, ++counted.records) {
      Record record;
      std::memcpy(&record, from.records(index) + (head & (capacity - 1)) * kRecordBytes, sizeof record);
      DropWithoutLane(state, record);
    }
  }
  if (consumed != 0) return counted;
  for (std::uint32_t site = 0; site <= from.geometry.sites; ++site) {
    const std::uint64_t drops = from.site_drops(site).load(std::memory_order_relaxed);
    if (drops == 0) continue;
    state.view.site_drops(site).fetch_add(drops, std::memory_order_relaxed);
    state.view.producer().no_lane_drops.fetch_add(drops, std::memory_order_relaxed);
    counted.drops += drops;
  }
  return counted;
}

bool SegmentWriter::enabled() const noexcept { return impl_->state.active_id.load(std::memory_order_relaxed) != 0; }

const std::string& SegmentWriter::path() const noexcept { return impl_->path; }

const std::uint8_t* SegmentWriter::uuid() const noexcept { return impl_->state.shared->header.uuid; }

std::uint32_t SegmentWriter::lane_capacity() const noexcept { return impl_->state.view.geometry.lane_capacity; }

void SegmentWriter::Close() noexcept {
  if (!enabled()) return;  // a forked child has no say in the parent's segment
  WriterState& state = impl_->state;
  state.active_id.store(0, std::memory_order_relaxed);
  state.manifest.Disable();
  state.view.producer().state.store(static_cast<std::uint32_t>(SegmentState::kClosed), std::memory_order_release);
}

}  // namespace neuraldbg
