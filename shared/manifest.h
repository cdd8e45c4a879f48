// The manifest: the static description of what a rank's records mean. It lies inside the segment as an append-only
// sequence of checksummed entries; the reader takes whatever has been committed and never waits for more.
//
// Region layout: ManifestHeader, then entries. An entry is {u32 body_bytes, u16 type, u16 reserved, u32 generation,
// u32 crc32 of the body} followed by the body, padded to 8 bytes. The writer fills an entry behind `committed_bytes`
// and then publishes it with one release store, which pairs with the acquire load in ManifestReader::Poll.
//
// It holds no environment, command line or data path. Strings are UTF-8 of at most kMaxStringBytes; the reader treats
// every byte as hostile: bounds, checksum, UTF-8 and enum ranges are checked, unknown entry types are skipped.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "shared/record.h"
#include "shared/result.h"

namespace neuraldbg {

inline constexpr std::size_t kMaxStringBytes = 256;
inline constexpr std::size_t kMaxDimensions = 8;

// What place a site is. `module` of a site is the named_modules() path with `_orig_mod.` and `module.` stripped.
enum class SiteRole : std::uint8_t {
  kOutput = 0,          // output of a leaf module
  kInput = 1,           // "glue": input of a module that functional code computed
  kMerge = 2,           // output of a container that its own operations computed (a residual add, say)
  kOutputGradient = 3,  // gradient of the loss with respect to the tensor of `twin`
  kInputGradient = 4,
  kMergeGradient = 5,
  kParameter = 6,
  kOptimizer = 7,
  kLoss = 8,
  kBatch = 9,
  kStep = 10,
  kSystem = 11,
};

// How a site's tensor is observed (design: the fallback ladder), and whether it is at all.
enum class ObservationLevel : std::uint8_t {
  kFused = 0,
  kTap = 1,
  kForwardOnly = 2,
  kEager = 3,
  kNotObserved = 4,  // covered by `covered_by`, or not observable
};

inline constexpr std::uint32_t kNoSite = 0xffffffffu;

struct SiteEntry {
  std::uint32_t id = 0;
  std::string name;         // unique within the run, e.g. "blocks.3.fc:output", "blocks.3.fc.weight", "optimizer[0]"
  std::string module;       // "blocks.3.fc"; empty when the site is not a module's
  std::string module_kind;  // "Linear", "GELU", …; optimizer class for optimizer sites
  SiteRole role = SiteRole::kOutput;
  Phase phase = Phase::kForward;
  DType dtype = DType::kUnknown;
  bool requires_grad = false;
  ObservationLevel level = ObservationLevel::kFused;
  std::uint32_t topological_index = 0;  // order in the forward pass of the module graph; gradients share their twin's
  std::uint32_t twin = kNoSite;         // gradient <-> forward; parameter -> output site of its module
  std::uint32_t covered_by = kNoSite;
  std::uint32_t tie_group = 0;              // non-zero: parameters that share storage
  std::uint32_t optimizer_group = kNoSite;  // parameters: index of the group, kNoSite if no optimizer holds it
  std::string owner;                        // glue and merge: module whose own code computed the tensor
  std::vector<std::uint64_t> shape;
};

// Dataflow in the forward pass: `consumer` computed its tensor from `producer`'s. Sinks feed the loss.
struct EdgeEntry {
  std::uint32_t producer = kNoSite;  // the batch site for model inputs
  std::uint32_t consumer = kNoSite;
};
struct SinkEntry {
  std::uint32_t site = kNoSite;
};

// The value of a parameter when the agent attached, before the first observed update.
struct ParameterInitEntry {
  std::uint32_t site = kNoSite;
  std::uint64_t numel = 0;
  double sum = 0;
  double sum_squares = 0;
  float max_abs = 0;
  std::uint64_t bits = 0;
};

// An announced change (session.mark, or one the agent saw: groups added, attach after the first call).
struct MarkEntry {
  std::uint64_t step = 0;
  std::string text;
};

struct RunEntry {
  std::string run_name;  // as the user gave it
  std::string launch;    // identity of the launch; same name with another launch is another run
  std::string host;
  std::string framework;  // "torch 2.13.0"
  std::string agent_version;
  std::uint32_t rank = 0, world_size = 1, incarnation = 0;
  std::uint64_t start_step = 0;
  bool compiled = false;
  bool graph_exact = false;         // false: edges are execution order, not dataflow
  std::uint32_t planned_sites = 0;  // number of sites that report in a fully observed step
  std::uint32_t parameter_count = 0;
};

// The graph and all sites of the first traced step are in the manifest; records may be interpreted from here on.
struct ReadyEntry {
  std::uint64_t step = 0;
};

using ManifestEntry =
    std::variant<RunEntry, SiteEntry, EdgeEntry, SinkEntry, ParameterInitEntry, MarkEntry, ReadyEntry>;

struct ManifestHeader {
  std::atomic<std::uint64_t> committed_bytes;  // bytes of entries published so far
  std::atomic<std::uint32_t> generation;
  std::atomic<std::uint32_t> overflowed;  // entries that did not fit
};

// Writer end. Any thread of the training process may append; a process-local mutex orders them (appends are rare and
// never on the path of a record). noexcept: returns kFull when the region has no room, and counts it in `overflowed`.
class ManifestWriter {
 public:
  ManifestWriter() = default;
  explicit ManifestWriter(std::span<std::byte> region) noexcept;
  ManifestWriter(const ManifestWriter&) = delete;
  ManifestWriter& operator=(const ManifestWriter&) = delete;
  void Reset(std::span<std::byte> region) noexcept;
  Error Append(const ManifestEntry& entry) noexcept;
  // Continues another segment's manifest. Only before the first append; kFull when it does not fit.
  Error CopyFrom(ManifestWriter& other) noexcept;
  // Further appends return kDisabled without touching the region or the mutex, which a forked child may have inherited
  // in a locked state.
  void Disable() noexcept;

 private:
  std::atomic<bool> enabled_{false};
  std::mutex mutex_;
  std::span<std::byte> region_;
  std::uint64_t committed_ = 0;
  std::uint32_t generation_ = 0;
};

// Reader end: a cursor over one region. Not thread-safe; one owner.
class ManifestReader {
 public:
  explicit ManifestReader(std::span<const std::byte> region) noexcept : region_(region) {}
  // Calls `visit` for every valid entry committed since the last call. Returns kCorrupt (and stops for good) at the
  // first entry that contradicts itself; entries before it were delivered.
  Error Poll(const std::function<void(const ManifestEntry&)>& visit);
  std::uint64_t cursor() const noexcept { return cursor_; }
  std::uint32_t overflowed() const noexcept;  // entries the writer had no room for

 private:
  std::span<const std::byte> region_;
  std::uint64_t cursor_ = 0;
  std::uint32_t generation_ = 0;
  bool corrupt_ = false;
};

// Serialisation of one entry; also used by the store to keep manifests. Decode returns kCorrupt for anything malformed,
// kNotFound for a type of a later release (to be skipped).
void EncodeManifestEntry(const ManifestEntry& entry, std::vector<std::byte>& out);
Result<ManifestEntry> DecodeManifestEntry(std::uint16_t type, std::span<const std::byte> body);
std::uint16_t ManifestEntryType(const ManifestEntry& entry) noexcept;

// Makes an untrusted string printable: invalid UTF-8 becomes U+FFFD, control characters are escaped as \xNN, and the
// result is cut at `bytes_max` on a character boundary.
std::string SanitizeString(std::string_view text, std::size_t bytes_max = kMaxStringBytes);

}  // namespace neuraldbg
