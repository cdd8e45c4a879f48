// The control: what would have happened with the obvious choice. Killed at random, a consumer takes the mutex that lies
// in Boost's message queue with it, and the trainer's *non-blocking* send never returns. The same kills leave a push
// alone, which shows that the harness can tell the two apart.
#include <gtest/gtest.h>

#include <boost/interprocess/ipc/message_queue.hpp>
#include <string>

#include "tests/shared/checkpoint_consumer.h"
#include "tests/shared/crash_fixture.h"

namespace neuraldbg::testing {
namespace {

namespace interprocess = boost::interprocess;

using MessageQueueControlTest = CrashTest;

constexpr int kMaxKills = 200;
// Far more than a send or a push takes on a loaded machine, and what each hang costs this test.
constexpr auto kHangs = std::chrono::milliseconds(1500);

// Whether `produce_once`, in a process of its own, does not end.
bool Hangs(const std::function<void()>& produce_once) {
  SharedObject<std::atomic<bool>> done;
  ChildProcess trainer([&] {
    produce_once();
    done->store(true);
    return 0;
  });
  const auto deadline = std::chrono::steady_clock::now() + kHangs;
  while (!done->load()) {
    if (std::chrono::steady_clock::now() > deadline) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return false;
}

TEST_F(MessageQueueControlTest, AMessageQueueHangsTheTrainerWhenItsConsumerIsKilled) {
  int kills = 0;
  bool hung = false;
  const std::string name = "neuraldbg-control." + std::to_string(::getpid());
  for (; kills < kMaxKills && !hung; ++kills) {
    interprocess::message_queue::remove(name.c_str());
    interprocess::message_queue queue(interprocess::create_only, name.c_str(), 1024, sizeof(Record));
    Record record{};
    const auto send = [&] { queue.try_send(&record, sizeof record, 0); };
    ChildProcess producer([&] {
      for (;;) send();
      return 0;
    });
    ChildProcess consumer([&] {
      interprocess::message_queue::size_type bytes = 0;
      for (unsigned priority = 0;;) queue.try_receive(&record, sizeof record, bytes, priority);
      return 0;
    });
    ::usleep(static_cast<useconds_t>(Random(200, 1700)));
    consumer.Kill();
    hung = Hangs(send);
  }
  interprocess::message_queue::remove(name.c_str());
  EXPECT_TRUE(hung) << "the control shows nothing any more";
  std::printf("message queue: the trainer hung after %d kills\n", kills);
}

TEST_F(MessageQueueControlTest, TheRingDoesNot) {
  for (int kills = 0; kills < 40; ++kills) {
    const auto writer = CreateOrFail(Options());
    SharedObject<ConsumerMemory> memory;
    ChildProcess consumer([&] { return Consume(writer->path(), *memory, UntilEmpty::kNo); });
    for (int i = Random(200, 20000); i > 0; --i) writer->Push(MakeRecord(0, 1));
    consumer.Kill();
    EXPECT_NE(writer->Push(MakeRecord(0, 2)), PushOutcome::kDisabled);
    ::unlink(writer->path().c_str());
  }
}

}  // namespace
}  // namespace neuraldbg::testing
