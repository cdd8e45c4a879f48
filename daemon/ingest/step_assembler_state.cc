// The assembler's state as bytes, for the store: what a restarted daemon needs to go on as if it had never stopped. The
// bytes never leave the host that wrote them (records are little endian by contract); they are still checked, because a
// file on disk can be damaged.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "daemon/ingest/step_assembler.h"

namespace neuraldbg {
namespace {

// Changes whenever the layout below or MergedRecord does; other bytes are refused, and the segment starts afresh.
constexpr std::uint64_t kStateVersion = 0x3130'4d53'4247'444eull;

template <typename T>
void Write(std::vector<std::byte>& out, const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(T));
}

class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T Read() {
    T value{};
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  bool ReadFlag() { return Read<std::uint8_t>() != 0; }
  bool ok() const { return ok_; }
  bool AtEnd() const { return ok_ && bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

void WriteFlag(std::vector<std::byte>& out, bool flag) { Write(out, static_cast<std::uint8_t>(flag)); }

}  // namespace

void StepAssembler::Serialize(std::vector<std::byte>& out) const {
  Write(out, kStateVersion);
  Write(out, site_limit_);
  for (const std::uint64_t counter : {next_step_, pass_, received_, received_finished_, missing_attributed_, late_,
                                      refused_, last_step_, last_time_ns_}) {
    Write(out, counter);
  }
  Write(out, last_site_);
  std::uint32_t active = 0;
  for (const SiteTotal& total : site_totals_) active += total.records != 0;
  Write(out, active);
  for (std::uint32_t site = 0; site < site_limit_; ++site) {
    if (site_totals_[site].records == 0) continue;
    Write(out, site);
    Write(out, site_totals_[site]);
  }
  Write(out, static_cast<std::uint32_t>(pending_.size()));
  for (const auto& [number, step] : pending_) {
    for (const std::uint64_t value :
         {number, step.received, step.time_ns, step.step_seen_in_pass, step.attempts_total, step.dropped_total}) {
      Write(out, value);
    }
    for (const bool flag : {step.has_training, step.has_evaluation, step.has_backward, step.step_seen, step.applied}) {
      WriteFlag(out, flag);
    }
    Write(out, static_cast<std::uint32_t>(step.merged.size()));
    for (const MergedRecord& merged : step.merged) Write(out, merged);
  }
}

bool StepAssembler::Restore(std::span<const std::byte> bytes) {
  Cursor in(bytes);
  if (in.Read<std::uint64_t>() != kStateVersion || in.Read<std::uint32_t>() != site_limit_) return false;
  StepAssembler fresh(site_limit_, 0);
  for (std::uint64_t* counter :
       {&fresh.next_step_, &fresh.pass_, &fresh.received_, &fresh.received_finished_, &fresh.missing_attributed_,
        &fresh.late_, &fresh.refused_, &fresh.last_step_, &fresh.last_time_ns_}) {
    *counter = in.Read<std::uint64_t>();
  }
  fresh.last_site_ = in.Read<std::uint32_t>();
  for (auto left = in.Read<std::uint32_t>(); left > 0 && in.ok(); --left) {
    const auto site = in.Read<std::uint32_t>();
    const auto total = in.Read<SiteTotal>();
    if (site >= site_limit_) return false;
    fresh.site_totals_[site] = total;
  }
  for (auto steps = in.Read<std::uint32_t>(); steps > 0 && in.ok(); --steps) {
    PendingStep& step = fresh.StepFor(in.Read<std::uint64_t>());
    for (std::uint64_t* value :
         {&step.received, &step.time_ns, &step.step_seen_in_pass, &step.attempts_total, &step.dropped_total}) {
      *value = in.Read<std::uint64_t>();
    }
    for (bool* flag : {&step.has_training, &step.has_evaluation, &step.has_backward, &step.step_seen, &step.applied}) {
      *flag = in.ReadFlag();
    }
    for (auto records = in.Read<std::uint32_t>(); records > 0 && in.ok(); --records) {
      MergedRecord merged = in.Read<MergedRecord>();
      const Record& record = merged.record;
      if (record.site >= site_limit_ || record.kind >= static_cast<RecordKind>(kRecordKindCount) ||
          record.phase >= static_cast<Phase>(kPhaseCount)) {
        return false;
      }
      // Chains are rebuilt rather than believed: a wrong link would be an index out of range.
      merged.next = 0;
      step.site_end = std::max(step.site_end, merged.record.site + 1);
      std::uint32_t* link =
          &step.first[std::size_t{merged.record.site} * kPasses + static_cast<std::size_t>(PassOf(merged.record))];
      while (*link != 0) link = &step.merged[*link - 1].next;
      *link = static_cast<std::uint32_t>(step.merged.size() + 1);
      step.merged.push_back(merged);
    }
  }
  if (!in.AtEnd()) return false;
  *this = std::move(fresh);
  return true;
}

}  // namespace neuraldbg
