#include "shared/segment_creation.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <new>

#include "shared/owner_lock.h"
#include "shared/segment_name.h"

namespace neuraldbg {
namespace {

// Two containers that share a directory may have the same uid, pid and serial; each collision costs one more try.
constexpr int kNameAttempts = 1000;

std::atomic<std::uint32_t> g_serial{0};

std::uint64_t Nanoseconds(clockid_t clock) noexcept {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}

Error FromErrno(int code, const char* message) noexcept {
  switch (code) {
    case ENOSPC:
    case ENOMEM:
    case EDQUOT:
      return {Errc::kNoSpace, code, message};
    case EACCES:
    case EPERM:
    case EROFS:
      return {Errc::kPermission, code, message};
    case ENOENT:
    case ENOTDIR:
      return {Errc::kNotFound, code, message};
    default:
      return {Errc::kIo, code, message};
  }
}

// Removes the temporary file unless it was published.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string path) : path_(std::move(path)) {}
  ~TemporaryFile() {
    if (!published_) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

  // Never replaces a segment that is there already. False with errno EEXIST: the name is taken.
  bool Publish(const std::string& path) {
    published_ = ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, path.c_str(), RENAME_NOREPLACE) == 0;
    if (!published_ && (errno == EINVAL || errno == ENOSYS)) {
      // The file system cannot rename without replacing: a second link refuses an existing name just as well, and the
      // temporary one is then removed by the destructor.
      return ::link(path_.c_str(), path.c_str()) == 0;
    }
    return published_;
  }

 private:
  std::string path_;
  bool published_ = false;
};

// Reserves the whole file, so that a full directory shows here and not as SIGBUS at some later store; halves the lanes
// until it fits.
Error Reserve(int fd, SegmentGeometry& geometry, std::uint32_t capacity_min) noexcept {
  for (;;) {
    int code = 0;
    do {
      code = ::posix_fallocate(fd, 0, static_cast<off_t>(ComputeOffsets(geometry).total));
    } while (code == EINTR);
    if (code == 0) return {};
    const Error error = FromErrno(code, "the segment's memory cannot be reserved");
    if (error.code != Errc::kNoSpace || geometry.lane_capacity / 2 < capacity_min) return error;
    if (::ftruncate(fd, 0) != 0) return FromErrno(errno, "the segment's file cannot be truncated");
    geometry.lane_capacity /= 2;
  }
}

Error SetOwnership(int fd, const SegmentOptions& options) noexcept {
  if (options.group != kNoGroup && ::fchown(fd, static_cast<uid_t>(-1), options.group) != 0) {
    return FromErrno(errno, "the segment cannot be given to the configured group");
  }
  // Not left to open(): the umask would decide then.
  if (::fchmod(fd, options.mode & 0777u) != 0) return FromErrno(errno, "the segment's mode cannot be set");
  return {};
}

Error Initialize(const SegmentOptions& options, WriterState& state) noexcept {
  SegmentHeader& header = state.shared->header;
  std::memcpy(header.magic, kSegmentMagic, sizeof kSegmentMagic);
  header.major = kLayoutMajor;
  header.minor = kLayoutMinor;
  header.header_bytes = sizeof(SegmentHeader);
  header.layout_hash = LayoutHash();
  header.record_bytes = kRecordBytes;
  header.geometry = state.view.geometry;
  header.offsets = state.view.offsets;
  if (::getrandom(header.uuid, sizeof header.uuid, 0) != static_cast<ssize_t>(sizeof header.uuid)) {
    return {Errc::kIo, errno, "no random bytes for the segment's identity"};
  }
  header.created_realtime_ns = Nanoseconds(CLOCK_REALTIME);
  header.created_monotonic_ns = Nanoseconds(CLOCK_MONOTONIC);
  header.pid = static_cast<std::uint32_t>(state.pid);
  header.rank = options.rank;
  header.world_size = options.world_size;
  header.incarnation = options.incarnation;
  header.crc = HeaderChecksum(header);

  const SegmentView& view = state.view;
  std::memcpy(view.base, &header, sizeof header);
  auto* producer = new (&view.producer()) ProducerState{};
  new (view.base + view.offsets.consumer) ConsumerState{};
  for (std::uint32_t lane = 0; lane < view.geometry.lanes; ++lane) {
    new (&view.producer_lane(lane)) ProducerLane{};
    new (&ConsumerLaneAt(view.base + view.offsets.consumer, lane)) ConsumerLane{};
  }
  for (std::uint32_t site = 0; site <= view.geometry.sites; ++site) {
    new (&view.site_drops(site)) std::atomic<std::uint64_t>(0);
  }
  state.manifest.Reset(view.manifest());
  producer->heartbeat_ns.store(header.created_monotonic_ns, std::memory_order_relaxed);
  producer->state.store(static_cast<std::uint32_t>(SegmentState::kReady), std::memory_order_release);
  return {};
}

// Opens a temporary file with a fresh name and records its identity before anything else can look at it.
Error OpenTemporary(const SegmentOptions& options, WriterState& state, std::string& path) {
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    path = options.directory + "/" +
           TemporaryFileName(::geteuid(), static_cast<std::uint32_t>(state.pid), g_serial.fetch_add(1));
    FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid() && errno == EEXIST) continue;
    if (!fd.valid()) return FromErrno(errno, "the segment's file cannot be created");
    struct stat status{};
    if (::fstat(fd.get(), &status) != 0) {
      const int code = errno;
      ::unlink(path.c_str());
      return FromErrno(code, "the segment's file cannot be examined");
    }
    SetOwnedFile(state, status.st_dev, status.st_ino);
    state.shared->fd = std::move(fd);
    return {};
  }
  return {Errc::kAlreadyExists, 0, "every name tried for the segment's temporary file is taken"};
}

Error Publish(const SegmentOptions& options, const WriterState& state, TemporaryFile& file, std::string& path) {
  for (int attempt = 0; attempt < kNameAttempts; ++attempt) {
    path = options.directory + "/" +
           SegmentFileName(::geteuid(), options.run_name, options.launch, options.rank,
                           static_cast<std::uint32_t>(state.pid), g_serial.fetch_add(1));
    if (file.Publish(path)) return {};
    if (errno != EEXIST) return FromErrno(errno, "the segment cannot be published");
  }
  return {Errc::kAlreadyExists, 0, "every name tried for the segment is taken"};
}

}  // namespace

std::uint64_t MonotonicNanoseconds() noexcept { return Nanoseconds(CLOCK_MONOTONIC); }

Error CreateSegmentFile(const SegmentOptions& options, WriterState& state, std::string& path) {
  std::string temporary_path;
  if (const Error error = OpenTemporary(options, state, temporary_path); error.code != Errc::kOk) return error;
  TemporaryFile file(std::move(temporary_path));
  const int fd = state.shared->fd.get();
  // Before the slow part: a sweep elsewhere must see at once that somebody is at work on the file.
  if (!TakeOwnerLock(fd)) return FromErrno(errno, "the segment's record lock cannot be taken");
  if (const Error error = SetOwnership(fd, options); error.code != Errc::kOk) return error;
  SegmentGeometry geometry{options.lanes, options.lane_capacity, options.sites, options.manifest_bytes,
                           kBlackBoxRecords};
  if (const Error error = Reserve(fd, geometry, options.lane_capacity_min); error.code != Errc::kOk) return error;
  const SegmentOffsets offsets = ComputeOffsets(geometry);
  Result<std::unique_ptr<Mapping>> mapped = Mapping::Map(fd, 0, offsets.total, MapAccess::kReadWrite, true);
  if (!mapped) return mapped.error();
  state.shared->mapping = std::move(mapped).value();
  state.view = {state.shared->mapping->data(), geometry, offsets};
  if (const Error error = Initialize(options, state); error.code != Errc::kOk) return error;
  return Publish(options, state, file, path);
}

}  // namespace neuraldbg
