#include "shared/manifest.h"

#include <cstring>
#include <new>

#include "shared/checksum.h"

namespace neuraldbg {
namespace {

struct EntryHeader {
  std::uint32_t body_bytes;
  std::uint16_t type;
  std::uint16_t reserved;
  std::uint32_t generation;  // 1 for the first entry of a region, then one more each
  std::uint32_t crc;         // of the body
};
static_assert(sizeof(EntryHeader) == 16 && sizeof(ManifestHeader) == 16);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

// The largest entry of today (a site with four longest strings) has less than 1200 bytes; the bound leaves room for
// later types while a hostile length cannot make the reader allocate much.
constexpr std::uint32_t kMaxBodyBytes = 64u << 10;

constexpr std::uint64_t Padded(std::uint64_t bytes) { return (bytes + 7) & ~std::uint64_t{7}; }

constexpr Error kCorruptManifest{Errc::kCorrupt, 0, "the manifest contradicts itself"};

}  // namespace

ManifestWriter::ManifestWriter(std::span<std::byte> region) noexcept { Reset(region); }

void ManifestWriter::Reset(std::span<std::byte> region) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  committed_ = 0;
  generation_ = 0;
  region_ = {};
  if (region.size() < sizeof(ManifestHeader)) return;
  region_ = region;
  new (region_.data()) ManifestHeader{};
  enabled_.store(true, std::memory_order_relaxed);
}

void ManifestWriter::Disable() noexcept { enabled_.store(false, std::memory_order_relaxed); }

Error ManifestWriter::CopyFrom(ManifestWriter& other) noexcept {
  const std::scoped_lock lock(mutex_, other.mutex_);
  if (!enabled_.load(std::memory_order_relaxed) || committed_ != 0) {
    return {Errc::kDisabled, 0, "the manifest is in use"};
  }
  if (sizeof(ManifestHeader) + other.committed_ > region_.size()) {
    return {Errc::kFull, 0, "the manifest region has no room for the entries of the other"};
  }
  std::memcpy(region_.data() + sizeof(ManifestHeader), other.region_.data() + sizeof(ManifestHeader), other.committed_);
  committed_ = other.committed_;
  generation_ = other.generation_;
  auto* header = std::launder(reinterpret_cast<ManifestHeader*>(region_.data()));
  header->generation.store(generation_, std::memory_order_relaxed);
  header->committed_bytes.store(committed_, std::memory_order_release);
  return {};
}

Error ManifestWriter::Append(const ManifestEntry& entry) noexcept {
  if (!enabled_.load(std::memory_order_relaxed)) return {Errc::kDisabled, 0, "the manifest accepts no more entries"};
  std::vector<std::byte> body;
  try {
    EncodeManifestEntry(entry, body);
  } catch (...) {
    return {Errc::kNoSpace, 0, "no memory to encode a manifest entry"};
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  auto* header = std::launder(reinterpret_cast<ManifestHeader*>(region_.data()));
  const std::uint64_t needed = Padded(sizeof(EntryHeader) + body.size());
  if (needed > region_.size() - sizeof(ManifestHeader) - committed_) {
    header->overflowed.fetch_add(1, std::memory_order_relaxed);
    return {Errc::kFull, 0, "the manifest region has no room for another entry"};
  }
  const EntryHeader entry_header{static_cast<std::uint32_t>(body.size()), ManifestEntryType(entry), 0, ++generation_,
                                 Crc32(body)};
  std::byte* at = region_.data() + sizeof(ManifestHeader) + committed_;
  std::memcpy(at, &entry_header, sizeof entry_header);
  if (!body.empty()) std::memcpy(at + sizeof entry_header, body.data(), body.size());
  committed_ += needed;
  header->generation.store(generation_, std::memory_order_relaxed);
  header->committed_bytes.store(committed_, std::memory_order_release);
  return {};
}

Error ManifestReader::Poll(const std::function<void(const ManifestEntry&)>& visit) {
  if (corrupt_) return kCorruptManifest;
  if (region_.size() < sizeof(ManifestHeader)) return {};
  const auto* header = std::launder(reinterpret_cast<const ManifestHeader*>(region_.data()));
  const std::span<const std::byte> entries = region_.subspan(sizeof(ManifestHeader));
  const std::uint64_t committed = header->committed_bytes.load(std::memory_order_acquire);
  corrupt_ = committed > entries.size() || committed < cursor_ || committed % 8 != 0;
  std::vector<std::byte> body;
  while (!corrupt_ && cursor_ < committed) {
    // Copied before it is looked at: the writer could change it between a check and a use.
    EntryHeader entry{};
    const std::uint64_t left = committed - cursor_;
    if (left < sizeof entry) break;
    std::memcpy(&entry, entries.data() + cursor_, sizeof entry);
    const std::uint64_t needed = Padded(sizeof entry + std::uint64_t{entry.body_bytes});
    if (entry.body_bytes > kMaxBodyBytes || needed > left || entry.generation != generation_ + 1) break;
    body.resize(entry.body_bytes);
    if (!body.empty()) std::memcpy(body.data(), entries.data() + cursor_ + sizeof entry, body.size());
    if (Crc32(body) != entry.crc) break;
    const Result<ManifestEntry> decoded = DecodeManifestEntry(entry.type, body);
    if (!decoded && decoded.error().code == Errc::kCorrupt) break;
    cursor_ += needed;
    ++generation_;
    if (decoded) visit(decoded.value());
  }
  corrupt_ = corrupt_ || cursor_ != committed;
  return corrupt_ ? kCorruptManifest : Error{};
}

std::uint32_t ManifestReader::overflowed() const noexcept {
  if (region_.size() < sizeof(ManifestHeader)) return 0;
  return std::launder(reinterpret_cast<const ManifestHeader*>(region_.data()))
      ->overflowed.load(std::memory_order_relaxed);
}

}  // namespace neuraldbg
