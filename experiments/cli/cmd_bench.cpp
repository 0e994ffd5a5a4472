// splash bench: times and checks a kernel of others, and makes a report of it.

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <random>
#include <span>
#include <sstream>

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
#include "experiments/foreign/flashinfer.h"
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
  std::string source, cache = "cold", ceilings, out, solution, workloads, traces;
  Words sizes, flags;
  BenchOptions options;
  bool json = false, no_counts = false;

  std::string extension() const { return fs::path(source).extension().string(); }
};

// One case: the processes to start for it, and its sizes.
struct Job {
  Words kernel, reference;
  std::map<std::string, int64_t> sizes{};
  std::optional<FlashinferWorkload> workload{};
};

// Every combination of the sizes: "n=1024,2048".
std::vector<std::map<std::string, int64_t>> sizes_of(const Words& words) {
  std::vector<std::map<std::string, int64_t>> all(1);
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    const std::string name = word.substr(0, equals);
    std::istringstream values(equals == std::string::npos ? "" : word.substr(equals + 1));
    std::vector<std::map<std::string, int64_t>> more;
    for (std::string value; std::getline(values, value, ',');) {
      int64_t number = 0;
      const char* const end = value.data() + value.size();
      const auto read = std::from_chars(value.data(), end, number);
      const bool plain = std::all_of(name.begin(), name.end(),
                                     [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
      if (name.empty() || !plain || read.ec != std::errc() || read.ptr != end || number < 1)
        throw InvalidArgument(fmt::format("'{}' sets no size; n=1024 does, and n=1024,2048 sets two", word));
      for (auto sizes : all) {
        sizes[name] = number;
        more.push_back(std::move(sizes));
      }
    }
    constexpr std::size_t kMostCases = 256;
    if (more.empty() || more.size() > kMostCases)
      throw InvalidArgument(fmt::format("'{}' sets no size, or more than {} cases", word, kMostCases));
    all = std::move(more);
  }
  return all;
}

Words worker_in_python(const std::string& source) {
  const char* const peer = std::getenv("SPLASH_PEER_PYTHON");
  const std::string python = peer != nullptr && *peer != '\0' ? peer : python_program();
  return {python.empty() ? "python3" : python, "-m", "splash_laboratory.kernels.worker", source};
}

std::string compiled(const Asked& asked, const ScratchFolder& folder) {
  const std::string program = folder.file("kernel");
  const Words compile = compile_words(asked.source, program, asked.flags);
  constexpr int kNotStarted = 127;
  const int code = run_program(compile, {}, false);
  if (code == kNotStarted)
    throw InvalidArgument(fmt::format("the compiler {} could not be started", compile.front()));
  if (code != 0)
    throw InvalidArgument(
        fmt::format("{} does not compile: {} ended with {}", asked.source, compile.front(), code));
  return program;
}

std::vector<Job> jobs_of(const Asked& asked, const ScratchFolder& folder) {
  require_regular_file("the kernel", asked.source);
  std::vector<Job> jobs;
  if (asked.extension() == ".json") {
    if (asked.solution.empty() || asked.workloads.empty() || !asked.sizes.empty())
      throw InvalidArgument(
          "a definition of flashinfer-bench needs --solution and --workloads, and takes no --set");
    for (FlashinferWorkload& workload : read_workloads(asked.workloads)) {
      const std::string file = folder.file(fmt::format("workload-{}.json", jobs.size()));
      nlohmann::json with_root = workload.workload;
      with_root["root"] = fs::absolute(asked.workloads).parent_path().string();
      const std::string text = with_root.dump();
      report::write_file_atomically(file, std::as_bytes(std::span(text)));
      Words reference = worker_in_python(asked.source), kernel;
      reference.insert(reference.end(), {"--workload", file});
      kernel = reference;
      kernel.insert(kernel.end(), {"--solution", asked.solution});
      jobs.push_back({.kernel = kernel, .reference = reference, .workload = std::move(workload)});
    }
    return jobs;
  }
  if (!asked.solution.empty() || !asked.workloads.empty() || !asked.traces.empty())
    throw InvalidArgument(
        "--solution, --workloads and --traces are of a definition of flashinfer-bench, a .json");
  const Words start =
      asked.extension() == ".py" ? worker_in_python(asked.source) : Words{compiled(asked, folder)};
  for (auto& sizes : sizes_of(asked.sizes))
    jobs.push_back({.kernel = start, .reference = start, .sizes = sizes});
  return jobs;
}

std::vector<report::Ceiling> ceilings_for(const Asked& asked, const std::string& device) {
  const bool cpu = device == "cpu";
  if (!asked.ceilings.empty()) {
    const report::Report report = report::read_report(asked.ceilings);
    if (report.ceilings.empty()) throw InvalidArgument(fmt::format("{} holds no ceilings", asked.ceilings));
    if (!cpu && report.provenance.gpu != device) {
      throw InvalidArgument(fmt::format("the ceilings of {} are of {}, and the kernel ran on {}",
                                        asked.ceilings, report.provenance.gpu, device));
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

report::Report report_of(const Asked& asked, const std::vector<BenchedCase>& cases,
                         const std::vector<report::Ceiling>& ceilings, report::Provenance provenance) {
  const ForeignKernel& kernel = cases.front().result.kernel;
  report::Report report = bench_report(cases, asked.options, ceilings);
  report.title =
      fmt::format("{} on {}", cases.front().implementation, kernel.on_cpu() ? provenance.cpu : kernel.device);
  report.run_id = new_run_id();
  report.provenance = std::move(provenance);
  if (!kernel.on_cpu()) report.provenance.gpu = kernel.device;
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
  const analysis::Multiprocessors machine = machine_of(report).multiprocessors;
  analysis::write_diagnoses(report, machine);
  for (const analysis::KernelCase& kernel : kernels)
    all[static_cast<std::size_t>(kernel.row)] =
        analysis::diagnose(kernel, machine, report.ceilings, kernels).findings;
  return all;
}

std::string time_text(double seconds) {
  constexpr double kMilli = 1e-3, kMicro = 1e-6;
  return seconds >= 10 * kMilli ? short_number(seconds / kMilli) + " ms"
                                : short_number(seconds / kMicro) + " us";
}

void print_case(const BenchedCase& benched, const Asked& asked,
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

// Runs the jobs, one after another; nothing of another's kernel runs meanwhile.
class Runner {
 public:
  Runner(const Asked& asked, const ScratchFolder& folder)
      : asked_(asked),
        folder_(folder),
        environment_{{"TMPDIR", folder.string()}, {"PYTHONPATH", python_path()}} {}

  BenchResult operator()(const Job& job) {
    BenchOptions options = asked_.options;
    options.sizes = job.sizes;
    options.time_reference = !asked_.traces.empty();
    if (asked_.extension() == ".cu" && !asked_.no_counts)
      options.counting = [&](int capability) { return counting(capability); };
    WorkerProcess reference("the reference", job.reference, environment_),
        worker("the kernel", job.kernel, environment_);
    return bench_kernel(
        worker, reference,
        [&](const std::string& device) {
          if (ceilings_.empty()) ceilings_ = ceilings_for(asked_, device);
          return ceilings_;
        },
        options);
  }

  const std::vector<report::Ceiling>& ceilings() const { return ceilings_; }

 private:
  CountingPtx counting(int capability) {
    if (!ptx_.text.empty()) return ptx_;
    const std::string file = folder_.file("kernel.ptx");
    const Words compile = counting_words(asked_.source, file, capability, asked_.flags);
    if (run_program(compile, {}, true) != 0)
      throw Error(fmt::format("{} makes no PTX of it to count in", compile.front()));
    constexpr int64_t kMostPtx = int64_t{256} << 20;
    return ptx_ = with_counting(read_text_file("the PTX", file, kMostPtx));
  }

  const Asked& asked_;
  const ScratchFolder& folder_;
  CountingPtx ptx_{};
  std::map<std::string, std::string> environment_;
  std::vector<report::Ceiling> ceilings_{};
};

// The cases that were run; of flashinfer-bench's workloads also a trace each.
std::vector<BenchedCase> run_jobs(const Asked& asked, const std::vector<Job>& jobs, Runner& run,
                                  std::string& traces) {
  std::vector<BenchedCase> cases;
  const bool flashinfer = jobs.front().workload.has_value();
  const std::string definition = flashinfer ? name_in(asked.source, "the definition") : "",
                    solution = flashinfer ? name_in(asked.solution, "the solution") : "";
  for (const Job& job : jobs) {
    Evaluated evaluated{.hardware = cpu_model()};
    try {
      BenchResult result = run(job);
      const std::string told = result.kernel.name;
      cases.push_back({.implementation = told.empty() ? fs::path(asked.source).stem().string() : told,
                       .workload = flashinfer ? job.workload->uuid : "",
                       .result = std::move(result)});
      evaluated.result = &cases.back().result;
      evaluated.libraries = evaluated.result->kernel.libraries;
      if (!evaluated.result->kernel.on_cpu()) evaluated.hardware = evaluated.result->kernel.device;
    } catch (const Error& error) {
      if (asked.traces.empty()) throw;
      evaluated.failure = error.what();
      narrate("{}: {}", job.workload->uuid, error.what());
    }
    if (flashinfer)
      traces += trace_of(definition, solution, *job.workload, evaluated, utc_now()).dump() + "\n";
  }
  return cases;
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
          "inputs and poisoned outputs, and all are checked after it. The times are held\n"
          "against a clock outside the kernel's process and against the least time that the declared FLOPs "
          "and bytes need.\n"
          "A kernel that fails has no time, and the exit code is 1. Its code is run, with all that you may "
          "do yourself.");
  Asked asked;
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
  app.add_option("--ceilings", asked.ceilings,
                 "a report with ceilings of this GPU or processor (splash ceilings --out), in place of "
                 "measuring them")
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
  const ScratchFolder folder;
  const std::vector<Job> jobs = jobs_of(asked, folder);
  Runner run(asked, folder);
  std::string traces;
  const std::vector<BenchedCase> cases = run_jobs(asked, jobs, run, traces);
  if (!asked.traces.empty()) report::write_file_atomically(asked.traces, std::as_bytes(std::span(traces)));
  if (cases.empty()) return kDiffers;
  report::Report report = report_of(asked, cases, run.ceilings(), std::move(provenance));
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
  const bool believed =
      cases.size() == jobs.size() &&
      std::all_of(cases.begin(), cases.end(), [](const BenchedCase& c) { return c.result.findings.empty(); });
  return believed ? kDone : kDiffers;
}

}  // namespace splash::cli
