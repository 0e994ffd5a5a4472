#include "core/touched_bytes.h"

#include <algorithm>
#include <bit>

#include "core/round.h"

namespace splash {
namespace {

constexpr int64_t kUnit = 4;

void mark(std::vector<uint64_t>& words, int64_t begin, int64_t end) {
  const auto last = static_cast<std::size_t>((end - 1) / 64);
  if (last >= words.size()) words.resize(std::max(2 * words.size(), last + 1));
  const auto bits_from = [](int64_t bit) { return ~uint64_t{0} << bit % 64; };
  const auto bits_to = [](int64_t bit) { return ~uint64_t{0} >> (63 - bit % 64); };
  const auto first = static_cast<std::size_t>(begin / 64);
  if (first == last) {
    words[first] |= bits_from(begin) & bits_to(end - 1);
    return;
  }
  words[first] |= bits_from(begin);
  std::fill(words.begin() + static_cast<std::ptrdiff_t>(first) + 1,
            words.begin() + static_cast<std::ptrdiff_t>(last), ~uint64_t{0});
  words[last] |= bits_to(end - 1);
}

}  // namespace

void TouchedBytes::add(const BlockTrace::Range& range) {
  for (int64_t row = 0; row < range.rows; ++row) {
    const int64_t offset = range.offset + row * range.pitch;
    mark(bits_[static_cast<std::size_t>(range.operand)], offset / kUnit,
         ceil_div(offset + range.bytes, kUnit));
  }
}

int64_t TouchedBytes::of(Operand operand) const {
  int64_t units = 0;
  for (const uint64_t word : bits_[static_cast<std::size_t>(operand)]) units += std::popcount(word);
  return units * kUnit;
}

int64_t TouchedBytes::all() const {
  int64_t bytes = 0;
  for (int operand = 0; operand < kOperands; ++operand) bytes += of(static_cast<Operand>(operand));
  return bytes;
}

}  // namespace splash
