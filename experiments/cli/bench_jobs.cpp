// The cases of `splash bench`: what is built, started and run for them.

#include "experiments/cli/bench_jobs.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <span>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/machine.h"
#include "analysis/profile_import.h"
#include "core/scratch_folder.h"
#include "core/text_file.h"
#include "experiments/cli/places.h"
#include "experiments/foreign/compile.h"
#include "experiments/foreign/flashinfer.h"
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

std::string extension(const BenchAsked& asked) {
  return fs::path(asked.source).extension().string();
}

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

std::string compiled(const BenchAsked& asked, const ScratchFolder& folder) {
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

std::vector<Job> jobs_of(const BenchAsked& asked, const ScratchFolder& folder) {
  require_regular_file("the kernel", asked.source);
  std::vector<Job> jobs;
  if (extension(asked) == ".json") {
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
  const auto combinations = sizes_of(asked.sizes);
  const Words start =
      extension(asked) == ".py" ? worker_in_python(asked.source) : Words{compiled(asked, folder)};
  for (const auto& sizes : combinations)
    jobs.push_back({.kernel = start, .reference = start, .sizes = sizes});
  return jobs;
}

std::vector<report::Ceiling> ceilings_for(const BenchAsked& asked, const std::string& device) {
  const bool cpu = device == "cpu";
  if (!asked.ceilings.empty()) {
    const report::Report report = report::read_report(asked.ceilings);
    if (report.ceilings.empty()) throw InvalidArgument(fmt::format("{} holds no ceilings", asked.ceilings));
    if (!cpu && !analysis::are_all(report.provenance.gpu, device)) {
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

// Runs the jobs, one after another; nothing of another's kernel runs meanwhile.
class Runner {
 public:
  Runner(const BenchAsked& asked, const ScratchFolder& folder)
      : asked_(asked),
        folder_(folder),
        environment_{{"TMPDIR", folder.string()}, {"PYTHONPATH", python_path()}} {}

  BenchResult operator()(const Job& job) {
    BenchOptions options = asked_.options;
    options.sizes = job.sizes;
    options.time_reference = !asked_.traces.empty();
    if (extension(asked_) == ".cu" && !asked_.no_counts)
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

  const BenchAsked& asked_;
  const ScratchFolder& folder_;
  CountingPtx ptx_{};
  std::map<std::string, std::string> environment_;
  std::vector<report::Ceiling> ceilings_{};
};

}  // namespace

BenchRun run_bench(const BenchAsked& asked) {
  const ScratchFolder folder;
  const std::vector<Job> jobs = jobs_of(asked, folder);
  Runner run(asked, folder);
  BenchRun done;
  const bool flashinfer = jobs.front().workload.has_value();
  const std::string definition = flashinfer ? name_in(asked.source, "the definition") : "",
                    solution = flashinfer ? name_in(asked.solution, "the solution") : "";
  for (const Job& job : jobs) {
    Evaluated evaluated{.hardware = cpu_model()};
    try {
      BenchResult result = run(job);
      const std::string told = result.kernel.name;
      done.cases.push_back({.implementation = told.empty() ? fs::path(asked.source).stem().string() : told,
                            .workload = flashinfer ? job.workload->uuid : "",
                            .result = std::move(result)});
      evaluated.result = &done.cases.back().result;
      evaluated.libraries = evaluated.result->kernel.libraries;
      if (!evaluated.result->kernel.on_cpu()) evaluated.hardware = evaluated.result->kernel.device;
    } catch (const Error& error) {
      if (asked.traces.empty()) throw;
      evaluated.failure = error.what();
      narrate("{}: {}", job.workload->uuid, error.what());
    }
    if (flashinfer)
      done.traces += trace_of(definition, solution, *job.workload, evaluated, utc_now()).dump() + "\n";
  }
  done.ceilings = run.ceilings();
  done.all_believed = done.cases.size() == jobs.size() &&
                      std::all_of(done.cases.begin(), done.cases.end(),
                                  [](const BenchedCase& benched) { return benched.result.findings.empty(); });
  return done;
}

}  // namespace splash::cli
