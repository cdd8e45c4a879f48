// PortableRunWriter: a RunSink whose output is a file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/store/frame_codec.h"
#include "daemon/store/portable_codec.h"
#include "daemon/store/portable_run.h"
#include "daemon/store/status_macros.h"
#include "daemon/store/zstd_stream.h"

namespace neuraldbg {
namespace {

using namespace store;

// Small enough that a reader's memory is small, large enough for some dozens of frames of a large model.
constexpr std::size_t kSectionBytes = std::size_t{4} << 20;

absl::Status CannotWrite(const std::string& path) {
  const std::string text = absl::StrCat(path, " cannot be written: ", std::strerror(errno));
  return errno == ENOSPC ? absl::ResourceExhaustedError(text) : absl::PermissionDeniedError(text);
}

class FileWriter final : public PortableRunWriter {
 public:
  FileWriter(std::string path, std::string temporary, int file, Existing existing)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        file_(file),
        existing_(existing),
        stream_([this](ByteSpan bytes) { return WriteFile(bytes); }) {}
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter() override {
    if (file_ >= 0) ::close(file_);
    if (!finished_) ::unlink(temporary_.c_str());
  }

  absl::Status Begin() {
    Bytes head;
    ByteWriter writer(head);
    writer.Append(std::as_bytes(std::span(kPortableMagic)));
    writer.Fixed(kPortableVersion);
    return WriteFile(head);
  }

  absl::Status OnRun(const StoredRun& run) override {
    Bytes body;
    EncodeRun(run, body);
    return WriteSection(Section::kRun, body);
  }

  absl::Status OnRank(RecordedRank rank) override {
    Bytes body;
    EncodeRank(rank, body);
    ranks_.emplace(rank.rank.key, counts_.ranks++);
    return WriteSection(Section::kRank, body);
  }

  absl::Status OnTransition(Transition transition) override {
    ++counts_.transitions;
    AppendTransition(transition, transitions_);
    return transitions_.size() < kSectionBytes ? absl::OkStatus() : Flush();
  }

  absl::Status OnFrame(StepFrame frame) override {
    const auto rank = ranks_.find(frame.rank);
    if (rank == ranks_.end()) return absl::InternalError("A frame of an unknown rank cannot be written.");
    if (!transitions_.empty()) STORE_RETURN_IF_ERROR(Flush());
    ++counts_.frames;
    PackedFrame& packed = frames_.emplace_back();
    packed.rank = rank->second;
    EncodeFrame(frame, packed.bytes);
    frame_bytes_ += packed.bytes.size();
    return frame_bytes_ < kSectionBytes && frames_.size() < kFramesPerSectionMax ? absl::OkStatus() : Flush();
  }

  absl::Status OnDiagnosis(Diagnosis diagnosis) override {
    Bytes body;
    EncodeDiagnosis(diagnosis, body);
    ++counts_.diagnoses;
    return WriteSection(Section::kDiagnosis, body);
  }

  absl::Status Finish() override {
    Bytes body;
    EncodeCounts(counts_, body);
    STORE_RETURN_IF_ERROR(WriteSection(Section::kEnd, body));
    STORE_RETURN_IF_ERROR(stream_.Finish());
    const bool synced = ::fsync(file_) == 0;
    const bool closed = ::close(std::exchange(file_, -1)) == 0;
    if (!synced || !closed) return CannotWrite(path_);
    return Publish();
  }

  std::uint64_t bytes_written() const override { return bytes_written_; }

 private:
  // link() does not replace what came into being in the meantime, rename() does.
  absl::Status Publish() {
    if (existing_ == Existing::kRefuse && ::link(temporary_.c_str(), path_.c_str()) == 0) {
      ::unlink(temporary_.c_str());
    } else if (existing_ == Existing::kRefuse && errno == EEXIST) {
      return absl::AlreadyExistsError(absl::StrCat(path_, " exists already"));
    } else if (::rename(temporary_.c_str(), path_.c_str()) != 0) {  // or a file system without hard links
      return CannotWrite(path_);
    }
    finished_ = true;
    return absl::OkStatus();
  }

  // Transitions come before frames, so at most one of the two waits.
  absl::Status Flush() {
    if (!transitions_.empty()) {
      STORE_RETURN_IF_ERROR(PutSection(Section::kTransitions, transitions_));
      transitions_.clear();
    }
    if (frames_.empty()) return absl::OkStatus();
    Bytes body;
    EncodeFrames(frames_, body);
    frames_.clear();
    frame_bytes_ = 0;
    return PutSection(Section::kFrames, body);
  }

  absl::Status WriteSection(Section type, ByteSpan body) {
    STORE_RETURN_IF_ERROR(Flush());
    return PutSection(type, body);
  }

  absl::Status PutSection(Section type, ByteSpan body) {
    if (body.size() > kSectionBytesMax) {
      return absl::OutOfRangeError("The run has a rank, a step or a diagnosis that is too large for a file.");
    }
    Bytes head;
    ByteWriter writer(head);
    writer.Fixed(type);
    writer.Fixed(static_cast<std::uint32_t>(body.size()));
    STORE_RETURN_IF_ERROR(stream_.Write(head));
    return stream_.Write(body);
  }

  absl::Status WriteFile(ByteSpan bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return CannotWrite(path_);
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      bytes_written_ += static_cast<std::uint64_t>(written);
    }
    return absl::OkStatus();
  }

  const std::string path_, temporary_;
  int file_;
  const Existing existing_;
  bool finished_ = false;
  std::uint64_t bytes_written_ = 0;
  std::map<RankKey, std::uint64_t> ranks_;  // number within the file
  RecordedCounts counts_;
  // What waits for its section.
  Bytes transitions_;
  std::vector<PackedFrame> frames_;
  std::size_t frame_bytes_ = 0;
  ZstdCompressor stream_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PortableRunWriter>> PortableRunWriter::Create(const std::string& path,
                                                                             Existing existing) {
  struct stat present{};
  if (existing == Existing::kRefuse && ::lstat(path.c_str(), &present) == 0) {
    return absl::AlreadyExistsError(absl::StrCat(path, " exists already"));
  }
  // In the same directory, so that the rename is one step; 0600 because a run's records are its owner's business.
  const std::string temporary = absl::StrCat(path, ".", ::getpid(), ".tmp");
  const int file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (file < 0) return CannotWrite(path);
  auto writer = std::make_unique<FileWriter>(path, temporary, file, existing);
  STORE_RETURN_IF_ERROR(writer->Begin());
  return std::unique_ptr<PortableRunWriter>(std::move(writer));
}

}  // namespace neuraldbg
