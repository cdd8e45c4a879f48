// What the tests with dying processes share: the one segment in the test's directory, and random pauses.
#pragma once

#include <filesystem>
#include <random>
#include <string>

#include "shared/segment_name.h"
#include "tests/shared/child_process.h"
#include "tests/shared/segment_fixture.h"

namespace neuraldbg::testing {

class CrashTest : public SegmentTest {
 protected:
  std::string OnlySegment() const {
    for (const auto& entry : std::filesystem::directory_iterator(directory())) {
      if (IsSegmentFileName(entry.path().filename().string())) return entry.path().string();
    }
    return {};
  }
  int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  void SleepRandomly(int max_microseconds) {
    std::this_thread::sleep_for(std::chrono::microseconds(Random(0, max_microseconds)));
  }

 private:
  std::mt19937 random_{20240607};
};

}  // namespace neuraldbg::testing
