// Names of segment files, in one place: "<dir>/neuraldbg.<uid>.<hash of run and launch>.r<rank>.<pid>.<serial>".
// The run's name is hashed (FNV-1a 64): it may contain anything, file names may not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace neuraldbg {

inline constexpr std::string_view kSegmentPrefix = "neuraldbg.";
inline constexpr std::string_view kTemporaryPrefix = ".neuraldbg.tmp.";

std::string SegmentFileName(std::uint32_t uid, std::string_view run_name, std::string_view launch, std::uint32_t rank,
                            std::uint32_t pid, std::uint32_t serial);
std::string TemporaryFileName(std::uint32_t uid, std::uint32_t pid, std::uint32_t serial);
bool IsSegmentFileName(std::string_view file_name) noexcept;

// Run names match [A-Za-z0-9][A-Za-z0-9._-]{0,99}.
bool IsValidRunName(std::string_view name) noexcept;

}  // namespace neuraldbg
