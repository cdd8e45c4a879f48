// Serialisation of manifest entries. Numbers are little endian, booleans one byte (0 or 1), strings u16 length + UTF-8,
// shapes u8 rank + u64 each. A later release may append fields to a body: a decoder ignores bytes behind the fields it
// knows, and treats a field that is not there yet as malformed only if the entry had it from the first version.
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>

#include "shared/manifest.h"

namespace neuraldbg {
namespace {

class Encoder {
 public:
  explicit Encoder(std::vector<std::byte>& out) : out_(out) {}

  template <typename T>
  void Number(T value) {
    static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
    const auto* bytes = reinterpret_cast<const std::byte*>(&value);
    out_.insert(out_.end(), bytes, bytes + sizeof value);
  }
  void Boolean(bool value) { Number<std::uint8_t>(value ? 1 : 0); }
  void String(std::string_view text) {
    const std::string clean = SanitizeString(text);
    Number(static_cast<std::uint16_t>(clean.size()));
    const auto* bytes = reinterpret_cast<const std::byte*>(clean.data());
    out_.insert(out_.end(), bytes, bytes + clean.size());
  }
  void Shape(const std::vector<std::uint64_t>& shape) {
    const std::size_t rank = shape.size() < kMaxDimensions ? shape.size() : kMaxDimensions;
    Number(static_cast<std::uint8_t>(rank));
    for (std::size_t i = 0; i < rank; ++i) Number(shape[i]);
  }

 private:
  std::vector<std::byte>& out_;
};

// Reads until the first field that does not fit or is out of range; from then on every read yields zero and ok() is
// false, so that a decoder is a plain list of fields.
class Decoder {
 public:
  explicit Decoder(std::span<const std::byte> body) : body_(body) {}
  bool ok() const { return ok_; }

  template <typename T>
  void Number(T& value) {
    static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
    if (!Take(sizeof value)) return;
    std::memcpy(&value, body_.data() + at_ - sizeof value, sizeof value);
  }
  template <typename E>
  void Enum(E& value, E last) {
    std::underlying_type_t<E> raw{};
    Number(raw);
    if (raw > static_cast<std::underlying_type_t<E>>(last)) ok_ = false;
    if (ok_) value = static_cast<E>(raw);
  }
  void Boolean(bool& value) {
    std::uint8_t raw = 0;
    Number(raw);
    if (raw > 1) ok_ = false;
    if (ok_) value = raw == 1;
  }
  void String(std::string& text) {
    std::uint16_t size = 0;
    Number(size);
    if (size > kMaxStringBytes) ok_ = false;
    if (!Take(size)) return;
    text = SanitizeString({reinterpret_cast<const char*>(body_.data()) + at_ - size, size});
  }
  void Shape(std::vector<std::uint64_t>& shape) {
    std::uint8_t rank = 0;
    Number(rank);
    if (rank > kMaxDimensions) ok_ = false;
    if (!ok_) return;
    shape.assign(rank, 0);
    for (std::uint64_t& extent : shape) Number(extent);
  }

 private:
  bool Take(std::size_t bytes) {
    if (!ok_ || body_.size() - at_ < bytes) {
      ok_ = false;
      return false;
    }
    at_ += bytes;
    return true;
  }

  std::span<const std::byte> body_;
  std::size_t at_ = 0;
  bool ok_ = true;
};

void Encode(const RunEntry& entry, Encoder& out) {
  out.String(entry.run_name);
  out.String(entry.launch);
  out.String(entry.host);
  out.String(entry.framework);
  out.String(entry.agent_version);
  out.Number(entry.rank);
  out.Number(entry.world_size);
  out.Number(entry.incarnation);
  out.Number(entry.start_step);
  out.Boolean(entry.compiled);
  out.Boolean(entry.graph_exact);
  out.Number(entry.planned_sites);
  out.Number(entry.parameter_count);
}

void Decode(Decoder& in, RunEntry& entry) {
  in.String(entry.run_name);
  in.String(entry.launch);
  in.String(entry.host);
  in.String(entry.framework);
  in.String(entry.agent_version);
  in.Number(entry.rank);
  in.Number(entry.world_size);
  in.Number(entry.incarnation);
  in.Number(entry.start_step);
  in.Boolean(entry.compiled);
  in.Boolean(entry.graph_exact);
  in.Number(entry.planned_sites);
  in.Number(entry.parameter_count);
}

void Encode(const SiteEntry& entry, Encoder& out) {
  out.Number(entry.id);
  out.String(entry.name);
  out.String(entry.module);
  out.String(entry.module_kind);
  out.Number(entry.role);
  out.Number(entry.phase);
  out.Number(entry.dtype);
  out.Boolean(entry.requires_grad);
  out.Number(entry.level);
  out.Number(entry.topological_index);
  out.Number(entry.twin);
  out.Number(entry.covered_by);
  out.Number(entry.tie_group);
  out.Number(entry.optimizer_group);
  out.String(entry.owner);
  out.Shape(entry.shape);
}

void Decode(Decoder& in, SiteEntry& entry) {
  in.Number(entry.id);
  in.String(entry.name);
  in.String(entry.module);
  in.String(entry.module_kind);
  in.Enum(entry.role, SiteRole::kSystem);
  in.Enum(entry.phase, Phase::kSystem);
  in.Enum(entry.dtype, DType::kFloat8);
  in.Boolean(entry.requires_grad);
  in.Enum(entry.level, ObservationLevel::kNotObserved);
  in.Number(entry.topological_index);
  in.Number(entry.twin);
  in.Number(entry.covered_by);
  in.Number(entry.tie_group);
  in.Number(entry.optimizer_group);
  in.String(entry.owner);
  in.Shape(entry.shape);
}

void Encode(const EdgeEntry& entry, Encoder& out) {
  out.Number(entry.producer);
  out.Number(entry.consumer);
}

void Decode(Decoder& in, EdgeEntry& entry) {
  in.Number(entry.producer);
  in.Number(entry.consumer);
}

void Encode(const SinkEntry& entry, Encoder& out) { out.Number(entry.site); }

void Decode(Decoder& in, SinkEntry& entry) { in.Number(entry.site); }

void Encode(const ParameterInitEntry& entry, Encoder& out) {
  out.Number(entry.site);
  out.Number(entry.numel);
  out.Number(entry.sum);
  out.Number(entry.sum_squares);
  out.Number(entry.max_abs);
  out.Number(entry.bits);
}

void Decode(Decoder& in, ParameterInitEntry& entry) {
  in.Number(entry.site);
  in.Number(entry.numel);
  in.Number(entry.sum);
  in.Number(entry.sum_squares);
  in.Number(entry.max_abs);
  in.Number(entry.bits);
}

void Encode(const MarkEntry& entry, Encoder& out) {
  out.Number(entry.step);
  out.String(entry.text);
}

void Decode(Decoder& in, MarkEntry& entry) {
  in.Number(entry.step);
  in.String(entry.text);
}

void Encode(const ReadyEntry& entry, Encoder& out) { out.Number(entry.step); }

void Decode(Decoder& in, ReadyEntry& entry) { in.Number(entry.step); }

template <typename Entry>
Result<ManifestEntry> DecodeAs(std::span<const std::byte> body) {
  Decoder in(body);
  Entry entry;
  Decode(in, entry);
  if (!in.ok()) return Error{Errc::kCorrupt, 0, "a manifest entry is cut short or holds a value out of range"};
  return ManifestEntry(std::move(entry));
}

}  // namespace

// The type on the wire is the alternative's position in ManifestEntry plus one: new alternatives are only appended.
std::uint16_t ManifestEntryType(const ManifestEntry& entry) noexcept {
  return static_cast<std::uint16_t>(entry.index() + 1);
}

void EncodeManifestEntry(const ManifestEntry& entry, std::vector<std::byte>& out) {
  Encoder encoder(out);
  std::visit([&encoder](const auto& alternative) { Encode(alternative, encoder); }, entry);
}

Result<ManifestEntry> DecodeManifestEntry(std::uint16_t type, std::span<const std::byte> body) {
  switch (type) {
    case 1:
      return DecodeAs<RunEntry>(body);
    case 2:
      return DecodeAs<SiteEntry>(body);
    case 3:
      return DecodeAs<EdgeEntry>(body);
    case 4:
      return DecodeAs<SinkEntry>(body);
    case 5:
      return DecodeAs<ParameterInitEntry>(body);
    case 6:
      return DecodeAs<MarkEntry>(body);
    case 7:
      return DecodeAs<ReadyEntry>(body);
    default:
      return Error{Errc::kNotFound, 0, "a manifest entry has a type that this release does not know"};
  }
}

}  // namespace neuraldbg
