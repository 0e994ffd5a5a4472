#include "report/report.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::report {

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::reproduced:
      return "reproduced";
    case Verdict::refuted:
      return "refuted";
    case Verdict::unsure:
      return "unsure";
    case Verdict::not_comparable:
      break;
  }
  return "not comparable";
}

Verdict verdict_from(const std::string& text) {
  for (const Verdict verdict :
       {Verdict::reproduced, Verdict::refuted, Verdict::unsure, Verdict::not_comparable}) {
    if (text == to_string(verdict)) return verdict;
  }
  throw ReportError(
      fmt::format("\"{}\" is no verdict: reproduced, refuted, unsure and not comparable are", text));
}

int64_t Report::cases() const {
  for (const Column& column : results) {
    if (column.info.is_text) return static_cast<int64_t>(column.texts.size());
    if (column.width > 0) return static_cast<int64_t>(column.numbers.size()) / column.width;
  }
  return 0;
}

const Column* Report::find(const std::string& name) const {
  const auto found = std::find_if(results.begin(), results.end(),
                                  [&](const Column& column) { return column.info.name == name; });
  return found == results.end() ? nullptr : &*found;
}

Column& column_of(Report& report, const ColumnInfo& info) {
  for (Column& column : report.results) {
    if (column.info.name != info.name) continue;
    if (column.info.is_text != info.is_text || column.width != 1) {
      throw ReportError(fmt::format("the report's column '{}' is not one of {} a case", info.name,
                                    info.is_text ? "text" : "numbers"));
    }
    return column;
  }
  Column column{.info = info};
  const auto cases = static_cast<std::size_t>(report.cases());
  if (info.is_text) {
    column.texts.resize(cases);
  } else {
    column.numbers.resize(cases, kMissing);
  }
  report.results.push_back(std::move(column));
  return report.results.back();
}

}  // namespace splash::report
