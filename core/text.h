#pragma once
// Makes other people's text safe for files and terminals.

#include <string>
#include <string_view>

namespace splash {

// The text with every NUL and every byte that is not UTF-8 replaced by U+FFFD. An odd byte, say in a command
// line, must neither lose a report nor make it unreadable for Python.
std::string to_utf8(std::string_view text);

// The text without anything that a terminal obeys: control characters become their pictures (ESC is U+241B),
// and characters that change the direction of writing become U+FFFD. Line ends and tabs stay.
std::string printable(std::string_view text);

// The same on one line: line ends and tabs also become pictures.
std::string one_line(std::string_view text);

// The text as a cell of a table. Spreadsheets take text that begins with = + - @ for a formula, so it gets a
// leading apostrophe, which they do not show.
std::string table_cell(std::string_view text);

// A JSON document with \u escapes for the control characters that JSON does not escape (DEL, U+0080 to
// U+009F, changes of direction). It is the same document, but holds no command to a terminal.
std::string escaped_json(std::string_view document);

}  // namespace splash
