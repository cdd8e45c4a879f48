// Detection and inference of one run, as one pure object: frames in, transitions and a diagnosis out. No clock, no
// I/O, no threads, no randomness: the same frames in the same order give bitwise the same answers, which is what makes
// replay and restart exact.
//
// Owner: the ingest thread, or a replay. Not thread-safe. Memory is bounded by sites × ranks, never by steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "daemon/model/diagnosis.h"
#include "daemon/model/sample.h"

namespace neuraldbg {

// What became of a rank, as ingest found out (lock freed, clean close). Never judged from silence alone.
enum class RankFate : std::uint8_t { kRunning, kFinished, kDied };

class RunEngine {
 public:
  RunEngine();
  ~RunEngine();
  RunEngine(const RunEngine&) = delete;
  RunEngine& operator=(const RunEngine&) = delete;

  // Topology may grow (append-only manifest); call again whenever it did, before the frames that need it.
  void SetTopology(const RankKey& rank, const Topology& topology);
  void OnFrame(const StepFrame& frame);
  // last_site: newest record of the rank, for "where it died". Emits a transition; the last steps are judged.
  // places: the newest record of each of its threads.
  void OnRankFate(const RankKey& rank, RankFate fate, std::uint64_t last_step, std::uint32_t last_site,
                  std::vector<LastPlace> places = {});

  // Transitions since the last call, ids continuing from the first ever emitted.
  std::vector<Transition> TakeTransitions();
  Diagnosis Diagnose() const;
  // What the newest incarnation of the rank that died did last, as it was told; empty if none did.
  std::vector<LastPlace> LastPlaces(std::uint32_t rank) const;

  // Snapshot of everything that later answers depend on; Restore(Snapshot()) and the frames that follow give the same
  // answers as an uninterrupted engine. Restore returns false (and leaves a fresh engine) for foreign or damaged bytes.
  std::vector<std::byte> Snapshot() const;
  bool Restore(std::span<const std::byte> snapshot);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace neuraldbg
