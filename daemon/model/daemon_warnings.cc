#include "daemon/model/daemon_warnings.h"

#include <utility>

namespace neuraldbg {

void DaemonWarnings::NotStoring(DaemonWarning warning) {
  const std::lock_guard lock(mutex_);
  not_storing_ = std::move(warning);
}

void DaemonWarnings::StoringAgain() {
  const std::lock_guard lock(mutex_);
  not_storing_.reset();
}

void DaemonWarnings::SegmentLeftAlone(DaemonWarning warning) {
  const std::lock_guard lock(mutex_);
  if (left_alone_.size() < kLeftAloneMax) left_alone_.push_back(std::move(warning));
}

void DaemonWarnings::FilesLeftAlone(DaemonWarning warning) {
  const std::lock_guard lock(mutex_);
  if (files_left_alone_) warning.since_realtime_ns = files_left_alone_->since_realtime_ns;
  files_left_alone_ = std::move(warning);
}

std::vector<DaemonWarning> DaemonWarnings::Current() const {
  const std::lock_guard lock(mutex_);
  std::vector<DaemonWarning> all;
  if (not_storing_) all.push_back(*not_storing_);
  if (files_left_alone_) all.push_back(*files_left_alone_);
  all.insert(all.end(), left_alone_.begin(), left_alone_.end());
  return all;
}

}  // namespace neuraldbg
