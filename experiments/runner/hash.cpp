#include "experiments/runner/hash.h"

#include <cstdint>
#include <fstream>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "experiments/runner/value.h"

namespace splash::experiments {

Hash& Hash::add(std::string_view piece) {
  const uint64_t length = piece.size();
  state_.add(std::as_bytes(std::span(&length, 1))).add(std::as_bytes(std::span(piece)));
  return *this;
}

std::string Hash::hex() const {
  return fmt::format("{:016x}", state_.value());
}

std::string hash_of(std::string_view text) {
  return Hash().add(text).hex();
}

const std::string& binary_hash() {
  static const std::string hash = [] {
    std::ifstream file("/proc/self/exe", std::ios::binary);
    if (!file) throw Error("cannot read the running program (/proc/self/exe) to take its fingerprint");
    Hash running;
    std::vector<char> piece(1 << 20);
    while (file.read(piece.data(), static_cast<std::streamsize>(piece.size())) || file.gcount() > 0) {
      running.add({piece.data(), static_cast<std::size_t>(file.gcount())});
    }
    return running.hex();
  }();
  return hash;
}

std::string hash_of(const Parameters& parameters) {
  Hash hash;
  for (const auto& [name, value] : parameters) {
    // The type is part of the value: 1, true and "1" are three different values.
    hash.add(name).add(std::to_string(value.index())).add(to_text(value));
  }
  return hash.hex();
}

std::string case_id(const std::string& kind, const Parameters& parameters, const std::string& binary,
                    const std::string& input_hash) {
  return Hash().add(kind).add(hash_of(parameters)).add(binary).add(input_hash).hex();
}

}  // namespace splash::experiments
