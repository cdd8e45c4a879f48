// Runs a synthetic run through the real engine and answers what tests ask.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "daemon/infer/run_engine.h"
#include "tests/daemon/detect/synthetic_run.h"

namespace neuraldbg::testing {

class EngineDriver {
 public:
  explicit EngineDriver(const SyntheticRun& run, std::uint32_t rank = 0) : run_(run) {
    key_.rank = rank;
    engine.SetTopology(key_, run_.topology);
  }
  void Run(std::uint64_t from, std::uint64_t to, const SyntheticRun::Hook& hook = nullptr) {
    for (std::uint64_t step = from; step < to; ++step) {
      StepFrame frame = run_.Frame(step, hook);
      frame.rank = key_;
      engine.OnFrame(frame);
      for (Transition& transition : engine.TakeTransitions()) transitions.push_back(std::move(transition));
    }
  }
  Hypothesis Lead() const {
    const Diagnosis diagnosis = engine.Diagnose();
    return diagnosis.hypotheses.empty() ? Hypothesis{} : diagnosis.hypotheses.front();
  }
  bool Has(HypothesisKind kind) const {
    const Diagnosis diagnosis = engine.Diagnose();
    return std::any_of(diagnosis.hypotheses.begin(), diagnosis.hypotheses.end(),
                       [&](const Hypothesis& hypothesis) { return hypothesis.kind == kind; });
  }
  bool Entered(const std::string& regime) const {
    return std::any_of(transitions.begin(), transitions.end(), [&](const Transition& t) { return t.to == regime; });
  }

  RunEngine engine;
  std::vector<Transition> transitions;

 private:
  const SyntheticRun& run_;
  RankKey key_;
};

}  // namespace neuraldbg::testing
