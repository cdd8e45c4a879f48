// What a record could travel through between two processes: ours and the alternatives, behind one face. Each lives in
// memory (or a descriptor) that parent and child share, so it is made before the fork.
#pragma once

#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/lockfree/spsc_queue.hpp>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "shared/mapping.h"
#include "shared/ring_reader.h"
#include "shared/ring_writer.h"
#include "tests/shared/child_process.h"
#include "tests/shared/scratch_directory.h"

namespace neuraldbg::bench {

inline constexpr std::uint32_t kCapacity = 16384;
inline constexpr std::size_t kBatch = 256;

// `Push`: false when there is no room. `Pop`: adds up what it took and returns how many; called in the other process.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual void Attach() {}  // in the consuming process
  virtual bool Push(const Record& record) = 0;
  virtual std::size_t Pop(std::uint64_t& sum) = 0;
  // Whoever finds no room or nothing to take gives up its core: the other side may need it to give back a lock.
  virtual bool yields() const { return false; }
  // Takes many at a time, so that its consumer does well to let some gather.
  virtual bool batches() const { return false; }
};

inline void AddUp(std::uint64_t& sum, const Record& record) { sum += record.tensor.numel; }

class Ring final : public Transport {
 public:
  explicit Ring(const std::string& directory) {
    SegmentOptions options;
    options.directory = directory;
    options.run_name = "bench";
    options.lanes = 1;
    options.lane_capacity = kCapacity;
    auto created = SegmentWriter::Create(options);
    if (!created.ok()) std::abort();
    writer_ = std::move(created).value();
    owner_ = ::getpid();
  }
  ~Ring() override {
    if (::getpid() == owner_) ::unlink(writer_->path().c_str());
  }
  void Attach() override {
    auto attached = SegmentReader::Attach(writer_->path());
    if (!attached.ok()) std::abort();
    reader_ = std::move(attached).value();
  }
  bool Push(const Record& record) override { return writer_->Push(record) == PushOutcome::kPushed; }
  std::size_t Pop(std::uint64_t& sum) override {
    const std::size_t taken = reader_->Drain([&sum](std::uint32_t, std::span<const Record> records) {
      for (const Record& record : records) AddUp(sum, record);
    });
    if (taken > 0) reader_->Release();
    return taken;
  }
  bool batches() const override { return true; }
  SegmentWriter& writer() { return *writer_; }
  SegmentReader& reader() { return *reader_; }

 private:
  pid_t owner_ = 0;
  std::unique_ptr<SegmentWriter> writer_;
  std::unique_ptr<SegmentReader> reader_;
};

class LockFreeQueue : public Transport {
 public:
  bool Push(const Record& record) override { return queue_->push(record); }
  std::size_t Pop(std::uint64_t& sum) override {
    Record record;
    if (!queue_->pop(record)) return 0;
    AddUp(sum, record);
    return 1;
  }

 protected:
  using Queue = boost::lockfree::spsc_queue<Record, boost::lockfree::capacity<kCapacity>>;
  testing::SharedObject<Queue> queue_;
};

class LockFreeQueueInBatches final : public LockFreeQueue {
 public:
  bool batches() const override { return true; }
  std::size_t Pop(std::uint64_t& sum) override {
    const std::size_t taken = queue_->pop(batch_.data(), batch_.size());
    for (std::size_t i = 0; i < taken; ++i) AddUp(sum, batch_[i]);
    return taken;
  }

 private:
  std::array<Record, kBatch> batch_;
};

// The textbook: a ring behind one process-shared mutex.
class MutexRing final : public Transport {
 public:
  MutexRing() {
    pthread_mutexattr_t attributes;
    ::pthread_mutexattr_init(&attributes);
    ::pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    ::pthread_mutex_init(&shared_->mutex, &attributes);
  }
  bool Push(const Record& record) override {
    ::pthread_mutex_lock(&shared_->mutex);
    const bool room = shared_->tail - shared_->head < kCapacity;
    if (room) shared_->slots[shared_->tail++ % kCapacity] = record;
    ::pthread_mutex_unlock(&shared_->mutex);
    return room;
  }
  std::size_t Pop(std::uint64_t& sum) override {
    ::pthread_mutex_lock(&shared_->mutex);
    std::size_t taken = 0;
    for (; taken < kBatch && shared_->head != shared_->tail; ++taken) {
      AddUp(sum, shared_->slots[shared_->head++ % kCapacity]);
    }
    ::pthread_mutex_unlock(&shared_->mutex);
    return taken;
  }
  bool yields() const override { return true; }

 private:
  struct Shared {
    pthread_mutex_t mutex;
    std::uint64_t head = 0, tail = 0;
    std::array<Record, kCapacity> slots;
  };
  testing::SharedObject<Shared> shared_;
};

class MessageQueue final : public Transport {
 public:
  MessageQueue()
      : name_("neuraldbg-bench." + std::to_string(::getpid())),
        queue_(boost::interprocess::open_or_create, name_.c_str(), kCapacity, sizeof(Record)) {
    boost::interprocess::message_queue::remove(name_.c_str());  // it stays mapped
  }
  bool Push(const Record& record) override { return queue_.try_send(&record, sizeof record, 0); }
  std::size_t Pop(std::uint64_t& sum) override {
    Record record;
    boost::interprocess::message_queue::size_type bytes = 0;
    unsigned priority = 0;
    if (!queue_.try_receive(&record, sizeof record, bytes, priority)) return 0;
    AddUp(sum, record);
    return 1;
  }
  bool yields() const override { return true; }

 private:
  std::string name_;
  boost::interprocess::message_queue queue_;
};

// A pipe (records arrive many at a time) or a pair of datagram sockets (one at a time).
class Descriptors final : public Transport {
 public:
  enum class Kind { kPipe, kDatagrams };
  explicit Descriptors(Kind kind) : kind_(kind) {
    constexpr int kPipeBytes = 1 << 20, kSocketBytes = 4 << 20;
    int ends[2] = {-1, -1};
    if (kind == Kind::kPipe) {
      if (::pipe(ends) != 0) std::abort();
      ::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);
    } else {
      if (::socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) != 0) std::abort();
      ::setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &kSocketBytes, sizeof kSocketBytes);
    }
    read_ = FileDescriptor(ends[0]);
    write_ = FileDescriptor(ends[1]);
    ::fcntl(write_.get(), F_SETFL, O_NONBLOCK);
  }
  bool Push(const Record& record) override {
    return ::write(write_.get(), &record, sizeof record) == static_cast<ssize_t>(sizeof record);
  }
  std::size_t Pop(std::uint64_t& sum) override {
    const std::size_t most = kind_ == Kind::kPipe ? sizeof batch_ : sizeof(Record);
    const ssize_t got = ::read(read_.get(), batch_.data(), most);
    const std::size_t taken = got > 0 ? static_cast<std::size_t>(got) / sizeof(Record) : 0;
    for (std::size_t i = 0; i < taken; ++i) AddUp(sum, batch_[i]);
    return taken;
  }
  bool yields() const override { return true; }

 private:
  Kind kind_;
  FileDescriptor read_, write_;
  std::array<Record, 64> batch_;
};

}  // namespace neuraldbg::bench
