#pragma once
// Which cases a run of the ladders' tests takes, by environment variables. They are for compute-sanitizer,
// under which all cases in one run take too long. CONTRIBUTING.md: Under compute-sanitizer.

#include <charconv>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "core/error.h"
#include "gpu/engine/variant.h"

namespace splash::gpu::testing {

struct LadderRun {
  std::string variant{};          // SPLASH_TEST_VARIANT: only variants whose ids begin with this
  int64_t every = 1;              // SPLASH_TEST_EVERY: one of so many cases of a variant...
  int64_t first = 0;              // SPLASH_TEST_FIRST: ...from this one on, below `every`
  int64_t head_dim = kAnyNumber;  // SPLASH_TEST_HEAD_DIM: only cases of at most this head_dim
  bool oracle = true;             // SPLASH_TEST_ORACLE=0: only compares two runs with each other

  static constexpr int64_t kAnyNumber = std::numeric_limits<int64_t>::max();

  bool takes(const Variant& candidate) const { return candidate.id().starts_with(variant); }
  bool takes(int64_t index, const AttentionSpec& spec) const {
    return index % every == first && spec.shape.head_dim <= head_dim;
  }

  // Throws InvalidArgument if a setting is no number, out of range, or the name of no variant.
  static LadderRun read(const std::function<const char*(const char* name)>& setting) {
    const auto number = [&](const char* name, int64_t least, int64_t most, int64_t otherwise) {
      const char* const text = setting(name);
      if (text == nullptr) return otherwise;
      const char* const end = text + std::char_traits<char>::length(text);
      int64_t value = 0;
      const auto [rest, error] = std::from_chars(text, end, value);
      if (error == std::errc() && rest == end && value >= least && value <= most) return value;
      const std::string range = most == kAnyNumber ? fmt::format("of at least {}", least)
                                                   : fmt::format("from {} to {}", least, most);
      throw InvalidArgument(fmt::format("{} is '{}'; it must be a whole number {}", name, text, range));
    };
    LadderRun run;
    if (const char* const variant = setting("SPLASH_TEST_VARIANT"); variant != nullptr) run.variant = variant;
    run.every = number("SPLASH_TEST_EVERY", 1, kAnyNumber, run.every);
    run.first = number("SPLASH_TEST_FIRST", 0, run.every - 1, run.first);
    run.head_dim = number("SPLASH_TEST_HEAD_DIM", 1, kAnyNumber, run.head_dim);
    run.oracle = number("SPLASH_TEST_ORACLE", 0, 1, 1) == 1;
    for (const Variant* known : all_variants()) {
      if (run.takes(*known)) return run;
    }
    throw InvalidArgument(fmt::format(
        "SPLASH_TEST_VARIANT is '{}'; no variant's id begins so (splash list variants)", run.variant));
  }

  static LadderRun from_environment() {
    return read([](const char* name) { return std::getenv(name); });
  }
};

}  // namespace splash::gpu::testing
