// Entmax of a matrix's rows on a GPU, by this project and by its peers: time, memory, error.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "analysis/error_metrics.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/normalizer.h"
#include "core/parallel.h"
#include "core/workload.h"
#include "cpu_ref/entmax/rows.h"
#include "experiments/kinds/support/inputs.h"
#include "experiments/kinds/support/lru_cache.h"
#include "experiments/kinds/support/timing.h"
#include "experiments/kinds/support/torch_peers.h"
#include "gpu/engine/tensor.h"
#include "gpu/entmax/rows/rows.h"

namespace splash::experiments {
namespace {

constexpr const char* kOurs = "entmax-rows";
constexpr const char* kPeers = "torch-";
constexpr const char* kNotTimed = "the case was not run (column version says why)";

constexpr const char* kGaussianScores = "gaussian";
constexpr const char* kOfScores[] = {"layer", "head",     "call",  "batch_entry",
                                     "scale", "head_dim", "causal"};  // parameters of inputs.h

std::string scores_key(const Parameters& p) {
  if (is_of_file(p)) return file_scores_key(p);
  return fmt::format("{} x {}, variance {}, seed {}", get_integer(p, "rows"), get_integer(p, "n"),
                     get_number(p, "variance"), get_integer(p, "seed"));
}

// [1, 1, rows, n]: drawn from N(0, variance), or the scores of a head in a file.
std::shared_ptr<const Tensor<float>> scores_of(const Parameters& p) {
  static LruCache<Tensor<float>> cache(int64_t{1} << 30);
  const int64_t rows = get_integer(p, "rows"), n = get_integer(p, "n");
  const auto make = [&] {
    if (is_of_file(p)) return load_file_scores(p);
    Tensor<float> scores(1, 1, rows, n);
    parallel_for(rows, 1, [&](int64_t r) {
      const auto row = make_score_row({.seed = static_cast<uint64_t>(get_integer(p, "seed") + r),
                                       .query_variance = get_number(p, "variance")},
                                      n);
      std::ranges::transform(row, scores.row(0, 0, r),
                             [](double score) { return static_cast<float>(score); });
    });
    return scores;
  };
  return cache.get(scores_key(p), make, [](const auto& scores) { return 4 * scores.size(); });
}

// Errors of the last rows (causal scores have most keys there): against the double oracle on the scores as
// the device has them, and of the rows' sums against 1.
void add_row_errors(const Parameters& p, const Tensor<float>& scores, const Tensor<float>& out,
                    CaseResult& result) {
  const Dtype dtype = dtype_from_string(get_text(p, "dtype"));
  const int64_t rows = std::min(get_integer(p, "checked_rows"), scores.length()), n = scores.dim();
  std::vector<double> z(static_cast<size_t>(rows * n)), expected(z.size());
  const int64_t first = scores.size() - rows * n;
  std::transform(scores.data() + first, scores.data() + scores.size(), z.begin(),
                 [&](float score) { return round_to(dtype, score); });
  cpu_ref::entmax_rows<double>(z, std::vector<double>{get_number(p, "alpha")}, rows, expected);
  const std::vector<double> found(out.data() + first, out.data() + out.size());
  std::vector<double> sums;
  for (auto row = found.begin(); row != found.end(); row += n)
    sums.push_back(std::accumulate(row, row + n, 0.0));
  result.numbers["max_error"] = analysis::compare_arrays(found, expected).max_error;  // NaN where one is
  result.numbers["sum_error"] =
      analysis::compare_arrays(sums, std::vector<double>(sums.size(), 1.0)).max_error;
}

class GpuEntmaxRows : public Kind {
 public:
  std::string name() const override { return "gpu-entmax-rows"; }
  std::string summary() const override {
    return "time, memory and error of entmax of a matrix's rows on a GPU, beside PyTorch's and Triton's";
  }

  std::vector<ParameterInfo> parameters() const override {
    using enum ParameterType;
    std::vector<std::string> implementations{kOurs};
    for (const std::string& backend : torch_gpu_rows_backends()) implementations.push_back(kPeers + backend);
    std::vector<ParameterInfo> list{
        {"implementation", text, std::string(kOurs), "", "what is timed", implementations}};
    for (ParameterInfo& info : timing_parameters()) list.push_back(std::move(info));
    list.insert(
        list.end(),
        {{"input",
          text,
          std::string(kGaussianScores),
          "",
          "Gaussian scores; or of a decoder's captured head, or of a file of q, k and v: scale <q, k>",
          {kGaussianScores, "smollm2"},
          tensor_file_endings()},
         {"rows", integer, int64_t{8192}, "1", "rows; of a file, a head's last queries, or all", {}},
         {"n", integer, int64_t{8192}, "1", "scores a row; of a file, its keys, or the first tokens", {}},
         {"dtype",
          text,
          std::string("float32"),
          "",
          "type of scores and probabilities",
          {"float32", "float16", "bfloat16"}},
         {"alpha", number, 1.5, "1", "of entmax", {}},
         {"variance", number, 1.0, "1", "variance of the Gaussian scores", {}},
         {"seed", integer, int64_t{1}, "1", "seed of the scores", {}},
         {"checked_rows", integer, int64_t{64}, "1", "rows that are held against the oracle", {}}});
    for (ParameterInfo& info : input_parameters(kOfScores)) list.push_back(std::move(info));
    return list;
  }

  std::vector<report::ColumnInfo> columns() const override {
    std::vector<report::ColumnInfo> columns = time_columns(kNotTimed);
    const auto append = [&](const std::vector<report::ColumnInfo>& more) {
      columns.insert(columns.end(), more.begin(), more.end());
    };
    const auto column = [](const char* name, const char* units, const char* long_name, const char* formula) {
      return report::ColumnInfo{.name = name,
                                .units = units,
                                .long_name = long_name,
                                .formula = formula,
                                .reproducible = false,
                                .missing_reason = kNotTimed};
    };
    append({column("bandwidth", "bytes/s", "scores read and probabilities written, over the time",
                   "2 rows n bytes of dtype / time_median"),
            column("peak_memory_bytes", "bytes", "device memory at the peak of one call, scores included",
                   "of the memory pool, or of PyTorch's allocator"),
            column("max_error", "1", "largest error of a probability",
                   "max |p - ref|, ref: float64, checked_rows rows"),
            column("sum_error", "1", "how far a row's sum is from 1", "max |sum p - 1|, checked_rows rows")});
    append(clock_columns("known for this project's kernel only"));
    append(run_columns());
    return columns;
  }

  bool needs_device() const override { return true; }

  void add_from_inputs(Parameters& set) const override { add_file_scores(set); }

  void check(const Parameters& p) const override {
    check_timing(p);
    refuse_scale_of_no_file(p);
    for (const char* name : {"rows", "n", "checked_rows"}) require_one(p, name);
    if (is_of_file(p)) check_file_scores(p);
    Workload{.query_variance = get_number(p, "variance")}.validate();
    require_entmax_alpha(get_number(p, "alpha"));
  }

  Parameters used(const Parameters& p) const override {
    Parameters kept = p;
    kept["checked_rows"] = std::min(get_integer(p, "checked_rows"), get_integer(p, "rows"));
    if (is_of_file(p)) {
      kept["scale"] = scale_of(p);
      for (const char* name : {"variance", "seed"}) kept.erase(name);
    } else {
      for (const char* name : kOfScores) kept.erase(name);
      kept.erase("input");
    }
    return kept;
  }

  std::string input_hash(const Parameters& p) const override {
    return (is_of_file(p) ? "scores: " : "gaussian rows: ") + scores_key(p);
  }

  CaseResult evaluate(const Parameters& p) const override {
    const auto scores = scores_of(p);
    CaseResult result = get_text(p, "implementation") == kOurs ? ours(p, *scores) : peer(p, *scores);
    if (!result.numbers.contains("time_median")) return result;
    const double bytes = 2.0 * static_cast<double>(scores->size()) *
                         static_cast<double>(bytes_of(dtype_from_string(get_text(p, "dtype"))));
    result.numbers["bandwidth"] = bytes / result.numbers["time_median"];
    result.numbers["peak_memory_bytes"] += bytes / 2;
    return result;
  }

 private:
  static CaseResult ours(const Parameters& p, const Tensor<float>& scores) {
    CaseResult result;
    const Dtype dtype = dtype_from_string(get_text(p, "dtype"));
    const gpu::Stream stream;
    const auto z = gpu::DeviceTensor::from(stream, dtype, scores);
    const double alpha_value = get_number(p, "alpha");
    gpu::DeviceBuffer alpha(stream, int64_t{sizeof(double)});
    alpha.upload(&alpha_value, alpha.bytes());
    gpu::DeviceTensor out(stream, dtype, z.view().extents);
    out.buffer().fill(0xFF);  // NaN, which stays where nothing is written
    const auto call = [&] {
      gpu::entmax::entmax_rows(dtype, z.view().data, static_cast<const double*>(alpha.data()), 1,
                               scores.length(), scores.dim(), out.view().data, stream.handle());
    };
    call();
    add_row_errors(p, scores, out.to_host().cast<float>(), result);
    result.numbers["peak_memory_bytes"] = static_cast<double>(out.buffer().bytes());  // there is no workspace
    time_call(call, stream, p, result);
    return result;
  }

  static CaseResult peer(const Parameters& p, const Tensor<float>& scores) {
    CaseResult result;
    const PeerResult peer =
        run_torch_gpu_rows({.backend = get_text(p, "implementation").substr(std::string(kPeers).size()),
                            .dtype = get_text(p, "dtype"),
                            .alpha = get_number(p, "alpha"),
                            .timing = timing_of(p),
                            .inputs_key = scores_key(p) + get_text(p, "dtype")},
                           scores);
    if (add_peer_run(peer, result)) add_row_errors(p, scores, peer.out, result);
    return result;
  }
};

const GpuEntmaxRows kGpuEntmaxRows;
const KindRegistration kGpuEntmaxRowsRegistration(kGpuEntmaxRows);

}  // namespace
}  // namespace splash::experiments
