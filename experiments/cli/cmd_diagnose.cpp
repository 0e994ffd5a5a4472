// splash diagnose: explains why the kernels of a report take their time, and suggests what to try next.

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "analysis/diagnosis.h"
#include "analysis/launches.h"
#include "analysis/next_steps.h"
#include "analysis/scaling.h"
#include "analysis/statistics.h"
#include "core/text.h"
#include "experiments/cli/asked_kernel.h"
#include "experiments/cli/ceilings_view.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/cpu_view.h"
#include "experiments/cli/decode_view.h"
#include "experiments/cli/kernel_selection.h"
#include "experiments/cli/profiled_view.h"
#include "experiments/runner/provenance.h"
#include "report/io.h"

namespace splash::cli {
namespace {

using namespace analysis;

struct Advice {
  std::vector<Clue> clues;
  std::vector<NextStep> steps;
  const KernelCase* faster = nullptr;
};

std::string what_if(const std::string& report, const KernelCase& kernel, const std::string& changes) {
  return fmt::format("{} {}",
                     quoted({"./splash", "what-if", report, kernel.implementation, "--case", kernel.case_id}),
                     changes);
}

void print_diagnosis(const std::string& report, const KernelCase& kernel, const Diagnosis& diagnosis,
                     const Advice& advice) {
  print(fmt::format("{}  {}  {} us  case {}\n", paint(kernel.implementation, Colour::bold),
                    one_line(kernel.problem), short_number(1e6 * kernel.seconds), one_line(kernel.case_id)));
  if (!kernel.warning.empty()) print_item("impossible", Colour::red, ": " + kernel.warning);
  for (const Finding& finding : diagnosis.findings) {
    print_item(to_string(finding.cause), Colour::yellow,
               fmt::format(", {} {:.3g}x: {}", finding.measured ? "measured" : "up to", finding.gain,
                           finding.sentence));
  }
  const std::string stalled = most_stalled(kernel.stalls);
  const bool told = std::any_of(diagnosis.findings.begin(), diagnosis.findings.end(), [&](const Finding& f) {
    return f.sentence.find(stalled) != std::string::npos;
  });
  if (!told) print_item("seen", Colour::none, ": " + stalled);
  if (!diagnosis.ruled_out.empty())
    print_item("not", Colour::none, fmt::format(" {}", fmt::join(diagnosis.ruled_out, "; ")));
  if (!diagnosis.not_known.empty()) {
    print_item(
        "not counted", Colour::none,
        fmt::format(": {} ({})", fmt::join(diagnosis.not_known, ", "),
                    kernel.profiled ? "ncu --set full tells most" : "splash counters --command tells how"));
  }
  for (const Clue& clue : advice.clues) {
    print_item("seen", Colour::none,
               fmt::format(": with {} it takes {:.3g} times as long (case {})", clue.words, clue.time,
                           clue.case_id));
  }
  for (const NextStep& step : advice.steps) {
    print_item("try " + step.changes, Colour::green,
               fmt::format(", predicted {:.3g}x ({:.3g} to {:.3g}):", step.gain, step.low, step.high));
    print(fmt::format("    {}\n", what_if(report, kernel, step.changes)));
  }
  if (advice.faster != nullptr) {
    print_item(
        "see " + advice.faster->implementation, Colour::green,
        fmt::format(", measured {:.3g}x: {}", kernel.seconds / advice.faster->seconds, advice.faster->idea));
  }
  print("\n");
}

// The time that goes when the cause of the verdict goes.
double lost_seconds(const KernelCase& kernel, const Diagnosis& diagnosis) {
  return kernel.seconds * (1 - 1 / diagnosis.findings.front().gain);
}

// The verdicts alone, a kernel a line.
void print_verdicts(const std::vector<KernelCase>& kernels, const std::vector<Diagnosis>& diagnoses,
                    const std::vector<std::size_t>& order) {
  TextTable table({"kernel", "problem", "us", "verdict", "gain", "case"});
  for (const std::size_t i : order) {
    const Finding& verdict = diagnoses[i].findings.front();
    table.add({{kernels[i].implementation, Colour::bold},
               {kernels[i].problem},
               {short_number(1e6 * kernels[i].seconds)},
               {to_string(verdict.cause), Colour::yellow},
               {fmt::format("{} {:.3g}x", verdict.measured ? "measured" : "up to", verdict.gain)},
               {kernels[i].case_id.substr(0, 8), Colour::dim}});
  }
  table.print();
  print(
      "\nWorst first, by the time that the verdict's cause costs. --case ID tells of one all that is known, "
      "--details of each.\n");
}

// Prints the verdicts by ladder, and the errors of the model's predictions.
void print_summary(const std::vector<KernelCase>& kernels, const std::vector<Diagnosis>& diagnoses,
                   const Predictor& predictor) {
  std::map<Cause, std::map<std::string, int>> verdicts;
  std::set<std::string> ladders;
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    const std::string ladder = kernels[i].implementation.substr(0, kernels[i].implementation.find('/'));
    ladders.insert(ladder);
    ++verdicts[diagnoses[i].findings.front().cause][ladder];
  }
  std::vector<std::string> heading{"verdict"};
  heading.insert(heading.end(), ladders.begin(), ladders.end());
  heading.emplace_back("all");
  TextTable table(heading);
  for (auto& [cause, by_ladder] : verdicts) {
    std::vector<Cell> row{{to_string(cause)}};
    int all = 0;
    for (const std::string& ladder : ladders) {
      all += by_ladder[ladder];
      row.push_back({fmt::format("{}", by_ladder[ladder])});
    }
    row.push_back({fmt::format("{}", all)});
    table.add(row);
  }
  table.print();
  const auto tell = [](const char* what, std::vector<double> ratios) {
    for (double& ratio : ratios) ratio = std::abs(1 / ratio - 1);
    if (ratios.empty()) return;
    print(fmt::format("{} {}: half within {:.3g} %, eight of ten within {:.3g} %\n", ratios.size(), what,
                      100 * median(ratios), 100 * quantile(ratios, 0.8)));
  };
  print("\n");
  tell("held-out cases, predicted from other problems of their kernel", predictor.held_out_ratios());
  tell("rungs, predicted from a neighbour cut into their tiles", predictor.recut_ratios());
}

nlohmann::json to_json(const std::string& report, const KernelCase& kernel, const Diagnosis& diagnosis,
                       const Advice& advice) {
  nlohmann::json findings = nlohmann::json::array(), clues = findings, steps = findings, faster;
  for (const Finding& finding : diagnosis.findings) {
    findings.push_back({{"cause", to_string(finding.cause)},
                        {"gain", finding.gain},
                        {"measured", finding.measured},
                        {"sentence", finding.sentence}});
  }
  for (const Clue& clue : advice.clues)
    clues.push_back({{"case_id", clue.case_id}, {"words", clue.words}, {"time", clue.time}});
  for (const NextStep& step : advice.steps) {
    steps.push_back({{"changes", step.changes},
                     {"gain", step.gain},
                     {"low", step.low},
                     {"high", step.high},
                     {"command", what_if(report, kernel, step.changes)}});
  }
  if (advice.faster != nullptr) {
    faster = {{"case_id", advice.faster->case_id},
              {"implementation", advice.faster->implementation},
              {"idea", advice.faster->idea},
              {"gain", kernel.seconds / advice.faster->seconds}};
  }
  return {{"case_id", kernel.case_id},
          {"implementation", kernel.implementation},
          {"problem", kernel.problem},
          {"seconds", kernel.seconds},
          {"impossible", kernel.warning},
          {"warp_stalls", kernel.stalls.shares},
          {"findings", findings},
          {"ruled_out", diagnosis.ruled_out},
          {"seen", clues},
          {"not_known", diagnosis.not_known},
          {"try", steps},
          {"faster", faster}};
}

}  // namespace

int cmd_diagnose(const Words& words) {
  CLI::App app;
  prepare(
      app, "diagnose",
      "splash diagnose data/reports/ladders-h200.h5 --kernels large_dims/0\n"
      "splash diagnose data/reports/ladders-h200.h5 --case 6ad14bbb\n"
      "splash diagnose data/reports/ladders-h200.h5 --json | jq '.kernels[].findings[0].cause'",
      "Why the kernels of a report take the time they take. Of several, a table of verdicts, worst first. "
      "Of one, or\n"
      "with --details: causes, the verdict first, with the gain that each could bring at most, or was "
      "measured to\n"
      "bring; what was ruled out, and what is not known; what to try next, with the gain that the model "
      "predicts,\n"
      "and the fastest kernel of the ladder on the same problem.\n"
      "From counted work, measured ceilings, the report's other cases, and counters where the report has "
      "them.\n"
      "Needs no GPU.");
  std::string path, prefix, case_id, out;
  bool json = false, summary = false, details = false;
  add_kernel_options(app, path, prefix);
  app.add_option("--case", case_id, "only those whose case id starts so")->type_name("ID");
  app.add_option("--write", out, "a report that keeps verdicts and predictions as columns")
      ->type_name("REPORT");
  auto* as_json = app.add_flag("--json", json, "one object: gpu and kernels");
  app.add_flag("--summary", summary, "only how often each verdict is given, and how far predictions are off")
      ->excludes(as_json);
  app.add_flag("--details", details, "of several kernels, too, all that is known of each")->excludes(as_json);
  parse(app, words);

  report::Report report = report::read_report(path);
  if (const auto on_cpu = selected_cpu_cases(report, prefix);
      !on_cpu.empty() && kernel_cases(report).empty()) {
    if (!out.empty() || summary || !case_id.empty())
      throw InvalidArgument(
          "of cases on the CPU there is the verdict alone, without --case, --write and --summary");
    json ? print_json(cpu_findings_json(report, on_cpu)) : print_cpu_findings(report, on_cpu);
    return kDone;
  }
  if (report.find("executed_flops") == nullptr && analysis::holds_decode_steps(report)) {
    if (!out.empty() || summary)
      throw InvalidArgument("of steps of decode there is the verdict alone, without --write and --summary");
    const std::vector<StepReading> steps = selected_steps(report, prefix, case_id);
    json ? print_json(step_findings_json(report, steps)) : print_step_findings(report, steps);
    return kDone;
  }
  std::vector<KernelCase> selected = selected_kernels(report, prefix, case_id);
  const analysis::Machine machine = machine_of(report);
  const std::vector<KernelCase> kernels = described_kernels(std::move(selected), machine.multiprocessors,
                                                            report.ceilings),
                                all = described_kernels(selected_kernels(report, ""), machine.multiprocessors,
                                                        report.ceilings);
  const Predictor predictor(all, {machine.multiprocessors, report.ceilings});
  // Counts as what-if does: by the kernel's declaration if there is one.
  const CountChange count = [&](const KernelCase& kernel, const Change& change) {
    AskedChanges asked{.problem = {}, .cut = change, .words = ""};
    if (change.batch > 1) asked.problem["batch"] = change.batch * kernel.shape.batch;
    asked.cut.batch = 1;
    return asked_kernel(report, kernel, asked, machine, machine).kernel;
  };
  if (!out.empty()) {
    write_diagnoses(report, machine.multiprocessors);
    report.history +=
        fmt::format("{}{} {}", report.history.empty() ? "" : "\n", experiments::utc_now(), command_line());
    report::write_report(out, report);
    return kDone;
  }
  std::vector<Diagnosis> diagnoses;
  for (const KernelCase& kernel : kernels)
    diagnoses.push_back(diagnose(kernel, machine.multiprocessors, report.ceilings, all));
  if (summary) {
    print_summary(kernels, diagnoses, predictor);
    return kDone;
  }
  std::vector<std::size_t> order(kernels.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  nlohmann::json list = nlohmann::json::array();
  if (!json) {
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return lost_seconds(kernels[a], diagnoses[a]) > lost_seconds(kernels[b], diagnoses[b]);
    });
    print(fmt::format("{}{}", origin_line(report, kernels), questioned_lines(report.ceilings)));
    if (kernels.size() > 1 && !details) {
      print(impossible_lines(kernels) + "\n");
      print_verdicts(kernels, diagnoses, order);
      return kDone;
    }
    print("\n");
  }
  for (const std::size_t i : order) {
    const KernelCase& kernel = kernels[i];
    const Advice advice{clues_of(kernel, all),
                        next_steps(kernel, diagnoses[i], predictor, machine.multiprocessors, count),
                        faster_rung(kernel, all)};
    if (json) {
      list.push_back(to_json(path, kernel, diagnoses[i], advice));
    } else {
      print_diagnosis(path, kernel, diagnoses[i], advice);
    }
  }
  if (json) print_json({{"gpu", report.provenance.gpu}, {"kernels", list}});
  return kDone;
}

}  // namespace splash::cli
