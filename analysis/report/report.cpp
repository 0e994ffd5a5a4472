#include "analysis/report/report.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::analysis {

const char* to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::reproduced:
      return "reproduced";
    case Verdict::refuted:
      return "refuted";
    case Verdict::not_comparable:
      break;
  }
  return "not comparable";
}

Verdict verdict_from(const std::string& text) {
  for (const Verdict verdict : {Verdict::reproduced, Verdict::refuted, Verdict::not_comparable}) {
    if (text == to_string(verdict)) return verdict;
  }
  throw ReportError(fmt::format("\"{}\" is no verdict: reproduced, refuted and not comparable are", text));
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

}  // namespace splash::analysis
