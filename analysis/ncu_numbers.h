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

}  // namespace splash::analysis
