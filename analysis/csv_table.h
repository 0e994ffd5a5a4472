#pragma once
// Text of tables: bytes of any UTF encoding to UTF-8, and separated values to rows of fields.

#include <string>
#include <vector>

namespace splash::analysis {

// The bytes as UTF-8 without byte-order mark. They may be UTF-8 or UTF-16, little- or big-endian, with a mark
// or without: PowerShell's `>` writes UTF-16. Halves of surrogate pairs become U+FFFD. Throws InvalidArgument
// if UTF-16 ends within a character or if the text holds NULs, as binary files do.
std::string table_text(const std::string& bytes);

// Splits text into rows of fields; empty lines are no rows. Quoted fields may hold separators, newlines and
// doubled quotes. Throws InvalidArgument if a quote stays open to the end.
std::vector<std::vector<std::string>> parse_csv(const std::string& text, char separator = ',');

std::string trimmed(const std::string& text);  // without spaces, tabs and no-break spaces at both ends

}  // namespace splash::analysis
