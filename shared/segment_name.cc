#include "shared/segment_name.h"

#include <cstdio>

namespace neuraldbg {
namespace {

constexpr std::size_t kMaxRunNameBytes = 100;
constexpr std::size_t kHashDigits = 16;

std::uint64_t Fnv1a(std::uint64_t hash, std::string_view text) noexcept {
  for (const char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 1099511628211ull;
  }
  return hash;
}

bool IsDigit(char c) noexcept { return c >= '0' && c <= '9'; }
bool IsHexDigit(char c) noexcept { return IsDigit(c) || (c >= 'a' && c <= 'f'); }
bool IsAlphanumeric(char c) noexcept { return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

// Takes a run of decimal digits off the front; false if there is none or it is longer than a 32-bit number.
bool TakeNumber(std::string_view& text) noexcept {
  std::size_t digits = 0;
  while (digits < text.size() && IsDigit(text[digits])) ++digits;
  text.remove_prefix(digits);
  return digits > 0 && digits <= 10;
}

bool TakeText(std::string_view& text, std::string_view expected) noexcept {
  if (!text.starts_with(expected)) return false;
  text.remove_prefix(expected.size());
  return true;
}

}  // namespace

std::string SegmentFileName(std::uint32_t uid, std::string_view run_name, std::string_view launch, std::uint32_t rank,
                            std::uint32_t pid, std::uint32_t serial) {
  std::uint64_t hash = Fnv1a(14695981039346656037ull, run_name);
  // The separator keeps ("ab", "c") and ("a", "bc") apart.
  hash = Fnv1a(hash, std::string_view("\0", 1));
  hash = Fnv1a(hash, launch);
  char name[128];
  std::snprintf(name, sizeof name, "neuraldbg.%u.%016llx.r%u.%u.%u", uid, static_cast<unsigned long long>(hash), rank,
                pid, serial);
  return name;
}

std::string TemporaryFileName(std::uint32_t uid, std::uint32_t pid, std::uint32_t serial) {
  char name[96];
  std::snprintf(name, sizeof name, ".neuraldbg.tmp.%u.%u.%u", uid, pid, serial);
  return name;
}

bool IsSegmentFileName(std::string_view file_name) noexcept {
  if (!TakeText(file_name, kSegmentPrefix) || !TakeNumber(file_name) || !TakeText(file_name, ".")) return false;
  if (file_name.size() < kHashDigits) return false;
  for (std::size_t i = 0; i < kHashDigits; ++i) {
    if (!IsHexDigit(file_name[i])) return false;
  }
  file_name.remove_prefix(kHashDigits);
  return TakeText(file_name, ".r") && TakeNumber(file_name) && TakeText(file_name, ".") && TakeNumber(file_name) &&
         TakeText(file_name, ".") && TakeNumber(file_name) && file_name.empty();
}

bool IsValidRunName(std::string_view name) noexcept {
  if (name.empty() || name.size() > kMaxRunNameBytes || !IsAlphanumeric(name.front())) return false;
  for (const char c : name) {
    if (!IsAlphanumeric(c) && c != '.' && c != '_' && c != '-') return false;
  }
  return true;
}

}  // namespace neuraldbg
