#include "experiments/cli/asked_kernel.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/error.h"
#include "experiments/kinds/support/counted_kernel.h"
#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/planned_kernel.h"
#include "experiments/runner/narrate.h"
#include "experiments/runner/value.h"
#include "gpu/engine/chooser.h"
#include "gpu/engine/tuned.h"
#include "gpu/engine/variant.h"

namespace splash::cli {
namespace {

using analysis::Change;
using analysis::KernelCase;
using experiments::get_text;
using experiments::Parameters;

int64_t whole_number(const std::string& name, const std::string& text) {
  return std::get<int64_t>(
      experiments::parsed({name, experiments::ParameterType::integer, int64_t{1}, "1", "", {}}, text));
}

// Whether `name` is a change of tiles or calls. If so, stores its value in `cut`.
bool read_cut(const std::string& name, const std::string& text, Change& cut) {
  if (name == "method") {
    if (text != "graph" && text != "events")
      throw InvalidArgument(fmt::format("method is '{}'; it must be events or graph", text));
    cut.replayed = text == "graph";
    return true;
  }
  if (name != "tile_q" && name != "tile_k" && name != "stages" && name != "launches") return false;
  const int64_t value = whole_number(name, text);
  constexpr int64_t kMost = 1 << 20;
  if (value < 1 || value > kMost)
    throw InvalidArgument(fmt::format("{} is {}; it must be from 1 to {}", name, value, kMost));
  if (name == "tile_q") cut.tile_q = value;
  if (name == "tile_k") cut.tile_k = value;
  if (name == "stages") cut.stages = static_cast<int>(value);
  if (name == "launches") cut.launches = static_cast<int>(value);
  return true;
}

bool is_declared(const std::string& implementation) {
  const auto& variants = gpu::all_variants();
  return std::any_of(variants.begin(), variants.end(),
                     [&](const gpu::Variant* variant) { return variant->id() == implementation; });
}

// Makes the case describe the launch of that name, if it has one.
void speak_of(const std::string& name, KernelCase& kernel) {
  for (const analysis::Launch& launch : kernel.all) {
    if (launch.kernel != name) continue;
    kernel.kernel = name;
    kernel.use = launch.use;
  }
}

bool counts_as(const KernelCase& declared, const KernelCase& recorded) {
  return declared.flops == recorded.flops && declared.l2_bytes == recorded.l2_bytes;
}

// Counts the kernel with its rule's choice. A rung that chooses may have been recorded before it was tuned.
KernelCase by_rule(const std::string& implementation, const Parameters& problem,
                   const analysis::Machine& machine) {
  gpu::TunedTable tuned = gpu::use_tuned({});
  KernelCase declared = experiments::planned_kernel(implementation, problem, machine);
  gpu::use_tuned(std::move(tuned));
  return declared;
}

void tell_of_tuned(const std::string& implementation, const Parameters& problem,
                   const analysis::Machine& machine) {
  const AttentionSpec spec = experiments::problem_spec(problem);
  const Dtype dtype = experiments::problem_dtype(problem);
  const gpu::Variant* const tuned =
      gpu::tuned_variant(implementation, spec, dtype, experiments::device_of(machine));
  if (tuned == nullptr) return;
  experiments::narrate("{} takes {}, as tuned on a {} for {}; with SPLASH_TUNED=off its rule chooses",
                       implementation, tuned->id(), machine.name, gpu::tuned_problem(spec, dtype));
}

KernelCase planned(const KernelCase& recorded, const Parameters& before, const Parameters& problem,
                   const analysis::Machine& here, const analysis::Machine& there) {
  if (gpu::all_variants().empty()) {
    throw NotBuilt(
        "this build has no CUDA parts, and with it no declarations to count another problem or GPU by; "
        "tile_q, "
        "tile_k, stages, launches, method and batch follow from the report");
  }
  KernelCase declared = experiments::planned_kernel(recorded.implementation, before, here);
  if (!counts_as(declared, recorded)) declared = by_rule(recorded.implementation, before, here);
  if (!counts_as(declared, recorded)) {
    throw InvalidArgument(
        fmt::format("{} counts other work today than when the report was recorded; record it again",
                    recorded.implementation));
  }
  Parameters parameters = before;
  for (const auto& [name, value] : problem) parameters[name] = value;
  KernelCase asked = experiments::planned_kernel(recorded.implementation, parameters, there);
  tell_of_tuned(recorded.implementation, parameters, there);
  speak_of(recorded.kernel, declared);
  speak_of(recorded.kernel, asked);
  // What only CUDA knows comes from the recorded case.
  asked.use.registers = recorded.use.registers;
  asked.use.shared_bytes += recorded.use.shared_bytes - declared.use.shared_bytes;
  asked.replayed = recorded.replayed;
  asked.setting = fmt::format("{}, {}", get_text(parameters, "mask"), get_text(parameters, "selection"));
  return asked;
}

// Of an imported kernel no declaration counts another problem: it can do its work `batch` times at once, or
// run as it is on another GPU.
AskedKernel asked_of_profiled(const KernelCase& recorded, const AskedChanges& changes,
                              const analysis::Machine& here, const analysis::Machine& there) {
  int64_t batch = 1;
  for (const auto& [name, value] : changes.problem) {
    if (name == "batch") batch = std::get<int64_t>(value);
    if (name == "batch" && batch >= 1 && batch <= 1 << 20) continue;
    throw InvalidArgument(fmt::format(
        "of the imported kernel {} what-if knows batch, so many times its work and blocks, and --gpu: "
        "{} is {}",
        recorded.implementation, name,
        name == "batch" ? "not from 1 to 1048576" : "not in a profiler's table"));
  }
  if (changes.cut.cuts() || changes.cut.launches || changes.cut.replayed) {
    throw InvalidArgument(fmt::format(
        "of the imported kernel {} what-if knows batch, so many times its work and blocks, and --gpu: a "
        "profiler's table tells nothing of tiles, and its time leaves out launches",
        recorded.implementation));
  }
  AskedKernel asked{recorded, recorded};
  asked.measured = batch == 1 && here.name == there.name;
  asked.kernel = asked.uncut = analysis::changed(recorded, {.batch = batch});
  if (batch != 1) asked.kernel.problem = "with " + changes.words;
  return asked;
}

}  // namespace

AskedChanges parse_changes(const Words& settings) {
  const std::vector<experiments::ParameterInfo> declared = experiments::problem_parameters();
  AskedChanges changes;
  std::set<std::string> seen;
  for (const std::string& setting : settings) {
    const auto equals = setting.find('=');
    const std::string name = setting.substr(0, equals);
    const std::string text = equals == std::string::npos ? "" : setting.substr(equals + 1);
    if (equals != std::string::npos && !seen.insert(name).second)
      throw InvalidArgument(fmt::format("{} is given twice; it takes one value", name));
    if (text.empty() || !read_cut(name, text, changes.cut)) {
      const auto info =
          std::find_if(declared.begin(), declared.end(), [&](const auto& d) { return d.name == name; });
      if (text.empty() || info == declared.end()) {
        std::string names = "tile_q, tile_k, stages, launches, method";
        for (const auto& d : declared) names += ", " + d.name;
        throw InvalidArgument(
            fmt::format("'{}' is not NAME=VALUE with a parameter's name: {}", setting, names));
      }
      changes.problem[name] = experiments::parsed(*info, text);
    }
  }
  changes.words = fmt::format("{}", fmt::join(settings, ", "));
  return changes;
}

AskedKernel asked_kernel(const report::Report& report, const KernelCase& recorded,
                         const AskedChanges& changes, const analysis::Machine& here,
                         const analysis::Machine& there) {
  if (recorded.profiled) return asked_of_profiled(recorded, changes, here, there);
  const Parameters before = experiments::parameters_of(report, recorded.row);
  Parameters problem = changes.problem;
  std::erase_if(problem, [&](const auto& change) { return before.at(change.first) == change.second; });
  AskedKernel asked{recorded, recorded};
  asked.measured =
      problem.empty() && here.name == there.name && analysis::changes_nothing(recorded, changes.cut);
  const bool batch_alone = problem.size() == 1 && problem.contains("batch") && here.name == there.name;
  if (batch_alone && !is_declared(recorded.implementation)) {
    const auto batch = std::get<int64_t>(problem.at("batch"));
    if (batch < 1 || batch % recorded.shape.batch != 0) {
      throw InvalidArgument(
          fmt::format("batch is {}; without the kernel's declaration it must be a multiple of {}", batch,
                      recorded.shape.batch));
    }
    asked.uncut = analysis::changed(recorded, {.batch = batch / recorded.shape.batch});
  } else if (!problem.empty() || here.name != there.name) {
    asked.uncut = planned(recorded, before, problem, here, there);
    asked.uncut.support = recorded.support;
    const report::Column* const input = report.find("input");
    for (const auto& [name, value] : before) problem.emplace(name, value);
    if (input != nullptr && input->texts[static_cast<std::size_t>(recorded.row)] == "gaussian" &&
        !std::isnan(recorded.support))
      asked.uncut.support = experiments::sampled_support(problem);
  }
  asked.kernel = analysis::changed(asked.uncut, changes.cut);
  if (!changes.empty()) asked.kernel.problem = "with " + changes.words;
  return asked;
}

}  // namespace splash::cli
