#include "experiments/kinds/support/decode_rungs.h"

#include <algorithm>

namespace splash::experiments {

std::span<const DecodeRung> decode_rungs() {
  static constexpr DecodeRung kRungs[] = {
      {"decode/0-no-copy", 0, "K is read whole, V on the support"},
      {"decode/1-eight-bits", 8,
       "keys in 8 bits with a margin each; in full only those that it cannot exclude"},
      {"decode/2-four-bits", 4, "keys in 4 bits: half the bytes, more keys in full"},
  };
  return kRungs;
}

const DecodeRung* find_decode_rung(const std::string& name) {
  const auto rungs = decode_rungs();
  const auto found = std::ranges::find_if(rungs, [&](const DecodeRung& rung) { return rung.name == name; });
  return found == rungs.end() ? nullptr : &*found;
}

}  // namespace splash::experiments
