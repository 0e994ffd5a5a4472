#include "experiments/cli/ceilings_view.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "analysis/roofline.h"
#include "core/text.h"
#include "experiments/runner/case_json.h"

namespace splash::cli {
namespace {

using report::Ceiling;

// The factor and unit that make a ceiling easiest to read.
std::pair<double, const char*> readable_units(const Ceiling& ceiling) {
  if (ceiling.name.starts_with(analysis::kCpuUnit))
    return {1e-9, ceiling.units == "bytes/s" ? "GB/s" : "GFLOP/s"};
  if (ceiling.units == "bytes/s") return {1e-12, "TB/s"};
  if (ceiling.units == "FLOP/s") return {1e-12, "TFLOP/s"};
  if (ceiling.units == "1/s") return {1e-12, "T/s"};
  return {1e6, "us"};
}

Cell share_of(const Ceiling& ceiling) {
  if (std::isnan(ceiling.measured) || std::isnan(ceiling.datasheet)) return {"-"};
  const std::string share = fmt::format("{:.0f} %", 100 * ceiling.measured / ceiling.datasheet);
  if (analysis::why_questioned(ceiling).empty()) return {share};
  return {share + ", questioned", Colour::red};
}

}  // namespace

std::string questioned_lines(const std::vector<Ceiling>& ceilings) {
  std::string lines;
  for (const Ceiling& ceiling : ceilings) {
    if (const std::string why = analysis::why_questioned(ceiling); !why.empty())
      lines += one_line(fmt::format("questioned: {}; shares of it are too low", why)) + "\n";
  }
  return lines;
}

TextTable ceilings_table(const std::vector<Ceiling>& ceilings) {
  TextTable table(
      {"ceiling", "dtype", "measured", "95 % interval", "units", "data sheet", "share", "method"});
  for (const Ceiling& c : ceilings) {
    const auto [factor, units] = readable_units(c);
    const bool there = !std::isnan(c.measured);
    table.add(
        {{c.name},
         {c.dtype},
         {short_number(factor * c.measured), there ? Colour::bold : Colour::dim},
         {there ? fmt::format("{} to {}", short_number(factor * c.low), short_number(factor * c.high)) : "-"},
         {units},
         {short_number(factor * c.datasheet)},
         share_of(c),
         {c.method, Colour::dim}});
  }
  return table;
}

nlohmann::json ceilings_json(const std::vector<Ceiling>& ceilings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Ceiling& c : ceilings) {
    list.push_back({{"name", c.name},
                    {"dtype", c.dtype},
                    {"units", c.units},
                    {"measured", experiments::plain_number(c.measured)},
                    {"low", experiments::plain_number(c.low)},
                    {"high", experiments::plain_number(c.high)},
                    {"datasheet", experiments::plain_number(c.datasheet)},
                    {"questioned", analysis::why_questioned(c)},
                    {"method", c.method}});
  }
  return list;
}

}  // namespace splash::cli
