#include <algorithm>
#include <type_traits>

#include <fmt/format.h>

#include "core/error.h"
#include "report/atomic_file.h"
#include "report/hdf5/apart.h"
#include "report/hdf5/file.h"
#include "report/io.h"
#include "report/layout.h"
#include "report/seal.h"

namespace splash::report {
namespace {

using hdf5::Dataset;
using hdf5::Group;

Column read_column(const Dataset& dataset, const std::string& name, const std::string& row_dimension) {
  Column column;
  ColumnInfo& info = column.info;
  info.name = name;
  info.units = dataset.text_attribute("units", "");
  info.long_name = dataset.text_attribute("long_name", "");
  info.formula = dataset.text_attribute("formula", "");
  info.missing_reason = dataset.text_attribute("missing_reason", "");
  info.is_text = dataset.is_text();
  info.is_parameter = dataset.text_attribute("role", "result") == "parameter";
  info.reproducible =
      !dataset.has_attribute("reproducible") || dataset.integer_attribute("reproducible") != 0;

  const hdf5::Extents extents = dataset.extents();
  // A text column may itself be the coordinate of the rows: /claims/claim.
  const std::vector<std::string> dimensions =
      dataset.is_scale() ? std::vector<std::string>{name} : dataset.dimension_names();
  if (extents.empty() || extents.size() > (info.is_text ? 1u : 2u) || dimensions.front() != row_dimension ||
      (extents.size() == 2 && dimensions.back().empty())) {
    throw ReportError(
        fmt::format("{}: {} is no column along {}", dataset.file(), dataset.path(), row_dimension));
  }
  if (extents.size() == 2) {
    info.dimension = dimensions.back();
    column.width = extents.back();
  }
  if (info.is_text) {
    column.texts = dataset.texts();
  } else {
    column.numbers = dataset.doubles();
  }
  return column;
}

struct Table {
  std::vector<Column> columns;
  std::vector<Dimension> dimensions;
};

Table read_table(const Group& root, const std::string& name, const std::string& row_dimension) {
  const Group group = root.group(name);
  const hdf5::Extents rows = group.dataset(row_dimension).extents();
  if (rows.size() != 1) {
    throw ReportError(fmt::format("{}: {} has {} dimensions, where one was expected", root.file(),
                                  group.dataset(row_dimension).path(), rows.size()));
  }
  Table table;
  for (const std::string& child : group.names()) {
    const Dataset dataset = group.dataset(child);
    if (!dataset.is_scale() || (child == row_dimension && dataset.is_text())) {
      Column column = read_column(dataset, child, row_dimension);
      if (dataset.extents().front() != rows.front()) {
        throw ReportError(fmt::format("{}: {} has {} rows, {} has {}", dataset.file(), dataset.path(),
                                      dataset.extents().front(), row_dimension, rows.front()));
      }
      table.columns.push_back(std::move(column));
    } else if (child != row_dimension && !dataset.is_integer()) {  // an integer scale only counts
      table.dimensions.push_back({child, dataset.text_attribute("units", ""),
                                  dataset.text_attribute("long_name", ""), dataset.doubles()});
    }
  }
  return table;
}

Provenance read_provenance(const Group& root) {
  const Group group = root.group("provenance");
  Provenance provenance;
  for (const ProvenanceField& field : provenance_fields()) {
    if (field.may_lack && !group.has(field.name)) continue;
    const Dataset dataset = group.dataset(field.name);
    const auto read = [&](auto member) {
      if constexpr (std::is_same_v<decltype(member), std::string Provenance::*>) {
        provenance.*member = dataset.text();
      } else {
        provenance.*member = dataset.integer();
      }
    };
    std::visit(read, field.member);
  }
  return provenance;
}

std::vector<Attachment> read_attachments(const Group& root) {
  std::vector<Attachment> attachments;
  const Group group = root.group("attachments");
  for (const std::string& case_id : group.names()) {
    const Group of_case = group.group(case_id);
    for (const std::string& name : of_case.names()) {
      const Dataset dataset = of_case.dataset(name);
      if (dataset.is_scale()) continue;
      Attachment attachment{.case_id = case_id,
                            .name = name,
                            .units = dataset.text_attribute("units", ""),
                            .long_name = dataset.text_attribute("long_name", ""),
                            .formula = dataset.text_attribute("formula", ""),
                            .dimensions = dataset.dimension_names(),
                            .extents = dataset.extents(),
                            .numbers = dataset.doubles(),
                            .labels = {}};
      for (const std::string& dimension : attachment.dimensions) {
        if (!of_case.has(dimension)) continue;
        const Dataset scale = of_case.dataset(dimension);
        if (scale.is_text()) attachment.labels[dimension] = scale.texts();
      }
      attachments.push_back(std::move(attachment));
    }
  }
  return attachments;
}

void check_schema(const Group& root) {
  if (!root.has_attribute("schema_version") || !root.has("results")) {
    throw ReportError(fmt::format("{}: is HDF5 but not a report of Adaptive Splash, it has no {}",
                                  root.file(), root.has("results") ? "schema_version" : "/results"));
  }
  const int64_t version = root.integer_attribute("schema_version");
  if (version != kSchemaVersion) {
    throw ReportError(fmt::format("{}: is a report of schema {}, this program reads schema {}", root.file(),
                                  version, kSchemaVersion));
  }
}

Report read_in_this_process(const std::string& path, Seal seal) {
  const hdf5::File file = hdf5::File::open(path);
  if (seal == Seal::absent && file.bytes_past_end() > 0) {
    throw ReportError(fmt::format("{}: is truncated, its last line is not whole", path));
  }
  const Group root = file.root();
  check_schema(root);

  Report report;
  report.title = root.text_attribute("title", "");
  report.run_id = root.text_attribute("run_id", "");
  report.history = root.text_attribute("history", "");
  report.status = root.text_attribute("status", "");
  report.provenance = read_provenance(root);
  report.ceilings = ceilings_from(read_table(root, "ceilings", kCeilingDimension).columns, path);
  Table results = read_table(root, "results", kCaseDimension);
  report.results = std::move(results.columns);
  report.dimensions = std::move(results.dimensions);
  report.claims = claims_from(read_table(root, "claims", kClaimDimension).columns, path);
  report.attachments = read_attachments(root);
  return report;
}

}  // namespace

Report read_report(const std::string& path) {
  const Seal seal = check_seal(path);
  if (seal == Seal::broken) {
    throw ReportError(fmt::format("{}: is damaged, its checksum does not match its content", path));
  }
  return hdf5::read_apart_first(path, [&] { return read_in_this_process(path, seal); });
}

void seal_report(const std::string& path, const std::string& to) {
  static_cast<void>(read_report(path));
  std::vector<std::byte> bytes = bytes_of(path);
  if (check_seal(path) == Seal::absent) add_seal(bytes);
  write_file_atomically(to, bytes);
}

}  // namespace splash::report
