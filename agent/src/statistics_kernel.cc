// Choice of the kernel table, and the kernels of integer elements, which are too rare (token ids, masks, images in a
// batch) to be worth one version per instruction set.
#include "agent/src/statistics_kernel.h"

#include <cmath>
#include <type_traits>

namespace neuraldbg {

#if defined(NEURALDBG_X86_KERNELS)
const KernelTable& Avx2KernelsUnchecked() noexcept;
const KernelTable& Avx512KernelsUnchecked() noexcept;

const KernelTable* Avx2Kernels() noexcept {
  static const bool kRuns = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return kRuns ? &Avx2KernelsUnchecked() : nullptr;
}

const KernelTable* Avx512Kernels() noexcept {
  static const bool kRuns = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                            __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return kRuns ? &Avx512KernelsUnchecked() : nullptr;
}
#else
const KernelTable* Avx2Kernels() noexcept { return nullptr; }
const KernelTable* Avx512Kernels() noexcept { return nullptr; }
#endif

const KernelTable& BestKernels() noexcept {
  static const KernelTable& kBest = Avx512Kernels() != nullptr ? *Avx512Kernels()
                                    : Avx2Kernels() != nullptr ? *Avx2Kernels()
                                                               : PortableKernels();
  return kBest;
}

namespace {

// Elements of up to 16 bits add up exactly in 64-bit integers within a block, which the compiler can vectorise; wider
// ones may overflow when squared and go to float64 at once.
constexpr std::size_t kBlockElements = 1u << 16;

template <typename T>
void AccumulateBlock(const T* data, std::size_t count, Accumulator& total) noexcept {
  using Sum = std::conditional_t<(sizeof(T) <= 2), std::int64_t, double>;
  Sum sum = 0, sum_abs = 0, sum_squares = 0, largest = 0;
  std::uint64_t zeros = 0, bits = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const auto x = static_cast<Sum>(data[i]);
    const Sum magnitude = x < 0 ? -x : x;
    sum += x;
    sum_abs += magnitude;
    sum_squares += x * x;
    largest = magnitude > largest ? magnitude : largest;
    zeros += data[i] == 0 ? 1 : 0;
    bits += static_cast<std::make_unsigned_t<T>>(data[i]);
  }
  total.sum += static_cast<double>(sum);
  total.sum_abs += static_cast<double>(sum_abs);
  total.sum_squares += static_cast<double>(sum_squares);
  total.max_abs = std::fmax(total.max_abs, static_cast<double>(largest));
  total.zero_count += zeros;
  total.bits += bits;
}

template <typename T>
void AccumulateIntegers(const void* data, std::size_t count, const SaturationBounds*, Accumulator& total) noexcept {
  const T* elements = static_cast<const T*>(data);
  total.count += count;
  for (std::size_t done = 0; done < count; done += kBlockElements) {
    AccumulateBlock(elements + done, count - done < kBlockElements ? count - done : kBlockElements, total);
  }
}

}  // namespace

ElementKernels IntegerKernels(DType dtype) noexcept {
  switch (dtype) {
    case DType::kInt64:
      return {&AccumulateIntegers<std::int64_t>, nullptr, nullptr};
    case DType::kInt32:
      return {&AccumulateIntegers<std::int32_t>, nullptr, nullptr};
    case DType::kInt16:
      return {&AccumulateIntegers<std::int16_t>, nullptr, nullptr};
    case DType::kInt8:
      return {&AccumulateIntegers<std::int8_t>, nullptr, nullptr};
    case DType::kUInt8:
    case DType::kBool:
      return {&AccumulateIntegers<std::uint8_t>, nullptr, nullptr};
    default:
      return {};
  }
}

ElementKernels KernelsFor(const KernelTable& table, DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat32:
      return table.float32;
    case DType::kFloat64:
      return table.float64;
    case DType::kFloat16:
      return table.float16;
    case DType::kBFloat16:
      return table.bfloat16;
    default:
      return IntegerKernels(dtype);
  }
}

std::size_t ElementBytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::kFloat64:
    case DType::kInt64:
      return 8;
    case DType::kFloat32:
    case DType::kInt32:
      return 4;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
      return 2;
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 1;
    default:
      return 0;
  }
}

}  // namespace neuraldbg
