#pragma once
// Reports and files for the tests of this folder.

#include <cmath>
#include <filesystem>
#include <iterator>
#include <string>

#include <fmt/format.h>

#include "core/scratch_folder.h"
#include "report/report.h"

namespace splash::report::testing {

inline size_t entries(const ScratchFolder& folder) {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder.string()), {}));
}

inline Column text_column(const std::string& name, std::vector<std::string> texts) {
  Column column;
  column.info = {
      .name = name, .units = "text", .long_name = "the " + name, .formula = "as given", .is_text = true};
  column.texts = std::move(texts);
  return column;
}

inline Column number_column(const std::string& name, std::vector<double> numbers, bool is_parameter = false) {
  Column column;
  column.info = {.name = name, .units = "1", .long_name = "the " + name, .formula = "counted"};
  column.info.is_parameter = is_parameter;
  column.numbers = std::move(numbers);
  return column;
}

// Raw times: `samples` per case, around `seconds[case]` with 1 % of noise.
inline Column time_column(const std::vector<double>& seconds, int64_t samples, uint64_t seed = 1) {
  Column column;
  column.info = {.name = "time", .units = "s", .long_name = "time of one call", .formula = "wall clock"};
  column.info.reproducible = false;
  column.info.dimension = "sample";
  column.width = samples;
  for (size_t row = 0; row < seconds.size(); ++row) {
    for (int64_t i = 0; i < samples; ++i) {
      const double noise = std::sin(static_cast<double>(seed * 7919 + row * 104729 + i * 31));
      column.numbers.push_back(seconds[row] * (1 + 0.01 * noise));
    }
  }
  return column;
}

// A report with one of everything: unicode, empty texts, missing numbers, a second dimension, labels.
inline Report example_report() {
  Report report;
  report.title = "α-entmax on é, 漢字 and 🙂";
  report.run_id = "run-1";
  report.status = "complete";
  report.history = "made by a test\nsecond line";
  report.provenance = {.commit = "0123abc",
                       .argv = "splash run \"x y\"",
                       .experiment_toml = "[fixed]\nalpha = 1.5\n",
                       .host = "host",
                       .cpu = "cpu",
                       .gpu = "",
                       .driver = "",
                       .clocks = "",
                       .toolchain = "g++ 12",
                       .input_hashes = "q=1f",
                       .started = "2025-01-02T03:04:05Z",
                       .finished = "2025-01-02T03:05:05Z"};
  report.provenance.dirty = true;
  report.provenance.seed = (int64_t{1} << 62) + 1;  // not exact in a double
  report.provenance.threads = 2;
  report.provenance.compute_capability = 90;
  report.provenance.multiprocessors = 132;
  report.provenance.l2_bytes = 60 << 20;
  report.ceilings = {{"dram copy", "", "bytes/s", "median of 50", 3.1e12, 3.0e12, 3.2e12, 4.8e12},
                     {"tensor core", "bf16", "FLOP/s", "mma loop", 6.5e14, 6.4e14, 6.6e14, kMissing}};

  report.results = {text_column("experiment", {"ladder", "ladder", "ladder"}),
                    text_column("case_id", {"c0", "c1", "c2"}),
                    number_column("kv_len", {1024, 2048, 4096}, true),
                    text_column("note", {"", "naïve", "⊂ two\nlines"}),
                    number_column("mse", {1e-300, kMissing, -0.0}),
                    time_column({1e-3, 2e-3, 4e-3}, 20)};
  report.results[2].info.is_parameter = true;
  report.results[4].info.missing_reason = "the reference did not fit in memory";
  report.results.back().numbers[19] = kMissing;
  report.results.back().info.missing_reason = "the case stopped early";
  Column quantiles = number_column("time_quantiles", {1, 2, 3, 4, 5, 6, 7, 8, 9});
  quantiles.info.dimension = "quantile";
  quantiles.width = 3;
  report.results.push_back(quantiles);
  report.dimensions = {{"quantile", "1", "probability of the quantile", {0.1, 0.5, 0.9}}};

  Attachment map{.case_id = "c1",
                 .name = "attention",
                 .units = "1",
                 .long_name = "attention of head 3",
                 .formula = "entmax(q k^T scale)",
                 .dimensions = {"query", "key"},
                 .extents = {2, 3},
                 .numbers = {0, 0.25, 0.75, kMissing, 1, 0}};
  map.labels = {{"query", {"the", "löwe"}}, {"key", {"the", "", "the"}}};
  Attachment total{.case_id = "c1",
                   .name = "total",
                   .units = "1",
                   .long_name = "a scalar",
                   .formula = "sum",
                   .dimensions = {},
                   .extents = {},
                   .numbers = {42}};
  Attachment other{.case_id = "c2",
                   .name = "attention",
                   .units = "1",
                   .long_name = "unlabelled",
                   .formula = "",
                   .dimensions = {"query"},
                   .extents = {2},
                   .numbers = {1, 2}};
  report.attachments = {map, total, other};

  ClaimResult claim{.id = "c-1",
                    .source = "paper",
                    .claim = "sparsity at α = 1.5",
                    .units = "%",
                    .theirs = "99.6 %",
                    .theirs_value = 99.6,
                    .ours = 99.5,
                    .ours_low = 99.4,
                    .ours_high = 99.6,
                    .tolerance = 0.2,
                    .verdict = Verdict::reproduced,
                    .reason = "within tolerance",
                    .method = "cpu"};
  ClaimResult open = claim;
  open.id = "c-2";
  open.verdict = Verdict::not_comparable;
  open.ours = open.ours_low = open.ours_high = kMissing;
  report.claims = {claim, open};
  return report;
}

}  // namespace splash::report::testing
