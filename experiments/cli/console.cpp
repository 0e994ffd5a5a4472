#include "experiments/cli/console.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text.h"

namespace splash::cli {
namespace {

constexpr std::size_t kGap = 2, kNarrowest = 6;
int write_error = 0;  // errno of the first write to stdout that failed

bool is_coloured() {
  static const bool coloured = isatty(STDOUT_FILENO) != 0 && std::getenv("NO_COLOR") == nullptr;
  return coloured;
}

constexpr std::array kCodes{"", "31", "32", "33", "2", "1"};  // by Colour

// Removes everything that a terminal obeys, except the colours of paint(). Foreign text that looks like those
// can at most be coloured.
std::string shown(const std::string& text) {
  std::string clean = printable(text);
  if (!is_coloured()) return clean;
  const std::string picture = one_line("\033");
  for (std::size_t at = 0; (at = clean.find(picture, at)) != std::string::npos; ++at) {
    const std::size_t end = at + picture.size();
    for (const std::string code : kCodes) {
      const std::string sequence = fmt::format("[{}m", code.empty() ? "0" : code);
      if (clean.compare(end, sequence.size(), sequence) == 0) clean.replace(at, picture.size(), "\033");
    }
  }
  return clean;
}

bool starts_character(char byte) {
  return (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
}

// Cuts the widest columns to one common width such that all columns fit.
std::vector<std::size_t> fitted(std::vector<std::size_t> widths, std::size_t available) {
  std::size_t limit = *std::max_element(widths.begin(), widths.end());
  auto total = [&](std::size_t cap) {
    std::size_t sum = 0;
    for (const std::size_t width : widths) sum += std::min(width, cap);
    return sum;
  };
  while (limit > kNarrowest && total(limit) > available) --limit;
  for (std::size_t& width : widths) width = std::min(width, limit);
  return widths;
}

}  // namespace

void print(const std::string& text) {
  const std::string clean = shown(text);
  if (std::fwrite(clean.data(), 1, clean.size(), stdout) != clean.size() && write_error == 0)
    write_error = errno;
}

void print_json(const nlohmann::json& json) {
  print(escaped_json(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)) + "\n");
}

bool finish_stdout() {
  if (std::fflush(stdout) != 0 && write_error == 0) write_error = errno;
  return write_error == 0 || write_error == EPIPE;
}

std::string paint(const std::string& text, Colour colour) {
  std::string clean = one_line(text);
  if (!is_coloured() || colour == Colour::none) return clean;
  return fmt::format("\033[{}m{}\033[0m", kCodes[static_cast<std::size_t>(colour)], clean);
}

int output_width() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  const auto given = columns != nullptr ? std::strtol(columns, nullptr, 10) : 0L;
  return given > 0 ? static_cast<int>(given) : 120;
}

std::size_t display_width(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), starts_character));
}

std::vector<std::string> wrap(const std::string& text, std::size_t width) {
  std::vector<std::string> lines{""};
  std::size_t begin = 0;
  while (begin < text.size()) {
    std::size_t end = std::min(text.find(' ', begin), text.size());
    std::string word = text.substr(begin, end - begin);
    begin = end + 1;
    if (!lines.back().empty() && display_width(lines.back()) + 1 + display_width(word) > width)
      lines.emplace_back();
    // Breaks a word that is longer than a line between characters.
    while (display_width(word) > width) {
      std::size_t cut = 0;
      for (std::size_t characters = 0; cut < word.size(); ++cut) {
        if (starts_character(word[cut]) && ++characters > width) break;
      }
      lines.back() = word.substr(0, cut);
      lines.emplace_back();
      word = word.substr(cut);
    }
    lines.back() += (lines.back().empty() ? "" : " ") + word;
  }
  return lines;
}

TextTable::TextTable(std::vector<std::string> headers) {
  std::vector<Cell> row;
  for (std::string& header : headers) row.push_back({std::move(header), Colour::bold});
  rows_.push_back(std::move(row));
}

void TextTable::add(std::vector<Cell> row) {
  for (Cell& cell : row) cell.text = one_line(cell.text);
  rows_.push_back(std::move(row));
}

std::string TextTable::render(int width) const {
  const std::size_t columns = rows_.front().size();
  std::vector<std::size_t> widths(columns, 1);
  for (const auto& row : rows_) {
    for (std::size_t c = 0; c < columns; ++c) widths[c] = std::max(widths[c], display_width(row[c].text));
  }
  const std::size_t gaps = kGap * (columns - 1);
  const std::size_t whole = static_cast<std::size_t>(std::max(width, 20));
  widths = fitted(widths, whole > gaps ? whole - gaps : 1);

  std::string text;
  for (const auto& row : rows_) {
    std::vector<std::vector<std::string>> cells;
    std::size_t height = 1;
    for (std::size_t c = 0; c < columns; ++c) {
      cells.push_back(wrap(row[c].text, widths[c]));
      height = std::max(height, cells.back().size());
    }
    for (std::size_t line = 0; line < height; ++line) {
      std::size_t pending = 0;  // spaces that are written only if something follows
      for (std::size_t c = 0; c < columns; ++c) {
        const std::string piece = line < cells[c].size() ? cells[c][line] : "";
        if (!piece.empty()) {
          text += std::string(pending, ' ') + paint(piece, row[c].colour);
          pending = 0;
        }
        pending += widths[c] - display_width(piece) + kGap;
      }
      text += '\n';
    }
  }
  return text;
}

void TextTable::print() const {
  cli::print(render(output_width()));
}

std::string short_number(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.4g}", value);
}

void print_item(const std::string& first, Colour colour, const std::string& rest) {
  constexpr int kIndent = 4;
  const auto lines =
      wrap(one_line(first + rest), static_cast<std::size_t>(std::max(40, output_width() - kIndent)));
  print(fmt::format("  {}{}\n", paint(first, colour), lines.front().substr(first.size())));
  for (std::size_t i = 1; i < lines.size(); ++i) print(fmt::format("{:{}}{}\n", "", kIndent, lines[i]));
}

}  // namespace splash::cli
