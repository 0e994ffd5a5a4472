// splash reproduce: runs every experiment that is marked for it, and gives every claim a verdict.

#include <filesystem>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "experiments/claims/judge.h"
#include "experiments/cli/claims_view.h"
#include "experiments/cli/places.h"
#include "experiments/cli/run_options.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/project_root.h"
#include "report/atomic_file.h"

namespace splash::cli {

using namespace experiments;

namespace {

std::vector<Definition> reproducible_definitions(const std::vector<Claim>& claims) {
  std::vector<Definition> definitions;
  for (const std::string& file : all_definition_files()) {
    Definition definition = read_definition(file);
    if (!definition.reproduce) continue;
    require_known_claims(definition, claims);
    definitions.push_back(std::move(definition));
  }
  if (definitions.empty()) {
    throw InvalidArgument(
        fmt::format("no definition in {}/experiments has reproduce = true", project_root()));
  }
  return definitions;
}

// Runs a module of the Python laboratory on the report: it makes a folder of plots or a page. The report is
// complete without these, so a failure is only reported; then returns "".
std::string made_by(const std::string& module, const std::string& report, const std::string& output,
                    const Words& more = {}) {
  const std::string python = python_program();
  if (python.empty()) {
    narrate("no {}: SPLASH_PYTHON is not set and the project has no .venv (./splash makes one)", output);
    return "";
  }
  narrate("making {}", output);
  Words words{python, "-m", "splash_laboratory." + module, report, "--out", output};
  words.insert(words.end(), more.begin(), more.end());
  const int code = run_program(words, {{"PYTHONPATH", python_path()}}, false);
  if (code == 0) return output;
  if (code == 127) {
    narrate("no {}: {} could not be started", output, python);
  } else {
    narrate("no {}: splash_laboratory.{} ended with code {}", output, module, code);
  }
  return "";
}

// What the page shows beside the run: the project's recorded reports of GPU kernels and language models.
Words recorded_on_gpus() {
  Words words;
  for (const char* name :
       {"ladders-h200.h5", "flagship-h200.h5", "model-perplexity-h100.h5", "model-conversion-h100.h5"}) {
    const std::string report = fmt::format("{}/data/reports/{}", project_root(), name);
    if (std::filesystem::exists(report)) words.insert(words.end(), {"--recorded", report});
  }
  return words;
}

}  // namespace

int cmd_reproduce(const Words& words) {
  CLI::App app;
  prepare(
      app, "reproduce",
      "splash reproduce\n"
      "splash reproduce --full --out out/full\n"
      "splash reproduce --resume",
      "Runs every experiment with reproduce = true and judges every claim of data/claims. Writes report.h5,\n"
      "claims.md, plots/ and report.html into the folder. A refuted claim of a source is a finding, not a "
      "failure: the "
      "exit\n"
      "code is 1 only where a verdict differs from the one that this project has recorded.");
  std::string out = "out/reproduce";
  bool full = false;
  RunFlags flags;
  app.add_flag("--full", full, "full profiles instead of quick ones");
  app.add_option("--out", out, "the folder to write into (out/reproduce)")->type_name("DIR");
  add_run_flags(app, flags);
  parse(app, words);

  const std::vector<Claim> claims = read_claims(claims_folder());
  RunRequest request;
  request.definitions = reproducible_definitions(claims);
  request.quick = !full;
  request.report_path = out + "/report.h5";
  request.title = fmt::format("Adaptive Splash: {} experiments, {} profile", request.definitions.size(),
                              full ? "full" : "quick");
  apply(flags, "reproduce", words, request);
  request.judge = [&](report::Report& report) {
    report.claims = judge_all(claims, request.definitions, report);
  };

  for (const char* name : {"/report.h5", "/claims.md", "/report.html", "/plots/plot.png"})
    report::prepare_place(out + name);
  const RunOutcome outcome = run(request);
  if (outcome.interrupted) return kInterrupted;
  const std::string markdown = claims_markdown("Claims and verdicts", outcome.report.claims);
  report::write_file_atomically(out + "/claims.md", std::as_bytes(std::span(markdown)));
  const std::string plots = made_by("plots", request.report_path, out + "/plots");
  const std::string page = made_by("page", request.report_path, out + "/report.html", recorded_on_gpus());

  const Surprises sentences = surprises(claims, outcome.report.claims);
  if (flags.json) {
    nlohmann::json object = outcome_json(request.report_path, outcome, sentences);
    object["plots"] = plots.empty() ? nlohmann::json(nullptr) : nlohmann::json(plots);
    object["page"] = page.empty() ? nlohmann::json(nullptr) : nlohmann::json(page);
    object["claims_page"] = out + "/claims.md";
    print_json(object);
  } else {
    claims_table(outcome.report.claims).print();
    print(fmt::format("\n{}\nreport  {}\nclaims  {}/claims.md\n", count_verdicts(outcome.report.claims),
                      request.report_path, out));
    if (!plots.empty()) print(fmt::format("plots   {}\n", plots));
    if (!page.empty()) print(fmt::format("page    {}\n", page));
  }
  return report_surprises(sentences);
}

}  // namespace splash::cli
