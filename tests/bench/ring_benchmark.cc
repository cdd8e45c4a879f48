// What a push costs and how many records a second pass between two processes, next to what Boost offers for the same.
// Absolute figures depend on the machine and even on where the host puts the two cores, so the implementations take
// turns in one run and their ratios are what counts. Prints one JSON object per line.
//
//   ring_benchmark [rounds]   (default 5; the medians over the rounds are printed)
#include <algorithm>
#include <boost/interprocess/ipc/message_queue.hpp>
#include <boost/lockfree/spsc_queue.hpp>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "shared/ring_reader.h"
#include "shared/ring_writer.h"
#include "tests/shared/child_process.h"
#include "tests/shared/scratch_directory.h"

namespace neuraldbg {
namespace {

namespace interprocess = boost::interprocess;
using testing::ChildProcess;
using testing::SharedObject;

constexpr std::uint32_t kCapacity = 16384;
constexpr std::uint64_t kPushes = 4'000'000;
constexpr std::uint64_t kPassed = 4'000'000;
constexpr std::uint64_t kPassedSlowly = 400'000;  // the queue with a mutex is an order of magnitude slower

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Of this thread alone: the costs of a push do not include whoever else wanted the core.
double ProcessorSecondsOf(const std::function<void()>& work) {
  const auto now = [] {
    timespec time{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  work();
  return now() - start;
}

// As the agent fills one: every field changes.
inline void Fill(Record& record, std::uint64_t step) {
  record.time_ns = step;
  record.step = step;
  record.site = static_cast<std::uint32_t>(step & 1023);
  record.kind = RecordKind::kTensor;
  record.phase = Phase::kForward;
  record.dtype = DType::kFloat32;
  record.flags = kFlagTraining;
  record.call = 0;
  record.validity = 0x1fff;
  record.microbatch = 0;
  record.tensor.numel = step;
  record.tensor.sum = static_cast<double>(step);
  record.tensor.sum_abs = 1.0;
  record.tensor.sum_squares = 2.0;
  record.tensor.max_abs = 3.0f;
  record.tensor.bits = step;
}

SegmentOptions Options(const std::string& directory) {
  SegmentOptions options;
  options.directory = directory;
  options.run_name = "bench";
  options.lanes = 1;
  options.lane_capacity = kCapacity;
  return options;
}

// The bound: building a record and copying it into a buffer of the ring's size.
double CopyNanoseconds() {
  std::vector<Record> slots(kCapacity);
  Record record{};
  const double seconds = ProcessorSecondsOf([&] {
    for (std::uint64_t i = 0; i < kPushes; ++i) {
      Fill(record, i);
      asm volatile("" : : "r"(&record) : "memory");
      slots[i % kCapacity] = record;
      asm volatile("" : : "r"(slots.data()) : "memory");
    }
  });
  return seconds * 1e9 / kPushes;
}

// Pushes into a warm ring that is emptied, off the clock, whenever it is full.
double PushNanoseconds(const std::string& directory) {
  const auto writer = SegmentWriter::Create(Options(directory));
  const auto reader = SegmentReader::Attach(writer.value()->path());
  Record record{};
  double seconds = 0;
  for (std::uint64_t done = 0; done < kPushes; done += kCapacity) {
    seconds += ProcessorSecondsOf([&] {
      for (std::uint64_t i = 0; i < kCapacity; ++i) {
        Fill(record, done + i);
        writer.value()->Push(record);
      }
    });
    reader.value()->Drain([](std::uint32_t, std::span<const Record>) {}, kCapacity);
    reader.value()->Release();
  }
  const std::uint64_t pushed = (kPushes + kCapacity - 1) / kCapacity * kCapacity;
  if (writer.value()->dropped() != 0) std::abort();
  reader.value()->Unlink();
  return seconds * 1e9 / static_cast<double>(pushed);
}

double DropNanoseconds(const std::string& directory) {
  const auto writer = SegmentWriter::Create(Options(directory));
  Record record{};
  for (std::uint64_t i = 0; i < kCapacity; ++i) {
    Fill(record, i);
    writer.value()->Push(record);
  }
  const double seconds = ProcessorSecondsOf([&] {
    for (std::uint64_t i = 0; i < kPushes; ++i) {
      Fill(record, i);
      writer.value()->Push(record);
    }
  });
  if (writer.value()->dropped() != kPushes) std::abort();
  ::unlink(writer.value()->path().c_str());
  return seconds * 1e9 / kPushes;
}

// Records per second from this process to a child, without loss. `push` returns false when there is no room.
double Throughput(std::uint64_t records, const std::function<bool(const Record&)>& push,
                  const std::function<void(std::atomic<bool>&)>& consume) {
  SharedObject<std::atomic<bool>> ready;
  ChildProcess consumer([&] {
    consume(*ready);
    return 0;
  });
  while (!ready->load()) std::this_thread::yield();
  Record record{};
  const double seconds = SecondsOf([&] {
    for (std::uint64_t i = 0; i < records; ++i) {
      Fill(record, i);
      while (!push(record)) {
      }
    }
    consumer.Wait();
  });
  return static_cast<double>(records) / seconds;
}

double RingThroughput(const std::string& directory) {
  const auto writer = SegmentWriter::Create(Options(directory));
  const double rate = Throughput(
      kPassed, [&](const Record& record) { return writer.value()->Push(record) == PushOutcome::kPushed; },
      [&](std::atomic<bool>& ready) {
        const auto reader = SegmentReader::Attach(writer.value()->path());
        ready.store(true);
        std::uint64_t seen = 0, sum = 0;
        while (seen < kPassed) {
          reader.value()->Drain([&](std::uint32_t, std::span<const Record> records) {
            seen += records.size();
            for (const Record& record : records) sum += record.tensor.numel;
          });
          reader.value()->Release();
        }
        if (sum != kPassed * (kPassed - 1) / 2) std::abort();
      });
  ::unlink(writer.value()->path().c_str());
  return rate;
}

double LockFreeQueueThroughput() {
  using Queue = boost::lockfree::spsc_queue<Record, boost::lockfree::capacity<kCapacity>>;
  SharedObject<Queue> queue;
  return Throughput(
      kPassed, [&](const Record& record) { return queue->push(record); },
      [&](std::atomic<bool>& ready) {
        ready.store(true);
        Record record{};
        std::uint64_t sum = 0;
        for (std::uint64_t seen = 0; seen < kPassed;) {
          if (!queue->pop(record)) continue;
          sum += record.tensor.numel;
          ++seen;
        }
        if (sum != kPassed * (kPassed - 1) / 2) std::abort();
      });
}

double MessageQueueThroughput() {
  const std::string name = "neuraldbg-bench." + std::to_string(::getpid());
  interprocess::message_queue::remove(name.c_str());
  interprocess::message_queue queue(interprocess::create_only, name.c_str(), kCapacity, sizeof(Record));
  const double rate = Throughput(
      kPassedSlowly, [&](const Record& record) { return queue.try_send(&record, sizeof record, 0); },
      [&](std::atomic<bool>& ready) {
        ready.store(true);
        Record record{};
        interprocess::message_queue::size_type bytes = 0;
        unsigned priority = 0;
        std::uint64_t sum = 0;
        for (std::uint64_t seen = 0; seen < kPassedSlowly;) {
          if (!queue.try_receive(&record, sizeof record, bytes, priority)) continue;
          sum += record.tensor.numel;
          ++seen;
        }
        if (sum != kPassedSlowly * (kPassedSlowly - 1) / 2) std::abort();
      });
  interprocess::message_queue::remove(name.c_str());
  return rate;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void Print(const char* name, double value, const char* unit) {
  std::printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\"}\n", name, value, unit);
}

int Run(int rounds) {
  const testing::ScratchDirectory directory;
  std::map<std::string, std::vector<double>> results;
  for (int round = 0; round < rounds; ++round) {
    results["copy"].push_back(CopyNanoseconds());
    results["push"].push_back(PushNanoseconds(directory.path()));
    results["drop"].push_back(DropNanoseconds(directory.path()));
    results["ring"].push_back(RingThroughput(directory.path()));
    results["lock_free_queue"].push_back(LockFreeQueueThroughput());
    results["message_queue"].push_back(MessageQueueThroughput());
  }
  std::map<std::string, double> median;
  for (const auto& [name, values] : results) median[name] = Median(values);
  Print("push", median["push"], "ns");
  Print("drop", median["drop"], "ns");
  Print("build_and_copy", median["copy"], "ns");
  Print("push_over_build_and_copy", median["push"] / median["copy"], "ratio");
  Print("ring_throughput", median["ring"] / 1e6, "M records/s");
  Print("ring_over_lock_free_queue", median["ring"] / median["lock_free_queue"], "ratio");
  Print("ring_over_message_queue", median["ring"] / median["message_queue"], "ratio");
  return 0;
}

}  // namespace
}  // namespace neuraldbg

int main(int argc, char** argv) { return neuraldbg::Run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 5); }
