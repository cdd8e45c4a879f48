// What a push costs, and how many records a second pass between two processes, next to the alternatives. Absolute
// figures depend on the machine and on where the host puts the two cores: a cache line's way from one to the other and
// back takes 80 ns on one placement and 470 on another of the same machine. So that time is measured in the same run
// and printed, the implementations take turns, and ratios are what counts. One JSON object a line.
//
// Other processes want the cores, too. So a run is over within a time slice or a few, there are many of them, and
// medians are printed, and for throughput the best besides.
//
//   ring_benchmark [rounds]   (default 40)
#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <functional>
#include <map>
#include <vector>

#include "tests/bench/transports.h"

namespace neuraldbg::bench {
namespace {

using testing::ChildProcess;
using testing::SharedObject;

constexpr std::uint64_t kPushes = 100'000;
constexpr std::size_t kBurst = 64;
// A consumer that takes many at a time waits this long when there were few; the daemon waits a thousand times longer.
constexpr std::size_t kFewRecords = 128;
constexpr double kGatherNanoseconds = 3000;
// Whoever finds a lock-free one full or empty this often lets others have its core.
constexpr int kTriesBeforeYield = 1000;
// Above this time for the way there and back, two cores count as far from each other (near: about 80 ns, far: 470).
constexpr double kFarNanoseconds = 150;

double Nanoseconds() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void PinTo(unsigned core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core % std::max(1u, std::thread::hardware_concurrency()), &set);
  ::sched_setaffinity(0, sizeof set, &set);
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
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

// Nanoseconds of each call, from bursts: a clock's tick is longer than a push. The clock's own time is taken off.
template <typename Work>
std::vector<double> TimesOf(std::size_t bursts, const Work& work, const std::function<void()>& between) {
  double clock = 1e9;
  for (int i = 0; i < 1000; ++i) {
    const double start = Nanoseconds();
    clock = std::min(clock, Nanoseconds() - start);
  }
  std::vector<double> times;
  times.reserve(bursts);
  std::uint64_t step = 0;
  for (std::size_t burst = 0; burst < bursts; ++burst) {
    const double start = Nanoseconds();
    for (std::size_t i = 0; i < kBurst; ++i) work(step++);
    times.push_back(std::max(0.0, Nanoseconds() - start - clock) / kBurst);
    if (between) between();
  }
  return times;
}

void Spin(double nanoseconds) {
  const double end = Nanoseconds() + nanoseconds;
  while (Nanoseconds() < end) {
  }
}

// A cache line's way to the other core and back, the fastest of several tries.
double RoundTripNanoseconds() {
  struct Line {
    alignas(128) std::atomic<std::uint64_t> ping{0};
    alignas(128) std::atomic<std::uint64_t> pong{0};
  };
  SharedObject<Line> line;
  constexpr std::uint64_t kTurns = 100;
  constexpr double kGiveUpNanoseconds = 20e6;  // the other side has lost its core: this try counts for nothing
  ChildProcess other([&] {
    PinTo(1);
    for (;;) line->pong.store(line->ping.load(std::memory_order_acquire), std::memory_order_release);
    return 0;
  });
  double best = 1e18;
  std::uint64_t turn = 0;
  for (int attempt = 0; attempt < 6; ++attempt) {
    const double start = Nanoseconds();
    for (std::uint64_t i = 0; i < kTurns; ++i) {
      line->ping.store(++turn, std::memory_order_release);
      while (line->pong.load(std::memory_order_acquire) != turn && Nanoseconds() < start + kGiveUpNanoseconds) {
      }
    }
    best = std::min(best, (Nanoseconds() - start) / kTurns);
  }
  return best;
}

// The bound of a push: building a record and copying it into a buffer of the ring's size.
double CopyNanoseconds() {
  std::vector<Record> slots(kCapacity);
  Record record{};
  const auto copy = [&](std::uint64_t step) {
    Fill(record, step);
    asm volatile("" : : "r"(&record) : "memory");
    slots[step % kCapacity] = record;
    asm volatile("" : : "r"(slots.data()) : "memory");
  };
  return Quantile(TimesOf(kPushes / kBurst, copy, {}), 0.5);
}

// The same into the ring, emptied off the clock: what a push costs by itself.
double QuietPushNanoseconds(const std::string& directory) {
  Ring ring(directory);
  ring.Attach();
  Record record{};
  std::size_t bursts = 0;
  const auto push = [&](std::uint64_t step) {
    Fill(record, step);
    ring.Push(record);
  };
  const auto times = TimesOf(kPushes / kBurst, push, [&] {
    if (++bursts % (kCapacity / kBurst) != 0) return;
    ring.reader().Drain([](std::uint32_t, std::span<const Record>) {}, kCapacity);
    ring.reader().Release();
  });
  if (ring.writer().dropped() != 0) std::abort();
  return Quantile(times, 0.5);
}

double DropNanoseconds(const std::string& directory) {
  Ring ring(directory);
  Record record{};
  for (std::uint64_t step = 0; step < kCapacity; ++step) {
    Fill(record, step);
    ring.Push(record);
  }
  const auto drop = [&](std::uint64_t step) {
    Fill(record, step);
    ring.Push(record);
  };
  return Quantile(TimesOf(kPushes / kBurst, drop, {}), 0.5);
}

// Pushes in bursts while a consumer on the other core takes the records: what a push costs when its lines have to come
// back.
std::vector<double> BusyPushTimes(const std::string& directory) {
  Ring ring(directory);
  SharedObject<std::atomic<bool>> ready;
  ChildProcess consumer([&] {
    PinTo(1);
    ring.Attach();
    ready->store(true);
    for (std::uint64_t sum = 0;;) {
      if (ring.Pop(sum) < kFewRecords) Spin(kGatherNanoseconds);
    }
    return 0;
  });
  while (!ready->load()) std::this_thread::yield();
  Record record{};
  const auto push = [&](std::uint64_t step) {
    Fill(record, step);
    ring.Push(record);
  };
  return TimesOf(2'000, push, [] { Spin(2500); });
}

// A training step's worth of records, with a daemon that looks every 5 ms: microseconds on the training thread.
double StepMicroseconds(const std::string& directory) {
  constexpr int kSteps = 5, kRecords = 600;
  Ring ring(directory);
  SharedObject<std::atomic<bool>> ready;
  ChildProcess consumer([&] {
    PinTo(1);
    ring.Attach();
    ready->store(true);
    for (std::uint64_t sum = 0;; ::usleep(5000)) ring.Pop(sum);
    return 0;
  });
  while (!ready->load()) std::this_thread::yield();
  std::vector<double> steps;
  Record record{};
  for (std::uint64_t step = 0; step < kSteps; ++step) {
    ::usleep(2000);
    const double start = Nanoseconds();
    for (int i = 0; i < kRecords; ++i) {
      Fill(record, step);
      ring.Push(record);
    }
    steps.push_back((Nanoseconds() - start) / 1000);
  }
  return Quantile(steps, 0.5);
}

// Millions of records a second to a process on the other core, without loss.
double Throughput(Transport& transport, std::uint64_t records) {
  SharedObject<std::atomic<bool>> ready;
  SharedObject<std::atomic<double>> end;
  ChildProcess consumer([&] {
    PinTo(1);
    transport.Attach();
    ready->store(true);
    std::uint64_t sum = 0;
    int tries = 0;
    for (std::uint64_t seen = 0; seen < records;) {
      const std::size_t taken = transport.Pop(sum);
      seen += taken;
      if (taken == 0 && (transport.yields() || ++tries % kTriesBeforeYield == 0)) ::sched_yield();
      if (taken < kFewRecords && transport.batches()) Spin(kGatherNanoseconds);
    }
    end->store(Nanoseconds());
    return sum == records * (records - 1) / 2 ? 0 : 1;
  });
  while (!ready->load()) std::this_thread::yield();
  Record record{};
  const double start = Nanoseconds();
  for (std::uint64_t i = 0; i < records; ++i) {
    Fill(record, i);
    for (int tries = 1; !transport.Push(record); ++tries) {
      if (transport.yields() || tries % kTriesBeforeYield == 0) ::sched_yield();
    }
  }
  if (consumer.Wait() != 0) std::abort();
  return static_cast<double>(records) * 1e3 / (end->load() - start);
}

struct Contestant {
  const char* name;
  std::uint64_t records;  // few where one takes long
  std::function<std::unique_ptr<Transport>()> make;
};

std::vector<Contestant> Contestants(const std::string& directory) {
  return {
      {"ring", kPushes, [directory] { return std::make_unique<Ring>(directory); }},
      {"boost_spsc_single", kPushes, [] { return std::make_unique<LockFreeQueue>(); }},
      {"boost_spsc_batch", kPushes, [] { return std::make_unique<LockFreeQueueInBatches>(); }},
      {"mutex_ring", kPushes / 5, [] { return std::make_unique<MutexRing>(); }},
      {"boost_message_queue", kPushes / 5, [] { return std::make_unique<MessageQueue>(); }},
      {"pipe", kPushes / 5, [] { return std::make_unique<Descriptors>(Descriptors::Kind::kPipe); }},
      {"unix_datagram", kPushes / 10, [] { return std::make_unique<Descriptors>(Descriptors::Kind::kDatagrams); }},
  };
}

void Print(const std::string& name, double value, const char* unit, const char* goal = "") {
  std::printf("{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"goal\": \"%s\"}\n", name.c_str(), value, unit,
              goal);
}

int Run(int rounds) {
  ::setpriority(PRIO_PROCESS, 0, -12);  // where that is permitted
  const testing::ScratchDirectory directory;
  const std::vector<Contestant> contestants = Contestants(directory.path());
  std::map<std::string, std::vector<double>> results;
  for (int round = 0; round < rounds; ++round) {
    PinTo(0);
    results["round_trip"].push_back(RoundTripNanoseconds());
    results["copy"].push_back(CopyNanoseconds());
    results["quiet_push"].push_back(QuietPushNanoseconds(directory.path()));
    results["drop"].push_back(DropNanoseconds(directory.path()));
    const std::vector<double> busy = BusyPushTimes(directory.path());
    results["busy_push"].push_back(Quantile(busy, 0.5));
    results["busy_push_p99"].push_back(Quantile(busy, 0.99));
    results["step"].push_back(StepMicroseconds(directory.path()));
    for (const Contestant& contestant : contestants) {
      const auto transport = contestant.make();
      results[contestant.name].push_back(Throughput(*transport, contestant.records));
    }
  }
  std::map<std::string, double> median;
  for (const auto& [name, values] : results) median[name] = Quantile(values, 0.5);
  const bool far = median["round_trip"] > kFarNanoseconds;
  Print("core_round_trip", median["round_trip"], far ? "ns (far)" : "ns (near)");
  Print("push, consumer on the other core", median["busy_push"], "ns", far ? "<= 30 (far)" : "<= 10 (near)");
  Print("push, consumer on the other core, p99 of bursts", median["busy_push_p99"], "ns", far ? "<= 70" : "<= 20");
  Print("push, by itself", median["quiet_push"], "ns");
  Print("build + memcpy", median["copy"], "ns");
  Print("push / (build + memcpy)", median["quiet_push"] / median["copy"], "ratio", "<= 1.5");
  Print("drop", median["drop"], "ns", "<= 10");
  Print("step of 600 records, daemon asleep", median["step"], "us", "<= 10");
  for (const Contestant& contestant : contestants) {
    Print(std::string("throughput ") + contestant.name, median[contestant.name], "M records/s");
    Print(std::string("throughput ") + contestant.name + ", best", Quantile(results[contestant.name], 1),
          "M records/s");
  }
  Print("ring / boost_message_queue", median["ring"] / median["boost_message_queue"], "ratio", ">= 20");
  Print("ring / boost_spsc_single", median["ring"] / median["boost_spsc_single"], "ratio", ">= 1");
  Print("ring / boost_spsc_batch", median["ring"] / median["boost_spsc_batch"], "ratio");
  const auto best = [&results](const char* name) { return Quantile(results[name], 1); };
  Print("ring / boost_message_queue, best", best("ring") / best("boost_message_queue"), "ratio", ">= 20");
  Print("ring / boost_spsc_single, best", best("ring") / best("boost_spsc_single"), "ratio", ">= 1");
  return 0;
}

}  // namespace
}  // namespace neuraldbg::bench

int main(int argc, char** argv) { return neuraldbg::bench::Run(argc > 1 ? std::max(1, std::atoi(argv[1])) : 40); }
