// splash tune kernels: finds the fastest of the kernels that compute the same on this GPU, and caches what it
// finds.

#include <algorithm>
#include <set>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/value.h"
#include "experiments/tuning/kernels.h"
#include "gpu/device.h"
#include "report/atomic_file.h"

namespace splash::cli {
namespace {

using namespace experiments;

constexpr const char* kTuneExamples =
    "splash tune kernels flagship q_len=16384 kv_len=16384 q_heads=16 kv_heads=16 mask=causal\n"
    "splash tune kernels flagship q_len=4096 kv_len=4096 --workload sink --backward --budget 40\n"
    "splash tune kernels large_dims head_dim=4096 q_len=256 kv_len=256 dtype=float32\n"
    "splash tune kernels kascade q_len=8192 kv_len=8192 head_dim=128 block=256\n"
    "splash tune kernels --list";
constexpr const char* kTuneWhat =
    "Measures on this GPU, for one problem, what computes the same: the candidates of a rung that chooses, "
    "or "
    "the\n"
    "flagship's knobs. What is faster than today's choice beyond the noise is kept in a file that the "
    "library, "
    "the\n"
    "program and the Python package read; SPLASH_TUNED=off, or =FILE for another file, is heeded by all of "
    "them.\n"
    "Nothing else should run on the GPU.";

struct TuneOptions {
  Words subject_and_problem;
  std::string workload = "gaussian", out;
  double budget = 20;
  bool backward = false, dry_run = false, list = false, json = false;
};

void declare_tune(CLI::App& app, TuneOptions& o) {
  app.add_option(
         "problem", o.subject_and_problem,
         "flagship, kascade or large_dims; then parameters of the problem, as an experiment names them")
      ->type_name("SUBJECT NAME=VALUE");
  app.add_option("--budget", o.budget, "seconds of measuring, for all of it (20)")->type_name("SECONDS");
  app.add_option("--workload", o.workload, "the inputs: gaussian, clustered, local, sink, ties (gaussian)")
      ->type_name("KIND");
  app.add_flag("--backward", o.backward, "the flagship's backward as well");
  app.add_option("--out", o.out, "the file that is written and listed (the user's cache folder)")
      ->type_name("FILE");
  app.add_flag("--dry-run", o.dry_run, "writes nothing");
  app.add_flag("--list", o.list,
               "what the file holds, and whether it counts here, as without a subject; needs no GPU");
  app.add_flag("--json", o.json, "one object in place of tables");
}

std::string tuned_file_of(const TuneOptions& o) {
  std::string path = o.out.empty() ? gpu::tuned_path() : o.out;
  if (!path.empty() || o.dry_run || o.list) return path;
  throw InvalidArgument(
      "there is no file for what is tuned: SPLASH_TUNED is off or HOME is not set; name one with --out");
}

Parameters tuned_problem_of(const std::string& subject, std::span<const std::string> settings) {
  Parameters problem = tuned_defaults(subject);
  const std::vector<ParameterInfo> declared = problem_parameters();
  std::set<std::string> seen;
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    const auto info = std::ranges::find_if(declared, [&](const auto& d) { return d.name == name; });
    if (equals == std::string::npos || info == declared.end()) {
      std::string names;
      for (const auto& d : declared) names += (names.empty() ? "" : ", ") + d.name;
      throw InvalidArgument(
          fmt::format("'{}' is not NAME=VALUE with a parameter's name: {}", setting, names));
    }
    if (!seen.insert(name).second)
      throw InvalidArgument(fmt::format("{} is given twice; it takes one value", name));
    problem[name] = parsed(*info, setting.substr(equals + 1));
  }
  return problem;
}

// --- what was measured ---

Colour colour_of_difference(BesideDefault difference) {
  return difference == BesideDefault::faster   ? Colour::green
         : difference == BesideDefault::slower ? Colour::red
                                               : Colour::none;
}

void print_stage(const TuneStage& stage) {
  TextTable table({"candidate", "us", "99 %", "to default", "99 %", "samples", ""});
  const auto& candidates = stage.result.candidates;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const CandidateResult& c = candidates[i];
    const auto us = [](double seconds) { return short_number(1e6 * seconds); };
    table.add({{c.name, i == stage.result.best ? Colour::bold : Colour::none},
               {us(c.median)},
               {fmt::format("{} to {}", us(c.interval.low), us(c.interval.high))},
               {fmt::format("{:.3f}", c.ratio)},
               {fmt::format("{:.3f} to {:.3f}", c.ratio_interval.low, c.ratio_interval.high)},
               {fmt::format("{}", c.seconds.size())},
               {i == 0 ? "default" : to_string(c.difference),
                i == 0 ? Colour::dim : colour_of_difference(c.difference)}});
  }
  print(paint(stage.what, Colour::bold) + "\n");
  table.print();
  print(stage.result.ran_out ? "the budget ended before the search did\n\n" : "\n");
}

nlohmann::json stage_json(const TuneStage& stage) {
  nlohmann::json candidates = nlohmann::json::array();
  for (const CandidateResult& c : stage.result.candidates) {
    candidates.push_back({{"name", c.name},
                          {"seconds", c.seconds},
                          {"median", c.median},
                          {"interval", {c.interval.low, c.interval.high}},
                          {"ratio", c.ratio},
                          {"ratio_interval", {c.ratio_interval.low, c.ratio_interval.high}},
                          {"difference", to_string(c.difference)}});
  }
  return {{"what", stage.what},
          {"candidates", candidates},
          {"best", stage.result.candidates[stage.result.best].name},
          {"ran_out", stage.result.ran_out}};
}

nlohmann::json tuned_entry_json(const gpu::TunedEntry& e) {
  return {{"library", e.library}, {"gpu", e.gpu},          {"driver", e.driver},
          {"runtime", e.runtime}, {"subject", e.subject},  {"problem", e.problem},
          {"choice", e.choice},   {"seconds", e.seconds},  {"default_seconds", e.default_seconds},
          {"inputs", e.inputs},   {"measured", e.measured}};
}

// --- the file ---

void write_entries(const std::string& path, const std::vector<gpu::TunedEntry>& entries) {
  gpu::TunedTable table = gpu::read_tuned(path);  // read again, as another process may have written meanwhile
  for (const gpu::TunedEntry& entry : entries) table.put(entry);
  const std::string text = gpu::tuned_text(table);
  report::write_file_atomically(path, std::as_bytes(std::span(text)));
}

int list_file(const std::string& path, bool json) {
  if (path.empty()) {
    if (json) print_json({{"file", nullptr}, {"entries", nlohmann::json::array()}});
    if (!json) print("nothing tuned is read: SPLASH_TUNED is off or HOME is not set\n");
    return kDone;
  }
  const gpu::TunedTable table = gpu::read_tuned(path);
  const std::vector<gpu::DeviceInfo> devices = gpu::list_devices();
  const auto counts = [&](const gpu::TunedEntry& entry) {
    return std::ranges::any_of(devices,
                               [&](const gpu::DeviceInfo& device) { return gpu::counts_on(entry, device); });
  };
  nlohmann::json list = nlohmann::json::array();
  TextTable text(
      {"subject", "problem", "choice", "us", "default, us", "GPU", "inputs", "measured", "counts here"});
  for (const gpu::TunedEntry& e : table.entries) {
    list.push_back(tuned_entry_json(e));
    list.back()["counts_here"] = counts(e);
    text.add({{e.subject},
              {e.problem},
              {e.choice, Colour::bold},
              {short_number(1e6 * e.seconds)},
              {short_number(1e6 * e.default_seconds)},
              {fmt::format("{}, driver {}, library {}", e.gpu, e.driver, e.library)},
              {e.inputs},
              {e.measured},
              {counts(e) ? "yes" : "no"}});
  }
  if (json) {
    print_json({{"file", path}, {"entries", list}});
  } else if (table.entries.empty()) {
    print(fmt::format("{}: nothing is tuned\n", path));
  } else {
    print(path + "\n\n");
    text.print();
  }
  return kDone;
}

int measure_and_keep(const TuneOptions& o) {
  if (!(o.budget > 0 && o.budget <= 86400))
    throw InvalidArgument(fmt::format("the budget is {} s; it must be above 0 and at most 86400", o.budget));
  gpu::require_device();  // first, because a build without CUDA knows no rungs
  const std::string subject = tuned_subject(o.subject_and_problem.front());
  if (o.backward && subject != kFlagship)
    throw InvalidArgument("--backward is the flagship's; rungs that choose have none");
  const TuneRequest request{.subject = subject,
                            .problem = tuned_problem_of(subject, std::span(o.subject_and_problem).subspan(1)),
                            .workload = {.kind = workload_from_string(o.workload)},
                            .with_backward = o.backward,
                            .budget_seconds = o.budget};
  const std::string path = tuned_file_of(o);
  if (!o.dry_run) {
    report::prepare_place(path);
    static_cast<void>(gpu::read_tuned(path));  // refuses another program's file before the work
  }
  const TuneResult result = tune(request, [&](const TuneStage& stage) {
    if (!o.json) print_stage(stage);
  });
  if (!o.dry_run) write_entries(path, result.entries);
  nlohmann::json stages = nlohmann::json::array(), entries = nlohmann::json::array();
  for (const TuneStage& stage : result.stages) stages.push_back(stage_json(stage));
  for (const gpu::TunedEntry& entry : result.entries) {
    entries.push_back(tuned_entry_json(entry));
    if (!o.json)
      print(fmt::format("{}, {}: {}\n", entry.subject, entry.problem, paint(entry.choice, Colour::bold)));
  }
  if (o.json) print_json({{"stages", stages}, {"entries", entries}});
  if (!o.dry_run) narrate("written to {}", path);
  return kDone;
}

}  // namespace

int cmd_tune(const Words& words) {
  CLI::App app;
  prepare(app, "tune kernels", kTuneExamples, kTuneWhat);
  TuneOptions options;
  declare_tune(app, options);
  const bool of_kernels = !words.empty() && words[0] == "kernels";
  parse(app, of_kernels ? Words(words.begin() + 1, words.end()) : words);
  if (!of_kernels) throw InvalidArgument("what is tuned comes first: splash tune kernels; see --help");
  options.list = options.list || options.subject_and_problem.empty();
  return options.list ? list_file(tuned_file_of(options), options.json) : measure_and_keep(options);
}

}  // namespace splash::cli
