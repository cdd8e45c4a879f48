// A real store with known contents: run "gpt" of user 1000 (two ranks, three sites and a step site, 20 steps,
// events 1..25, a FAULT), its second launch "gpt#2" (one rank, still running, nothing found), and run "other" of user
// 2000.
#pragma once

#include <memory>
#include <string>

#include "daemon/store/store.h"
#include "tests/daemon/store/store_fixture.h"

namespace neuraldbg {

inline constexpr std::uint32_t kOwner = 1000;
inline constexpr std::uint32_t kStranger = 2000;
inline constexpr std::uint64_t kStepsStored = 20;
inline constexpr std::uint64_t kEventsStored = 25;

class FilledStore {
 public:
  FilledStore();

  Store& store() { return *store_; }
  const std::string& directory() const { return directory_.path(); }
  std::unique_ptr<StoreReader> Reader() const;

  // One more step of the running run gpt#2, with events `first_id`.. (none for count 0), and a verdict.
  void Advance(std::uint64_t step, std::uint64_t first_id = 0, std::uint64_t count = 0,
               Verdict verdict = Verdict::HEALTHY);
  // A step of gpt#2 whose diagnosis is not due yet.
  void AdvanceUndiagnosed(std::uint64_t step);
  // gpt#2 ends.
  void EndRun();
  std::uint64_t running_id() const { return running_.id; }

 private:
  void FillFinished();

  TemporaryDirectory directory_;
  std::unique_ptr<Store> store_;
  StoredRun finished_, running_;
};

}  // namespace neuraldbg
