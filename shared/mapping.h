// A file descriptor and a mapping of it, both owned. Boost.Interprocess maps (and throws); this wrapper turns its
// exceptions into Results. Only mapped_region is used: Boost's managed segments keep a mutex inside the segment and die
// of SIGBUS on a full /dev/shm, and its file_mapping would open (and later close) the file a second time, which would
// silently drop the owner's record lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "shared/result.h"

namespace neuraldbg {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const noexcept { return fd_; }
  bool valid() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

enum class MapAccess : std::uint8_t { kReadOnly, kReadWrite };

class Mapping {
 public:
  // `populate` faults all pages in now: the first lap of a ring costs 4 ns a push instead of 33.
  static Result<std::unique_ptr<Mapping>> Map(int fd, std::uint64_t offset, std::size_t bytes, MapAccess access,
                                              bool populate) noexcept;
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  std::byte* data() const noexcept;
  std::size_t size() const noexcept;

 private:
  struct Region;
  explicit Mapping(std::unique_ptr<Region> region) noexcept;
  std::unique_ptr<Region> region_;
};

}  // namespace neuraldbg
