// Conversions between double and the element types, written from their definitions and not from the code under test.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "shared/record.h"

namespace neuraldbg::testing {

inline std::uint16_t HalfBits(double x) {
  if (std::isnan(x)) return 0x7e00;
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::fabs(x);
  if (magnitude >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  const int quantum = magnitude == 0 || exponent < -13 ? -24 : exponent - 11;
  const auto units = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, -quantum)));
  // Units carry into the exponent by themselves when rounding reaches the next power of two.
  const std::uint32_t bits =
      quantum == -24 && units < 0x400 ? units : units + (static_cast<std::uint32_t>(quantum + 24) << 10);
  return static_cast<std::uint16_t>(sign | bits);
}

inline double HalfValue(std::uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = bits >> 10 & 0x1f;
  const int mantissa = bits & 0x3ff;
  if (exponent == 31) return mantissa != 0 ? NAN : sign * INFINITY;
  return exponent == 0 ? sign * std::ldexp(mantissa, -24) : sign * std::ldexp(1024 + mantissa, exponent - 25);
}

inline std::uint16_t BFloatBits(double x) {
  const auto single = static_cast<float>(x);
  std::uint32_t bits;
  std::memcpy(&bits, &single, sizeof bits);
  return static_cast<std::uint16_t>(bits >> 16);  // truncation: any bf16 value will do
}

inline double BFloatValue(std::uint16_t bits) {
  const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
  float single;
  std::memcpy(&single, &wide, sizeof single);
  return static_cast<double>(single);
}

// Elements of one type in memory, and the same as numbers.
struct Elements {
  DType dtype = DType::kFloat32;
  std::vector<std::byte> memory;
  std::vector<double> values;
  std::vector<std::uint64_t> patterns;
  std::size_t bytes = 4;
};

inline Elements MakeElements(DType dtype, const std::vector<double>& wanted) {
  Elements out;
  out.dtype = dtype;
  out.bytes = dtype == DType::kFloat64 ? 8 : (dtype == DType::kFloat32 ? 4 : 2);
  out.memory.resize(wanted.size() * out.bytes + 1);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    std::byte* target = out.memory.data() + i * out.bytes;
    const auto put = [&](auto raw, double value) {
      std::memcpy(target, &raw, sizeof raw);
      std::uint64_t pattern = 0;
      std::memcpy(&pattern, &raw, sizeof raw);
      out.values.push_back(value);
      out.patterns.push_back(pattern);
    };
    switch (dtype) {
      case DType::kFloat64:
        put(wanted[i], wanted[i]);
        break;
      case DType::kFloat32:
        put(static_cast<float>(wanted[i]), static_cast<double>(static_cast<float>(wanted[i])));
        break;
      case DType::kFloat16:
        put(HalfBits(wanted[i]), HalfValue(HalfBits(wanted[i])));
        break;
      default:
        put(BFloatBits(wanted[i]), BFloatValue(BFloatBits(wanted[i])));
        break;
    }
  }
  return out;
}

}  // namespace neuraldbg::testing
