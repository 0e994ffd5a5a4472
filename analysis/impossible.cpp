#include "analysis/impossible.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace splash::analysis {
namespace {

constexpr double kNotation = 50;  // factors from here on: a thousands separator or a unit was lost
// A share of DRAM also counts cycles in which the bus turns round, so it may lie above its bytes over the
// data sheet's peak, and hardly below.
constexpr double kFarAbove = 1.6, kBelow = 0.75, kWorthComparing = 0.2;
constexpr double kFarOver = 5;      // shares from here on, likewise
constexpr double kRounded = 1.005;  // shares are printed with two digits

const char* cause_of(double factor) {
  return factor >= kNotation
             ? "the notation: a thousands separator, a decimal mark or a unit was lost"
             : "another launch: time and counter are of different passes, of which one was slower, or "
               "of another program on the GPU";
}

std::string scaled(double amount, const char* unit) {
  return amount >= 1e12  ? fmt::format("{:.3g} T{}", 1e-12 * amount, unit)
         : amount >= 1e9 ? fmt::format("{:.3g} G{}", 1e-9 * amount, unit)
         : amount >= 1e6 ? fmt::format("{:.3g} M{}", 1e-6 * amount, unit)
                         : fmt::format("{:.3g} {}", amount, unit);
}

class Checks {
 public:
  Checks(const ProfiledCase& profiled, const ProfiledGpu& gpu, const std::vector<Machine>& machines)
      : case_(profiled), c_(profiled.counters), gpu_(gpu), machines_(machines) {
    seconds_ = c_.seconds;
  }

  std::vector<std::string> operator()() && {
    for (const auto* infos : {&counter_infos(), &profile_infos()}) {
      for (const CounterInfo& info : *infos) look_at(info);
    }
    look_at_launch();
    look_at_dram();
    look_at_flops();
    look_at_cycles();
    return std::move(found_);
  }

 private:
  template <class... Arguments>
  void say(fmt::format_string<Arguments...> sentence, Arguments&&... arguments) {
    found_.push_back(fmt::format(sentence, std::forward<Arguments>(arguments)...));
  }

  void look_at(const CounterInfo& info) {
    const double value = c_.*info.member;
    if (value < 0) {
      say("{}: {:.6g} of {} is below zero; likely the notation: a sign or an overflow of what wrote the "
          "table",
          info.long_name, value, info.column);
    }
    if (info.sources[0][0].quantity != Quantity::share || !(value > kRounded)) return;
    say("{}: {:.4g} % is more than all of it; likely {}", info.long_name, 100 * value,
        value >= kFarOver ? "the notation: a decimal mark was lost, or a share was printed without its unit"
                          : "another launch: the passes of the profiler differ (a short kernel, or another "
                            "program on the GPU)");
  }

  void look_at_launch() {
    if (case_.use.threads > 1024)
      say("a block of {} threads: 1024 is the most; likely the notation, or grid and block are exchanged",
          case_.use.threads);
    if (case_.use.registers > 255)
      say("{} registers a thread: 255 is the most; likely the notation", case_.use.registers);
    if (gpu_.multiprocessors && case_.use.threads <= 1024 && case_.use.registers <= 255 &&
        occupancy_of(*gpu_.multiprocessors, case_.use).blocks < 1) {
      say("not one block fits a multiprocessor of {}: {} bounds it; likely another GPU", gpu_.name,
          to_string(occupancy_of(*gpu_.multiprocessors, case_.use).limit));
    }
    const double count = c_.multiprocessors;
    if (gpu_.machine && count >= 1 && std::lround(count) != gpu_.machine->multiprocessors.count) {
      say("the table is of {:.0f} multiprocessors, and {} has {}; likely another GPU, or a part of one (MIG)",
          count, gpu_.name, gpu_.machine->multiprocessors.count);
    }
    if (c_.warps_share > kRounded * c_.theoretical_warps_share) {
      say("{:.3g} % of the warps are resident where {:.3g} % can be; likely another launch",
          100 * c_.warps_share, 100 * c_.theoretical_warps_share);
    }
  }

  void look_at_dram() {
    const double peak = peak_of("dram");
    const double factor = case_.dram_bytes / (seconds_ * peak);
    if (factor > kOver) {
      const std::string other = faster("dram", "", case_.dram_bytes / seconds_);
      say("DRAM: {} in {:.4g} us are {} where {} reaches {}; likely {}", scaled(case_.dram_bytes, "B"),
          1e6 * seconds_, scaled(case_.dram_bytes / seconds_, "B/s"), gpu_.name, scaled(peak, "B/s"),
          factor < kNotation && !other.empty()
              ? fmt::format("another GPU, such as {}, or {}", other, cause_of(factor))
              : std::string(cause_of(factor)));
    } else if (const double ratio = c_.dram_share / factor; ratio > kFarAbove || ratio < kBelow) {
      // The profiler's peak is that of the memory's clock, the data sheet's that of its highest.
      if (std::isnan(ratio) || std::max(c_.dram_share, factor) < kWorthComparing) return;
      say("DRAM: the table's share is {:.3g} %, its bytes over its time are {:.3g} % of the peak of {}; "
          "likely {}",
          100 * c_.dram_share, 100 * factor, gpu_.name,
          ratio > 1 ? "the clock: the memory ran slower than the data sheet's, or another GPU"
                    : "another launch, or another GPU");
    }
  }

  void look_at_flops() {
    const bool tensor = case_.unit != "float32";
    const double rate = case_.flops / seconds_, peak = peak_of(tensor ? "tensor" : "fma", case_.unit);
    if (!(rate > kOver * peak)) return;
    std::string why = cause_of(rate / peak);
    if (rate <= 2 * kOver * peak && tensor)
      why =
          "the precision: with 2:4 sparsity twice the dense peak is counted, or the products are of another "
          "type";
    if (gpu_.machine && rate / peak < kNotation && !tensor && gpu_.machine->peak("tensor", "float16") > rate)
      why = "the precision: tensor cores reach this, float32 units do not";
    say("products: {} in {} where {} reaches {}; likely {}", scaled(rate, "FLOP/s"), case_.unit, gpu_.name,
        scaled(peak, "FLOP/s"), why);
  }

  // What the multiprocessors can do in the cycles that the time holds.
  void look_at_cycles() {
    if (!gpu_.multiprocessors) return;
    const double cycles = gpu_.multiprocessors->count * c_.clock_hz * seconds_;
    const auto over = [&](const char* name, double needed, const char* what) {
      if (!(needed > kOver * cycles)) return;
      say("{}: {:.4g} times what {} multiprocessors can {} in {:.4g} us at {:.4g} GHz; likely {}", name,
          needed / cycles, gpu_.multiprocessors->count, what, 1e6 * seconds_, 1e-9 * c_.clock_hz,
          needed < kNotation * cycles ? "the clock, or another launch" : cause_of(kNotation));
    };
    over("instructions", c_.instructions / kSchedulers, "issue");
    over("shared memory", c_.shared_wavefronts, "pass");
    if (c_.bank_conflicts > kOver * c_.shared_wavefronts)
      say("shared memory: {:.4g} bank conflicts in {:.4g} passes; likely another launch", c_.bank_conflicts,
          c_.shared_wavefronts);
    if (c_.clock_hz > 4e9)
      say("a clock of {:.4g} GHz; likely the notation: a decimal mark was lost", 1e-9 * c_.clock_hz);
  }

  double peak_of(const std::string& ceiling, const std::string& dtype = "") const {
    return gpu_.machine ? gpu_.machine->peak(ceiling, dtype) : report::kMissing;
  }

  std::string faster(const std::string& ceiling, const std::string& dtype, double rate) const {
    for (const Machine& machine : machines_) {
      if (machine.peak(ceiling, dtype) >= rate) return machine.name;
    }
    return "";
  }

  const ProfiledCase& case_;
  const Counters& c_;
  const ProfiledGpu& gpu_;
  const std::vector<Machine>& machines_;
  double seconds_ = 0;
  std::vector<std::string> found_{};
};

}  // namespace

std::vector<std::string> impossible(const ProfiledCase& profiled, const ProfiledGpu& gpu,
                                    const std::vector<Machine>& machines) {
  return Checks(profiled, gpu, machines)();
}

}  // namespace splash::analysis
