#include "analysis/resources.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include <fmt/format.h>

namespace splash::analysis {
namespace {

constexpr const char* kMeasured = "the measured ceiling";
constexpr double kAsBusy = 0.9;  // as another unit: a share of its share

bool is_measured(const std::vector<report::Ceiling>& ceilings) {
  return std::any_of(ceilings.begin(), ceilings.end(),
                     [](const report::Ceiling& c) { return c.measured > 0; });
}

std::string exponentials_of(const KernelCase& kernel, const Multiprocessors& machine,
                            const std::vector<report::Ceiling>& ceilings) {
  if (has_ceiling(ceilings, "exponentials")) return kMeasured;
  return fmt::format("the data sheet's {} a clock and multiprocessor at {:.3g} GHz", machine.exponentials,
                     1e-9 * kernel.clock_hz);
}

// A profiled kernel: the profiler's share of a peak, or else counts over a ceiling.
class Profiled {
 public:
  Profiled(const KernelCase& kernel, const Multiprocessors& machine,
           const std::vector<report::Ceiling>& ceilings)
      : ceiling_(is_measured(ceilings) ? kMeasured : "the data sheet's figure"), benched_(kernel.benched) {
    const SeenShares& seen = kernel.seen;
    const Floors floors = floors_of(as_counters_saw(kernel), ceilings);
    const double cycles = machine.count * kernel.clock_hz;  // per second, of all multiprocessors
    const bool is_float32 = kernel.unit == "float32";
    const double products = floors.products / kernel.seconds;
    // A benched kernel declares which of the two it uses; of the other nothing is to be known.
    if (is_float32 || !benched_)
      add(Cause::products, "the float32 units", seen.float32, is_float32 ? products : report::kMissing);
    if (!is_float32 || !benched_)
      add(Cause::products, "the tensor cores", seen.tensor, is_float32 ? report::kMissing : products);
    add(Cause::exponentials, "special functions", seen.special,
        exponential_seconds(kernel, machine, ceilings) / kernel.seconds);
    add(Cause::issue_slots, "issue slots", seen.issue,
        kernel.instructions / (kSchedulers * cycles * kernel.seconds), "all there are");
    leave_issue_slots_to_float32();
    of_all(seen.multiprocessor, Cause::pipes, "the busiest unit of the multiprocessors");
    rest_.swap(list_);
    add(Cause::shared_memory, "shared memory", seen.shared,
        kernel.shared_traffic / (kWavefrontBytes * cycles * kernel.seconds), "one pass a cycle");
    of_all(seen.l1, Cause::l1, "L1");
    list_.insert(list_.begin(), rest_.begin(), rest_.end());
    const double l2 = floors.l2 / kernel.seconds;
    // Of a benched kernel the sectors that it asks L1 for are known: L2 delivers no more, and may deliver
    // less.
    add(Cause::l2, "L2", seen.l2, benched_ && l2 >= kBusy ? report::kMissing : l2);
    add(Cause::dram, "DRAM", seen.dram, floors.dram / kernel.seconds);
  }

  std::vector<Resource> operator()() && { return std::move(list_); }

 private:
  void add(Cause cause, const char* name, double seen, double counted, const char* of = nullptr) {
    const bool by_profiler = !std::isnan(seen);
    list_.push_back({.cause = cause,
                     .name = name,
                     .share = by_profiler ? seen : counted,
                     .seen = !by_profiler && !benched_,
                     .of = by_profiler     ? "the profiler's peak"
                           : of != nullptr ? of
                                           : ceiling_,
                     .profiled = true});
  }

  double share_of(std::string_view name) const {
    const auto found = std::ranges::find(list_, name, &Resource::name);
    return found == list_.end() ? report::kMissing : found->share;
  }

  // The float32 units take an instruction a cycle and scheduler, and each takes an issue slot: slots that are
  // filled with these are no limit of their own.
  void leave_issue_slots_to_float32() {
    const double share = share_of("issue slots");
    if (share >= kBusy && share_of("the float32 units") >= kAsBusy * share)
      std::erase_if(list_, [](const Resource& r) { return r.cause == Cause::issue_slots; });
  }

  // A share of the busiest of the units in the list: none that is not known is busier. It is told where no
  // unit of the list explains it.
  void of_all(double share, Cause cause, const char* name) {
    if (std::isnan(share)) return;
    std::erase_if(list_, [](const Resource& r) { return std::isnan(r.share); });
    const bool explained = share >= kBusy && std::any_of(list_.begin(), list_.end(), [&](const Resource& r) {
                             return r.known() && r.share >= kAsBusy * share;
                           });
    if (!explained) add(cause, name, share, report::kMissing);
  }

  const char* ceiling_;
  bool benched_;  // what is counted is as declared
  std::vector<Resource> list_{}, rest_{};
};

}  // namespace

std::vector<Resource> resources_of(const KernelCase& kernel, const Multiprocessors& machine,
                                   const std::vector<report::Ceiling>& ceilings) {
  if (kernel.profiled) return Profiled(kernel, machine, ceilings)();
  const Floors floors = floors_of(as_counters_saw(kernel), ceilings);
  const double slots = kSchedulers * machine.count * kernel.clock_hz * kernel.seconds;
  return {{.cause = Cause::products,
           .name = kernel.unit == "float32" ? "the float32 units" : "the tensor cores",
           .share = floors.products / kernel.seconds,
           .of = kMeasured},
          {.cause = Cause::exponentials,
           .name = "exponentials",
           .share = exponential_seconds(kernel, machine, ceilings) / kernel.seconds,
           .of = exponentials_of(kernel, machine, ceilings)},
          {.cause = Cause::l2,
           .name = "L2",
           .share = floors.l2 / kernel.seconds,
           .seen = !std::isnan(kernel.l2_traffic),
           .above = "L1",
           .of = kMeasured},
          {.cause = Cause::dram,
           .name = "DRAM",
           .share = floors.dram / kernel.seconds,
           .seen = !std::isnan(kernel.dram_traffic),
           .above = "L2",
           .of = kMeasured},
          {.cause = Cause::shared_memory,
           .name = "shared memory",
           .share = shared_seconds(kernel, ceilings) / kernel.seconds,
           .of = kMeasured},
          {.cause = Cause::issue_slots,
           .name = "issue slots",
           .share = kernel.instructions / slots,
           .of = "all there are"}};
}

}  // namespace splash::analysis
