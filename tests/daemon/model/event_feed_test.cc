// EventFeed under its real use: one writer, several waiting readers, listeners that come and go.
#include "daemon/model/event_feed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace neuraldbg {
namespace {

using std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(60);  // a watchdog, not an expectation

TEST(EventFeedTest, Wait_SeesEveryRunsOwnPulse) {
  EventFeed feed;
  std::vector<std::thread> readers;
  std::atomic<int> woken = 0;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] {
      const RunPulse pulse = feed.Wait(7, 0, steady_clock::now() + kPatience);
      EXPECT_EQ(pulse.last_transition_id, 42u);
      woken += pulse.version == 1;
    });
  }
  Transition transition;
  transition.id = 42;
  feed.Publish(8, {}, true);  // another run wakes nobody
  feed.Publish(7, std::span(&transition, 1), false);
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(woken, 3);
  EXPECT_EQ(feed.Current(7).diagnosis_version, 0u);
  EXPECT_EQ(feed.Current(8).diagnosis_version, 1u);
}

TEST(EventFeedTest, Wait_ReturnsAtDeadlineAndAtClose) {
  EventFeed feed;
  EXPECT_EQ(feed.Wait(1, 0, steady_clock::now()).version, 0u);
  std::thread reader([&] { feed.Wait(1, 0, steady_clock::now() + kPatience); });
  feed.Close();
  reader.join();
  EXPECT_TRUE(feed.closed());
}

TEST(EventFeedTest, Subscribe_EndsWithItsToken) {
  EventFeed feed;
  int calls = 0;
  std::shared_ptr<void> token = feed.Subscribe([&](std::uint64_t run) { calls += run == 5; });
  feed.Publish(5, {}, false);
  token.reset();
  feed.Publish(5, {}, false);
  EXPECT_EQ(calls, 1);
}

TEST(EventFeedTest, Runs_AreBounded) {
  EventFeed feed;
  for (std::uint64_t run = 1; run <= EventFeed::kRunsMax + 10; ++run) feed.Publish(run, {}, false);
  EXPECT_EQ(feed.Current(1).version, 0u);
  EXPECT_EQ(feed.Current(EventFeed::kRunsMax + 10).version, 1u);
}

}  // namespace
}  // namespace neuraldbg
