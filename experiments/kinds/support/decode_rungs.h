#pragma once
// The ladder of decode: one idea a rung. All rungs give the same bits.

#include <span>
#include <string>

namespace splash::experiments {

struct DecodeRung {
  const char* name;  // "decode/..."
  int bits;          // of the low-bit copy; 0: none
  const char* idea;
};

std::span<const DecodeRung> decode_rungs();
const DecodeRung* find_decode_rung(const std::string& name);  // null if there is none

}  // namespace splash::experiments
