#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include "core/text_file.h"
#include "core/toml_table.h"
#include "experiments/claims/claim.h"

namespace splash::experiments {
namespace {

namespace fs = std::filesystem;

std::string one_of(TomlTable& table, const std::string& key, const std::vector<std::string>& allowed) {
  std::string value = table.required_text(key);
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
    table.fail(*table.find(key),
               fmt::format("'{}' cannot be \"{}\"{}", key, value, suggestion(value, allowed)));
  }
  return value;
}

// Reads its sentences and the recorded verdict. Call it last.
void read_words(TomlTable& table, Claim& claim) {
  if (claim.comparable) {
    claim.reproduced = table.required_text("reproduced");
    claim.refuted = table.required_text("refuted");
  } else {
    claim.reproduced = table.text("reproduced").value_or("");
    claim.refuted = table.text("refuted").value_or("");
  }
  if (table.find("expected_verdict") != nullptr) {
    const std::vector<std::string> names{"reproduced", "refuted", "unsure", "not comparable"};
    claim.expected_verdict = report::verdict_from(one_of(table, "expected_verdict", names));
  }
  table.finish();
}

// theirs_range = [least, most].
void read_range(TomlTable& table, const toml::table& raw, Claim& claim) {
  const toml::array* ends = table.find("theirs_range")->as_array();
  const bool two =
      ends != nullptr && ends->size() == 2 && ends->get(0)->is_number() && ends->get(1)->is_number();
  const double least = two ? *ends->get(0)->value<double>() : 0,
               most = two ? *ends->get(1)->value<double>() : 0;
  if (!(least < most) || !std::isfinite(most - least)) {
    table.fail(raw, fmt::format("claim {} has a 'theirs_range' that is not [least, most]", claim.id));
  }
  claim.theirs_value = (least + most) / 2;
  claim.tolerance = (most - least) / 2;
}

Claim read_claim(const toml::table& raw, const std::string& file) {
  TomlTable table(raw, file, "[[claim]]");
  Claim claim;
  claim.id = table.required_text("id");
  claim.source = table.required_text("source");
  claim.text = table.required_text("text");
  claim.theirs = table.required_text("theirs");
  claim.units = table.text("units").value_or("1");
  claim.method = one_of(table, "method", {"arithmetic", "cpu", "gpu"});
  claim.comparable = table.flag("comparable").value_or(true);
  claim.not_comparable = table.text("not_comparable").value_or("");
  if (!claim.comparable && claim.not_comparable.empty()) {
    table.fail(raw, fmt::format("claim {} has comparable = false and so needs the reason in 'not_comparable'",
                                claim.id));
  }

  if (table.find("theirs_range") != nullptr) {
    read_range(table, raw, claim);
    read_words(table, claim);
    return claim;
  }
  const auto theirs_value = table.number("theirs_value");
  if (!theirs_value && claim.comparable)
    table.fail(raw, fmt::format("claim {} lacks 'theirs_value', a number", claim.id));
  claim.theirs_value = theirs_value.value_or(std::numeric_limits<double>::quiet_NaN());
  if (claim.comparable || table.find("relation") != nullptr) {
    claim.relation = relation_from_string(one_of(table, "relation", {"equal", "below", "above"}));
  }
  const auto absolute = table.number("tolerance"), relative = table.number("relative_tolerance");
  if (absolute && relative) {
    table.fail(raw,
               fmt::format("claim {} has both 'tolerance' and 'relative_tolerance'; give one", claim.id));
  }
  if (!absolute && !relative && claim.comparable && claim.relation == Relation::equal) {
    table.fail(raw, fmt::format("claim {} is an equality and so needs 'tolerance' or 'relative_tolerance'",
                                claim.id));
  }
  claim.tolerance = absolute.value_or(relative.value_or(0) * std::abs(theirs_value.value_or(0)));
  if (!(claim.tolerance >= 0)) table.fail(raw, fmt::format("claim {} has a tolerance below 0", claim.id));

  read_words(table, claim);
  return claim;
}

}  // namespace

std::vector<Claim> parse_claims(const std::string& toml, const std::string& file) {
  const toml::table root = parse_toml(toml, file);
  TomlTable table(root, file, "a file of claims");
  std::vector<Claim> claims;
  for (const toml::table* raw : table.tables("claim")) {
    claims.push_back(read_claim(*raw, file));
    if (find_claim(claims, claims.back().id) != &claims.back()) {
      table.fail(*raw, fmt::format("claim {} is there twice", claims.back().id));
    }
  }
  table.finish();
  return claims;
}

std::vector<Claim> read_claims(const std::string& folder) {
  std::vector<Claim> all;
  for (const std::string& path : definition_files(folder)) {
    for (Claim& claim : parse_claims(read_text_file("the claims", path, kMostTomlBytes), path)) {
      if (find_claim(all, claim.id) != nullptr) {
        throw InvalidArgument(
            fmt::format("{}: claim {} is in another file of {} already", path, claim.id, folder));
      }
      all.push_back(std::move(claim));
    }
  }
  return all;
}

const Claim* find_claim(const std::vector<Claim>& claims, const std::string& id) {
  const auto found =
      std::find_if(claims.begin(), claims.end(), [&](const Claim& claim) { return claim.id == id; });
  return found == claims.end() ? nullptr : &*found;
}

void require_known_claims(const Definition& definition, const std::vector<Claim>& claims) {
  std::vector<std::string> ids;
  for (const Claim& claim : claims) ids.push_back(claim.id);
  for (const Expectation& expectation : definition.expectations) {
    if (expectation.claim.empty() || find_claim(claims, expectation.claim) != nullptr) continue;
    throw InvalidArgument(fmt::format("{}:{}: [[expect]] names claim '{}', which data/claims does not hold{}",
                                      definition.file, expectation.line, expectation.claim,
                                      suggestion(expectation.claim, ids)));
  }
}

}  // namespace splash::experiments
