// Fuzz target: a manifest region. The first byte says how much help the input gets: 0 none, 1 entries with right
// checksums and generations (bodies as they come), 2 one body to be decoded alone.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "shared/checksum.h"
#include "shared/manifest.h"

namespace {

using namespace neuraldbg;

void Require(bool holds) {
  if (!holds) std::abort();
}

// What decodes must encode to something that decodes to the same bytes.
void CheckEntry(const ManifestEntry& entry) {
  if (const auto* site = std::get_if<SiteEntry>(&entry)) {
    Require(site->shape.size() <= kMaxDimensions && site->name.size() <= kMaxStringBytes);
  }
  std::vector<std::byte> once, twice;
  EncodeManifestEntry(entry, once);
  const auto decoded = DecodeManifestEntry(ManifestEntryType(entry), once);
  Require(decoded.ok());
  EncodeManifestEntry(decoded.value(), twice);
  Require(once == twice);
}

// {type, body bytes} and then the body, until the input ends.
std::vector<std::byte> WellFormed(std::span<const std::byte> input) {
  std::vector<std::byte> region(sizeof(ManifestHeader));
  std::uint32_t generation = 0;
  while (input.size() >= 2) {
    const auto type = static_cast<std::uint16_t>(input[0]);
    const std::size_t bytes = std::min<std::size_t>(static_cast<std::size_t>(input[1]), input.size() - 2);
    const std::span<const std::byte> body = input.subspan(2, bytes);
    const std::uint32_t head[4] = {static_cast<std::uint32_t>(bytes), type, ++generation, Crc32(body)};
    const auto* raw = reinterpret_cast<const std::byte*>(head);
    region.insert(region.end(), raw, raw + sizeof head);
    region.insert(region.end(), body.begin(), body.end());
    region.resize((region.size() + 7) / 8 * 8);
    input = input.subspan(2 + bytes);
  }
  const std::uint64_t committed = region.size() - sizeof(ManifestHeader);
  std::memcpy(region.data(), &committed, sizeof committed);
  return region;
}

void Poll(const std::vector<std::byte>& bytes) {
  std::vector<std::uint64_t> aligned(bytes.size() / 8);
  if (!aligned.empty()) std::memcpy(aligned.data(), bytes.data(), aligned.size() * 8);
  ManifestReader reader(std::as_bytes(std::span(aligned)));
  const Error first = reader.Poll(&CheckEntry);
  const std::uint64_t cursor = reader.cursor();
  Require(cursor <= bytes.size());
  const Error second = reader.Poll([](const ManifestEntry&) { std::abort(); });
  Require(first.code == second.code && reader.cursor() == cursor);
  reader.overflowed();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  if (bytes < 2) return 0;
  const std::span<const std::byte> input(reinterpret_cast<const std::byte*>(data) + 1, bytes - 1);
  switch (data[0] % 3) {
    case 0:
      Poll({input.begin(), input.end()});
      break;
    case 1:
      Poll(WellFormed(input));
      break;
    default:
      if (const auto entry = DecodeManifestEntry(data[1] % 9, input.subspan(1)); entry.ok()) CheckEntry(entry.value());
  }
  // A string of any bytes becomes printable, within bounds, and stays as it is from then on.
  const std::string once = SanitizeString({reinterpret_cast<const char*>(data), bytes});
  Require(once.size() <= kMaxStringBytes && SanitizeString(once) == once);
  return 0;
}
