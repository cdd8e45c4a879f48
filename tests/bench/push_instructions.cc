// Pushes, or drops, a given number of records; run under callgrind by push_instructions.py, which counts.
//   push_instructions push|drop COUNT DIRECTORY
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "shared/ring_writer.h"

int main(int argc, char** argv) {
  using namespace neuraldbg;
  if (argc != 4) return 2;
  const bool drop = std::string(argv[1]) == "drop";
  const std::uint64_t count = std::strtoull(argv[2], nullptr, 10);
  SegmentOptions options;
  options.directory = argv[3];
  options.run_name = "instructions";
  options.lanes = 1;
  options.lane_capacity = drop ? 64 : 1u << 16;  // nobody reads: what does not fit is dropped
  const auto created = SegmentWriter::Create(options);
  if (!created.ok()) return 1;
  SegmentWriter& writer = *created.value();
  ::unlink(writer.path().c_str());
  Record record{};
  record.kind = RecordKind::kTensor;
  for (std::uint64_t i = 0; i < 64 && drop; ++i) writer.Push(record);
  for (std::uint64_t i = 0; i < count; ++i) writer.Push(record);
  return writer.dropped() == (drop ? count : 0) ? 0 : 1;
}
