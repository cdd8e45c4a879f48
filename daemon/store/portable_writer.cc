// PortableRunWriter: a RunSink whose output is a file.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
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
  // `named`: the file is at `temporary` now; otherwise it has no name yet.
  FileWriter(std::string path, std::string temporary, bool named, int file, Existing existing)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        named_(named),
        file_(file),
        existing_(existing),
        stream_([this](ByteSpan bytes) { return WriteFile(bytes); }) {}
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  ~FileWriter() override {
    if (file_ >= 0) ::close(file_);
    if (named_) ::unlink(temporary_.c_str());
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
    if (::fsync(file_) != 0) return CannotWrite(path_);
    STORE_RETURN_IF_ERROR(Publish());
    return ::close(std::exchange(file_, -1)) == 0 ? absl::OkStatus() : CannotWrite(path_);
  }

  std::uint64_t bytes_written() const override { return bytes_written_; }

 private:
  // link() does not replace what came into being in the meantime, rename() does.
  absl::Status Publish() {
    if (existing_ == Existing::kRefuse) {
      if (Link(path_)) return absl::OkStatus();
      if (errno == EEXIST) return absl::AlreadyExistsError(absl::StrCat(path_, " exists already"));
    }
    // Or a file system without hard links, where the file has had its name from the start.
    if (!named_ && !Link(temporary_)) return CannotWrite(path_);
    named_ = true;
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return CannotWrite(path_);
    named_ = false;
    return absl::OkStatus();
  }

  bool Link(const std::string& to) {
    const std::string open_file = absl::StrCat("/proc/self/fd/", file_);
    return ::linkat(AT_FDCWD, named_ ? temporary_.c_str() : open_file.c_str(), AT_FDCWD, to.c_str(),
                    AT_SYMLINK_FOLLOW) == 0;
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
  bool named_;
  int file_;
  const Existing existing_;
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

std::string PortableRunWriter::TemporaryPath(const std::string& path) {
  return absl::StrCat(path, ".", ::getpid(), ".tmp");
}

absl::StatusOr<std::unique_ptr<PortableRunWriter>> PortableRunWriter::Create(const std::string& path,
                                                                             Existing existing) {
  struct stat present{};
  if (::lstat(path.c_str(), &present) == 0) {
    if (!S_ISREG(present.st_mode)) {
      return absl::InvalidArgumentError(absl::StrCat(path, " is no regular file, and nothing else can be written."));
    }
    if (existing == Existing::kRefuse) return absl::AlreadyExistsError(absl::StrCat(path, " exists already"));
  }
  // 0600 because a run's records are its owner's business. Without a name, where the file system can: then nothing is
  // left of it however the process ends. In the same directory, so that giving it its name is one step.
  constexpr mode_t kPrivate = 0600;
  const std::string temporary = TemporaryPath(path), directory = std::filesystem::path(path).parent_path();
  int file = ::open(directory.empty() ? "." : directory.c_str(), O_WRONLY | O_TMPFILE | O_CLOEXEC, kPrivate);
  const bool named = file < 0;
  if (named) file = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, kPrivate);
  if (file < 0) return CannotWrite(path);
  auto writer = std::make_unique<FileWriter>(path, temporary, named, file, existing);
  STORE_RETURN_IF_ERROR(writer->Begin());
  return std::unique_ptr<PortableRunWriter>(std::move(writer));
}

}  // namespace neuraldbg
