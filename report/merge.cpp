#include "report/merge.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::report {
namespace {

bool equal(double a, double b) {
  return a == b || (std::isnan(a) && std::isnan(b));
}

std::string name_of(const Report& shard, size_t index) {
  return shard.run_id.empty() ? fmt::format("shard {}", index)
                              : fmt::format("shard {} ({})", index, shard.run_id);
}

void check_same_run(std::span<const Report> shards) {
  const Provenance& first = shards[0].provenance;
  for (size_t i = 1; i < shards.size(); ++i) {
    const Provenance& other = shards[i].provenance;
    const auto refuse = [&](const char* what, const auto& theirs, const auto& ours) {
      throw ReportError(fmt::format("{} cannot be merged with {}: the {} differ ({} and {})",
                                    name_of(shards[i], i), name_of(shards[0], 0), what, theirs, ours));
    };
    if (other.experiment_toml != first.experiment_toml) {
      refuse("experiments", shards[i].title,
             shards[0].title + (shards[i].title == shards[0].title ? ", edited" : ""));
    }
    if (other.commit != first.commit) refuse("commits", other.commit, first.commit);
    if (other.dirty != first.dirty)
      refuse("working trees", other.dirty ? "dirty" : "clean", first.dirty ? "dirty" : "clean");
    if (other.seed != first.seed) refuse("seeds", other.seed, first.seed);
    if (other.input_hashes != first.input_hashes)
      refuse("input hashes", other.input_hashes, first.input_hashes);
  }
}

// The distinct values of a field, in the order of the shards.
std::string list_distinct(std::span<const Report> shards, std::string Provenance::*field) {
  std::vector<std::string> values;
  for (const Report& shard : shards) {
    const std::string& value = shard.provenance.*field;
    if (!value.empty() && std::find(values.begin(), values.end(), value) == values.end())
      values.push_back(value);
  }
  return fmt::format("{}", fmt::join(values, "; "));
}

Provenance merge_provenance(std::span<const Report> shards) {
  using P = Provenance;
  Provenance merged = shards[0].provenance;
  for (const auto field : {&P::argv, &P::host, &P::cpu, &P::gpu, &P::driver, &P::clocks, &P::toolchain}) {
    merged.*field = list_distinct(shards, field);
  }
  for (const Report& shard : shards) {  // as text, ISO 8601 times sort by time
    const Provenance& other = shard.provenance;
    if (!other.started.empty() && (merged.started.empty() || other.started < merged.started))
      merged.started = other.started;
    merged.finished = std::max(merged.finished, other.finished);
    merged.threads = std::max(merged.threads, other.threads);
    const bool same_gpu = other.gpu == shards[0].provenance.gpu;
    for (const auto field : {&P::compute_capability, &P::multiprocessors, &P::l2_bytes}) {
      if (!same_gpu || other.*field != merged.*field) merged.*field = 0;
    }
  }
  return merged;
}

// One merged case: the (shard, row) pairs at which the same case occurs.
using Occurrences = std::vector<std::pair<size_t, int64_t>>;

std::span<const double> numbers_at(const Column& column, int64_t row) {
  return std::span(column.numbers).subspan(row * column.width, column.width);
}

bool same_entry(const Column& a, int64_t row_a, const Column& b, int64_t row_b) {
  if (a.info.is_text != b.info.is_text) return false;
  if (a.info.is_text) return a.texts[row_a] == b.texts[row_b];
  const auto x = numbers_at(a, row_a), y = numbers_at(b, row_b);
  for (size_t i = 0; i < std::max(x.size(), y.size()); ++i) {
    if (!equal(i < x.size() ? x[i] : kMissing, i < y.size() ? y[i] : kMissing)) return false;
  }
  return true;
}

// The union of the columns without values: descriptions and widths.
std::vector<Column> unite_columns(std::span<const Report> shards) {
  std::vector<Column> united;
  std::map<std::string, size_t> index;
  for (size_t s = 0; s < shards.size(); ++s) {
    for (const Column& column : shards[s].results) {
      const auto [entry, is_new] = index.try_emplace(column.info.name, united.size());
      if (is_new) {
        united.push_back({.info = column.info, .width = column.width});
        continue;
      }
      Column& known = united[entry->second];
      const ColumnInfo &a = known.info, &b = column.info;
      if (a.units != b.units || a.is_text != b.is_text || a.is_parameter != b.is_parameter ||
          a.reproducible != b.reproducible || a.dimension != b.dimension) {
        throw ReportError(
            fmt::format("{} cannot be merged with those before it: column {} has another kind, units or "
                        "dimension there",
                        name_of(shards[s], s), b.name));
      }
      known.width = std::max(known.width, column.width);
      if (known.info.missing_reason.empty()) known.info.missing_reason = b.missing_reason;
    }
  }
  return united;
}

void check_same_case(std::span<const Report> shards, const Occurrences& occurrences,
                     const std::string& case_id) {
  const auto [first_shard, first_row] = occurrences.front();
  const auto [shard, row] = occurrences.back();
  for (const Column& column : shards[first_shard].results) {
    const Column* other = shards[shard].find(column.info.name);
    if (!other || !column.info.reproducible || column.info.name == "case_index") continue;
    if (!same_entry(column, first_row, *other, row)) {
      throw ReportError(fmt::format("case {} stands in {} and {} with different values of {}", case_id,
                                    name_of(shards[first_shard], first_shard), name_of(shards[shard], shard),
                                    column.info.name));
    }
  }
}

std::vector<Occurrences> collect_cases(std::span<const Report> shards) {
  std::vector<Occurrences> cases;
  std::map<std::string, size_t> by_id;
  for (size_t s = 0; s < shards.size(); ++s) {
    const Column* ids = shards[s].find("case_id");
    for (int64_t row = 0; row < shards[s].cases(); ++row) {
      if (ids && ids->info.is_text) {
        const auto [entry, is_new] = by_id.try_emplace(ids->texts[row], cases.size());
        if (!is_new) {
          cases[entry->second].emplace_back(s, row);
          check_same_case(shards, cases[entry->second], ids->texts[row]);
          continue;
        }
      }
      cases.push_back({{s, row}});
    }
  }
  return cases;
}

void fill(Column& column, std::span<const Report> shards, const std::vector<Occurrences>& cases) {
  std::vector<const Column*> sources;
  for (const Report& shard : shards) sources.push_back(shard.find(column.info.name));
  bool missing = false;
  for (const Occurrences& occurrences : cases) {
    const auto source = std::find_if(occurrences.begin(), occurrences.end(),
                                     [&](const auto& place) { return sources[place.first] != nullptr; });
    const bool found = source != occurrences.end();
    missing |= !found;
    if (column.info.is_text) {
      column.texts.push_back(found ? sources[source->first]->texts[source->second] : "");
      continue;
    }
    const size_t end = column.numbers.size() + static_cast<size_t>(column.width);
    if (found) {
      const auto values = numbers_at(*sources[source->first], source->second);
      column.numbers.insert(column.numbers.end(), values.begin(), values.end());
    }
    column.numbers.resize(end, kMissing);
  }
  if (missing && column.info.missing_reason.empty()) {
    column.info.missing_reason = "the shard with this case does not have the column";
  }
}

void order_by_index(std::vector<Column>& columns) {
  const auto index = std::find_if(columns.begin(), columns.end(), [](const Column& column) {
    return column.info.name == "case_index" && !column.info.is_text && column.width == 1;
  });
  if (index == columns.end()) return;
  std::vector<size_t> order(index->numbers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const std::vector<double> keys = index->numbers;
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return keys[a] < keys[b] || (!std::isnan(keys[a]) && std::isnan(keys[b]));  // no index: last
  });
  for (Column& column : columns) {
    Column ordered{.info = column.info, .width = column.width};
    for (const size_t row : order) {
      if (column.info.is_text) {
        ordered.texts.push_back(std::move(column.texts[row]));
      } else {
        const auto values = numbers_at(column, static_cast<int64_t>(row));
        ordered.numbers.insert(ordered.numbers.end(), values.begin(), values.end());
      }
    }
    column = std::move(ordered);
  }
}

std::vector<Dimension> merge_dimensions(std::span<const Report> shards) {
  std::vector<Dimension> merged;
  for (const Report& shard : shards) {
    for (const Dimension& dimension : shard.dimensions) {
      const auto known = std::find_if(merged.begin(), merged.end(),
                                      [&](const Dimension& d) { return d.name == dimension.name; });
      if (known == merged.end()) {
        merged.push_back(dimension);
      } else if (known->values != dimension.values) {
        throw ReportError(
            fmt::format("shards cannot be merged: their coordinates of {} differ", dimension.name));
      }
    }
  }
  return merged;
}

std::vector<Attachment> merge_attachments(std::span<const Report> shards) {
  std::vector<Attachment> merged;
  std::map<std::pair<std::string, std::string>, size_t> known;
  for (const Report& shard : shards) {
    for (const Attachment& attachment : shard.attachments) {
      const auto [entry, is_new] = known.try_emplace({attachment.case_id, attachment.name}, merged.size());
      if (is_new) {
        merged.push_back(attachment);
        continue;
      }
      const Attachment& other = merged[entry->second];
      const bool same = other.extents == attachment.extents && other.dimensions == attachment.dimensions &&
                        std::equal(other.numbers.begin(), other.numbers.end(), attachment.numbers.begin(),
                                   attachment.numbers.end(), equal);
      if (!same) {
        throw ReportError(fmt::format("attachment {}/{} stands in two shards with different values",
                                      attachment.case_id, attachment.name));
      }
    }
  }
  return merged;
}

}  // namespace

Report merge_reports(std::span<const Report> shards) {
  if (shards.empty()) throw ReportError("there are no reports to merge, at least one is needed");
  check_same_run(shards);

  Report merged;
  merged.title = shards[0].title;
  merged.run_id = shards[0].run_id;
  merged.status = "complete";
  std::vector<std::string> histories;
  for (const Report& shard : shards) {
    if (shard.status == "interrupted") merged.status = "interrupted";
    if (!shard.history.empty() &&
        std::find(histories.begin(), histories.end(), shard.history) == histories.end()) {
      histories.push_back(shard.history);
    }
    for (const Ceiling& ceiling : shard.ceilings) {
      const bool known = std::any_of(merged.ceilings.begin(), merged.ceilings.end(), [&](const Ceiling& c) {
        return c.name == ceiling.name && c.dtype == ceiling.dtype;
      });
      if (!known) merged.ceilings.push_back(ceiling);
    }
  }
  histories.push_back(fmt::format("merged from {} reports", shards.size()));
  merged.history = fmt::format("{}", fmt::join(histories, "\n"));
  merged.provenance = merge_provenance(shards);

  merged.results = unite_columns(shards);
  const std::vector<Occurrences> cases = collect_cases(shards);
  for (Column& column : merged.results) fill(column, shards, cases);
  order_by_index(merged.results);
  merged.dimensions = merge_dimensions(shards);
  merged.attachments = merge_attachments(shards);
  return merged;
}

}  // namespace splash::report
