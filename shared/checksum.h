// CRC-32 (IEEE 802.3, as in zlib): finds torn or foreign bytes; it authenticates nothing.
#pragma once

#include <boost/crc.hpp>
#include <cstddef>
#include <cstdint>
#include <span>

namespace neuraldbg {

inline std::uint32_t Crc32(std::span<const std::byte> bytes) noexcept {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

}  // namespace neuraldbg
