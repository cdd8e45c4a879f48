// A child that is killed after an exact number of instructions or system calls of a piece of its work: what random
// kills may miss, a count does not.
#pragma once

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>

#include "tests/shared/child_process.h"

namespace neuraldbg::testing {

enum class StepBy : std::uint8_t { kInstruction, kSystemCall };

// What the child does: `prepare` at full speed, then `act` step by step. Both run in the child alone.
struct SteppedWork {
  std::function<void()> prepare;
  std::function<void()> act;
};

// The child of such work, stopped before `act`.
class SteppedProcess {
 public:
  explicit SteppedProcess(const SteppedWork& work, StepBy step_by)
      : request_(step_by == StepBy::kInstruction ? PTRACE_SINGLESTEP : PTRACE_SYSCALL), child_([&] {
          work.prepare();
          if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) return 1;
          ::raise(SIGSTOP);
          work.act();
          ended_->store(true);
          for (;;) ::raise(SIGSTOP);
          return 0;
        }) {
    EXPECT_TRUE(Stopped()) << "ptrace is not permitted here";
  }
  bool ended() const { return ended_->load(); }
  // One instruction, or to the next entry into or exit from a system call.
  void Step() {
    ::ptrace(request_, child_.pid(), nullptr, nullptr);
    ASSERT_TRUE(Stopped()) << "the child died by itself";
  }
  void Kill() { child_.Kill(); }

 private:
  bool Stopped() {
    int status = 0;
    return ::waitpid(child_.pid(), &status, 0) == child_.pid() && WIFSTOPPED(status);
  }

  SharedObject<std::atomic<bool>> ended_;  // declared first: the child needs it at once
  decltype(PTRACE_SINGLESTEP) request_;
  ChildProcess child_;
};

using StepCheck = std::function<void(int steps)>;

// Calls `check` after every step, while the child stands still: all that it has stored is in memory, as it would be had
// it died there. Returns how many steps the work has.
inline int StandAfterEveryStep(const SteppedWork& work, StepBy step_by, const StepCheck& check) {
  SteppedProcess child(work, step_by);
  int steps = 0;
  for (; !::testing::Test::HasFailure(); ++steps) {
    check(steps);
    if (child.ended()) break;
    child.Step();
  }
  return steps;
}

// Kills a new child after every `stride`-th step, and after the last, and calls `check` each time.
inline void KillAfterSteps(const SteppedWork& work, StepBy step_by, int total, int stride, const StepCheck& check) {
  for (int steps = 0; !::testing::Test::HasFailure(); steps += stride) {
    SteppedProcess child(work, step_by);
    for (int done = 0; (done < steps || steps >= total) && !child.ended(); ++done) child.Step();
    child.Kill();
    check(std::min(steps, total));
    if (steps >= total) return;
  }
}

}  // namespace neuraldbg::testing
