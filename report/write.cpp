#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <span>

#include <fmt/format.h>

#include "core/error.h"
#include "report/atomic_file.h"
#include "report/hdf5/file.h"
#include "report/io.h"
#include "report/layout.h"
#include "report/seal.h"

namespace splash::report {
namespace {

using hdf5::Dataset;
using hdf5::Group;

void describe(Dataset& dataset, const std::string& units, const std::string& long_name,
              const std::string& formula) {
  dataset.set_text("units", units.empty() ? "1" : units);
  dataset.set_text("long_name", long_name);
  dataset.set_text("formula", formula);
}

Dataset write_scale(Group& group, const std::string& dimension, int64_t extent,
                    const std::string& long_name) {
  std::vector<int64_t> indices(static_cast<size_t>(extent));
  std::iota(indices.begin(), indices.end(), 0);
  Dataset scale = group.create_integers(dimension, {extent}, indices);
  describe(scale, "1", long_name, kCountFormula);
  scale.make_scale(dimension);
  return scale;
}

Dataset write_scale(Group& group, const Dimension& dimension) {
  Dataset scale =
      group.create_doubles(dimension.name, {static_cast<int64_t>(dimension.values.size())}, dimension.values);
  describe(scale, dimension.units, dimension.long_name, "chosen by the experiment");
  scale.make_scale(dimension.name);
  return scale;
}

void check_column(const Column& column, int64_t rows, const std::string& where) {
  const ColumnInfo& info = column.info;
  const auto refuse = [&](const std::string& what) {
    throw InvalidArgument(fmt::format("column {}/{}: {}", where, info.name, what));
  };
  if (column.width != 1 && info.dimension.empty()) {
    refuse(fmt::format("is {} wide but names no second dimension", column.width));
  }
  if (column.width < 0) refuse("has a negative width");
  if (info.is_text && !info.dimension.empty()) refuse("is text, which has one value a case");
  const size_t length = info.is_text ? column.texts.size() : column.numbers.size();
  if (length != static_cast<size_t>(rows * column.width)) {
    refuse(
        fmt::format("has {} values, {} rows of {} need {}", length, rows, column.width, rows * column.width));
  }
}

const Column* find_column(const std::vector<Column>& columns, const std::string& name) {
  const auto same_name = [&](const Column& column) { return column.info.name == name; };
  const auto found = std::find_if(columns.begin(), columns.end(), same_name);
  return found == columns.end() ? nullptr : &*found;
}

const Dimension* find_dimension(const std::vector<Dimension>& dimensions, const std::string& name) {
  const auto same_name = [&](const Dimension& dimension) { return dimension.name == name; };
  const auto found = std::find_if(dimensions.begin(), dimensions.end(), same_name);
  return found == dimensions.end() ? nullptr : &*found;
}

// Returns the extents of the table's second dimensions. Throws InvalidArgument for an invalid table.
std::map<std::string, int64_t> check_columns(const std::vector<Column>& columns, int64_t rows,
                                             const std::string& row_dimension,
                                             const std::vector<Dimension>& dimensions,
                                             const std::string& where) {
  std::map<std::string, int64_t> widths;
  for (const Column& column : columns) {
    check_column(column, rows, where);
    if (column.info.dimension.empty()) continue;
    int64_t& width = widths[column.info.dimension];
    width = std::max(width, column.width);
    const Dimension* described = find_dimension(dimensions, column.info.dimension);
    if (described && width > static_cast<int64_t>(described->values.size())) {
      throw InvalidArgument(fmt::format("{}/{} is {} wide, its dimension {} has {} coordinates", where,
                                        column.info.name, width, described->name, described->values.size()));
    }
  }
  std::set<std::string> taken{row_dimension};
  for (const auto& [dimension, width] : widths) {
    if (!taken.insert(dimension).second) {
      throw InvalidArgument(fmt::format("{}: {} cannot be a second dimension too", where, dimension));
    }
  }
  if (const Column* own = find_column(columns, row_dimension); own && own->info.is_text)
    taken.erase(row_dimension);
  for (const Column& column : columns) {
    if (!taken.insert(column.info.name).second) {
      throw InvalidArgument(
          fmt::format("{}: two columns or dimensions are named {}", where, column.info.name));
    }
  }
  return widths;
}

// The column's rows of `column.width` numbers, padded to `wider` numbers each.
std::vector<double> pad(const Column& column, int64_t rows, int64_t wider) {
  if (column.width == wider) return column.numbers;
  std::vector<double> padded(static_cast<size_t>(rows * wider), kMissing);
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(column.numbers.begin() + row * column.width, column.width, padded.begin() + row * wider);
  }
  return padded;
}

// "Missing is NaN with a reason", even if the caller gave no reason.
std::string missing_reason(const ColumnInfo& info, std::span<const double> numbers) {
  const bool missing = std::any_of(numbers.begin(), numbers.end(), [](double x) { return std::isnan(x); });
  if (!missing || !info.missing_reason.empty()) return info.missing_reason;
  return info.dimension.empty() ? "the run gave no reason"
                                : fmt::format("a case with fewer entries along {} is padded", info.dimension);
}

Dataset write_column(Group& group, const Column& column, int64_t rows,
                     const std::map<std::string, Dataset>& scales) {
  const ColumnInfo& info = column.info;
  hdf5::Extents extents{rows};
  std::vector<double> numbers;
  if (!info.is_text) {
    if (!info.dimension.empty()) extents.push_back(scales.at(info.dimension).extents().front());
    numbers = pad(column, rows, info.dimension.empty() ? 1 : extents.back());
  }
  Dataset dataset = info.is_text ? group.create_texts(info.name, extents, column.texts)
                                 : group.create_doubles(info.name, extents, numbers);
  describe(dataset, info.is_text && info.units.empty() ? kTextUnits : info.units, info.long_name,
           info.formula);
  dataset.set_text("role", info.is_parameter ? "parameter" : "result");
  dataset.set_integer("reproducible", info.reproducible);
  const std::string reason = missing_reason(info, numbers);
  if (!reason.empty()) dataset.set_text("missing_reason", reason);
  return dataset;
}

// Writes a group of columns of one length along `row_dimension`.
void write_table(Group& root, const std::string& name, const std::string& long_name,
                 const std::string& row_dimension, int64_t rows, const std::vector<Column>& columns,
                 const std::vector<Dimension>& dimensions) {
  Group group = root.create_group(name);
  group.set_text("long_name", long_name);

  const std::map<std::string, int64_t> widths =
      check_columns(columns, rows, row_dimension, dimensions, group.path());
  const Column* coordinate = find_column(columns, row_dimension);
  Dataset row_scale = coordinate ? write_column(group, *coordinate, rows, {})
                                 : write_scale(group, row_dimension, rows, "index of the row");
  if (coordinate) row_scale.make_scale(row_dimension);

  std::map<std::string, Dataset> scales;
  for (const auto& [name, width] : widths) {
    const Dimension* described = find_dimension(dimensions, name);
    scales.emplace(name, described ? write_scale(group, *described)
                                   : write_scale(group, name, width, fmt::format("index of the {}", name)));
  }
  for (const Column& column : columns) {
    if (&column == coordinate) continue;
    Dataset dataset = write_column(group, column, rows, scales);
    dataset.attach_scale(0, row_scale);
    if (!column.info.dimension.empty()) dataset.attach_scale(1, scales.at(column.info.dimension));
  }
}

// The dimensions of all attachments of one case. Attachments that share a dimension's name share extent and
// labels.
struct AttachmentDimension {
  int64_t extent = 0;
  std::vector<std::string> labels;
};

std::map<std::string, AttachmentDimension> shared_dimensions(
    const std::vector<const Attachment*>& attachments) {
  std::map<std::string, AttachmentDimension> shared;
  for (const Attachment* attachment : attachments) {
    const std::string where = fmt::format("attachment {}/{}", attachment->case_id, attachment->name);
    if (attachment->dimensions.size() != attachment->extents.size()) {
      throw InvalidArgument(fmt::format("{} has {} extents and names {} dimensions", where,
                                        attachment->extents.size(), attachment->dimensions.size()));
    }
    std::set<std::string> own;
    for (size_t axis = 0; axis < attachment->dimensions.size(); ++axis) {
      const std::string& name = attachment->dimensions[axis];
      if (!own.insert(name).second)
        throw InvalidArgument(fmt::format("{} has two dimensions {}", where, name));
      const int64_t extent = attachment->extents[axis];
      if (extent < 0) throw InvalidArgument(fmt::format("{} has {} entries along {}", where, extent, name));
      const auto [entry, is_new] = shared.try_emplace(name, AttachmentDimension{extent, {}});
      if (!is_new && entry->second.extent != extent) {
        throw InvalidArgument(
            fmt::format("{} has {} entries along {}, another attachment of that case has {}", where, extent,
                        name, entry->second.extent));
      }
    }
    for (const auto& [name, labels] : attachment->labels) {
      if (!own.contains(name))
        throw InvalidArgument(fmt::format("{} labels {}, not a dimension of it", where, name));
      AttachmentDimension& dimension = shared.at(name);
      if (static_cast<int64_t>(labels.size()) != dimension.extent) {
        throw InvalidArgument(fmt::format("{} has {} labels for the {} entries along {}", where,
                                          labels.size(), dimension.extent, name));
      }
      if (!dimension.labels.empty() && dimension.labels != labels) {
        throw InvalidArgument(
            fmt::format("{} and another attachment of that case label {} differently", where, name));
      }
      dimension.labels = labels;
    }
  }
  return shared;
}

void write_attachments_of_case(Group& group, const std::vector<const Attachment*>& attachments) {
  std::map<std::string, Dataset> scales;
  for (const auto& [name, dimension] : shared_dimensions(attachments)) {
    if (dimension.labels.empty()) {
      scales.emplace(name, write_scale(group, name, dimension.extent, fmt::format("index of the {}", name)));
      continue;
    }
    Dataset scale = group.create_texts(name, {dimension.extent}, dimension.labels);
    describe(scale, kTextUnits, fmt::format("label of the {}", name), "as given");
    scale.make_scale(name);
    scales.emplace(name, std::move(scale));
  }
  for (const Attachment* attachment : attachments) {
    if (group.has(attachment->name)) {
      throw InvalidArgument(
          fmt::format("{}: two attachments or dimensions are named {}", group.path(), attachment->name));
    }
    Dataset dataset = group.create_doubles(attachment->name, attachment->extents, attachment->numbers);
    describe(dataset, attachment->units, attachment->long_name, attachment->formula);
    for (size_t axis = 0; axis < attachment->dimensions.size(); ++axis) {
      dataset.attach_scale(static_cast<int>(axis), scales.at(attachment->dimensions[axis]));
    }
  }
}

void write_attachments(Group& root, const std::vector<Attachment>& attachments) {
  Group group = root.create_group("attachments");
  group.set_text("long_name", "arrays of single cases, one group a case_id");
  std::vector<std::string> order;
  std::map<std::string, std::vector<const Attachment*>> by_case;
  for (const Attachment& attachment : attachments) {
    auto& same_case = by_case[attachment.case_id];
    if (same_case.empty()) order.push_back(attachment.case_id);
    same_case.push_back(&attachment);
  }
  for (const std::string& case_id : order) {
    Group of_case = group.create_group(case_id);
    write_attachments_of_case(of_case, by_case.at(case_id));
  }
}

void write_provenance(Group& root, const Provenance& provenance) {
  Group group = root.create_group("provenance");
  group.set_text("long_name", "how the run came about");
  for (const ProvenanceField& field : provenance_fields()) {
    const auto* number = std::get_if<int64_t Provenance::*>(&field.member);
    if (field.may_lack && number != nullptr && provenance.**number == 0) continue;
    const auto write = [&](auto member) {
      if constexpr (std::is_same_v<decltype(member), std::string Provenance::*>) {
        return group.create_text(field.name, provenance.*member);
      } else {
        return group.create_integer(field.name, static_cast<int64_t>(provenance.*member));
      }
    };
    Dataset dataset = std::visit(write, field.member);
    describe(dataset, field.units, field.long_name, "recorded by the run");
  }
}

}  // namespace

void write_report(const std::string& path, const Report& report) {
  const hdf5::File file = hdf5::File::in_memory(path);
  Group root = file.root();
  root.set_text("title", report.title);
  root.set_integer("schema_version", kSchemaVersion);
  root.set_text("run_id", report.run_id);
  root.set_text("history", report.history);
  root.set_text("status", report.status);
  Dataset readme = root.create_text("README", readme_text());
  describe(readme, kTextUnits, "what is here, and how to read it", "as given");

  write_provenance(root, report.provenance);
  write_table(root, "ceilings", "measured limits of the machine", kCeilingDimension,
              static_cast<int64_t>(report.ceilings.size()), ceiling_columns(report.ceilings), {});
  write_table(root, "results", "parameters and results, one entry a case", kCaseDimension, report.cases(),
              report.results, report.dimensions);
  write_table(root, "claims", "claims of papers and documents, judged", kClaimDimension,
              static_cast<int64_t>(report.claims.size()), claim_columns(report.claims), {});
  write_attachments(root, report.attachments);

  std::vector<std::byte> bytes = file.image();
  add_seal(bytes);
  write_file_atomically(path, bytes);
}

}  // namespace splash::report
