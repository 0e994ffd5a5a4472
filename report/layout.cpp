#include "report/layout.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::report {
namespace {

template <class Row>
struct Field {
  ColumnInfo info;
  std::variant<std::string Row::*, double Row::*, Verdict Row::*> member;
};

template <class Row>
Field<Row> text_field(const char* name, const char* long_name, std::string Row::*member) {
  ColumnInfo info{
      .name = name, .units = kTextUnits, .long_name = long_name, .formula = "as given", .is_text = true};
  return {info, member};
}

template <class Row>
Field<Row> number_field(const char* name, const char* long_name, const char* formula, const char* missing,
                        double Row::*member) {
  ColumnInfo info{
      .name = name, .units = "as in the column units", .long_name = long_name, .formula = formula};
  info.missing_reason = missing;
  return {info, member};
}

const std::vector<Field<Ceiling>>& ceiling_fields() {
  using C = Ceiling;
  static const std::vector<Field<C>> fields = {
      text_field("name", "which ceiling of the machine", &C::name),
      text_field("dtype", "the data type it holds for", &C::dtype),
      text_field("units", "units of measured, low, high and datasheet", &C::units),
      text_field("method", "how it was measured", &C::method),
      number_field("measured", "measured value", "median of repeated measurements, see the column method",
                   "it was not measured", &C::measured),
      number_field("low", "lower end of the measured value's interval",
                   "median interval from order statistics", "it was not measured", &C::low),
      number_field("high", "upper end of the measured value's interval",
                   "median interval from order statistics", "it was not measured", &C::high),
      number_field("datasheet", "value from the vendor's data sheet", "as printed there",
                   "no data sheet value is known", &C::datasheet),
  };
  return fields;
}

const std::vector<Field<ClaimResult>>& claim_fields() {
  using C = ClaimResult;
  static const std::vector<Field<C>> fields = {
      text_field("id", "short name of the claim", &C::id),
      text_field("source", "the document or paper that makes it", &C::source),
      text_field("claim", "what is claimed", &C::claim),
      text_field("theirs", "the claimed value as the source puts it", &C::theirs),
      text_field("units", "units of theirs_value, ours, ours_low, ours_high and tolerance", &C::units),
      number_field("theirs_value", "the claimed value as a number", "read from the column theirs",
                   "the claim is not a number", &C::theirs_value),
      number_field("ours", "our value", "see the column method", "it was not measured here", &C::ours),
      number_field("ours_low", "lower end of our value's interval", "see the column method",
                   "the value has no interval or was not measured", &C::ours_low),
      number_field("ours_high", "upper end of our value's interval", "see the column method",
                   "the value has no interval or was not measured", &C::ours_high),
      number_field("tolerance", "how far ours may be from theirs and still reproduce it",
                   "set with the claim", "the claim is not judged by a distance", &C::tolerance),
      {ColumnInfo{.name = "verdict",
                  .units = kTextUnits,
                  .long_name = "reproduced, refuted or not comparable",
                  .formula = "ours against theirs within tolerance",
                  .is_text = true},
       &C::verdict},
      text_field("reason", "why this verdict, in one sentence", &C::reason),
      text_field("method", "arithmetic, cpu or gpu", &C::method),
  };
  return fields;
}

template <class Row>
std::vector<Column> to_columns(const std::vector<Field<Row>>& fields, const std::vector<Row>& rows) {
  std::vector<Column> columns;
  for (const Field<Row>& field : fields) {
    Column column{.info = field.info};
    for (const Row& row : rows) {
      if (const auto* text = std::get_if<std::string Row::*>(&field.member))
        column.texts.push_back(row.**text);
      if (const auto* number = std::get_if<double Row::*>(&field.member))
        column.numbers.push_back(row.**number);
      if (const auto* verdict = std::get_if<Verdict Row::*>(&field.member)) {
        column.texts.push_back(to_string(row.**verdict));
      }
    }
    columns.push_back(std::move(column));
  }
  return columns;
}

template <class Row>
std::vector<Row> from_columns(const std::vector<Field<Row>>& fields, const std::vector<Column>& columns,
                              const std::string& where) {
  std::vector<Row> rows;
  bool first = true;
  for (const Field<Row>& field : fields) {
    const auto column = std::find_if(columns.begin(), columns.end(),
                                     [&](const Column& c) { return c.info.name == field.info.name; });
    if (column == columns.end() || column->info.is_text != field.info.is_text || column->width != 1) {
      throw ReportError(fmt::format("{} has no column {} of {}", where, field.info.name,
                                    field.info.is_text ? "texts" : "numbers"));
    }
    const size_t length = field.info.is_text ? column->texts.size() : column->numbers.size();
    if (std::exchange(first, false)) rows.resize(length);
    for (size_t i = 0; i < rows.size(); ++i) {  // the reader has checked that all columns have one length
      if (const auto* text = std::get_if<std::string Row::*>(&field.member))
        rows[i].** text = column->texts[i];
      if (const auto* number = std::get_if<double Row::*>(&field.member))
        rows[i].** number = column->numbers[i];
      if (const auto* verdict = std::get_if<Verdict Row::*>(&field.member)) {
        rows[i].** verdict = verdict_from(column->texts[i]);
      }
    }
  }
  return rows;
}

}  // namespace

std::vector<Column> ceiling_columns(const std::vector<Ceiling>& ceilings) {
  return to_columns(ceiling_fields(), ceilings);
}

std::vector<Ceiling> ceilings_from(const std::vector<Column>& columns, const std::string& file) {
  return from_columns(ceiling_fields(), columns, file + ": /ceilings");
}

std::vector<Column> claim_columns(const std::vector<ClaimResult>& claims) {
  return to_columns(claim_fields(), claims);
}

std::vector<ClaimResult> claims_from(const std::vector<Column>& columns, const std::string& file) {
  return from_columns(claim_fields(), columns, file + ": /claims");
}

const std::vector<ProvenanceField>& provenance_fields() {
  using P = Provenance;
  static const std::vector<ProvenanceField> fields = {
      {"commit", kTextUnits, "commit of the source tree that was built", &P::commit},
      {"dirty", "1", "1 if the source tree differed from that commit, else 0", &P::dirty},
      {"argv", kTextUnits, "the command line", &P::argv},
      {"experiment_toml", kTextUnits, "the experiment's definition, verbatim", &P::experiment_toml},
      {"seed", "1", "seed of the random numbers", &P::seed},
      {"host", kTextUnits, "name of the machine", &P::host},
      {"cpu", kTextUnits, "its processor", &P::cpu},
      {"threads", "1", "CPU threads that were used", &P::threads},
      {"gpu", kTextUnits, "its GPU; empty where none was used", &P::gpu},
      {"compute_capability", "1", "compute capability of that GPU, times ten", &P::compute_capability, true},
      {"multiprocessors", "1", "its multiprocessors", &P::multiprocessors, true},
      {"l2_bytes", "bytes", "its L2", &P::l2_bytes, true},
      {"driver", kTextUnits, "GPU driver and CUDA runtime", &P::driver},
      {"clocks", kTextUnits, "GPU clocks during the run", &P::clocks},
      {"toolchain", kTextUnits, "compilers and libraries of the build", &P::toolchain},
      {"input_hashes", kTextUnits, "hashes of the input files", &P::input_hashes},
      {"started", kTextUnits, "when the run began, ISO 8601", &P::started},
      {"finished", kTextUnits, "when the run ended, ISO 8601", &P::finished},
  };
  return fields;
}

std::string readme_text() {
  return R"(A report of Adaptive Splash: what one run of an experiment found. Every dataset says its units, long_name and
formula; docs/report-format.md in the source tree describes the layout.

/results      one entry a case (dimension `case`): parameters (role = "parameter") and results (role = "result");
              raw samples stand along a second dimension, time[case, sample]; missing is NaN, missing_reason says why
/claims       claims of papers and documents, theirs against ours, with verdict and reason
/ceilings     measured limits of the machine, beside the data sheet's
/provenance   how the run came about: commit, command line, experiment, machine, toolchain
/attachments  arrays of single cases, /attachments/<case_id>/<name>

With h5py:
    import h5py
    report = h5py.File("report.h5")  # this file
    print({name: (column.attrs["units"], column[:3]) for name, column in report["results"].items()})

With xarray:
    import xarray
    results = xarray.open_dataset("report.h5", group="results", engine="h5netcdf")
    print(results, results["case_id"].attrs["long_name"])
)";
}

}  // namespace splash::report
