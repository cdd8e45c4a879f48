// Fuzz target: operations of an arbitrary writer, thirteen bytes each.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/arbitrary_writer.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes) {
  using neuraldbg::testing::ArbitraryWriter;
  using neuraldbg::testing::Operation;
  static ArbitraryWriter writer;
  constexpr std::size_t kBytes = 13, kMaxOperations = 256;
  std::vector<Operation> operations;
  for (; bytes >= kBytes && operations.size() < kMaxOperations; data += kBytes, bytes -= kBytes) {
    Operation operation;
    operation.kind = data[0];
    std::memcpy(&operation.where, data + 1, sizeof operation.where);
    std::memcpy(&operation.value, data + 5, sizeof operation.value);
    operations.push_back(operation);
  }
  const std::string broken = writer.Play(operations);
  if (!broken.empty()) {
    std::fprintf(stderr, "%s\n", broken.c_str());
    std::abort();
  }
  return 0;
}
