#pragma once
// Fills arrays of a foreign kernel with inputs and poison, and holds its outputs against their reference.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "experiments/foreign/declaration.h"

namespace splash::experiments {

// Input values, or poison for an output: NaN with payloads of the seed, or numbers of the seed. `memory`
// holds array.bytes. The same seed gives the same bytes. A `fixed` array is left as it is.
void fill(const ForeignArray& array, uint64_t seed, char* memory);

// Elements that still hold their poison. Of types of two bytes and less, that are no floating-point numbers,
// the chance of equal values is too high: 0.
int64_t still_poisoned(const ForeignArray& array, uint64_t seed, const char* memory);

double value_at(const ForeignArray& array, int64_t index, const char* memory);

// Indices at which an output is checked: all of it if it has no more than `most` elements, else `most` of
// them, drawn by `seed`, the first and the last among them.
std::vector<int64_t> indices_to_check(int64_t count, int64_t most, uint64_t seed);

struct Comparison {
  int64_t checked = 0, wrong = 0;
  double max_absolute = 0, max_relative = 0;  // differences
  bool tells = true;      // false: one constant would pass for all of the checked elements
  std::string example{};  // of the first wrong element: "z[7] is 1.5 and should be 2"
};
// `absolute` below 0: relative * root mean square of what is expected.
Comparison compare(const ForeignArray& array, const char* memory, std::span<const int64_t> indices,
                   std::span<const double> expected, double relative, double absolute);

}  // namespace splash::experiments
