#pragma once
// A bit for each (query, key) pair, 64 keys a word: key j is bit j % 64 of word j / 64. Bits past the last
// key are 0.

#include <cstdint>

#include "core/round.h"

namespace splash {

constexpr int64_t kKeysAWord = 64;

constexpr int64_t pair_words(int64_t kv_len) {  // a row
  return ceil_div(kv_len, kKeysAWord);
}

// The bits of n keys, which lie in one word; all ones where there are no words.
inline uint64_t pair_bits(const uint64_t* row, int64_t first_key, int64_t n) {
  const uint64_t all = n == kKeysAWord ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
  return row == nullptr ? all : row[first_key / kKeysAWord] >> first_key % kKeysAWord & all;
}

}  // namespace splash
