#include "experiments/cli/claims_view.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/text.h"
#include "experiments/runner/case_json.h"

namespace splash::cli {
namespace {

using experiments::plain_number;
using report::ClaimResult;
using report::Verdict;

std::string with_units(const std::string& text, const std::string& units) {
  return text == "-" || units.empty() || units == "1" ? text : text + " " + units;
}

std::string ours(const ClaimResult& claim) {
  std::string text = short_number(claim.ours);
  const bool has_interval = claim.ours_low < claim.ours || claim.ours_high > claim.ours;
  if (has_interval)
    text += fmt::format(" [{}, {}]", short_number(claim.ours_low), short_number(claim.ours_high));
  return with_units(text, claim.units);
}

Colour colour_of(Verdict verdict) {
  return verdict == Verdict::reproduced ? Colour::green
         : verdict == Verdict::refuted  ? Colour::red
                                        : Colour::yellow;
}

int64_t judged_by(const std::vector<ClaimResult>& claims, bool arithmetic) {
  return std::ranges::count_if(claims, [&](const ClaimResult& claim) {
    return claim.verdict != Verdict::not_comparable && (claim.method == "arithmetic") == arithmetic;
  });
}

std::string escaped(const std::string& foreign) {  // for a cell of a Markdown table
  std::string text = one_line(foreign);
  for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
    text.replace(at, 1, "\\|");
  return text;
}

}  // namespace

TextTable claims_table(const std::vector<ClaimResult>& claims) {
  TextTable table({"claim", "theirs", "ours [interval]", "verdict", "reason"});
  for (const ClaimResult& claim : claims) {
    table.add({{claim.id + " " + claim.claim},
               {claim.theirs},
               {ours(claim)},
               {report::to_string(claim.verdict), colour_of(claim.verdict)},
               {claim.reason}});
  }
  return table;
}

std::string claims_markdown(const std::string& title, const std::vector<ClaimResult>& claims) {
  std::string text = fmt::format("# {}\n\n{}.\n", one_line(title), count_verdicts(claims));
  std::string source;
  for (const ClaimResult& claim : claims) {
    if (claim.source != source) {
      source = claim.source;
      text += fmt::format(
          "\n## {}\n\n| claim | theirs | ours [interval] | verdict | reason |\n|---|---|---|---|---|\n",
          one_line(source));
    }
    text += fmt::format("| {} {} | {} | {} | {} | {} |\n", escaped(claim.id), escaped(claim.claim),
                        escaped(claim.theirs), escaped(ours(claim)), report::to_string(claim.verdict),
                        escaped(claim.reason));
  }
  return text;
}

nlohmann::json claims_json(const std::vector<ClaimResult>& claims) {
  nlohmann::json list = nlohmann::json::array();
  for (const ClaimResult& claim : claims) {
    list.push_back({{"id", claim.id},
                    {"source", claim.source},
                    {"claim", claim.claim},
                    {"units", claim.units},
                    {"theirs", claim.theirs},
                    {"theirs_value", plain_number(claim.theirs_value)},
                    {"ours", plain_number(claim.ours)},
                    {"ours_low", plain_number(claim.ours_low)},
                    {"ours_high", plain_number(claim.ours_high)},
                    {"tolerance", plain_number(claim.tolerance)},
                    {"verdict", report::to_string(claim.verdict)},
                    {"reason", claim.reason},
                    {"method", claim.method}});
  }
  return list;
}

std::string count_verdicts(const std::vector<ClaimResult>& claims) {
  const auto of = [&](bool arithmetic) {
    std::string text;
    for (const Verdict verdict : {Verdict::reproduced, Verdict::refuted, Verdict::unsure}) {
      const auto count = std::ranges::count_if(claims, [&](const ClaimResult& claim) {
        return claim.verdict == verdict && (claim.method == "arithmetic") == arithmetic;
      });
      if (count > 0)
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, report::to_string(verdict));
    }
    return text.empty() ? "none" : text;
  };
  const auto open = std::ranges::count(claims, Verdict::not_comparable, &ClaimResult::verdict);
  return fmt::format("of {} claims {} measured ({}) and {} by arithmetic alone ({}); {} not comparable",
                     claims.size(), judged_by(claims, false), of(false), judged_by(claims, true), of(true),
                     open);
}

}  // namespace splash::cli
