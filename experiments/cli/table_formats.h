#pragma once
// A table of texts as plain text, Markdown, LaTeX or CSV.

#include <string>
#include <vector>

namespace splash::cli {

struct FormattedTable {
  std::string caption;
  std::vector<std::string> header;
  std::size_t labels = 1;  // leading columns that name the row
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> notes;  // sentences below it
};

const std::vector<std::string>& table_formats();  // "text", "markdown", "latex", "csv"

// Throws InvalidArgument for another, with the nearest.
void require_table_format(const std::string& format);

// The table in one of these formats. Texts of others can end no cell, row or document. LaTeX needs the
// package booktabs; there caption and notes are comments. CSV holds neither: who asks for it tells them
// elsewhere.
std::string formatted(const FormattedTable& table, const std::string& format);

}  // namespace splash::cli
