#include "shared/mapping.h"

#include <sys/mman.h>
#include <unistd.h>

#include <boost/interprocess/mapped_region.hpp>
#include <utility>

namespace neuraldbg {
namespace {

namespace interprocess = boost::interprocess;

// Boost's notion of something that can be mapped.
struct MappableDescriptor {
  int fd;
  interprocess::mapping_handle_t get_mapping_handle() const { return {fd, false}; }
};

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) ::close(fd_);
}

struct Mapping::Region {
  interprocess::mapped_region mapped;
};

Mapping::Mapping(std::unique_ptr<Region> region) noexcept : region_(std::move(region)) {}
Mapping::~Mapping() = default;

Result<std::unique_ptr<Mapping>> Mapping::Map(int fd, std::uint64_t offset, std::size_t bytes, MapAccess access,
                                              bool populate) noexcept {
  try {
    auto region = std::make_unique<Region>();
    const auto mode = access == MapAccess::kReadOnly ? interprocess::read_only : interprocess::read_write;
    const interprocess::map_options_t options = populate ? MAP_POPULATE : interprocess::default_map_options;
    region->mapped = interprocess::mapped_region(MappableDescriptor{fd}, mode,
                                                 static_cast<interprocess::offset_t>(offset), bytes, nullptr, options);
    return std::unique_ptr<Mapping>(new Mapping(std::move(region)));
  } catch (const interprocess::interprocess_exception& failure) {
    return Error{Errc::kIo, failure.get_native_error(), "the segment cannot be mapped"};
  } catch (...) {
    return Error{Errc::kNoSpace, 0, "no memory to map the segment"};
  }
}

std::byte* Mapping::data() const noexcept { return static_cast<std::byte*>(region_->mapped.get_address()); }
std::size_t Mapping::size() const noexcept { return region_->mapped.get_size(); }

}  // namespace neuraldbg
