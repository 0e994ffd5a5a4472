#include "core/text.h"

#include <cstddef>
#include <cstdint>

#include <fmt/format.h>

namespace splash {
namespace {

constexpr uint32_t kReplacement = 0xFFFD, kPictures = 0x2400, kPictureOfDelete = 0x2421;

// Length of the well-formed UTF-8 character at the start of `text`; 0 if there is none (Unicode 15, table
// 3-7).
size_t character_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : uint8_t{0}; };
  const auto continues = [&](size_t i, uint8_t low = 0x80, uint8_t high = 0xBF) {
    return byte(i) >= low && byte(i) <= high;
  };
  const uint8_t first = byte(0);
  if (first >= 0x01 && first <= 0x7F) return 1;
  if (first >= 0xC2 && first <= 0xDF) return continues(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const uint8_t low = first == 0xE0 ? 0xA0 : 0x80;   // no overlong forms
    const uint8_t high = first == 0xED ? 0x9F : 0xBF;  // no surrogates
    return continues(1, low, high) && continues(2) ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const uint8_t low = first == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = first == 0xF4 ? 0x8F : 0xBF;  // not above U+10FFFF
    return continues(1, low, high) && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

// The code point of a character of up to three bytes. No character of four bytes needs special treatment.
uint32_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(character[i])); };
  switch (character.size()) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return 0x10000;
  }
}

std::string three_bytes(uint32_t code) {  // for a code point from U+0800 to U+FFFF
  return {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 0x3F)),
          static_cast<char>(0x80 | (code & 0x3F))};
}

bool turns_direction(uint32_t code) {
  return (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069) || code == 0x200E ||
         code == 0x200F || code == 0x061C;
}

bool is_late_control(uint32_t code) {  // controls that JSON does not escape
  return (code >= 0x7F && code <= 0x9F) || code == 0x2028 || code == 0x2029 || turns_direction(code);
}

// Calls piece(character) for every well-formed character, and odd() for every byte that belongs to none.
template <class Piece, class Odd>
void for_each_character(std::string_view text, Piece piece, Odd odd) {
  while (!text.empty()) {
    const size_t length = character_length(text);
    if (length > 0) {
      piece(text.substr(0, length));
    } else {
      odd();
    }
    text.remove_prefix(length > 0 ? length : 1);
  }
}

std::string pictured(std::string_view text, std::string_view kept) {
  std::string clean;
  clean.reserve(text.size());
  const auto keep = [&](std::string_view character) {
    const uint32_t code = code_point(character);
    if (code < 0x20 && kept.find(character[0]) == std::string_view::npos) {
      clean += three_bytes(kPictures + code);
    } else if (code == 0x7F) {
      clean += three_bytes(kPictureOfDelete);
    } else if (is_late_control(code)) {
      clean += three_bytes(kReplacement);
    } else {
      clean += character;
    }
  };
  for_each_character(text, keep, [&] { clean += three_bytes(kReplacement); });
  return clean;
}

}  // namespace

std::string to_utf8(std::string_view text) {
  std::string clean;
  clean.reserve(text.size());
  for_each_character(
      text, [&](std::string_view character) { clean += character; },
      [&] { clean += three_bytes(kReplacement); });
  return clean;
}

std::string printable(std::string_view text) {
  return pictured(text, "\n\t");
}

std::string one_line(std::string_view text) {
  return pictured(text, "");
}

std::string table_cell(std::string_view text) {
  const bool formula = !text.empty() && std::string_view("=+-@\t\r").find(text[0]) != std::string_view::npos;
  return (formula ? "'" : "") + one_line(text);
}

std::string escaped_json(std::string_view document) {
  std::string clean;
  clean.reserve(document.size());
  const auto keep = [&](std::string_view character) {
    const uint32_t code = code_point(character);
    if (is_late_control(code)) {
      clean += fmt::format("\\u{:04x}", code);
    } else {
      clean += character;
    }
  };
  for_each_character(document, keep, [&] { clean += three_bytes(kReplacement); });
  return clean;
}

}  // namespace splash
