#include "shared/writer_registry.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>

namespace neuraldbg {
namespace {

// A process attaches once or twice; the bound keeps the table free of allocation, so that fork handlers can walk it.
constexpr std::size_t kMaxWriters = 64;

// Both are constant-initialised and trivially destroyed: threads may end after static destructors have run.
constinit std::mutex g_mutex;
constinit std::array<WriterState*, kMaxWriters> g_writers{};

void BeforeFork() { g_mutex.lock(); }
void AfterForkInParent() { g_mutex.unlock(); }

// The child shares the mapping but is not the owner: it must never write there.
void AfterForkInChild() {
  for (WriterState* writer : g_writers) {
    if (writer == nullptr) continue;
    writer->active_id.store(0, std::memory_order_relaxed);
    writer->manifest.Disable();
  }
  g_mutex.unlock();
}

bool InstallForkHandlers() noexcept {
  static const bool installed = ::pthread_atfork(&BeforeFork, &AfterForkInParent, &AfterForkInChild) == 0;
  return installed;
}

}  // namespace

Error RegisterWriter(WriterState& state) noexcept {
  if (!InstallForkHandlers()) return {Errc::kNoSpace, 0, "no memory for fork handlers"};
  const std::lock_guard<std::mutex> lock(g_mutex);
  for (WriterState*& slot : g_writers) {
    if (slot != nullptr) continue;
    slot = &state;
    return {};
  }
  return {Errc::kFull, 0, "this process owns too many segments"};
}

void SetOwnedFile(WriterState& state, dev_t device, ino_t inode) noexcept {
  const std::lock_guard<std::mutex> lock(g_mutex);
  state.device = device;
  state.inode = inode;
}

void UnregisterWriter(WriterState& state) noexcept {
  const std::lock_guard<std::mutex> lock(g_mutex);
  for (WriterState*& slot : g_writers) {
    if (slot == &state) slot = nullptr;
  }
}

std::shared_ptr<SharedMapping> FindOwnSegment(dev_t device, ino_t inode) noexcept {
  const pid_t self = ::getpid();
  const std::lock_guard<std::mutex> lock(g_mutex);
  for (const WriterState* writer : g_writers) {
    if (writer != nullptr && writer->pid == self && writer->device == device && writer->inode == inode) {
      return writer->shared;
    }
  }
  return nullptr;
}

void ReleaseLanesOfThread(std::uint64_t thread_serial) noexcept {
  const pid_t self = ::getpid();
  const std::lock_guard<std::mutex> lock(g_mutex);
  for (WriterState* writer : g_writers) {
    if (writer == nullptr || writer->pid != self) continue;
    // A writer that is being made has no lanes yet, a closed one hands none out again.
    if (writer->active_id.load(std::memory_order_acquire) == 0) continue;
    for (std::uint32_t lane = 0; lane < writer->view.geometry.lanes; ++lane) {
      if (writer->lane_owner[lane].load(std::memory_order_relaxed) != thread_serial) continue;
      writer->view.producer_lane(lane).owner_tid.store(0, std::memory_order_relaxed);
      // Hands the lane's indices over to the thread that claims it next.
      writer->lane_owner[lane].store(0, std::memory_order_release);
    }
  }
}

}  // namespace neuraldbg
