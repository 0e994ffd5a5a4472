#include "experiments/foreign/floor.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include <fmt/format.h>

#include "analysis/roofline.h"

namespace splash::experiments {
namespace {

// The highest known rate among ceilings of these names, and what it is: with measured ones a little more.
struct Rate {
  double value = report::kMissing;
  bool datasheet = false;
};
Rate rate_of(const std::vector<report::Ceiling>& ceilings, std::initializer_list<const char*> names,
             const std::string& dtype, double margin) {
  Rate best;
  for (const report::Ceiling& ceiling : ceilings) {
    if (ceiling.dtype != dtype || std::find(names.begin(), names.end(), ceiling.name) == names.end())
      continue;
    const bool datasheet = !std::isnan(ceiling.datasheet);
    const double value =
        datasheet ? std::fmax(ceiling.datasheet, ceiling.measured) : margin * ceiling.measured;
    if (std::isnan(value) || value <= best.value) continue;
    best = {value, datasheet};
  }
  return best;
}

}  // namespace

Floor floor_of(const ForeignKernel& kernel, const std::vector<report::Ceiling>& ceilings, bool cold) {
  const bool cpu = kernel.on_cpu();
  constexpr double kOnCpu = 2;
  const double margin = cpu ? kOnCpu : analysis::kOver, cache = static_cast<double>(kernel.cache_bytes);
  const bool cached = !cold && static_cast<double>(kernel.set_bytes) <= cache;
  Floor floor;
  const auto consider = [&](double amount, const Rate& rate, const std::string& name, const char* units) {
    const double seconds = amount / rate.value;
    if (std::isnan(seconds) || seconds <= floor.seconds) return;
    floor = {seconds, fmt::format("{} at {} {:.3g} {}", name,
                                  rate.datasheet ? "the data sheet's"
                                  : cpu          ? "twice the measured"
                                                 : "the measured",
                                  rate.value / (rate.datasheet ? 1 : margin), units)};
  };
  const Rate products = cpu                        ? rate_of(ceilings, {"cpu fma"}, kernel.unit, margin)
                        : kernel.unit == "float32" ? rate_of(ceilings, {"fma"}, kernel.unit, margin)
                                                   : rate_of(ceilings, {"tensor"}, kernel.unit, margin);
  consider(kernel.flops, products, kernel.unit + " units", "FLOP/s");
  if (cached) {
    consider(kernel.bytes,
             cpu ? rate_of(ceilings, {"cpu l2 read", "cpu l1 read"}, "", margin)
                 : rate_of(ceilings, {"l2 read"}, "", margin),
             "L2", "bytes/s");
  } else {
    const double stays =
        std::min(kernel.output_bytes, cache);  // written, and still in the cache when the call ends
    consider(std::max(0.0, kernel.bytes - (cold ? stays : cache)),
             cpu ? rate_of(ceilings, {"cpu dram read", "cpu dram copy"}, "", margin)
                 : rate_of(ceilings, {"dram read", "dram copy"}, "", margin),
             "DRAM", "bytes/s");
  }
  return floor;
}

}  // namespace splash::experiments
