#pragma once
// How a table of Nsight Compute writes its numbers. ncu follows the machine's locale: 2,418.5 here is 2.418,5
// elsewhere, and 2,418 by itself may be either 2418 or 2.418.

#include <optional>
#include <string>
#include <vector>

namespace splash::analysis {

// A value as the table holds it, and whether it can only be a whole number (bytes not scaled, a count).
struct NcuText {
  std::string text;
  bool whole = false;
};

// What stands before the decimals; unknown where no value of the table tells.
enum class DecimalMark { unknown, point, comma };

// Of a whole table. Throws InvalidArgument where its values contradict one another.
DecimalMark decimal_mark(const std::vector<NcuText>& values);

// The number; none for text that is none. Throws InvalidArgument, naming both readings, for one that has two
// under a mark that is unknown.
std::optional<double> number_from(const std::string& text, DecimalMark mark);

}  // namespace splash::analysis
