// splash import: makes a report of what Nsight Compute printed about any kernels.

#include <cmath>
#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/diagnosis.h"
#include "analysis/impossible.h"
#include "analysis/profile_import.h"
#include "build_info.h"
#include "core/text.h"
#include "experiments/cli/ceilings_view.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/kernel_selection.h"
#include "experiments/cli/ncu_program.h"
#include "experiments/cli/profiled_view.h"
#include "experiments/runner/case_json.h"
#include "experiments/runner/hash.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/project_root.h"
#include "experiments/runner/provenance.h"
#include "report/atomic_file.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using namespace analysis;
using analysis::Machine;

struct ImportOptions {
  Words tables;
  std::string gpu, ceilings, out;
  bool json = false;
};

// Kernels of several tables stay apart: they may be of a program before and after a change.
std::vector<NcuKernel> kernels_of(const Words& tables) {
  std::vector<NcuKernel> kernels;
  for (const std::string& table : tables) {
    const std::string name = std::filesystem::path(table).filename().string();
    NcuResults results = [&] {
      if (!is_ncu_report(table)) return read_ncu(table);
      try {
        return parse_ncu(printed_by_ncu(table));
      } catch (const InvalidArgument& error) {
        throw InvalidArgument(fmt::format("{}: {}", table, error.what()));
      }
    }();
    if (!results.refusal.empty())
      throw InvalidArgument(fmt::format("{} holds no counters; ncu says: {}", table, results.refusal));
    for (NcuKernel& kernel : results.kernels) {
      if (tables.size() > 1)
        kernel.process += fmt::format("{}of {}", kernel.process.empty() ? "" : " ", name);
      kernels.push_back(std::move(kernel));
    }
  }
  return kernels;
}

// Ceilings that were measured on the same GPU, in place of its data sheet's figures.
std::vector<report::Ceiling> ceilings_of(const std::string& path, const ProfiledGpu& gpu) {
  if (path.empty()) return datasheet_ceilings(gpu);
  const report::Report report = report::read_report(path);
  if (report.ceilings.empty()) throw InvalidArgument(fmt::format("{} holds no ceilings", path));
  if (report.provenance.gpu != gpu.name) {
    throw InvalidArgument(fmt::format("the ceilings of {} are of {}, and the table is of {}", path,
                                      report.provenance.gpu, gpu.name));
  }
  return report.ceilings;
}

report::Provenance provenance_of(const Words& tables, const ProfiledGpu& gpu) {
  report::Provenance provenance;
  provenance.commit = build::git_commit();
  provenance.dirty = build::git_state() != "clean";
  provenance.argv = command_line();
  provenance.gpu = gpu.name;
  provenance.host = provenance.cpu = provenance.driver = provenance.clocks = "not told by a profiler's table";
  provenance.toolchain = experiments::toolchain();
  for (const std::string& table : tables)
    provenance.input_hashes += fmt::format("{}\n", std::filesystem::path(table).filename().string());
  provenance.started = provenance.finished = experiments::utc_now();
  return provenance;
}

nlohmann::json to_json(const KernelCase& kernel, const ProfiledCase& profiled, const Multiprocessors& machine,
                       const std::vector<report::Ceiling>& ceilings) {
  const auto number = [](double value) { return experiments::plain_number(value); };
  return {{"case_id", kernel.case_id},
          {"implementation", kernel.implementation},
          {"problem", kernel.problem},
          {"process", profiled.process},
          {"launches", profiled.launches},
          {"seconds", number(kernel.seconds)},
          {"least_seconds", number(profiled.least)},
          {"most_seconds", number(profiled.most)},
          {"executed_flops", number(kernel.flops)},
          {"dram_bytes", number(kernel.dram_bytes)},
          {"resources", resources_json(kernel, machine, ceilings)},
          {"impossible", kernel.warning}};
}

void tell_of_times(const std::vector<ProfiledCase>& cases) {
  for (const ProfiledCase& c : cases) {
    if (c.seconds.empty()) {
      experiments::narrate("the table tells no time of {}, so nothing can be said of it",
                           one_line(c.implementation));
    } else if (c.launches > static_cast<int64_t>(c.seconds.size()) && c.seconds.size() == 1) {
      experiments::narrate("of {} launches of {} the table has the average, no median", c.launches,
                           one_line(c.implementation));
    }
  }
}

}  // namespace

int cmd_import(const Words& words) {
  CLI::App app;
  prepare(app, "import",
          "splash import ncu.csv --gpu \"NVIDIA H200\" --out my.h5\n"
          "splash import profile.ncu-rep --out my.h5\n"
          "splash import before.csv after.csv --gpu \"NVIDIA H200\" --ceilings ceilings.h5 --out my.h5",
          "Makes a report of what Nsight Compute printed about any kernels (ncu --csv, any page): a case per "
          "kernel, "
          "grid\n"
          "and block, of all its launches. splash analyze, diagnose and what-if, the plots and the page read "
          "it. What "
          "cannot\n"
          "be in the table is said. Without measured ceilings the data sheet's figures are what shares are "
          "of. Needs no "
          "GPU.");
  ImportOptions options;
  app.add_option("tables", options.tables, "what ncu --csv printed, or an .ncu-rep where ncu is installed")
      ->required()
      ->type_name("TABLE");
  app.add_option("--gpu", options.gpu, "the GPU, as its driver names it, where the table does not tell")
      ->type_name("NAME");
  app.add_option("--ceilings", options.ceilings,
                 "a report with measured ceilings of that GPU (splash ceilings --out)")
      ->type_name("REPORT");
  app.add_option("-o,--out", options.out, "the report's file")->required()->type_name("REPORT");
  app.add_flag("--json", options.json, "one object: gpu and kernels, in plain units");
  parse(app, words);
  report::prepare_place(options.out);

  const std::vector<Machine> machines = analysis::read_machines(experiments::machines_folder());
  const std::vector<NcuKernel> kernels = kernels_of(options.tables);
  std::vector<ProfiledCase> cases = profiled_cases(kernels);
  const ProfiledGpu gpu = gpu_of(kernels, cases, options.gpu, machines);
  for (ProfiledCase& c : cases) c.warning = fmt::format("{}", fmt::join(impossible(c, gpu, machines), "; "));
  report::Report report = profiled_report(cases, gpu, ceilings_of(options.ceilings, gpu));
  report.title = fmt::format("Profiled kernels of {}", gpu.name);
  report.run_id = experiments::new_run_id();
  report.provenance = provenance_of(options.tables, gpu);
  write_diagnoses(report, *gpu.multiprocessors);  // the page tells them
  report::write_report(options.out, report);

  tell_of_times(cases);
  if (!gpu.machine) {
    experiments::narrate(
        "no file of data/machines describes {}: its peaks are not known, so shares are the profiler's alone, "
        "and "
        "nothing is held against a data sheet",
        one_line(gpu.name));
  }
  const std::vector<KernelCase> imported = kernel_cases(report);
  if (options.json) {
    nlohmann::json list = nlohmann::json::array();
    for (const KernelCase& kernel : imported)
      list.push_back(to_json(kernel, cases[static_cast<std::size_t>(kernel.row)], *gpu.multiprocessors,
                             report.ceilings));
    print_json({{"gpu", gpu.name}, {"kernels", list}});
    return kDone;
  }
  print(fmt::format("{}\n{}{}\n", one_line(gpu.name), questioned_lines(report.ceilings),
                    impossible_lines(imported)));
  profiled_table(imported, *gpu.multiprocessors, report.ceilings).print();
  return kDone;
}

}  // namespace splash::cli
