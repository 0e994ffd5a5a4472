#include "experiments/cli/table_formats.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "core/suggest.h"
#include "core/text.h"
#include "experiments/cli/console.h"

namespace splash::cli {
namespace {

std::string as_text(const FormattedTable& table) {
  TextTable text(table.header);
  for (const auto& row : table.rows) {
    std::vector<Cell> cells;
    for (const std::string& cell : row) cells.push_back({cell});
    text.add(std::move(cells));
  }
  std::string result = one_line(table.caption) + "\n\n" + text.render(output_width());
  if (!table.notes.empty()) result += '\n';
  for (const std::string& note : table.notes) result += one_line(note) + "\n";
  return result;
}

std::string replaced(const std::string& text, const std::string& letters,
                     const std::vector<std::string>& by) {
  std::string result;
  for (const char c : one_line(text)) {
    const std::size_t at = letters.find(c);
    result += at == std::string::npos ? std::string(1, c) : by[at];
  }
  return result;
}

std::string in_markdown(const std::string& text) {
  return replaced(text, "|<\\", {"\\|", "&lt;", "\\\\"});
}

std::string as_markdown(const FormattedTable& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    std::string text = "|";
    for (const std::string& cell : cells) text += " " + in_markdown(cell) + " |";
    return text + "\n";
  };
  std::string result = in_markdown(table.caption) + "\n\n" + line(table.header) + "|";
  for (std::size_t i = 0; i < table.header.size(); ++i) result += i < table.labels ? "---|" : "---:|";
  result += '\n';
  for (const auto& row : table.rows) result += line(row);
  for (const std::string& note : table.notes) result += "\n" + in_markdown(note) + "\n";
  return result;
}

std::string in_latex(const std::string& text) {
  const std::string escaped =
      replaced(text, "&%$#_{}~^\\<>|",
               {"\\&", "\\%", "\\$", "\\#", "\\_", "\\{", "\\}", "\\textasciitilde{}", "\\textasciicircum{}",
                "\\textbackslash{}", "\\textless{}", "\\textgreater{}", "\\textbar{}"});
  return text == "–" ? "--" : escaped;
}

// 1.2e-05 as a power of ten.
std::string number_in_latex(const std::string& text) {
  const std::size_t e = text.find('e');
  const bool number = e != std::string::npos && e > 0 && e + 2 < text.size() &&
                      text.find_first_not_of("0123456789.e+-") == std::string::npos;
  if (!number) return in_latex(text);
  return fmt::format("${} \\times 10^{{{}}}$", text.substr(0, e), std::stoi(text.substr(e + 1)));
}

std::string as_latex(const FormattedTable& table) {
  const std::size_t values = table.header.size() - table.labels;
  std::string result =
      fmt::format("% needs \\usepackage{{booktabs}}\n% {}\n\\begin{{tabular}}{{{}{}}}\n\\toprule\n",
                  one_line(table.caption), std::string(table.labels, 'l'), std::string(values, 'r'));
  const auto add = [&](const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i)
      result += (i > 0 ? " & " : "") + (i < table.labels ? in_latex(cells[i]) : number_in_latex(cells[i]));
    result += " \\\\\n";
  };
  add(table.header);
  result += "\\midrule\n";
  for (const auto& row : table.rows) add(row);
  result += "\\bottomrule\n\\end{tabular}\n";
  for (const std::string& note : table.notes) result += "% " + one_line(note) + "\n";
  return result;
}

std::string as_csv(const FormattedTable& table) {
  std::string result;
  const auto add = [&](const std::vector<std::string>& cells, std::size_t labels) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      std::string cell = i < labels ? table_cell(cells[i]) : one_line(cells[i]);
      if (cell.find_first_of(",\"") != std::string::npos) cell = "\"" + replaced(cell, "\"", {"\"\""}) + "\"";
      result += (i > 0 ? "," : "") + cell;
    }
    result += '\n';
  };
  add(table.header, table.header.size());
  for (const auto& row : table.rows) add(row, table.labels);
  return result;
}

}  // namespace

const std::vector<std::string>& table_formats() {
  static const std::vector<std::string> formats{"text", "markdown", "latex", "csv"};
  return formats;
}

void require_table_format(const std::string& format) {
  if (std::ranges::count(table_formats(), format) == 0)
    throw InvalidArgument(fmt::format("unknown format '{}'{}", format, suggestion(format, table_formats())));
}

std::string formatted(const FormattedTable& table, const std::string& format) {
  require_table_format(format);
  if (format == "markdown") return as_markdown(table);
  if (format == "latex") return as_latex(table);
  return format == "csv" ? as_csv(table) : as_text(table);
}

}  // namespace splash::cli
