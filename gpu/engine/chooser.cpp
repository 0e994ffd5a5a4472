#include "gpu/engine/chooser.h"

#include <algorithm>

#include <fmt/format.h>

#include "gpu/engine/tuned.h"

namespace splash::gpu {
namespace {

std::vector<Chooser>& registered() {
  static std::vector<Chooser> choosers;
  return choosers;
}

}  // namespace

const std::vector<Chooser>& choosers() {
  return registered();
}

const Chooser* find_chooser(const std::string& rung) {
  const auto found = std::ranges::find_if(registered(), [&](const Chooser& c) { return c.rung == rung; });
  return found == registered().end() ? nullptr : &*found;
}

const Variant* tuned_variant(const std::string& rung, const AttentionSpec& spec, Dtype dtype,
                             const DeviceInfo& device) {
  const Chooser* const chooser = find_chooser(rung);
  const auto choice = tuned_choice(rung, spec, dtype, device);
  if (chooser == nullptr || !choice) return nullptr;
  const auto found = std::ranges::find(chooser->candidates, *choice);
  if (found == chooser->candidates.end()) {
    tell_once(
        fmt::format("what was tuned for {} is not used: '{}' is none of its candidates", rung, *choice));
    return nullptr;
  }
  const Variant& variant = find_variant(*found);
  const std::string reason = unsupported_reason(variant, spec, dtype, device);
  if (reason.empty()) return &variant;
  tell_once(fmt::format("what was tuned for {} is not used: {} {}", rung, *choice, reason));
  return nullptr;
}

ChooserRegistration::ChooserRegistration(Chooser chooser) {
  registered().push_back(std::move(chooser));
}

}  // namespace splash::gpu
