#include "experiments/foreign/bench.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <span>
#include <thread>
#include <tuple>

#include <fmt/format.h>

#include "analysis/statistics.h"
#include "core/error.h"
#include "core/random.h"
#include "core/round.h"
#include "core/scratch_folder.h"
#include "core/text.h"
#include "experiments/foreign/array_values.h"
#include "experiments/foreign/floor.h"
#include "report/atomic_file.h"

namespace splash::experiments {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The timed calls of one kernel, in rounds of several sets of arrays.
class Bench {
 public:
  Bench(WorkerProcess& worker, WorkerProcess& reference, const BenchOptions& options)
      : worker_(worker), reference_(reference), options_(options), random_(options.seed) {
    std::string words = "declare";
    for (const auto& [name, value] : options.sizes) words += fmt::format(" {} {}", name, value);
    const nlohmann::json declared = ask(reference_, words), of_kernel = ask(worker_, words);
    if (!of_kernel.contains("arrays") || declared["arrays"] != of_kernel["arrays"])
      throw InvalidArgument("two processes of the kernel declare different arrays");
    result_.kernel = parse_kernel(of_kernel);
    const ForeignKernel truth =
        parse_kernel(declared);  // what the kernel's process says of its work does not count
    result_.kernel.flops = truth.flops;
    result_.kernel.bytes = truth.bytes;
    result_.kernel.unit = truth.unit;
    result_.kernel.relative = truth.relative;
    result_.kernel.absolute = truth.absolute;
    share();
  }

  template <class CeilingsOf>
  BenchResult operator()(const CeilingsOf& ceilings_of) && {
    const std::vector<report::Ceiling> ceilings =
        ceilings_of(result_.kernel.device);  // while the kernel's process waits
    // The first call may compile, load and tune; it is checked, not timed.
    round(1, [&] { act("calls", 1); });
    if (!result_.findings.empty()) return std::move(result_);
    const double end = now() + options_.seconds;
    while (samples() < options_.samples && (result_.seconds.empty() || now() < end)) {
      const int64_t sets = std::min(sets_, options_.samples - samples());
      round(sets, [&] { add_times(ask_kernel("time", sets), sets); });
      if (!result_.findings.empty()) return std::move(result_);
    }
    bear_out();
    const Floor floor = floor_of(result_.kernel, ceilings, options_.cold);
    result_.floor_seconds = floor.seconds;
    result_.floor_of = floor.of;
    const double median = analysis::median(result_.seconds);
    if (median < floor.seconds) {
      find(
          Against::floor,
          fmt::format(
              "a call is said to take {:.4g} us, and {} needs {:.4g} us for what it declares: either it does "
              "not do the work, or the declared FLOPs or bytes are too many{}",
              1e6 * median, floor.of, 1e6 * floor.seconds, or_busy()));
    }
    ask_launches();
    if (options_.counting) count();
    if (options_.time_reference) time_reference();
    return std::move(result_);
  }

 private:
  static nlohmann::json ask(WorkerProcess& process, const std::string& words, double timeout) {
    return process.ask(words, timeout);
  }
  nlohmann::json ask(WorkerProcess& process, const std::string& words) {
    return ask(process, words, options_.timeout);
  }
  nlohmann::json ask_kernel(const char* word, int64_t sets) {
    return ask(worker_, fmt::format("{} {} {}", word, options_.cold ? "cold" : "warm", sets));
  }
  void act(const char* word, int64_t sets) { ask_kernel(word, sets); }
  void find(Against against, std::string sentence) {
    result_.findings.push_back({against, std::move(sentence)});
  }
  int64_t samples() const { return static_cast<int64_t>(result_.seconds.size()); }

  void share() {
    constexpr int64_t kMostSets = 16, kRoundBytes = int64_t{512} << 20;
    const int64_t stride = result_.kernel.set_bytes;
    sets_ = std::clamp(kRoundBytes / stride, int64_t{1},
                       std::max<int64_t>(1, std::min(kMostSets, options_.samples)));
    std::string offsets;
    for (const ForeignArray& array : result_.kernel.arrays) offsets += fmt::format(" {}", array.offset);
    checks_at_ = stride;  // the reference has one set, and indices and values behind it
    const int64_t reference_bytes = stride + round_up(2 * 8 * options_.checked, 4096);
    worker_.share(sets_ * stride);
    reference_.share(reference_bytes);
    ask(worker_, fmt::format("map {} {}{}", sets_ * stride, stride, offsets));
    ask(reference_, fmt::format("map {} {}{}", reference_bytes, stride, offsets));
  }

  uint64_t seed_of(int64_t set, std::size_t array) const {
    return random_.stream(static_cast<uint64_t>(round_)).stream(static_cast<uint64_t>(set)).bits(array);
  }

  char* place(int64_t set, const ForeignArray& array) const {
    return worker_.shared() + set * result_.kernel.set_bytes + array.offset;
  }

  void prepare(int64_t sets) {
    ++round_;
    for (int64_t set = 0; set < sets; ++set) {
      for (std::size_t i = 0; i < result_.kernel.arrays.size(); ++i)
        fill(result_.kernel.arrays[i], seed_of(set, i), place(set, result_.kernel.arrays[i]));
    }
    act("prepare", sets);
  }

  // New inputs and poison, the calls, and a check of each.
  template <class Calls>
  void round(int64_t sets, const Calls& calls) {
    prepare(sets);
    calls();
    act("collect", sets);
    for (int64_t set = 0; set < sets && result_.findings.empty(); ++set) check(set);
  }

  // The reference gets its inputs from this process, after the kernel's process gave its outputs away.
  void check(int64_t set) {
    const std::vector<ForeignArray>& arrays = result_.kernel.arrays;
    for (std::size_t i = 0; i < arrays.size(); ++i)
      fill(arrays[i], seed_of(set, i), reference_.shared() + arrays[i].offset);
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      if (arrays[i].written()) check(set, i);
    }
    ++result_.calls_checked;
  }

  void check(int64_t set, std::size_t output) {
    const ForeignArray& array = result_.kernel.arrays[output];
    const std::vector<int64_t> indices = indices_to_check(
        array.count, options_.checked, random_.stream(~static_cast<uint64_t>(++checks_)).bits(output));
    char* const at = reference_.shared() + checks_at_;
    const std::size_t bytes = indices.size() * sizeof(int64_t);
    std::memcpy(at, indices.data(), bytes);
    ask(reference_, fmt::format("reference 0 {} {} {}", output, indices.size(), checks_at_));
    std::vector<double> expected(indices.size());
    std::memcpy(expected.data(), at + bytes, bytes);
    const Comparison compared = compare(array, place(set, array), indices, expected, result_.kernel.relative,
                                        result_.kernel.absolute);
    result_.elements_checked += compared.checked;
    result_.max_absolute = std::max(result_.max_absolute, compared.max_absolute);
    result_.max_relative = std::max(result_.max_relative, compared.max_relative);
    const bool none_missing =
        std::none_of(expected.begin(), expected.end(), [](double value) { return std::isnan(value); });
    const int64_t poisoned =
        none_missing ? still_poisoned(array, seed_of(set, output), place(set, array)) : 0;
    if (poisoned > 0) {
      find(Against::poisoned,
           fmt::format(
               "{} of {} elements of '{}' were not written: they hold what stood there before the call",
               poisoned, array.count, array.name));
    } else if (compared.wrong > 0) {
      find(Against::wrong, fmt::format("the result is wrong: {} of {} checked elements, {}", compared.wrong,
                                       compared.checked, compared.example));
    } else if (!compared.tells) {
      find(
          Against::blind,
          fmt::format("the check of '{}' tells nothing: one constant would pass for every element; a smaller "
                      "tolerance, or other inputs, would tell",
                      array.name));
    }
  }

  void add_times(const nlohmann::json& answer, int64_t sets) {
    const auto found = answer.find("seconds");
    const bool list =
        found != answer.end() && found->is_array() && static_cast<int64_t>(found->size()) == sets;
    for (int64_t i = 0; list && i < sets; ++i) {
      const nlohmann::json& value = (*found)[static_cast<std::size_t>(i)];
      const double seconds = value.is_number() ? value.get<double>() : report::kMissing;
      if (seconds >= 0 && seconds <= options_.timeout) {
        result_.seconds.push_back(seconds);
        continue;
      }
      find(Against::odd_times, "the kernel's process tells a time that cannot be");
      return;
    }
    if (!list) find(Against::odd_times, "the kernel's process does not tell a time for each call");
  }

  // Holds the times against this process's clock, around calls of which each ends with a wait for all of the
  // device; what the same costs without the calls is taken off. What another program on the machine does to
  // one trial it does not do to the next.
  void bear_out() {
    const bool cpu = result_.kernel.on_cpu();
    const double part = cpu ? 0.5 : 0.25, launch = cpu ? 5e-6 : 30e-6;
    const double claimed = analysis::median(result_.seconds);
    constexpr int kTrials = 5;
    for (int trial = 0; trial < kTrials; ++trial) {
      double with = 0, without = 0, used_with = 0;
      round(sets_, [&] {
        if (trial == 0) watch_idle();
        const double start = now(), used = worker_.processor_seconds();
        act_plainly("calls");
        with = now() - start;
        used_with = worker_.processor_seconds() - used;
      });
      if (!result_.findings.empty()) return;
      const double start = now(), used = worker_.processor_seconds();
      act_plainly("nothing");
      without = now() - start;
      const double used_without = worker_.processor_seconds() - used;
      const double each = (with - without) / static_cast<double>(sets_);
      if (trial == 0 && with > without)
        result_.cores = std::max(0.0, used_with - used_without) / (with - without);
      result_.seconds_outside = std::fmin(result_.seconds_outside, std::max(0.0, each));
      if (result_.seconds_outside <= claimed + part * claimed + launch) return;
    }
    find(Against::contradiction, fmt::format("a call is said to take {:.4g} us, and by the clock outside its "
                                             "process it takes {:.4g} us: work goes on "
                                             "where its timer does not see it (another stream, another "
                                             "thread), or the timer is not what it was{}",
                                             1e6 * claimed, 1e6 * result_.seconds_outside, or_busy()));
  }

  // What else a contradiction may mean. On a CPU all that is measured shares the cores with other programs.
  const char* or_busy() const {
    return result_.kernel.on_cpu() ? "; or other programs keep this machine busy: bench when it is idle" : "";
  }

  // A flush costs far more than a call may; without it calls are shorter at most.
  void act_plainly(const char* word) {
    ask(worker_, fmt::format("{} {} {}", word, options_.cold ? "as-it-is" : "warm", sets_));
  }

  // A process that has its inputs and waits for the word to begin has nothing to do.
  void watch_idle() {
    constexpr double kPause = 0.05,
                     kBusy = 0.1;  // on a machine that others keep busy, it gets a part of a core
    std::this_thread::sleep_for(
        std::chrono::duration<double>(0.2 * kPause));  // threads of OpenMP spin for a while
    const double before = worker_.processor_seconds();
    std::this_thread::sleep_for(std::chrono::duration<double>(kPause));
    const double used = worker_.processor_seconds() - before;
    if (used > kBusy * kPause) {
      find(Against::idle_work,
           fmt::format("the kernel's process computes for {:.3g} ms of the {:.3g} ms in which it has its "
                       "inputs and is to wait",
                       1e3 * used, 1e3 * kPause));
    }
  }

  // What fails here leaves the times as they are.
  void count() {
    try {
      const CountingPtx ptx = options_.counting(result_.kernel.compute_capability);
      const ScratchFolder folder;
      const std::string path = folder.file("counting.ptx");
      report::write_file_atomically(path, std::as_bytes(std::span(ptx.text)));
      const auto counts = ask(worker_, "count " + path).at("counts").get<std::vector<double>>();
      constexpr std::size_t kCounts = 8, kInstructions = 6;
      if (counts.size() < kCounts || !(counts[kInstructions] > 0))
        throw Error("no kernel was started by splash_bench::launch");
      CountedWork& counted = result_.counted;
      if (ptx.counts_shared)
        std::tie(counted.shared_passes, counted.bank_conflicts) = std::tie(counts[0], counts[1]);
      if (ptx.counts_global) {
        std::tie(counted.load_sectors, counted.load_bytes) = std::tie(counts[2], counts[3]);
        std::tie(counted.store_sectors, counted.store_bytes) = std::tie(counts[4], counts[5]);
      }
      std::tie(counted.instructions, counted.special) = std::tie(counts[kInstructions], counts[7]);
    } catch (const std::exception& error) {
      result_.not_counted = one_line(error.what());
    }
  }

  // On the inputs of its last check.
  void time_reference() {
    std::vector<double> seconds;
    constexpr int kTimes = 6;
    for (int i = 0; i < kTimes; ++i) {
      ask(reference_, "prepare as-it-is 1");
      const nlohmann::json answer = ask(reference_, options_.cold ? "time cold 1" : "time warm 1");
      if (i > 0) seconds.push_back(answer.at("seconds").at(0).get<double>());  // the first may compile
    }
    result_.reference_seconds = analysis::median(seconds);
  }

  void ask_launches() {
    prepare(1);
    const nlohmann::json answer = ask(worker_, "launches");
    const auto count = [](const nlohmann::json& of, const char* name) {
      constexpr double kMost = 1e15;
      const auto found = of.find(name);
      const bool fits = found != of.end() && found->is_number() && found->get<double>() >= 0 &&
                        found->get<double>() < kMost;
      return fits ? found->get<double>() : 0.0;
    };
    if (const double clock = count(answer, "clock_hz"); clock > 0) result_.clock_hz = clock;
    const auto list = answer.find("launches");
    constexpr std::size_t kMostLaunches = 4096;
    if (list == answer.end() || !list->is_array() || list->size() > kMostLaunches) return;
    for (const nlohmann::json& launched : *list) {
      if (!launched.is_object()) continue;
      analysis::Launch launch;
      const auto name = launched.find("kernel");
      if (name != launched.end() && name->is_string()) launch.kernel = one_line(name->get<std::string>());
      launch.use = {.blocks = static_cast<int64_t>(count(launched, "blocks")),
                    .threads = static_cast<int>(std::min(count(launched, "threads"), 1e6)),
                    .registers = static_cast<int>(std::min(count(launched, "registers"), 1e6)),
                    .shared_bytes = static_cast<int64_t>(count(launched, "shared_bytes"))};
      constexpr int kMostThreads = 1024;
      const bool sound =
          launch.use.blocks > 0 && launch.use.threads > 0 && launch.use.threads <= kMostThreads;
      if (sound) result_.launches.push_back(std::move(launch));
    }
  }

  WorkerProcess& worker_;
  WorkerProcess& reference_;
  BenchOptions options_;
  CounterRandom random_;
  BenchResult result_;
  int64_t sets_ = 1, round_ = 0, checks_ = 0, checks_at_ = 0;
};

}  // namespace

const char* to_string(Against against) {
  switch (against) {
    case Against::wrong:
      return "wrong";
    case Against::poisoned:
      return "not written";
    case Against::blind:
      return "check tells nothing";
    case Against::contradiction:
      return "contradicts the clock outside";
    case Against::floor:
      return "below the floor";
    case Against::idle_work:
      return "computes while it is to wait";
    case Against::odd_times:
      return "impossible times";
  }
  return "";
}

BenchResult bench_kernel(WorkerProcess& worker, WorkerProcess& reference,
                         const std::function<std::vector<report::Ceiling>(const std::string&)>& ceilings_of,
                         const BenchOptions& options) {
  return Bench(worker, reference, options)(ceilings_of);
}

}  // namespace splash::experiments
