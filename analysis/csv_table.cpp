#include "analysis/csv_table.h"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::analysis {
namespace {

enum class Encoding { utf8, utf16_little, utf16_big };

struct Marked {
  Encoding encoding = Encoding::utf8;
  std::size_t begin = 0;  // behind the byte-order mark
};

// Without a mark, UTF-16 of Latin text shows itself by NULs in every other byte.
Marked encoding_of(const std::string& bytes) {
  if (bytes.starts_with("\xEF\xBB\xBF")) return {Encoding::utf8, 3};
  if (bytes.starts_with("\xFF\xFE")) return {Encoding::utf16_little, 2};
  if (bytes.starts_with("\xFE\xFF")) return {Encoding::utf16_big, 2};
  constexpr std::size_t kLooked = 4096;
  std::size_t even = 0, odd = 0;
  const std::size_t looked = std::min(kLooked, bytes.size());
  for (std::size_t i = 0; i < looked; ++i) (i % 2 == 0 ? even : odd) += bytes[i] == '\0' ? 1 : 0;
  if (odd > looked / 4 && even < odd / 8) return {Encoding::utf16_little, 0};
  if (even > looked / 4 && odd < even / 8) return {Encoding::utf16_big, 0};
  return {};
}

void append_utf8(std::string& text, uint32_t point) {
  const auto byte = [&](uint32_t value) { text += static_cast<char>(value); };
  if (point < 0x80) {
    byte(point);
  } else if (point < 0x800) {
    byte(0xC0 | point >> 6);
    byte(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    byte(0xE0 | point >> 12);
    byte(0x80 | (point >> 6 & 0x3F));
    byte(0x80 | (point & 0x3F));
  } else {
    byte(0xF0 | point >> 18);
    byte(0x80 | (point >> 12 & 0x3F));
    byte(0x80 | (point >> 6 & 0x3F));
    byte(0x80 | (point & 0x3F));
  }
}

std::string from_utf16(const std::string& bytes, std::size_t begin, bool little) {
  if ((bytes.size() - begin) % 2 != 0)
    throw InvalidArgument("the text is UTF-16 and ends within a character: the file was cut off");
  const auto unit = [&](std::size_t at) {
    const auto first = static_cast<uint8_t>(bytes[at]), second = static_cast<uint8_t>(bytes[at + 1]);
    return little ? uint32_t{first} | uint32_t{second} << 8 : uint32_t{first} << 8 | uint32_t{second};
  };
  const auto is_high = [](uint32_t u) { return u >= 0xD800 && u < 0xDC00; };
  const auto is_low = [](uint32_t u) { return u >= 0xDC00 && u < 0xE000; };
  std::string text;
  text.reserve(bytes.size() / 2);
  for (std::size_t at = begin; at < bytes.size(); at += 2) {
    const uint32_t first = unit(at);
    if (is_high(first) && at + 2 < bytes.size() && is_low(unit(at + 2))) {
      append_utf8(text, 0x10000 + ((first - 0xD800) << 10) + (unit(at + 2) - 0xDC00));
      at += 2;
    } else if (is_high(first) || is_low(first)) {
      append_utf8(text, 0xFFFD);
    } else if (first != 0xFEFF) {  // marks of appended output
      append_utf8(text, first);
    }
  }
  return text;
}

}  // namespace

std::string table_text(const std::string& bytes) {
  const auto [encoding, begin] = encoding_of(bytes);
  std::string text = encoding == Encoding::utf8
                         ? bytes.substr(begin)
                         : from_utf16(bytes, begin, encoding == Encoding::utf16_little);
  if (text.find('\0') != std::string::npos)
    throw InvalidArgument("it holds NUL bytes, so it is no text: give what ncu prints with --csv");
  return text;
}

std::vector<std::vector<std::string>> parse_csv(const std::string& text, char separator) {
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> row;
  std::string field;
  bool quoted = false;
  std::size_t line = 1, opened = 0;
  const auto end_row = [&] {
    row.push_back(std::move(field));
    field.clear();
    if (row.size() > 1 || !row[0].empty()) rows.push_back(std::move(row));
    row.clear();
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (quoted) {
      if (c != '"') {
        field += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        field += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"' && field.empty()) {  // elsewhere a quote is an ordinary character
      quoted = true;
      opened = line;
    } else if (c == separator) {
      row.push_back(std::move(field));
      field.clear();
    } else if (c == '\n') {
      end_row();
    } else if (c != '\r') {
      field += c;
    }
  }
  if (quoted) {
    throw InvalidArgument(fmt::format(
        "the quote that opens in line {} of the table is never closed: the file was cut off", opened));
  }
  end_row();
  return rows;
}

std::string trimmed(const std::string& text) {
  constexpr std::string_view kNoBreak = "\xC2\xA0";
  std::string_view left = text;
  for (;;) {
    if (left.starts_with(kNoBreak)) {
      left.remove_prefix(kNoBreak.size());
    } else if (left.ends_with(kNoBreak)) {
      left.remove_suffix(kNoBreak.size());
    } else if (!left.empty() && (left.front() == ' ' || left.front() == '\t')) {
      left.remove_prefix(1);
    } else if (!left.empty() && (left.back() == ' ' || left.back() == '\t')) {
      left.remove_suffix(1);
    } else {
      return std::string(left);
    }
  }
}

}  // namespace splash::analysis
