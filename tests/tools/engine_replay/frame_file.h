// A recording as the engine would see it: one line of JSON (topology), then packed little-endian frames. Written by
// scripts outside the daemon, so it is read with bounds checks, but it is a test format: errors end the reading.
#pragma once

#include <fstream>
#include <string>

#include "daemon/model/sample.h"

namespace neuraldbg {

class FrameFile {
 public:
  explicit FrameFile(const std::string& path);
  bool ok() const { return ok_; }
  const Topology& topology() const { return topology_; }
  bool Next(StepFrame& frame);

 private:
  void ReadTopology(const std::string& line);

  std::ifstream stream_;
  Topology topology_;
  bool ok_ = false;
};

}  // namespace neuraldbg
