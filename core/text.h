#pragma once
// Text that others wrote, on its way into files and onto terminals.

#include <string>
#include <string_view>

namespace splash {

// The same text, with every NUL and every byte that is not UTF-8 replaced by U+FFFD: an odd byte in, say, a
// command line must neither lose a report nor make it unreadable for Python.
std::string to_utf8(std::string_view text);

// The same text without what a terminal obeys: control characters become their pictures (ESC is U+241B),
// characters that turn the direction of writing become U+FFFD. Line ends and tabs stay.
std::string printable(std::string_view text);

// The same on one line: line ends and tabs become pictures too.
std::string one_line(std::string_view text);

// A cell of text in a table for spreadsheets, which take what begins with = + - @ for a formula: it gets an
// apostrophe in front, which they don't show.
std::string table_cell(std::string_view text);

// A JSON document with the control characters that JSON does not escape (DEL, U+0080 to U+009F, turns of
// direction) as \u escapes: the same document, and no command to a terminal.
std::string escaped_json(std::string_view document);

}  // namespace splash
