#pragma once
// Fingerprints: of text, of the running program, of a case.

#include <string>
#include <string_view>

#include "core/fnv1a.h"
#include "experiments/runner/kind.h"

namespace splash::experiments {

// FNV-1a of pieces. Each is preceded by its length, so that ("ab", "c") and ("a", "bc") differ.
class Hash {
 public:
  Hash& add(std::string_view piece);
  std::string hex() const;  // 16 hexadecimal digits

 private:
  Fnv1a state_;
};

std::string hash_of(std::string_view text);

// Hash of the running executable's bytes, which are read once, at the first call.
const std::string& binary_hash();

std::string hash_of(const Parameters& parameters);

// Depends on the kind's name, the parameters, the binary and the fingerprint of the inputs.
std::string case_id(const std::string& kind, const Parameters& parameters, const std::string& binary,
                    const std::string& input_hash);

}  // namespace splash::experiments
