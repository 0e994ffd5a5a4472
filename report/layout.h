#pragma once
// The layout of a report's file: the tables of ceilings and claims, the texts of /provenance and /README.
// Writer and reader share these declarations.

#include <string>
#include <variant>
#include <vector>

#include "report/report.h"

namespace splash::report {

// The dimension along the rows of each table. Its coordinate, a dataset of the same name, counts the rows,
// unless the table has a text column of that name: /claims/claim holds the claims themselves.
constexpr const char* kCaseDimension = "case";
constexpr const char* kCeilingDimension = "ceiling";
constexpr const char* kClaimDimension = "claim";

constexpr const char* kCountFormula = "0, 1, 2, ...";  // formula of a dimension that only counts
constexpr const char* kTextUnits = "text";             // units of entries that are no numbers

// Convert rows of structs to columns and back. `from` throws ReportError if a column is missing.
std::vector<Column> ceiling_columns(const std::vector<Ceiling>& ceilings);
std::vector<Ceiling> ceilings_from(const std::vector<Column>& columns, const std::string& file);
std::vector<Column> claim_columns(const std::vector<ClaimResult>& claims);
std::vector<ClaimResult> claims_from(const std::vector<Column>& columns, const std::string& file);

// One scalar entry of /provenance.
struct ProvenanceField {
  std::string name, units, long_name;
  std::variant<std::string Provenance::*, int64_t Provenance::*, bool Provenance::*> member;
  bool may_lack = false;  // a number that is left out where it is 0: not known, or not yet recorded then
};
const std::vector<ProvenanceField>& provenance_fields();

// The text of /README.
std::string readme_text();

}  // namespace splash::report
