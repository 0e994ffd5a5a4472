// splash list: lists what the laboratory has.

#include <filesystem>
#include <functional>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/suggest.h"
#include "core/workload.h"
#include "cpu_ref/entmax/solver.h"
#include "experiments/claims/claim.h"
#include "experiments/cli/command.h"
#include "experiments/cli/console.h"
#include "experiments/cli/places.h"
#include "experiments/runner/case_json.h"
#include "experiments/runner/value.h"
#include "gpu/engine/variant.h"

namespace splash::cli {
namespace {

using namespace experiments;
using nlohmann::json;

// A definition that cannot be read is listed with its error, and does not keep the others from being listed.
json list_experiments() {
  json list = json::array();
  for (const std::string& file : all_definition_files()) {
    json entry = {{"name", std::filesystem::path(file).stem().string()}};
    try {
      const Definition definition = read_definition(file);
      entry.update({{"kind", definition.kind},
                    {"title", definition.title},
                    {"description", definition.description},
                    {"reproduce", definition.reproduce},
                    {"cases", case_count(definition.full)},
                    {"quick_cases", case_count(definition.quick)}});
    } catch (const InvalidArgument& error) {
      entry["error"] = error.what();
    }
    list.push_back(std::move(entry));
  }
  return list;
}

void print_experiments(const json& list) {
  TextTable table({"experiment", "kind", "cases", "quick", "title"});
  for (const json& e : list) {
    const std::string name = e["name"];
    if (e.contains("error")) {
      table.add({{name}, {"-"}, {"-"}, {"-"}, {e["error"].get<std::string>(), Colour::red}});
    } else {
      table.add({{name + (e["reproduce"].get<bool>() ? " *" : "")},
                 {e["kind"].get<std::string>()},
                 {e["cases"].dump()},
                 {e["quick_cases"].dump()},
                 {e["title"].get<std::string>()}});
    }
  }
  table.print();
  print("* part of splash reproduce\n");
}

json list_kinds() {
  json list = json::array();
  for (const Kind* kind : all_kinds()) {
    json parameters = json::array(), columns = json::array();
    for (const ParameterInfo& p : kind->parameters()) {
      parameters.push_back({{"name", p.name},
                            {"type", to_string(p.type)},
                            {"default", experiments::to_json(p.default_value)},
                            {"units", p.units},
                            {"long_name", p.long_name},
                            {"allowed", p.allowed},
                            {"file_endings", p.file_endings}});
    }
    for (const report::ColumnInfo& c : kind->columns()) {
      columns.push_back(
          {{"name", c.name}, {"units", c.units}, {"long_name", c.long_name}, {"formula", c.formula}});
    }
    list.push_back({{"name", kind->name()},
                    {"summary", kind->summary()},
                    {"parameters", parameters},
                    {"columns", columns}});
  }
  return list;
}

void print_kinds(const json& list) {
  for (const json& kind : list) {
    print(paint(kind["name"].get<std::string>(), Colour::bold) + "  " + kind["summary"].get<std::string>() +
          "\n");
    TextTable table({"  parameter", "type", "default", "what it is"});
    for (const json& p : kind["parameters"]) {
      std::string what = p["long_name"];
      auto allowed = p["allowed"].get<std::vector<std::string>>();
      for (const std::string& end : p["file_endings"].get<std::vector<std::string>>())
        allowed.push_back("FILE" + end);
      if (!allowed.empty()) what += fmt::format(" ({})", list_words(allowed));
      const json& value = p["default"];
      table.add({{"  " + p["name"].get<std::string>()},
                 {p["type"].get<std::string>()},
                 {value.is_string() ? value.get<std::string>() : value.dump()},
                 {what}});
    }
    table.print();
    std::string columns;
    for (const json& c : kind["columns"])
      columns += (columns.empty() ? "" : ", ") + c["name"].get<std::string>();
    for (const std::string& line :
         wrap("fills " + columns, static_cast<std::size_t>(std::max(20, output_width() - 2)))) {
      print("  " + line + "\n");
    }
    print("\n");
  }
}

json list_claims() {
  json list = json::array();
  for (const Claim& claim : read_claims(claims_folder())) {
    list.push_back({{"id", claim.id},
                    {"source", claim.source},
                    {"claim", claim.text},
                    {"theirs", claim.theirs},
                    {"theirs_value", plain_number(claim.theirs_value)},
                    {"units", claim.units},
                    {"method", claim.method},
                    {"comparable", claim.comparable}});
  }
  return list;
}

void print_claims(const json& list) {
  TextTable table({"claim", "source", "theirs", "judged by", "text"});
  for (const json& c : list) {
    table.add({{c["id"].get<std::string>()},
               {c["source"].get<std::string>()},
               {c["theirs"].get<std::string>()},
               {c["comparable"].get<bool>() ? c["method"].get<std::string>() : "-"},
               {c["claim"].get<std::string>()}});
  }
  table.print();
}

json list_solvers() {
  json list = json::array();
  using cpu_ref::Solver;
  const std::map<Solver, std::string> summaries{
      {Solver::bisection, "halves the bracket of tau; the reference"},
      {Solver::sorting, "sorts the scores: exact"},
      {Solver::newton, "Newton from the left: every step is a lower bound of tau"},
      {Solver::halley_bisection, "Halley steps kept inside the bracket (AdaSplash)"},
      {Solver::histogram, "histogram lower bound, then Newton (AdaSplash-2)"},
  };
  for (const auto& [solver, summary] : summaries) {
    const bool above_two = cpu_ref::supports_alpha(solver, 3), between = cpu_ref::supports_alpha(solver, 1.3);
    list.push_back({{"name", cpu_ref::to_string(solver)},
                    {"alpha", above_two ? "any"
                              : between ? "up to 2"
                                        : "1.5 and 2"},
                    {"summary", summary}});
  }
  return list;
}

json list_workloads() {
  json list = json::array();
  const std::map<WorkloadKind, std::string> summaries{
      {WorkloadKind::gaussian, "q ~ N(0, variance), k and v ~ N(0, 1)"},
      {WorkloadKind::clustered, "keys and queries around shared centres"},
      {WorkloadKind::local, "scores fall with the distance of query and key"},
      {WorkloadKind::sink, "one key a gap above a crowd"},
      {WorkloadKind::ties, "few distinct keys: exactly equal scores"},
  };
  for (const auto& [kind, summary] : summaries)
    list.push_back({{"name", to_string(kind)}, {"summary", summary}});
  return list;
}

// Empty in a build without CUDA.
json list_variants(bool wanted) {
  if (wanted && gpu::all_variants().empty() && front_door_builds_cuda())
    throw NotBuilt("this build has no CUDA parts, and with them no variants");
  json list = json::array();
  for (const gpu::Variant* variant : gpu::all_variants()) {
    const gpu::Limits& limits = variant->limits;
    std::vector<std::string> types, normalizers, selections;
    for (const Dtype dtype : limits.dtypes) types.emplace_back(to_string(dtype));
    for (const NormalizerKind kind : limits.normalizers) normalizers.emplace_back(to_string(kind));
    for (const SelectionKind kind : limits.selections) selections.emplace_back(to_string(kind));
    list.push_back({{"name", variant->id()},
                    {"idea", variant->idea},
                    {"finding", variant->finding},
                    {"dtypes", types},
                    {"head_dim", fmt::format("{}-{}, multiples of {}", limits.head_dim_min,
                                             limits.head_dim_max, limits.head_dim_multiple)},
                    {"normalizers", normalizers},
                    {"selections", selections},
                    {"causal", limits.causal},
                    {"window", limits.window},
                    {"positions", limits.positions},
                    {"compute_capability", 0.1 * limits.compute_capability},
                    {"nmse_bounds",
                     {{"float32", variant->tolerance.f32},
                      {"float16", variant->tolerance.f16},
                      {"bfloat16", variant->tolerance.bf16}}}});
  }
  return list;
}

void print_variants(const json& list) {
  if (list.empty()) {
    return print(fmt::format("none: this build has no CUDA parts{}\n",
                             front_door_builds_cuda() ? "; ./splash list variants builds them" : ""));
  }
  TextTable table({"variant", "types", "head_dim", "idea"});
  for (const json& v : list) {
    table.add({{v["name"].get<std::string>()},
               {list_words(v["dtypes"].get<std::vector<std::string>>())},
               {v["head_dim"].get<std::string>()},
               {v["idea"].get<std::string>()}});
  }
  table.print();
}

void print_simple(const json& list, const std::vector<std::string>& fields) {
  TextTable table(fields);
  for (const json& entry : list) {
    std::vector<Cell> row;
    for (const std::string& field : fields) row.push_back({entry[field].get<std::string>()});
    table.add(std::move(row));
  }
  table.print();
}

struct Section {
  std::string name;
  std::function<json()> collect;
  std::function<void(const json&)> print;
};

}  // namespace

int cmd_list(const Words& words) {
  CLI::App app;
  prepare(app, "list", "splash list\nsplash list experiments\nsplash list kinds --json",
          "What there is: experiments, kinds of experiments with their parameters, GPU kernel variants, "
          "claims, solvers, workloads.");
  std::string wanted;
  const std::vector<Section> sections{
      {"experiments", list_experiments, print_experiments},
      {"kinds", list_kinds, print_kinds},
      {"variants", [&] { return list_variants(!wanted.empty()); }, print_variants},
      {"claims", list_claims, print_claims},
      {"solvers", list_solvers,
       [](const json& list) {
         print_simple(list, {"name", "alpha", "summary"});
       }},
      {"workloads", list_workloads,
       [](const json& list) {
         print_simple(list, {"name", "summary"});
       }},
  };
  std::vector<std::string> names;
  for (const Section& section : sections) names.push_back(section.name);
  bool as_json = false;
  app.add_option("WHAT", wanted, list_words(names) + "; all of them where none is named");
  app.add_flag("--json", as_json, "an array of objects; of everything, one object of arrays");
  parse(app, words);
  if (!wanted.empty() && std::find(names.begin(), names.end(), wanted) == names.end()) {
    throw InvalidArgument(
        fmt::format("there is nothing to list under '{}'{}", wanted, suggestion(wanted, names)));
  }
  json everything = json::object();
  for (const Section& section : sections) {
    if (!wanted.empty() && wanted != section.name) continue;
    const json list = section.collect();
    if (as_json) {
      everything[section.name] = list;
    } else {
      if (wanted.empty()) print("\n" + paint(section.name, Colour::bold) + "\n");
      section.print(list);
    }
  }
  if (as_json) print_json(wanted.empty() ? everything : everything[wanted]);
  return kDone;
}

}  // namespace splash::cli
