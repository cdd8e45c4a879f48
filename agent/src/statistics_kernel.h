// The inner loops behind tensor_statistics.h: one table of functions per instruction set, chosen once at run time.
//
// Each table is compiled from the same source (statistics_kernel.inc) in a file of its own with the flags of its
// instruction set, so nothing of the build machine gets into the binary and all tables count by the same rules.
// All functions read contiguous memory, are pure, allocate nothing and may run on any number of threads at once.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shared/record.h"

namespace neuraldbg {

// Running totals over finite elements (sums, maximum) and over all elements (counts, bits). Additive.
struct Accumulator {
  double sum = 0;
  double sum_abs = 0;
  double sum_squares = 0;
  double max_abs = 0;
  std::uint64_t count = 0;
  std::uint64_t nan_count = 0;
  std::uint64_t inf_count = 0;
  std::uint64_t zero_count = 0;
  std::uint64_t tiny_count = 0;
  std::uint64_t saturated_count = 0;
  std::uint64_t bits = 0;
};

// What an optimizer step did to a run of elements: after - before, and its product with the gradient. Pairs with a
// non-finite member are left out of the sums.
struct UpdateAccumulator {
  double update_sum_squares = 0;
  double gradient_dot_update = 0;
  std::uint64_t differing_bits = 0;  // non-zero if any bit of the value changed
};

// A finite element x is saturated if x > upper or x < lower.
struct SaturationBounds {
  double lower;
  double upper;
};

// Below this magnitude and above zero an element is "tiny": it underflows when it is stored as float16, whose smallest
// subnormal is 2^-24 (IEEE 754 binary16).
inline constexpr double kTinyMagnitude = 0x1p-24;

// Rows of `units` elements: flags[u] becomes non-zero when unit u has a live element in any row. A live element is one
// that is not zero, or not <= 0 with `positive_only`; NaN is live, so that broken numbers never read as dead units.
using MarkAliveFunction = void (*)(const void* data, std::size_t rows, std::size_t units, bool positive_only,
                                   std::uint32_t* flags) noexcept;
using AccumulateFunction = void (*)(const void* data, std::size_t count, const SaturationBounds* bounds,
                                    Accumulator& total) noexcept;
using UpdateFunction = void (*)(const void* after, const void* before, const void* gradient, std::size_t count,
                                UpdateAccumulator& total) noexcept;

struct ElementKernels {
  AccumulateFunction accumulate = nullptr;  // `bounds` may be null: saturated_count stays as it is
  UpdateFunction update = nullptr;          // `gradient` may be null
  MarkAliveFunction mark_alive = nullptr;
};

struct KernelTable {
  const char* name;
  ElementKernels float32, float64, float16, bfloat16;
};

const KernelTable& PortableKernels() noexcept;
const KernelTable* Avx2Kernels() noexcept;    // null where the processor (or the architecture) lacks it
const KernelTable* Avx512Kernels() noexcept;  // null likewise
const KernelTable& BestKernels() noexcept;    // the widest this processor runs; decided once

// Kernels for an element type, null members where the type is not supported. Integers have one portable version.
ElementKernels KernelsFor(const KernelTable& table, DType dtype) noexcept;
ElementKernels IntegerKernels(DType dtype) noexcept;

std::size_t ElementBytes(DType dtype) noexcept;  // 0 for types that no kernel reads

}  // namespace neuraldbg
