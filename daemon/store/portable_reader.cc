// ReadPortableRun: from bytes to the pieces of a run, trusting none of them.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/store/portable_codec.h"
#include "daemon/store/portable_run.h"
#include "daemon/store/status_macros.h"
#include "daemon/store/zstd_stream.h"

namespace neuraldbg {
namespace {

using namespace store;

absl::Status Damaged() { return absl::DataLossError("it is damaged"); }
absl::Status TooLarge(const char* what) {
  return absl::DataLossError(absl::StrCat("it has more ", what, " than this release reads"));
}

// Fills the whole span, or less at the end.
absl::StatusOr<std::size_t> ReadFully(const ByteSource& source, std::span<std::byte> to) {
  std::size_t filled = 0;
  while (filled < to.size()) {
    STORE_ASSIGN_OR_RETURN(const std::size_t size, source(to.subspan(filled)));
    if (size == 0) break;
    filled += size;
  }
  return filled;
}

// What a file consists of, section by section, and that it makes a whole.
class SectionReader {
 public:
  SectionReader(const ByteSource& source, RunSink& sink) : source_(source), sink_(sink) {}

  absl::Status Read() {
    for (bool first = true;; first = false) {
      Bytes head(sizeof(Section) + sizeof(std::uint32_t));
      STORE_ASSIGN_OR_RETURN(const std::size_t size, ReadFully(source_, head));
      if (size == 0 && ended_) return absl::OkStatus();
      if (size < head.size()) return absl::DataLossError("it is cut short");
      if (ended_) return absl::DataLossError("it has bytes behind its end");
      ByteReader reader(head);
      const auto type = reader.Fixed<Section>();
      STORE_RETURN_IF_ERROR(ReadBody(reader.Fixed<std::uint32_t>()));
      if (first != (type == Section::kRun) || type < stage_) return Damaged();
      stage_ = type;
      STORE_RETURN_IF_ERROR(OnSection(type));
    }
  }

 private:
  // In steps: a claimed size takes memory only as its bytes arrive.
  absl::Status ReadBody(std::size_t size) {
    constexpr std::size_t kStep = std::size_t{256} << 10;
    if (size > kSectionBytesMax) return Damaged();
    body_.clear();
    while (body_.size() < size) {
      const std::size_t at = body_.size();
      body_.resize(std::min(size, at + kStep));
      STORE_ASSIGN_OR_RETURN(const std::size_t taken, ReadFully(source_, std::span(body_).subspan(at)));
      if (at + taken < body_.size()) return absl::DataLossError("it is cut short");
    }
    return absl::OkStatus();
  }

  absl::Status OnSection(Section type) {
    switch (type) {
      case Section::kRun:
        return OnRun();
      case Section::kRank:
        return OnRank();
      case Section::kTransitions:
        return OnTransitions();
      case Section::kFrames:
        return OnFrames();
      case Section::kDiagnosis:
        return OnDiagnosis();
      case Section::kEnd:
        return OnEnd();
    }
    return Damaged();
  }

  absl::Status OnRun() {
    const std::optional<StoredRun> run = DecodeRun(body_);
    return run ? sink_.OnRun(*run) : Damaged();
  }

  absl::Status OnRank() {
    std::optional<RecordedRank> rank = DecodeRank(body_);
    if (!rank || !known_.insert(rank->rank.key).second) return Damaged();
    sites_ += SitesOf(*rank);
    entries_ += rank->manifest.size();
    if (sites_ > kRecordedSitesMax || entries_ > kRecordedEntriesMax) return TooLarge("places");
    if (++counts_.ranks > kRecordedRanksMax) return TooLarge("ranks");
    ranks_.push_back(rank->rank.key);
    frames_left_.push_back(rank->frames);
    return sink_.OnRank(*std::move(rank));
  }

  absl::Status OnTransitions() {
    for (ByteReader section(body_); section.remaining() > 0;) {
      std::optional<Transition> transition = TakeTransition(section);
      if (!transition || transition->id <= newest_transition_) return Damaged();
      newest_transition_ = transition->id;
      ++counts_.transitions;
      STORE_RETURN_IF_ERROR(sink_.OnTransition(*std::move(transition)));
    }
    return absl::OkStatus();
  }

  absl::Status OnFrames() {
    const std::optional<std::vector<PackedFrame>> packed = DecodeFrames(body_);
    if (!packed) return Damaged();
    for (const PackedFrame& one : *packed) {
      std::optional<StepFrame> frame = UnpackFrame(one, ranks_);
      if (!frame || frames_left_[one.rank] == 0) return Damaged();
      --frames_left_[one.rank];
      ++counts_.frames;
      STORE_RETURN_IF_ERROR(sink_.OnFrame(*std::move(frame)));
    }
    return absl::OkStatus();
  }

  absl::Status OnDiagnosis() {
    std::optional<Diagnosis> diagnosis = DecodeDiagnosis(body_);
    if (!diagnosis || ++counts_.diagnoses > 1) return Damaged();
    return sink_.OnDiagnosis(*std::move(diagnosis));
  }

  absl::Status OnEnd() {
    const std::optional<RecordedCounts> counts = DecodeCounts(body_);
    const bool all =
        std::all_of(frames_left_.begin(), frames_left_.end(), [](std::uint64_t left) { return left == 0; });
    if (!counts || *counts != counts_ || !all) return Damaged();
    ended_ = true;
    return absl::OkStatus();
  }

  const ByteSource& source_;
  RunSink& sink_;
  Bytes body_;
  Section stage_ = Section::kRun;
  bool ended_ = false;
  std::vector<RankKey> ranks_;  // by their number within the file
  std::vector<std::uint64_t> frames_left_;
  std::set<RankKey> known_;
  std::uint64_t sites_ = 0, entries_ = 0, newest_transition_ = 0;
  RecordedCounts counts_;
};

// Tells the sink's errors, which speak for themselves, from the file's.
class WatchedSink final : public RunSink {
 public:
  explicit WatchedSink(RunSink& sink) : sink_(sink) {}
  absl::Status OnRun(const StoredRun& run) override { return status_ = sink_.OnRun(run); }
  absl::Status OnRank(RecordedRank rank) override { return status_ = sink_.OnRank(std::move(rank)); }
  absl::Status OnTransition(Transition transition) override {
    return status_ = sink_.OnTransition(std::move(transition));
  }
  absl::Status OnFrame(StepFrame frame) override { return status_ = sink_.OnFrame(std::move(frame)); }
  absl::Status OnDiagnosis(Diagnosis diagnosis) override { return status_ = sink_.OnDiagnosis(std::move(diagnosis)); }
  const absl::Status& status() const { return status_; }

 private:
  RunSink& sink_;
  absl::Status status_;
};

}  // namespace

absl::Status ReadPortableSections(const ByteSource& sections, RunSink& sink) {
  return SectionReader(sections, sink).Read();
}

absl::Status ReadPortableRun(const ByteSource& file, RunSink& sink) {
  Bytes head(sizeof kPortableMagic + sizeof kPortableVersion);
  STORE_ASSIGN_OR_RETURN(const std::size_t size, ReadFully(file, head));
  ByteReader reader(ByteSpan(head).first(size));
  const ByteSpan magic = reader.Take(sizeof kPortableMagic);
  if (!std::equal(magic.begin(), magic.end(), std::as_bytes(std::span(kPortableMagic)).begin()) || !reader.ok()) {
    return absl::DataLossError("it is not an exported run");
  }
  const auto version = reader.Fixed<std::uint32_t>();
  if (!reader.ok()) return absl::DataLossError("it is cut short");
  if (version != kPortableVersion) {
    return absl::DataLossError(
        absl::StrCat("it has version ", version, " of the format, and this release reads version ", kPortableVersion));
  }
  ZstdDecompressor stream(file);
  return ReadPortableSections([&stream](std::span<std::byte> to) { return stream.Read(to); }, sink);
}

absl::Status ReadPortableRun(const std::string& path, RunSink& sink) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe would have to wait for a writer
  if (file < 0) return absl::DataLossError(absl::StrCat(path, " cannot be read: ", std::strerror(errno), "."));
  struct stat status_of_file{};
  if (::fstat(file, &status_of_file) != 0 || !S_ISREG(status_of_file.st_mode)) {
    ::close(file);
    return absl::DataLossError(absl::StrCat(path, " cannot be read: it is no regular file."));
  }
  WatchedSink watched(sink);
  const absl::Status status = ReadPortableRun(
      [file](std::span<std::byte> to) -> absl::StatusOr<std::size_t> {
        for (;;) {
          const ssize_t size = ::read(file, to.data(), to.size());
          if (size >= 0) return static_cast<std::size_t>(size);
          if (errno != EINTR) return absl::DataLossError(std::strerror(errno));
        }
      },
      watched);
  ::close(file);
  if (status.ok() || !watched.status().ok()) return status;
  return absl::DataLossError(absl::StrCat(path, " cannot be read: ", status.message(), "."));
}

}  // namespace neuraldbg
