#include "daemon/ingest/segment_watcher.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "shared/ring_layout.h"
#include "shared/segment_name.h"

namespace neuraldbg {
namespace {

std::string OtherVersion(const std::optional<LayoutVersion>& theirs) {
  return "it was written by a release with segment layout " + (theirs ? theirs->Text() : std::string("unknown")) +
         ", and this daemon reads layout " + LayoutVersion{kLayoutMajor, kLayoutMinor}.Text() + ".";
}

}  // namespace

bool SegmentWatcher::DirectoryChanged(bool force) {
  struct stat status{};
  if (::stat(options_.directory.c_str(), &status) != 0) return true;  // Look tells why
  const bool changed =
      status.st_mtim.tv_sec != directory_time_.tv_sec || status.st_mtim.tv_nsec != directory_time_.tv_nsec;
  directory_time_ = status.st_mtim;
  return changed || force;
}

std::optional<SegmentWatcher::FileId> SegmentWatcher::Identify(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return std::nullopt;
  return FileId{status.st_dev, status.st_ino};
}

void SegmentWatcher::Remember(const FileId& id) {
  if (!known_.insert(id).second) return;
  known_order_.push_back(id);
  if (known_order_.size() <= kRefusedMax) return;
  known_.erase(known_order_.front());
  known_order_.pop_front();
}

void SegmentWatcher::Refuse(const FileId& id, RefusedSegment refused, Scan& scan) {
  Remember(id);
  refused.path = SanitizeString(refused.path);
  scan.refused.push_back(std::move(refused));
}

void SegmentWatcher::Consider(const std::string& path, const HistoryLookup& history, Scan& scan) {
  const std::optional<FileId> id = Identify(path);
  if (!id || known_.contains(*id)) return;
  const auto mine = adopted_.find(path);
  if (mine != adopted_.end()) {
    if (mine->second == *id) return;
    adopted_.erase(mine);  // the name was taken by another file; the old one lives on in its reader
  }
  if (adopted_.size() >= kSegmentsMax) {
    // Not remembered: there will be room again.
    return;
  }
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return;
  if (!options_.access.Covers(status)) {
    const std::string reason = "it belongs to another user (uid " + std::to_string(status.st_uid) + ").";
    return Refuse(*id, {path, reason, Errc::kBadOwner, {}, true}, scan);
  }
  if (!S_ISREG(status.st_mode)) return Refuse(*id, {path, "it is not a regular file.", Errc::kBadOwner, {}}, scan);
  std::optional<SegmentClaim> claim = SegmentClaim::Take(path);
  if (!claim) {
    if (::access(path.c_str(), R_OK) != 0 && errno != ENOENT) {
      return Refuse(*id, {path, "it may not be read.", Errc::kPermission, {}}, scan);
    }
    return;  // another daemon drains it, or it is gone; looked at again with the next scan
  }
  if (claim->Emptied()) return Remember(*id);  // its owner's next sweep removes the name
  auto reader = RankReader::Open(path, options_.access, history);
  if (!reader.ok() && reader.error().code == Errc::kBadVersion) {
    const std::optional<LayoutVersion> theirs = claim->Layout();
    return Refuse(*id, {path, OtherVersion(theirs), Errc::kBadVersion, theirs}, scan);
  }
  if (!reader.ok()) return Refuse(*id, {path, reader.error().message, reader.error().code, {}}, scan);
  adopted_[path] = *id;
  scan.adopted.push_back({std::move(*claim), std::move(reader).value()});
}

SegmentWatcher::Scan SegmentWatcher::Look(const HistoryLookup& history) {
  Scan scan;
  DIR* directory = ::opendir(options_.directory.c_str());
  if (directory == nullptr) {
    scan.directory_error = std::strerror(errno);
    return scan;
  }
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(directory)) {
    if (IsSegmentFileName(entry->d_name)) names.emplace_back(entry->d_name);
  }
  ::closedir(directory);
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) Consider(options_.directory + "/" + name, history, scan);
  std::stable_sort(scan.adopted.begin(), scan.adopted.end(), [](const AdoptedSegment& a, const AdoptedSegment& b) {
    return a.reader->identity().created_realtime_ns < b.reader->identity().created_realtime_ns;
  });
  return scan;
}

void SegmentWatcher::Retire(const std::string& path) {
  const auto mine = adopted_.find(path);
  if (mine == adopted_.end()) return;
  if (Identify(path) == mine->second) Remember(mine->second);
  adopted_.erase(mine);
}

}  // namespace neuraldbg
