// splash counters: compares a profiler's counters for the kernels of a report with what was counted of them.

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/counters.h"
#include "analysis/decode_steps.h"
#include "core/text.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/kernel_selection.h"
#include "experiments/cli/profile_command.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/provenance.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using namespace analysis;

struct Options {
  std::string report, prefix, case_id, ncu, out;
  bool command = false, json = false;
};

// Reads the tables of a folder, which have the names that --command gives them.
std::vector<CountedCase> counted_in_folder(const std::filesystem::path& folder,
                                           const std::vector<KernelCase>& kernels) {
  std::vector<CountedCase> cases;
  for (const KernelCase& kernel : kernels) {
    const std::filesystem::path table = folder / table_of(kernel);
    if (!std::filesystem::exists(table)) continue;
    const NcuResults results = read_ncu(table.string());
    if (!results.refusal.empty())
      throw InvalidArgument(
          fmt::format("{} holds no counters; ncu says: {}", table.string(), results.refusal));
    for (CountedCase& counted : match_counters(results.kernels, {kernel}))
      cases.push_back(std::move(counted));
  }
  if (cases.empty()) {
    throw InvalidArgument(fmt::format("{} holds no table of the {} chosen cases, such as {}", folder.string(),
                                      kernels.size(), table_of(kernels.front())));
  }
  return cases;
}

// Reads counters from the file or folder, otherwise from the report. Says so if there are none.
std::vector<CountedCase> counted_cases(const report::Report& report, const Options& options,
                                       const std::vector<KernelCase>& kernels) {
  if (std::filesystem::is_directory(options.ncu)) return counted_in_folder(options.ncu, kernels);
  if (!options.ncu.empty()) {
    const NcuResults results = read_ncu(options.ncu);
    if (results.refusal.empty()) return match_counters(results.kernels, kernels);
    if (!options.out.empty()) {
      throw InvalidArgument(
          fmt::format("{} holds no counters to write; ncu says: {}", options.ncu, results.refusal));
    }
    experiments::narrate("no counters were to be had; what is shown is counted alone. ncu says: {}",
                         results.refusal);
  }
  std::vector<CountedCase> cases = read_counters(report, kernels);
  const bool any = std::any_of(cases.begin(), cases.end(), [](const auto& c) { return !c.function.empty(); });
  if (!any && options.ncu.empty()) {
    experiments::narrate(
        "the report holds no counters of these kernels; what is shown is counted alone (--command prints how "
        "to "
        "get them)");
  }
  return cases;
}

// "1.234 GB"
std::string scaled(double amount, const char* unit) {
  constexpr std::array kPrefixes{"", "k", "M", "G", "T", "P"};
  std::size_t step = 0;
  for (; std::abs(amount) >= 1000 && step + 1 < kPrefixes.size(); ++step) amount /= 1000;
  return std::isnan(amount) ? "-" : fmt::format("{} {}{}", short_number(amount), kPrefixes[step], unit);
}

const char* unit_of(const LevelCounts& level) {
  return level.level == Level::products ? "FLOP" : "B";
}

std::string explained(const LevelCounts& level) {
  std::string text;
  for (const Part& part : level.parts) {
    if (std::abs(part.amount) < 0.005 * level.counted) continue;
    text += fmt::format("{}{} {}{}", text.empty() ? "" : ", ", part.cause, part.amount > 0 ? "+" : "",
                        scaled(part.amount, unit_of(level)));
  }
  if (level.padding > 0) {
    text += fmt::format("{}{:.3g} % of what is counted is padding", text.empty() ? "" : "; ",
                        100 * level.padding / level.counted);
  }
  return text;
}

void print_case(const CountedCase& c) {
  print(fmt::format("{}  {}  {}\n", paint(c.kernel.implementation, Colour::bold), one_line(c.kernel.problem),
                    paint(c.kernel.case_id, Colour::dim)));
  TextTable table(
      {"level", "counted", "simulated", "counter", "counter / counted", "/ simulated", "counter - counted"});
  for (const LevelCounts& level : compare_levels(c)) {
    // Green within 15 %.
    const auto ratio = [&](double predicted, bool close) {
      if (std::isnan(level.counter) || std::isnan(predicted)) return Cell{"-"};
      return Cell{fmt::format("{:.3g}", level.counter / predicted), close ? Colour::green : Colour::red};
    };
    table.add({{to_string(level.level)},
               {scaled(level.counted, unit_of(level))},
               {scaled(level.simulated, unit_of(level))},
               {scaled(level.counter, unit_of(level))},
               ratio(level.counted, level.close()),
               ratio(level.simulated, level.simulated_close()),
               {explained(level)}});
  }
  table.print();
  if (!c.function.empty()) {
    const auto percent = [](double share) {
      return std::isnan(share) ? "-" : fmt::format("{:.3g} %", 100 * share);
    };
    print(fmt::format(
        "{}: {} us ({} us recorded), {} instructions, tensor cores busy {}, warps resident {}, L1 {}\n",
        one_line(c.function), short_number(1e6 * c.counters.seconds), short_number(1e6 * c.kernel.seconds),
        scaled(c.counters.instructions, ""), percent(c.counters.tensor_share),
        percent(c.counters.warps_share), scaled(c.counters.l1_bytes, "B")));
    for (std::size_t i = 0; i < c.launch_seconds.size(); ++i)
      print(fmt::format("  kernel {} of {}: {} us\n", i + 1, c.launch_seconds.size(),
                        short_number(1e6 * c.launch_seconds[i])));
  }
  print("\n");
}

void print_summary(const std::vector<CountedCase>& cases) {
  for (const Level level : {Level::products, Level::l2, Level::dram}) {
    int known = 0, close = 0, simulated = 0, simulated_close = 0;
    for (const CountedCase& c : cases) {
      for (const LevelCounts& counts : compare_levels(c)) {
        if (counts.level != level || std::isnan(counts.counter)) continue;
        ++known;
        close += counts.close() ? 1 : 0;
        simulated += std::isnan(counts.simulated) ? 0 : 1;
        simulated_close += counts.simulated_close() ? 1 : 0;
      }
    }
    if (known == 0) continue;
    print(fmt::format(
        "{}: counted within 15 % of the counter for {} of {}{}\n", to_string(level), close, known,
        simulated == 0 ? "" : fmt::format(", simulated for {} of {}", simulated_close, simulated)));
  }
}

nlohmann::json to_json(const CountedCase& c) {
  nlohmann::json levels = nlohmann::json::array(), counters;
  for (const LevelCounts& level : compare_levels(c)) {
    nlohmann::json parts = nlohmann::json::object();
    for (const Part& part : level.parts) parts[part.cause] = part.amount;
    const bool known = !std::isnan(level.counter);
    levels.push_back(
        {{"level", to_string(level.level)},
         {"units", level.level == Level::products ? "FLOP" : "bytes"},
         {"counted", level.counted},
         {"counter", level.counter},
         {"simulated", level.simulated},
         {"within_15_percent", known ? nlohmann::json(level.close()) : nlohmann::json()},
         {"simulated_within_15_percent",
          known && !std::isnan(level.simulated) ? nlohmann::json(level.simulated_close()) : nlohmann::json()},
         {"padding", level.padding},
         {"parts", parts}});
  }
  for (const CounterInfo& info : counter_infos()) counters[info.column] = c.counters.*info.member;
  return {{"case_id", c.kernel.case_id},
          {"implementation", c.kernel.implementation},
          {"problem", c.kernel.problem},
          {"function", c.function},
          {"launch_seconds", c.launch_seconds},
          {"levels", levels},
          {"counters", counters}};
}

void declare(CLI::App& app, Options& o) {
  add_kernel_options(app, o.report, o.prefix);
  app.add_option("--case", o.case_id, "only those whose case id starts so")->type_name("ID");
  auto* ncu = app.add_option("--ncu", o.ncu,
                             "counters: what ncu --csv printed, or the folder of what --command printed")
                  ->type_name("CSV");
  app.add_option("--write", o.out, "a report with the counters as columns")->needs(ncu)->type_name("REPORT");
  app.add_flag("--command", o.command, "print the commands that bring the counters, a line a case")
      ->excludes(ncu);
  app.add_flag("--json", o.json, "one object: gpu and kernels, in plain units");
}

}  // namespace

int cmd_counters(const Words& words) {
  CLI::App app;
  prepare(
      app, "counters",
      "splash counters data/reports/ladders-h200.h5 --command --kernels wmma/10 > profile.sh\n"
      "splash counters report.h5 --ncu raw.csv --case e180\n"
      "splash counters report.h5 --ncu folder --write with-counters.h5\n"
      "splash counters with-counters.h5 --kernels wmma",
      "What Nsight Compute saw of the kernels of a report, beside what their declarations count: FLOPs "
      "of the "
      "tensor\n"
      "cores, bytes of L2 and of DRAM, counted and simulated, whether they agree within 15 %, and what the "
      "difference\n"
      "is made of as far as it is known. Without counters the predicted bytes alone. Needs no GPU; --command "
      "prints what to run "
      "on one.");
  Options options;
  declare(app, options);
  parse(app, words);

  report::Report report = report::read_report(options.report);
  std::vector<KernelCase> kernels =
      holds_decode_steps(report) ? chosen_kernels(decode_steps(report), options.prefix, options.case_id)
                                 : selected_kernels(report, options.prefix, options.case_id);
  if (options.command) {
    const auto [captured, end] = std::ranges::stable_partition(
        kernels, [&](const KernelCase& kernel) { return captured_input(report, kernel).empty(); });
    if (captured == kernels.begin()) print(profile_command(report, kernels.front()));  // which says why not
    for (auto kernel = kernels.begin(); kernel != captured; ++kernel) print(profile_command(report, *kernel));
    if (captured != end) {
      experiments::narrate(
          "{} of {} cases left out: they take q, k and v of a model, and gpu_bench makes Gaussian ones",
          end - captured, kernels.size());
    }
    return kDone;
  }
  std::vector<CountedCase> cases = counted_cases(report, options, kernels);
  add_simulated(report, cases);
  if (!options.out.empty()) {
    write_counters(report, cases);
    report.history +=
        fmt::format("{}{} {}", report.history.empty() ? "" : "\n", experiments::utc_now(), command_line());
    report::write_report(options.out, report);
  }
  if (options.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const CountedCase& c : cases) list.push_back(to_json(c));
    print_json({{"gpu", report.provenance.gpu}, {"kernels", list}});
    return kDone;
  }
  print(fmt::format("{}, commit {}\n\n", report.provenance.gpu, report.provenance.commit));
  for (const CountedCase& c : cases) print_case(c);
  print_summary(cases);
  return kDone;
}

}  // namespace splash::cli
