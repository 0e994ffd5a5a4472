// splash diagnose: why the kernels of a report take the time they take.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/diagnosis.h"
#include "analysis/report/io.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/kernel_selection.h"

namespace splash::cli {
namespace {

using namespace analysis;

void print_diagnosis(const KernelCase& kernel, const Diagnosis& diagnosis) {
  print(fmt::format("{}  {}  {} us\n", paint(kernel.implementation, Colour::bold), kernel.problem,
                    short_number(1e6 * kernel.seconds)));
  for (const Finding& finding : diagnosis.findings) {
    print(fmt::format("  {}, up to {:.3g}x: {}\n", paint(to_string(finding.cause), Colour::yellow),
                      finding.gain, finding.sentence));
  }
  if (!diagnosis.ruled_out.empty())
    print(fmt::format("  not {}\n", fmt::join(diagnosis.ruled_out, "; not ")));
  print("\n");
}

nlohmann::json to_json(const KernelCase& kernel, const Diagnosis& diagnosis) {
  nlohmann::json findings = nlohmann::json::array();
  for (const Finding& finding : diagnosis.findings) {
    findings.push_back(
        {{"cause", to_string(finding.cause)}, {"gain", finding.gain}, {"sentence", finding.sentence}});
  }
  return {{"case_id", kernel.case_id}, {"implementation", kernel.implementation},
          {"problem", kernel.problem}, {"seconds", kernel.seconds},
          {"findings", findings},      {"ruled_out", diagnosis.ruled_out}};
}

}  // namespace

int cmd_diagnose(const Words& words) {
  CLI::App app;
  prepare(
      app, "diagnose",
      "splash diagnose data/reports/ladders-h200.h5 --kernels large_dims/0\n"
      "splash diagnose data/reports/ladders-h200.h5 --json | jq '.kernels[].findings[0].cause'",
      "Why the kernels of a report take the time they take: causes, the verdict first, with the gain that "
      "each could\n"
      "bring at most, and what was ruled out. From counted work and measured ceilings, not from counters. "
      "Needs no GPU.");
  std::string path, prefix;
  bool json = false;
  add_kernel_options(app, path, prefix);
  app.add_flag("--json", json, "one object: gpu and kernels");
  parse(app, words);

  const Report report = read_report(path);
  const std::vector<KernelCase> kernels = selected_kernels(report, prefix);
  const Multiprocessors machine = machine_of(report).multiprocessors;
  nlohmann::json list = nlohmann::json::array();
  if (!json) print(fmt::format("{}, commit {}\n\n", report.provenance.gpu, report.provenance.commit));
  for (const KernelCase& kernel : kernels) {
    const Diagnosis diagnosis = diagnose(kernel, machine, report.ceilings);
    if (json) {
      list.push_back(to_json(kernel, diagnosis));
    } else {
      print_diagnosis(kernel, diagnosis);
    }
  }
  if (json) print_json({{"gpu", report.provenance.gpu}, {"kernels", list}});
  return kDone;
}

}  // namespace splash::cli
