// The definitions and claims that the project ships: they parse, refer to existing names and cover the
// sources.

#include <algorithm>
#include <map>
#include <set>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "experiments/claims/arithmetic.h"
#include "experiments/claims/claim.h"
#include "experiments/claims/judge.h"
#include "experiments/runner/definition.h"
#include "experiments/runner/project_root.h"
#include "experiments/runner/value.h"
#include "experiments/tests/kinds_helpers.h"
#include "gpu/engine/variant.h"

namespace splash::experiments::tests {
namespace {

std::vector<Claim> shipped_claims() {
  return read_claims((data_folder() / "claims").string());
}

std::vector<Definition> shipped_definitions() {
  std::vector<Definition> definitions;
  for (const std::string& folder : definition_folders()) {
    for (const std::string& file : definition_files(folder)) definitions.push_back(read_definition(file));
  }
  return definitions;
}

// "S0.1" for "S0.1a".
std::string family(std::string id) {
  while (!id.empty() && std::isalpha(static_cast<unsigned char>(id.back()))) id.pop_back();
  return id;
}

}  // namespace

TEST_CASE("every definition expands in both profiles, and the quick one is the smaller") {
  const auto definitions = shipped_definitions();
  CHECK(definitions.size() >= 10);
  for (const Definition& definition : definitions) {
    CAPTURE(definition.name);
    const auto full = expand(definition, definition.full), quick = expand(definition, definition.quick);
    // A build without CUDA has no variants, so "ladder/*" stands for none.
    CHECK((!quick.empty() || gpu::all_variants().empty()));
    CHECK(quick.size() <= full.size());
    CHECK(!definition.title.empty());
    CHECK(!definition.description.empty());
  }
}

TEST_CASE("one measurement judges one claim of a number") {
  const auto claims = shipped_claims();
  std::map<std::string, std::string> claim_of;
  for (const Definition& definition : shipped_definitions()) {
    for (const Expectation& expectation : definition.expectations) {
      if (expectation.claim.empty()) continue;
      const Claim* const claim = find_claim(claims, expectation.claim);
      REQUIRE(claim != nullptr);
      std::string what = fmt::format("{} is {}:", definition.name, claim->theirs_value);
      for (const Measurement* of : {&expectation.measured, expectation.over ? &*expectation.over : nullptr}) {
        if (of == nullptr) continue;
        what += fmt::format(" {} {}", of->column, static_cast<int>(of->statistic));
        for (const auto& [name, values] : of->where) {
          for (const auto& value : values) what += " " + name + " " + to_text(value);
        }
      }
      const auto [place, is_new] = claim_of.emplace(what, expectation.claim);
      CAPTURE(what);
      CAPTURE(expectation.claim);
      CAPTURE(place->second);
      CHECK((is_new || place->second == expectation.claim));
    }
  }
}

TEST_CASE("every expectation on the ladders names rungs that there are") {
  if (gpu::all_variants().empty()) return;  // a build without CUDA
  int64_t named = 0;
  for (const Definition& definition : shipped_definitions()) {
    if (definition.kind != "gpu-attention") continue;
    for (const Expectation& expectation : definition.expectations) {
      CAPTURE(definition.name);
      CAPTURE(expectation.claim);
      std::vector<Measurement> measurements{expectation.measured};
      if (expectation.over) measurements.push_back(*expectation.over);
      for (const Measurement& measurement : measurements) {
        for (const Value& value : measurement.where.at("implementation")) {
          const std::string name = std::get<std::string>(value);
          if (!name.starts_with("torch-")) CHECK_NOTHROW(gpu::find_variant(name));
          ++named;
        }
      }
    }
  }
  CHECK(named >= 20);
}

TEST_CASE("every rung's promise is a claim of the project") {
  const auto claims = shipped_claims();
  for (const gpu::Variant* variant : gpu::all_variants()) {
    CAPTURE(variant->id());
    if (!variant->predicted.claim.empty()) CHECK(find_claim(claims, variant->predicted.claim) != nullptr);
  }
}

TEST_CASE("every expectation names a claim, and what splash reproduce runs finds cases in both profiles") {
  const auto claims = shipped_claims();
  for (const Definition& definition : shipped_definitions()) {
    CAPTURE(definition.name);
    CHECK_NOTHROW(require_known_claims(definition, claims));
    for (const Expectation& expectation : definition.expectations) {
      CAPTURE(expectation.claim);
      CAPTURE(expectation.check);
      for (const bool quick : {true, false}) {
        if (!definition.reproduce) continue;
        const auto cases = expand(definition, definition.profile(quick));
        const auto fits = [&](const Parameters& p) {
          return std::ranges::all_of(expectation.measured.where, [&](const auto& entry) {
            const auto found = p.find(entry.first);
            return found == p.end() || std::ranges::find(entry.second, found->second) != entry.second.end();
          });
        };
        CHECK(std::ranges::any_of(cases, fits));
      }
    }
  }
}

TEST_CASE("every claim of the source documents and papers has an entry") {
  std::set<std::string> families;
  for (const Claim& claim : shipped_claims()) families.insert(family(claim.id));
  const std::vector<std::pair<std::string, int>> sources{
      {"S0", 8}, {"S1", 6}, {"S2", 6}, {"S3", 9}, {"S4", 8}};
  for (const auto& entry : sources) {
    for (int i = 1; i <= entry.second; ++i) {
      const std::string id = entry.first + "." + std::to_string(i);
      CHECK_MESSAGE(families.contains(id), id);
    }
  }
  for (const char* paper : {"P1.1", "P1.2", "P2.1", "P2.2", "P2.3", "P3.3"}) CHECK(families.contains(paper));
}

TEST_CASE("claims by arithmetic have their arithmetic, and it gives the recorded verdict") {
  const auto& judges = arithmetic_judges();
  const auto claims = shipped_claims();
  for (const Claim& claim : claims) {
    CAPTURE(claim.id);
    if (claim.method != "arithmetic" || !claim.comparable) continue;
    REQUIRE(judges.contains(claim.id));
    const Arithmetic computed = judges.at(claim.id)();
    CHECK(!computed.formula.empty());
    const bool good = holds(claim.relation, computed.ours, claim.theirs_value, claim.tolerance);
    REQUIRE(claim.expected_verdict.has_value());
    CHECK(*claim.expected_verdict == (good ? report::Verdict::reproduced : report::Verdict::refuted));
  }
  for (const auto& entry : judges) {
    const std::string& id = entry.first;
    CAPTURE(id);
    REQUIRE(find_claim(claims, id) != nullptr);
    CHECK(find_claim(claims, id)->method == "arithmetic");
  }
}

TEST_CASE("claims by the CPU are measured by some experiment, and claims by the GPU say what they wait for") {
  std::set<std::string> measured;
  for (const Definition& definition : shipped_definitions()) {
    for (const Expectation& expectation : definition.expectations) measured.insert(expectation.claim);
  }
  for (const Claim& claim : shipped_claims()) {
    CAPTURE(claim.id);
    if (!family(claim.id).starts_with('S') && !claim.id.starts_with('P')) continue;  // the project's own
    if (claim.method == "cpu" && claim.comparable) CHECK(measured.contains(claim.id));
    if (claim.method == "gpu") CHECK(!claim.not_comparable.empty());
  }
}

}  // namespace splash::experiments::tests
