// splash bench: times and checks a kernel of others, and makes a report of it.

#include <cmath>
#include <filesystem>
#include <random>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/cpu_roofline.h"
#include "analysis/diagnosis.h"
#include "analysis/statistics.h"
#include "core/text.h"
#include "experiments/cli/bench_jobs.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/kernel_selection.h"
#include "experiments/foreign/bench_report.h"
#include "experiments/runner/case_json.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/provenance.h"
#include "report/atomic_file.h"
#include "report/io.h"

namespace splash::cli {
namespace {

namespace fs = std::filesystem;
using namespace experiments;

report::Report report_of(const BenchAsked& asked, const std::vector<BenchedCase>& cases,
                         const std::vector<report::Ceiling>& ceilings, report::Provenance provenance) {
  const ForeignKernel& kernel = cases.front().result.kernel;
  report::Report report = bench_report(cases, asked.options, ceilings);
  report.title =
      fmt::format("{} on {}", cases.front().implementation, kernel.on_cpu() ? provenance.cpu : kernel.device);
  report.run_id = new_run_id();
  report.provenance = std::move(provenance);
  if (!kernel.on_cpu()) {  // the process that ran it may see other GPUs, or none may be here
    if (report.provenance.gpu != kernel.device) report.provenance.l2_bytes = 0;
    report.provenance.gpu = kernel.device;
    report.provenance.compute_capability = kernel.compute_capability;
    report.provenance.multiprocessors = kernel.multiprocessors;
  }
  report.provenance.seed = static_cast<int64_t>(asked.options.seed);
  report.provenance.input_hashes = fs::path(asked.source).filename().string() + "\n";
  report.provenance.finished = utc_now();
  report.history = fmt::format("{} {}", report.provenance.finished, command_line());
  return report;
}

// Of each case the verdict first; empty if the kernel was not believed.
std::vector<std::vector<analysis::Finding>> verdicts(report::Report& report,
                                                     const std::vector<BenchedCase>& cases) {
  std::vector<std::vector<analysis::Finding>> all(cases.size());
  if (cases.front().result.kernel.on_cpu()) {
    for (const analysis::CpuCase& cpu : analysis::cpu_cases(report))
      all[static_cast<std::size_t>(cpu.row)] = {analysis::finding_of(cpu, report.ceilings)};
    return all;
  }
  const std::vector<analysis::KernelCase> kernels = analysis::kernel_cases(report);
  if (kernels.empty()) return all;
  try {
    const analysis::Multiprocessors machine = machine_of(report).multiprocessors;
    analysis::write_diagnoses(report, machine);
    for (const analysis::KernelCase& kernel : kernels)
      all[static_cast<std::size_t>(kernel.row)] =
          analysis::diagnose(kernel, machine, report.ceilings, kernels).findings;
  } catch (const Error& error) {  // a GPU that nothing is known of: the times stand
    narrate("no verdict: {}", error.what());
  }
  return all;
}

std::string time_text(double seconds) {
  constexpr double kMilli = 1e-3, kMicro = 1e-6;
  return seconds >= 10 * kMilli ? short_number(seconds / kMilli) + " ms"
                                : short_number(seconds / kMicro) + " us";
}

void print_case(const BenchedCase& benched, const BenchAsked& asked,
                const std::vector<analysis::Finding>& verdicts) {
  const BenchResult& result = benched.result;
  const ForeignKernel& kernel = result.kernel;
  print(fmt::format("{}  {}, {} cache, on {}\n", paint(benched.implementation, Colour::bold),
                    one_line(kernel.problem()), asked.cache,
                    kernel.on_cpu() ? "the CPU" : one_line(kernel.device)));
  for (const BenchFinding& finding : result.findings)
    print(fmt::format("  {}: {}\n", paint("not believed", Colour::red), finding.sentence));
  if (result.findings.empty()) {
    const auto interval = analysis::median_interval(result.seconds);
    print(
        fmt::format("  {} a call ({} to {}), the median of {} calls, each on new inputs; {} by the clock "
                    "outside, launch included\n",
                    time_text(analysis::median(result.seconds)), time_text(interval.low),
                    time_text(interval.high), result.seconds.size(), time_text(result.seconds_outside)));
    if (!std::isnan(result.floor_seconds))
      print(fmt::format("  {} is the floor: {}\n", time_text(result.floor_seconds), result.floor_of));
  }
  print(fmt::format("  {} calls checked, {} elements: largest difference {:.2g}, relative {:.2g}\n",
                    result.calls_checked, result.elements_checked, result.max_absolute, result.max_relative));
  if (!result.not_counted.empty()) print(fmt::format("  not counted: {}\n", result.not_counted));
  for (const analysis::Finding& finding : verdicts)
    print(fmt::format("  {}, up to {:.3g}x: {}\n", paint(analysis::to_string(finding.cause), Colour::yellow),
                      finding.gain, finding.sentence));
}

nlohmann::json to_json(const BenchedCase& benched, const std::vector<analysis::Finding>& verdicts) {
  const BenchResult& result = benched.result;
  nlohmann::json against = nlohmann::json::array(), found = against;
  for (const BenchFinding& finding : result.findings)
    against.push_back({{"kind", experiments::to_string(finding.against)}, {"sentence", finding.sentence}});
  for (const analysis::Finding& finding : verdicts)
    found.push_back({{"cause", analysis::to_string(finding.cause)},
                     {"gain", finding.gain},
                     {"sentence", finding.sentence}});
  const bool believed = result.findings.empty();
  return {{"implementation", benched.implementation},
          {"workload", benched.workload},
          {"problem", result.kernel.problem()},
          {"device", result.kernel.device},
          {"believed", believed},
          {"against", against},
          {"seconds", believed ? plain_number(analysis::median(result.seconds)) : nullptr},
          {"outside_seconds", plain_number(result.seconds_outside)},
          {"floor_seconds", plain_number(result.floor_seconds)},
          {"flops", result.kernel.flops},
          {"bytes", result.kernel.bytes},
          {"calls_checked", result.calls_checked},
          {"elements_checked", result.elements_checked},
          {"max_absolute_error", result.max_absolute},
          {"max_relative_error", result.max_relative},
          {"launches", result.launches.size()},
          {"not_counted", result.not_counted},
          {"findings", found}};
}

}  // namespace

int cmd_bench(const Words& words) {
  CLI::App app;
  prepare(app, "bench",
          "splash bench my_kernel.cu --out my.h5\n"
          "splash bench my_kernel.cpp --set n=1048576 --cache warm\n"
          "splash bench my_triton_kernel.py\n"
          "splash bench definition.json --solution solution.json --workloads workloads.jsonl --traces "
          "traces.jsonl",
          "Times and checks a kernel of yours: a .cu or .cpp that includes splash_bench.h and declares it "
          "there, built by nvcc\n"
          "or c++; or a function of PyTorch tensors in a .py (splash_laboratory.kernels). Each call gets new "
          "inputs and poisoned\n"
          "outputs, and all are checked after it. The times are held against a clock outside the kernel's "
          "process and against\n"
          "the least time that the declared FLOPs and bytes need.\n"
          "A kernel that fails has no time, and the exit code is 1. Its code is run, with all that you may "
          "do yourself.");
  BenchAsked asked;
  app.add_option("kernel", asked.source,
                 "a .cu, .cpp, .cc, .cxx or .py; or a Definition of flashinfer-bench, a .json")
      ->required()
      ->type_name("FILE");
  app.add_option("--set", asked.sizes, "a size that the kernel declares: n=1024; n=1024,2048 makes two cases")
      ->type_name("NAME=N,...");
  app.add_option("--solution", asked.solution,
                 "flashinfer-bench's Solution of the Definition; its code is run")
      ->type_name("FILE");
  app.add_option("--workloads", asked.workloads, "flashinfer-bench's Workloads, one a line: a case each")
      ->type_name("FILE");
  app.add_option("--traces", asked.traces, "write flashinfer-bench's Traces, one a line")->type_name("FILE");
  app.add_option("--cache", asked.cache,
                 "of a timed call: cold (flushed before it), or warm (its arrays were read)")
      ->check(CLI::IsMember({"cold", "warm"}))
      ->type_name("STATE");
  app.add_option("--samples", asked.options.samples, "timed calls (40), fewer where they take long")
      ->check(CLI::Range(1, 4096))
      ->type_name("N");
  app.add_option("--seconds", asked.options.seconds, "begin no new round of calls after these (10)")
      ->check(CLI::Range(0.0, 86400.0))
      ->type_name("S");
  app.add_option("--timeout", asked.options.timeout, "seconds that an answer of its process may take (120)")
      ->check(CLI::Range(0.1, 86400.0))
      ->type_name("S");
  auto* const seed = app.add_option("--seed", asked.options.seed,
                                    "of inputs, poison and checks, to repeat a run; else drawn")
                         ->check(CLI::Range(int64_t{0}, int64_t{1} << 52))
                         ->type_name("N");
  app.add_option("--flag", asked.flags, "a further word for the compiler: --flag=-Iinclude")
      ->type_name("WORD");
  app.add_option(
         "--ceilings", asked.ceilings,
         "a report with this GPU's or processor's ceilings (splash ceilings --out), not measured then")
      ->type_name("REPORT");
  app.add_option("-o,--out", asked.out, "the report's file")->type_name("REPORT");
  app.add_flag("--no-counts", asked.no_counts,
               "of a .cu: do not count bank conflicts, sectors and instructions in a copy of its PTX");
  app.add_flag("--json", asked.json, "one object, in plain units");
  parse(app, words);
  for (const std::string& place : {asked.out, asked.traces}) {
    if (!place.empty()) report::prepare_place(place);
  }
  asked.options.cold = asked.cache == "cold";
  if (seed->count() == 0)
    asked.options.seed = (uint64_t{std::random_device()()} << 20) ^ std::random_device()();

  report::Provenance provenance = collect_provenance({}, {}, command_line());
  provenance.started = utc_now();
  asked.options.threads = provenance.threads;
  const BenchRun run = run_bench(asked);
  const std::vector<BenchedCase>& cases = run.cases;
  if (!asked.traces.empty())
    report::write_file_atomically(asked.traces, std::as_bytes(std::span(run.traces)));
  if (cases.empty()) return kDiffers;
  report::Report report = report_of(asked, cases, run.ceilings, std::move(provenance));
  const std::vector<std::vector<analysis::Finding>> found = verdicts(report, cases);
  if (!asked.out.empty()) report::write_report(asked.out, report);
  nlohmann::json list = nlohmann::json::array();
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (asked.json) {
      list.push_back(to_json(cases[i], found[i]));
    } else {
      print_case(cases[i], asked, found[i]);
    }
  }
  if (asked.json) print_json({{"cases", list}});
  return run.all_believed ? kDone : kDiffers;
}

}  // namespace splash::cli
