// SanitizeString: the one gate through which strings of a training process reach logs, JSON and terminals.
#include <algorithm>
#include <string>
#include <string_view>

#include "shared/manifest.h"

namespace neuraldbg {
namespace {

// Length of the valid UTF-8 sequence at the front of `text`, 0 if there is none (overlong forms, surrogates and values
// above U+10FFFF are invalid, Unicode 15 table 3-7).
std::size_t ValidSequenceLength(std::string_view text) noexcept {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  std::size_t length = 0;
  unsigned char low = 0x80, high = 0xbf;  // bounds of the second byte; they exclude overlong forms and surrogates
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    if (first == 0xe0) low = 0xa0;
    if (first == 0xed) high = 0x9f;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    if (first == 0xf0) low = 0x90;
    if (first == 0xf4) high = 0x8f;
  } else {
    return 0;
  }
  if (text.size() < length || byte(1) < low || byte(1) > high) return 0;
  for (std::size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

// C0, DEL and C1 (U+0080..U+009F, two bytes): terminals act on all of them.
bool IsControl(std::string_view sequence) noexcept {
  const auto first = static_cast<unsigned char>(sequence[0]);
  if (sequence.size() == 1) return first < 0x20 || first == 0x7f;
  return sequence.size() == 2 && first == 0xc2 && static_cast<unsigned char>(sequence[1]) < 0xa0;
}

}  // namespace

std::string SanitizeString(std::string_view text, std::size_t bytes_max) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  out.reserve(std::min(text.size(), bytes_max));
  while (!text.empty()) {
    const std::size_t length = ValidSequenceLength(text);
    std::string piece;
    if (length == 0) {
      piece = "\xef\xbf\xbd";
      text.remove_prefix(1);
    } else if (IsControl(text.substr(0, length))) {
      const auto code = static_cast<unsigned char>(text[length - 1]);  // both forms keep their low byte last
      piece = {'\\', 'x', kHex[code >> 4], kHex[code & 15]};
      text.remove_prefix(length);
    } else {
      piece = text.substr(0, length);
      text.remove_prefix(length);
    }
    if (out.size() + piece.size() > bytes_max) break;
    out += piece;
  }
  return out;
}

}  // namespace neuraldbg
