#pragma once
// Writes data to stdout: text, tables and JSON. Uses colours and the terminal's width only if stdout is a
// terminal.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace splash::cli {

// Prints to stdout, without what a terminal obeys (core/text.h) except the colours of paint(), because a
// report's texts come from others.
void print(const std::string& text);
void print_json(const nlohmann::json& json);  // indented, with a newline; the values are exact

// Whether all of stdout was delivered. A reader that has closed the pipe (`splash list | head -1`) is no
// failure.
bool finish_stdout();

enum class Colour { none, red, green, yellow, dim, bold };

// The text on one line, coloured if stdout is a terminal and NO_COLOR is not set.
std::string paint(const std::string& text, Colour colour);

int output_width();                                  // in characters: the terminal's, else $COLUMNS, else 120
std::size_t display_width(const std::string& text);  // characters of UTF-8 text

struct Cell {
  std::string text;
  Colour colour = Colour::none;
};

// Columns two spaces apart, wrapped at words so that lines fit into `width`; the widest columns are narrowed
// first.
class TextTable {
 public:
  explicit TextTable(std::vector<std::string> headers);
  void add(std::vector<Cell> row);
  std::string render(int width) const;
  void print() const;

 private:
  std::vector<std::vector<Cell>> rows_;  // the first is the header
};

// Breaks text at spaces into lines of at most `width` characters.
std::vector<std::string> wrap(const std::string& text, std::size_t width);

// Prints an item of a list, wrapped and indented, with its first words coloured.
void print_item(const std::string& first, Colour colour, const std::string& rest);

std::string short_number(double value);  // four digits, "-" for NaN

}  // namespace splash::cli
