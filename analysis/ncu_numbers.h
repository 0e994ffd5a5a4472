#pragma once
// Finds out how a table of Nsight Compute writes its numbers. ncu follows the machine's locale: 2,418.5 in
// one locale is 2.418,5 in another, and 2,418 alone may be 2418 or 2.418.

#include <optional>
#include <string>
#include <vector>

namespace splash::analysis {

// A value as printed, and whether it can only be a whole number (bytes that are not scaled, a count).
struct NcuText {
  std::string text;
  bool whole = false;
};

// The mark before the decimals; unknown if no value of the table tells.
enum class DecimalMark { unknown, point, comma };

// The decimal mark of a whole table. Throws InvalidArgument if its values contradict one another.
DecimalMark decimal_mark(const std::vector<NcuText>& values);

// The number, or nothing if the text is none. If the mark is unknown and the text has two readings, throws
// InvalidArgument that names both.
std::optional<double> number_from(const std::string& text, DecimalMark mark);

// The text of a value without what ncu adds to it: the mark "(!) " of a doubtful one, the values of its
// instances ("12 (5; 7)"), and spaces between groups of three digits, which French and other locales print.
std::string printed_value(const std::string& text);

// Whether the text stands for no value: empty, "n/a", "nan", "no data" and the like.
bool is_missing(const std::string& text);

}  // namespace splash::analysis
