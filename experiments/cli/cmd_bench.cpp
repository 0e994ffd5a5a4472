// splash bench: times and checks a kernel of others, and makes a report of it.

#include <charconv>
#include <filesystem>
#include <random>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/cpu_roofline.h"
#include "analysis/diagnosis.h"
#include "analysis/profile_import.h"
#include "analysis/statistics.h"
#include "core/scratch_folder.h"
#include "core/text.h"
#include "core/text_file.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/kernel_selection.h"
#include "experiments/cli/places.h"
#include "experiments/foreign/bench_report.h"
#include "experiments/foreign/compile.h"
#include "experiments/runner/case_json.h"
#include "experiments/runner/ceilings.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/project_root.h"
#include "experiments/runner/provenance.h"
#include "gpu/device.h"
#include "report/atomic_file.h"
#include "report/io.h"

namespace splash::cli {
namespace {

namespace fs = std::filesystem;
using namespace experiments;

struct Asked {
  std::string source, cache = "cold", ceilings, out;
  Words sizes, flags;
  BenchOptions options;
  bool json = false;
};

std::map<std::string, int64_t> sizes_of(const Words& words) {
  std::map<std::string, int64_t> sizes;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals), value = equals == std::string::npos ? "" : word.substr(equals + 1);
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    const bool plain = !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789") == std::string::npos;
    if (!plain || error != std::errc() || end != value.data() + value.size() || number < 1)
      throw InvalidArgument(fmt::format("'{}' sets no size; n=1024 does", word));
    sizes[name] = number;
  }
  return sizes;
}

// Words that start a process of the kernel.
Words worker_words(const Asked& asked, const ScratchFolder& folder) {
  require_regular_file("the kernel", asked.source);
  const std::string program = folder.file("kernel");
  const Words compile = compile_words(asked.source, program, asked.flags);
  const int code = run_program(compile, {}, false);
  if (code == 127) throw InvalidArgument(fmt::format("the compiler {} could not be started", compile.front()));
  if (code != 0) throw InvalidArgument(fmt::format("{} does not compile: {} ended with {}", asked.source, compile.front(), code));
  return {program};
}

std::vector<report::Ceiling> ceilings_for(const Asked& asked, const std::string& device) {
  const bool cpu = device == "cpu";
  if (!asked.ceilings.empty()) {
    const report::Report report = report::read_report(asked.ceilings);
    if (report.ceilings.empty()) throw InvalidArgument(fmt::format("{} holds no ceilings", asked.ceilings));
    if (!cpu && report.provenance.gpu != device) {
      throw InvalidArgument(fmt::format("the ceilings of {} are of {}, and the kernel ran on {}", asked.ceilings,
                                        report.provenance.gpu, device));
    }
    return report.ceilings;
  }
  if (cpu) return cpu_ceilings();
  if (gpu::list_devices().empty()) {
    if (front_door_builds_cuda()) gpu::require_device();  // throws NotBuilt
    analysis::ProfiledGpu gpu;
    gpu.machine = analysis::find_machine(device, analysis::read_machines(machines_folder()));
    return analysis::datasheet_ceilings(gpu);
  }
  return measured_ceilings();
}

report::Report report_of(const Asked& asked, const BenchResult& result, const std::string& name,
                         const std::vector<report::Ceiling>& ceilings, report::Provenance provenance) {
  report::Report report = bench_report(result, name, asked.options, ceilings);
  report.title = fmt::format("{} on {}", name, result.kernel.on_cpu() ? provenance.cpu : result.kernel.device);
  report.run_id = new_run_id();
  report.provenance = std::move(provenance);
  if (!result.kernel.on_cpu()) report.provenance.gpu = result.kernel.device;
  report.provenance.seed = static_cast<int64_t>(asked.options.seed);
  report.provenance.input_hashes = fs::path(asked.source).filename().string() + "\n";
  report.provenance.finished = utc_now();
  report.history = fmt::format("{} {}", report.provenance.finished, command_line());
  return report;
}

// The verdict first; empty if the kernel was not believed.
std::vector<analysis::Finding> verdicts(report::Report& report, const BenchResult& result) {
  if (!result.findings.empty()) return {};
  if (result.kernel.on_cpu()) return {analysis::finding_of(analysis::cpu_cases(report).at(0), report.ceilings)};
  const analysis::Multiprocessors machine = machine_of(report).multiprocessors;
  analysis::write_diagnoses(report, machine);
  return analysis::diagnose(analysis::kernel_cases(report).at(0), machine, report.ceilings).findings;
}

void print_result(const BenchResult& result, const std::string& name, const Asked& asked,
                  const std::vector<analysis::Finding>& verdicts) {
  const ForeignKernel& kernel = result.kernel;
  print(fmt::format("{}  {}, {} cache, on {}\n", paint(name, Colour::bold), one_line(kernel.problem()), asked.cache,
                    kernel.on_cpu() ? "the CPU" : one_line(kernel.device)));
  const auto us = [](double seconds) { return short_number(1e6 * seconds); };
  for (const BenchFinding& finding : result.findings)
    print(fmt::format("  {}: {}\n", paint("not believed", Colour::red), finding.sentence));
  if (result.findings.empty()) {
    const auto interval = analysis::median_interval(result.seconds);
    print(fmt::format("  {} us a call, {} to {}: the median of {} calls, each on new inputs; {} us by the clock outside, launch included\n",
                      us(analysis::median(result.seconds)), us(interval.low), us(interval.high), result.seconds.size(),
                      us(result.seconds_outside)));
    if (!std::isnan(result.floor_seconds))
      print(fmt::format("  {} us is the floor: {}\n", us(result.floor_seconds), result.floor_of));
  }
  print(fmt::format("  {} calls checked, {} elements: largest difference {:.2g}, relative {:.2g}\n", result.calls_checked,
                    result.elements_checked, result.max_absolute, result.max_relative));
  for (const analysis::Finding& finding : verdicts)
    print(fmt::format("  {}, up to {:.3g}x: {}\n", paint(analysis::to_string(finding.cause), Colour::yellow), finding.gain, finding.sentence));
}

nlohmann::json to_json(const BenchResult& result, const std::string& name, const std::vector<analysis::Finding>& verdicts) {
  nlohmann::json against = nlohmann::json::array(), found = against;
  for (const BenchFinding& finding : result.findings) against.push_back({{"kind", experiments::to_string(finding.against)}, {"sentence", finding.sentence}});
  for (const analysis::Finding& finding : verdicts)
    found.push_back({{"cause", analysis::to_string(finding.cause)}, {"gain", finding.gain}, {"sentence", finding.sentence}});
  const bool believed = result.findings.empty();
  return {{"implementation", name},
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
          {"findings", found}};
}

}  // namespace

int cmd_bench(const Words& words) {
  CLI::App app;
  prepare(app, "bench",
          "splash bench my_kernel.cu --out my.h5\n"
          "splash bench my_kernel.cpp --set n=1048576 --cache warm\n"
          "splash diagnose my.h5",
          "Times and checks a kernel of yours: a .cu or .cpp that includes splash_bench.h and declares it there, built by nvcc\n"
          "or c++. Each call gets new inputs and poisoned outputs, and all are checked after it. The times are held\n"
          "against a clock outside the kernel's process and against the least time that the declared FLOPs and bytes need.\n"
          "A kernel that fails has no time, and the exit code is 1. Its code is run, with all that you may do yourself.");
  Asked asked;
  app.add_option("kernel", asked.source, "a .cu, .cpp, .cc or .cxx")->required()->type_name("FILE");
  app.add_option("--set", asked.sizes, "a size that the kernel declares: n=1024")->type_name("NAME=N");
  app.add_option("--cache", asked.cache, "of a timed call: cold (flushed before it), or warm (its arrays were read)")
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
  auto* const seed = app.add_option("--seed", asked.options.seed, "of inputs, poison and checks, to repeat a run; else drawn")
                         ->check(CLI::Range(int64_t{0}, int64_t{1} << 52))
                         ->type_name("N");
  app.add_option("--flag", asked.flags, "a further word for the compiler: --flag=-Iinclude")->type_name("WORD");
  app.add_option("--ceilings", asked.ceilings, "a report with ceilings of this GPU or processor (splash ceilings --out), in place of measuring them")
      ->type_name("REPORT");
  app.add_option("-o,--out", asked.out, "the report's file")->type_name("REPORT");
  app.add_flag("--json", asked.json, "one object, in plain units");
  parse(app, words);
  if (!asked.out.empty()) report::prepare_place(asked.out);
  asked.options.sizes = sizes_of(asked.sizes);
  asked.options.cold = asked.cache == "cold";
  if (seed->count() == 0) asked.options.seed = (uint64_t{std::random_device()()} << 20) ^ std::random_device()();

  report::Provenance provenance = collect_provenance({}, {}, command_line());
  provenance.started = utc_now();
  asked.options.threads = provenance.threads;
  const ScratchFolder folder;
  const Words start = worker_words(asked, folder);
  WorkerProcess reference("the reference", start), worker("the kernel", start);
  const std::string name = fs::path(asked.source).stem().string();
  std::vector<report::Ceiling> ceilings;
  const BenchResult result = bench_kernel(
      worker, reference, [&](const std::string& device) { return ceilings = ceilings_for(asked, device); }, asked.options);
  report::Report report = report_of(asked, result, name, ceilings, std::move(provenance));
  const std::vector<analysis::Finding> found = verdicts(report, result);
  if (!asked.out.empty()) report::write_report(asked.out, report);
  if (asked.json) {
    print_json(to_json(result, name, found));
  } else {
    print_result(result, name, asked, found);
  }
  return result.findings.empty() ? kDone : kDiffers;
}

}  // namespace splash::cli
