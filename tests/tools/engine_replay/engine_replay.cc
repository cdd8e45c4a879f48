// neuraldbg-engine-replay FILE [--until STEP]: one line of JSON per file with the verdict and the hypotheses.
#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "daemon/infer/run_engine.h"
#include "tests/tools/engine_replay/frame_file.h"

namespace neuraldbg {
namespace {

nlohmann::json ToJson(const Hypothesis& hypothesis, const Topology& topology) {
  const auto name = [&](std::uint32_t site) {
    return site < topology.sites.size() ? topology.sites[site].name : std::string();
  };
  nlohmann::json json{{"incident", hypothesis.incident},
                      {"kind", HypothesisKindName(hypothesis.kind)},
                      {"module", hypothesis.module},
                      {"site", name(hypothesis.site)},
                      {"rank", hypothesis.rank},
                      {"step", hypothesis.step},
                      {"detected", hypothesis.detected_at_step},
                      {"phase", static_cast<int>(hypothesis.phase)},
                      {"confidence", hypothesis.confidence},
                      {"summary", hypothesis.summary}};
  for (const Evidence& evidence : hypothesis.evidence) {
    json["evidence"].push_back({{"statistic", StatisticName(evidence.statistic)},
                                {"observed", evidence.observed},
                                {"low", evidence.expected_low},
                                {"high", evidence.expected_high},
                                {"note", evidence.note}});
  }
  for (const ChainLink& link : hypothesis.chain) {
    json["chain"].push_back(
        {{"site", name(link.site)}, {"step", link.step}, {"share", link.share}, {"note", link.note}});
  }
  return json;
}

int Replay(const std::string& path, std::uint64_t until) {
  FrameFile file(path);
  if (!file.ok()) {
    std::cerr << path << ": not a frame file\n";
    return 2;
  }
  RunEngine engine;
  engine.SetTopology(RankKey{}, file.topology());
  StepFrame frame;
  std::size_t transitions = 0;
  while (file.Next(frame) && frame.step <= until) {
    engine.OnFrame(frame);
    transitions += engine.TakeTransitions().size();
  }
  const Diagnosis diagnosis = engine.Diagnose();
  nlohmann::json json{{"file", path},
                      {"verdict", VerdictName(diagnosis.verdict)},
                      {"steps", diagnosis.steps_seen},
                      {"transitions", transitions},
                      {"blind_spots", diagnosis.blind_spots.size()},
                      {"snapshot_bytes", engine.Snapshot().size()},
                      {"hypotheses", nlohmann::json::array()}};
  for (const Hypothesis& hypothesis : diagnosis.hypotheses) {
    json["hypotheses"].push_back(ToJson(hypothesis, file.topology()));
  }
  std::cout << json.dump() << '\n';
  return 0;
}

}  // namespace
}  // namespace neuraldbg

int main(int argc, char** argv) {
  std::uint64_t until = UINT64_MAX;
  int status = argc < 2 ? 2 : 0;
  for (int i = 1; i < argc && status == 0; ++i) {
    if (std::string(argv[i]) == "--until" && i + 1 < argc) {
      until = std::strtoull(argv[++i], nullptr, 10);
    } else {
      status = neuraldbg::Replay(argv[i], until);
    }
  }
  if (argc < 2) std::cerr << "usage: neuraldbg-engine-replay [--until STEP] FILE...\n";
  return status;
}
