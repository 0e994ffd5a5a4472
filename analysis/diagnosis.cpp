#include "analysis/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "analysis/launches.h"
#include "analysis/resources.h"
#include "analysis/scaling.h"

namespace splash::analysis {
namespace {

std::string percent(double share) {
  return fmt::format("{:.3g} %", 100 * share);
}

bool is_plural(Cause cause) {
  return cause <= Cause::exponentials || cause == Cause::issue_slots;  // "the tensor cores", "issue slots"
}

bool is_level(Cause cause) {
  return cause <= Cause::issue_slots;
}

class Diagnostician {
 public:
  Diagnostician(const KernelCase& kernel, const Multiprocessors& machine,
                const std::vector<report::Ceiling>& ceilings, const std::vector<KernelCase>& others)
      : kernel_(kernel),
        machine_(machine),
        occupancy_(occupancy_of(machine, kernel.use)),
        scaling_(scaling_of(kernel, others, machine, ceilings)),
        launches_(launch_seconds(kernel, ceilings) / kernel.seconds),
        resources_(resources_of(kernel, machine, ceilings)) {
    grows_ =
        scaling_ && !std::isnan(scaling_->busy) ? scaling_ : residency_of(kernel, others, machine, ceilings);
    for (const Resource& resource : resources_) {
      if (resource.known() && (resource.share > busiest_.share || busiest_.name.empty())) busiest_ = resource;
    }
    // The share of all multiprocessors' time in which they hold blocks.
    if (kernel.placed)
      held_ = occupancy_.waves > 1 ? occupancy_.wave_yield
                                   : std::min(1.0, static_cast<double>(kernel.use.blocks) / machine.count);
  }

  Diagnosis operator()() {
    for (const Resource& resource : resources_) look_at(resource);
    look_at_launches();
    if (!kernel_.placed) {
      result_.not_known.emplace_back(
          "how its blocks fill the GPU (it was not started by splash_bench::launch)");
    } else {
      occupancy_.waves > 1 ? look_at_tail() : look_at_parallelism();
    }
    look_inside();
    if (result_.findings.empty()) {
      find(busiest_.cause, 1 / busiest_.share,
           fmt::format("{} come{} nearest, with {} of {}", busiest_.name,
                       is_plural(busiest_.cause) ? "" : "s", percent(busiest_.share), busiest_.of));
      names_busiest_ = true;
    }
    rule_out_resources();
    const auto rank = [](const Finding& f) { return is_level(f.cause) ? 0 : f.measured ? 1 : 2; };
    std::stable_sort(result_.findings.begin(), result_.findings.end(),
                     [&](const Finding& a, const Finding& b) {
                       if (rank(a) != rank(b)) return rank(a) < rank(b);
                       // A profiler often sees several units busy: the busiest is the verdict.
                       return kernel_.profiled && rank(a) == 0 ? a.gain < b.gain : a.gain > b.gain;
                     });
    return std::move(result_);
  }

 private:
  void find(Cause cause, double gain, std::string sentence) {
    result_.findings.push_back({cause, std::max(1.0, gain), std::move(sentence)});
  }

  // Whether a number is known for every resource.
  bool knows_all() const {
    return std::all_of(resources_.begin(), resources_.end(), [](const Resource& r) { return r.known(); });
  }

  // Lists what is not known, and `more`: "issue slots, shared memory or L2".
  std::string unknown(const std::string& more = "") const {
    std::vector<std::string> names;
    for (const Resource& resource : resources_) {
      if (!resource.known()) names.insert(names.begin(), resource.name);
    }
    if (!more.empty()) names.push_back(more);
    std::string text;
    for (std::size_t i = 0; i < names.size(); ++i)
      text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
    return text;
  }

  // Names the kernel that the number of blocks belongs to, if a call starts several kernels.
  std::string of_kernel() const {
    if (kernel_.launches == 1) return "";
    const Launch* const launch = longest_launch(kernel_);
    if (launch == nullptr)
      return fmt::format(" of {}, of {} kernels the one with most threads,", kernel_.kernel,
                         kernel_.launches);
    return fmt::format(" of {}, the longest of {} kernels ({} of the time, {}),", kernel_.kernel,
                       kernel_.launches, percent(launch->seconds / kernel_.seconds),
                       kernel_.launches_seen ? "by counters" : "estimated from work and resident warps");
  }

  void look_at(const Resource& resource) {
    if (std::isnan(resource.share)) {
      result_.not_known.push_back(resource.name);
    } else if (resource.impossible()) {
      result_.not_known.push_back(
          fmt::format("{} ({} of {}, which cannot be)", resource.name, percent(resource.share), resource.of));
    } else if (resource.served_above()) {
      result_.not_known.push_back(
          fmt::format("{} (counted are {} of what it could deliver, so {} serves a part)", resource.name,
                      percent(resource.share), resource.above));
    } else if (resource.share >= kBusy) {
      find(resource.cause, 1 / resource.share, why_busy(resource));
    }
  }

  // Skips the resource that a finding already names as nearest, with its number.
  void rule_out_resources() {
    std::vector<std::string> clauses;
    for (const Resource& resource : resources_) {
      if (!resource.known() || resource.share >= kBusy) continue;
      if (resource.cause == Cause::exponentials && resource.share == 0)
        continue;  // entmax has no exponentials
      if (names_busiest_ && resource.cause == busiest_.cause) continue;
      clauses.push_back(
          fmt::format("{} ({} of {}{})", resource.name, percent(resource.share),
                      resource.cause == Cause::issue_slots && !kernel_.profiled ? "them filled" : resource.of,
                      resource.seen ? ", by counters" : ""));
    }
    result_.ruled_out.insert(result_.ruled_out.begin(), clauses.begin(), clauses.end());
  }

  std::string why_busy(const Resource& resource) const {
    const std::string share = percent(resource.share);
    if (resource.share > kOver) {
      return fmt::format(
          "{} would need {} of the time at {}{}, which cannot be: that ceiling is too low, or was "
          "measured at another clock",
          resource.name, share, resource.of, resource.seen ? ", by counters" : "");
    }
    if (kernel_.profiled) {
      return fmt::format("{} {} at {} of {}{}: only less work for {} helps{}", resource.name,
                         is_plural(resource.cause) ? "are" : "is", share, resource.of,
                         resource.seen ? ", by counters" : "", is_plural(resource.cause) ? "them" : "it",
                         accesses(resource.cause));
    }
    if (resource.cause == Cause::issue_slots)
      return fmt::format("warps issue in {} of all slots: only fewer instructions help", share);
    std::string sentence = fmt::format(
        "{} would need {} of the time at {}{}: only less work for {} helps", resource.name, share,
        resource.of, resource.seen ? ", by counters" : "", is_plural(resource.cause) ? "them" : "it");
    if (resource.cause == Cause::products && kernel_.useful_flops < 0.8 * kernel_.flops) {
      sentence += fmt::format(
          "; of what it multiplies {} is useful, the rest padding, masked, repeated or not selected",
          percent(kernel_.useful_flops / kernel_.flops));
    }
    return sentence;
  }

  // What a profiler saw of the accesses that the cause hangs on.
  std::string accesses(Cause cause) const {
    constexpr double kPoor = 16, kMany = 0.1;  // bytes of a 32-byte sector; share of passes
    std::string text;
    const bool of_sectors =
        cause != Cause::shared_memory && cause != Cause::pipes && cause != Cause::issue_slots;
    if (of_sectors && kernel_.load_bytes < kPoor)
      text += fmt::format("; of each 32-byte sector that threads load, {:.3g} bytes are used",
                          kernel_.load_bytes);
    if (of_sectors && kernel_.store_bytes < kPoor)
      text += fmt::format("; of each 32-byte sector that they store to, {:.3g} bytes are written",
                          kernel_.store_bytes);
    const bool of_banks = cause == Cause::l1 || cause == Cause::shared_memory || !is_level(cause);
    if (of_banks && kernel_.bank_conflicts >= kMany)
      text += fmt::format("; {} of the passes through shared memory are bank conflicts",
                          percent(kernel_.bank_conflicts));
    return text;
  }

  void look_at_launches() {
    if (kernel_.profiled && launches_ == 0) {
      result_.not_known.emplace_back(kernel_.benched ? "launches (their cost was not measured on this GPU)"
                                                     : "launches (a profiler's time leaves them out)");
      return;
    }
    if (launches_ < kLaunches) {
      result_.ruled_out.push_back(fmt::format("launches ({} of the time)", percent(launches_)));
      return;
    }
    std::string remedy;
    if (kernel_.launches > 1) remedy = ": fuse them";
    if (!kernel_.replayed) remedy += kernel_.launches > 1 ? ", or replay a graph" : ": replay a graph";
    find(Cause::launches, 1 / (1 - std::min(launches_, 0.99)),
         fmt::format("starting {} takes {} of the time{}",
                     kernel_.launches == 1 ? "the kernel" : fmt::format("{} kernels", kernel_.launches),
                     percent(launches_), remedy));
  }

  void look_at_tail() {
    const double filled = occupancy_.wave_yield;
    if (filled >= kFilled) {
      result_.ruled_out.push_back(fmt::format("idle places ({} filled)", percent(filled)));
      return;
    }
    // Idle places cost at most the difference between the time and the busiest level.
    find(Cause::tail, std::min(1 / filled, 1 / busiest_.share),
         fmt::format("{:.3g} waves of blocks{}: the last one fills {} of the places", occupancy_.waves,
                     of_kernel(), percent(occupancy_.last_wave)));
  }

  void look_at_parallelism() {
    const int64_t blocks = kernel_.use.blocks, idle = machine_.count - blocks;
    const std::string stand =
        idle > 0 ? fmt::format("its {} blocks{} leave {} of {} multiprocessors idle", blocks, of_kernel(),
                               idle, machine_.count)
                 : fmt::format("its {} blocks{} are {:.3g} of the {} that each multiprocessor has room for",
                               blocks, of_kernel(), static_cast<double>(blocks) / machine_.count,
                               occupancy_.blocks);
    // A nearly full wave gains little from more blocks; what a case with more blocks shows is then the effect
    // of its other length.
    if (scaling_ && scaling_->blocks > 1 && occupancy_.waves < kFilled) {
      const std::string seen = fmt::format(
          "with {:.3g} times the blocks (case {}) it does {:.3g} times the "
          "work a second",
          scaling_->blocks, scaling_->case_id, scaling_->rate);
      if (scaling_->rate >= kScales) {
        scales_ = true;
        find(Cause::parallelism, scaling_->rate, stand + "; " + seen);
        result_.findings.back().measured = true;
      } else {
        result_.ruled_out.push_back(fmt::format("too few blocks ({})", seen));
      }
    } else if (held_ < kFilled) {
      find(Cause::parallelism, std::min(1 / held_, 1 / busiest_.share),
           1 / busiest_.share < 1 / held_
               ? fmt::format("{}; with all of them busy, {} would bind", stand, busiest_.name)
               : stand);
      names_busiest_ = 1 / busiest_.share < 1 / held_;
    } else {
      result_.ruled_out.push_back(
          fmt::format("idle multiprocessors ({} blocks for {})", blocks, machine_.count));
    }
  }

  void look_inside() {
    // The busiest level's share on the multiprocessors that hold blocks, or with as many blocks as the
    // measured gain had.
    const double busy = std::min(1.0, scales_ ? busiest_.share * scaling_->rate : busiest_.share / held_);
    if (busy >= kBusy || launches_ >= 1 - kLaunches) return;
    const double gain = 1 / std::max(busy, launches_);
    const bool counted = knows_all();
    if (kernel_.profiled) {
      look_inside_profiled(gain, counted, busy);
      return;
    }
    const std::string nearest =
        fmt::format("{}, {} of the ceiling of {} is used and less of the others{}",
                    scales_ ? "even with as many blocks as that" : "where blocks are resident", percent(busy),
                    busiest_.name, counted ? "" : " that are known");
    names_busiest_ = true;
    if (!scales_ && grows_ && grows_->busy >= kBusy && !counted) {
      find(Cause::inside, gain,
           fmt::format("{}, yet {} of the time grows with the blocks on a multiprocessor (case {}): {} must "
                       "be busy, it is not latency",
                       nearest, percent(grows_->busy), grows_->case_id, unknown()));
    } else if (counted || (!scales_ && grows_ && grows_->busy < kBusy)) {
      find(Cause::latency, gain,
           fmt::format("{}{}: steps wait for one another; {}", nearest,
                       counted ? ""
                               : fmt::format(", and only {} of the time grows with the blocks on a "
                                             "multiprocessor (case {})",
                                             percent(grows_->busy), grows_->case_id),
                       resident()));
    } else {
      find(
          Cause::inside, gain,
          fmt::format("{}: {}, which counts do not tell apart; {}", nearest, unknown("latency"), resident()));
    }
  }

  // Queues that are full, and warps that are ready in vain, tell of a busy unit; all else is latency.
  void look_inside_profiled(double gain, bool counted, double busy) {
    const std::string stalled = most_stalled(kernel_.stalls);
    const bool full = stalled.find("throttle") < stalled.find(", then ") ||
                      stalled.find("(not selected") < stalled.find(", then ");
    const bool latency = counted || (!stalled.empty() && !full);
    names_busiest_ = true;
    std::string sentence =
        busiest_.name.empty()
            ? "the table tells of no unit how busy it is"
            : fmt::format("where blocks are resident, {} {} at {} of the peak{}", busiest_.name,
                          is_plural(busiest_.cause) ? "are" : "is", percent(busy),
                          counted ? " and others lower" : " and others that are known lower");
    if (stalled.empty() && latency) sentence += ": steps wait for one another";
    if (!stalled.empty()) sentence += ": " + stalled;
    if (!latency)
      sentence +=
          fmt::format("; {} would tell", unknown(stalled.empty() ? "the reasons for which warps wait" : ""));
    const Cause cause = latency ? Cause::latency : Cause::inside;
    find(cause, gain, fmt::format("{}; {}{}", sentence, resident(), accesses(cause)));
  }

  std::string resident() const {
    if (!kernel_.placed) return "how many warps are resident is not known";
    const double blocks = std::clamp(static_cast<double>(kernel_.use.blocks) / machine_.count, 1.0,
                                     std::max(1.0, static_cast<double>(occupancy_.blocks)));
    // If the registers are unknown, the true limit can only be lower.
    const bool at_most = kernel_.use.registers == 0 && occupancy_.blocks > 1;
    return fmt::format(
        "{}{:.0f} of {} warps{} are resident ({})", at_most ? "at most " : "",
        blocks * std::ceil(kernel_.use.threads / double{kWarp}), machine_.warps, of_kernel(),
        occupancy_.waves < 1 ? "there are no more blocks" : fmt::format("limited by {}", held_back()));
  }

  // "shared memory: 166 KB a block, so one of 8 warps fits"
  std::string held_back() const {
    std::string limit = to_string(occupancy_.limit);
    if (occupancy_.limit != OccupancyLimit::shared_memory || occupancy_.blocks > 1) return limit;
    return fmt::format("{}: {:.3g} KB a block, so one of {:.0f} warps fits", limit,
                       1e-3 * static_cast<double>(kernel_.use.shared_bytes),
                       std::ceil(kernel_.use.threads / double{kWarp}));
  }

  const KernelCase& kernel_;
  const Multiprocessors& machine_;
  Occupancy occupancy_;
  std::optional<Scaling> scaling_;
  std::optional<Scaling> grows_;  // the case that tells how the time grows with the blocks, if any does
  double launches_ = 0;           // share of the time
  std::vector<Resource> resources_;
  Resource busiest_{};
  double held_ = 1;
  bool scales_ = false;
  bool names_busiest_ = false;  // a finding already names busiest_ as what comes nearest
  Diagnosis result_;
};

}  // namespace

const char* to_string(Cause cause) {
  switch (cause) {
    case Cause::products:
      return "products";
    case Cause::exponentials:
      return "exponentials";
    case Cause::l1:
      return "L1";
    case Cause::l2:
      return "L2";
    case Cause::dram:
      return "DRAM";
    case Cause::shared_memory:
      return "shared memory";
    case Cause::pipes:
      return "pipes";
    case Cause::issue_slots:
      return "issue slots";
    case Cause::launches:
      return "launches";
    case Cause::parallelism:
      return "too little parallelism";
    case Cause::tail:
      return "tail";
    case Cause::latency:
      return "latency";
    case Cause::inside:
      return "inside the multiprocessor";
  }
  return "";
}

Diagnosis diagnose(const KernelCase& kernel, const Multiprocessors& machine,
                   const std::vector<report::Ceiling>& ceilings, const std::vector<KernelCase>& others) {
  return Diagnostician(kernel, machine, ceilings, others)();
}

}  // namespace splash::analysis
