#include "gpu/entmax/tuning.h"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "gpu/engine/tuned.h"
#include "gpu/entmax/knobs.h"

namespace splash::gpu::entmax {
namespace {

constexpr std::array kPortable{0, 1};
constexpr std::array kSampledKeys{512, 1024, 2048, 4096, 8192, 16384};
constexpr std::array kHeadsTogether{0, 1, 2, 4, 8, 16, 32};
constexpr std::array kLongParts{128, 256, 512, 1024, 2048};

constexpr std::array kKnobs{Knob{"portable", &Tuning::portable, kPortable, false, false},
                            Knob{"sampled_keys", &Tuning::sampled_keys, kSampledKeys, true, false},
                            Knob{"heads_together", &Tuning::heads_together, kHeadsTogether, false, false},
                            Knob{"long_parts", &Tuning::long_parts, kLongParts, false, true}};

void validate(const Knob& knob, int value) {
  if (std::ranges::find(knob.allowed, value) != knob.allowed.end()) return;
  throw InvalidArgument(
      fmt::format("{} is {}; allowed: {}", knob.name, value, fmt::join(knob.allowed, ", ")));
}

const Knob& knob_named(const std::string& name) {
  const auto* const found = std::ranges::find_if(kKnobs, [&](const Knob& knob) { return knob.name == name; });
  if (found != kKnobs.end()) return *found;
  std::string names;
  for (const Knob& knob : kKnobs) names += fmt::format("{}{}", names.empty() ? "" : ", ", knob.name);
  throw InvalidArgument(fmt::format("there is no knob '{}'; there are: {}", name, names));
}

// Copies the knobs of one pass (forward or backward) from the text; leaves the other pass's knobs alone.
void take(const std::string& text, bool of_backward, Tuning& tuning) {
  const Tuning said = tuning_from_string(text);
  for (const Knob& knob : kKnobs) {
    if (knob.of_backward == of_backward) tuning.*knob.value = said.*knob.value;
  }
}

}  // namespace

std::span<const Knob> knobs() {
  return kKnobs;
}

void validate(const Tuning& tuning) {
  for (const Knob& knob : kKnobs) validate(knob, tuning.*knob.value);
}

std::string to_string(const Tuning& tuning) {
  const Tuning usual;
  std::string text;
  for (const Knob& knob : kKnobs) {
    if (tuning.*knob.value == usual.*knob.value) continue;
    text += fmt::format("{}{}={}", text.empty() ? "" : ",", knob.name, tuning.*knob.value);
  }
  return text.empty() ? "default" : text;
}

Tuning tuning_from_string(const std::string& text) {
  Tuning tuning;
  if (text == "default") return tuning;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size()), equals = text.find('=', at);
    if (equals >= end)
      throw InvalidArgument("a tuning is 'default' or KNOB=VALUE,KNOB=VALUE, not '" + text + "'");
    const Knob& knob = knob_named(text.substr(at, equals - at));
    int value = -1;
    const char* const last = text.data() + end;
    const auto read = std::from_chars(text.data() + equals + 1, last, value);
    if (read.ec != std::errc() || read.ptr != last)
      throw InvalidArgument(fmt::format("{} is '{}'; allowed: {}", knob.name,
                                        text.substr(equals + 1, end - equals - 1),
                                        fmt::join(knob.allowed, ", ")));
    validate(knob, value);
    tuning.*knob.value = value;
    at = end + 1;
  }
  return tuning;
}

Tuning tuned_for(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  Tuning tuning;
  const auto look_up = [&](const char* subject, bool of_backward) {
    const auto choice = tuned_choice(subject, spec, dtype, device);
    if (!choice) return;
    try {
      take(*choice, of_backward, tuning);
    } catch (const InvalidArgument& error) {
      tell_once(fmt::format("what was tuned for {} is not used: {}", subject, error.what()));
    }
  };
  look_up(kForwardSubject, false);
  look_up(kBackwardSubject, true);
  return tuning;
}

}  // namespace splash::gpu::entmax
