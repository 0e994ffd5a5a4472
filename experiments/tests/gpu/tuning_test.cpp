// `splash tune kernels` on a GPU: measurements are written, read back and used by later runs.

#include <cmath>
#include <filesystem>
#include <fstream>

#include "experiments/kinds/support/gpu_problem.h"
#include "experiments/kinds/support/timing.h"
#include "experiments/tuning/device_problem.h"
#include "gpu/engine/attention.h"
#include "gpu/engine/chooser.h"
#include "gpu/entmax/attention.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::experiments;

namespace {

TuneRequest request_of(const std::string& subject, const Parameters& changes) {
  TuneRequest request{.subject = subject, .problem = tuned_defaults(subject), .workload = {}};
  for (const auto& [name, value] : changes) request.problem.at(name) = value;
  return request;
}

// Passes the entries through a file, as between two processes.
gpu::TunedTable reread(const std::vector<gpu::TunedEntry>& entries) {
  gpu::TunedTable table;
  for (const gpu::TunedEntry& entry : entries) table.put(entry);
  const auto path = std::filesystem::temp_directory_path() / "splash-tuning-test.json";
  std::ofstream(path) << gpu::tuned_text(table);
  gpu::TunedTable back = gpu::read_tuned(path.string());
  std::filesystem::remove(path);
  return back;
}

}  // namespace

TEST_CASE("the flagship is tuned for a small problem, and runs with what came out") {
  SKIP_WITHOUT_GPU();
  TuneRequest request = request_of(kFlagship, {{"kv_len", int64_t{2048}}, {"mask", std::string("causal")}});
  request.with_backward = true;
  request.budget_seconds = 4;
  std::size_t told = 0;
  const double begin = seconds_now();
  const TuneResult result = tune(request, [&](const TuneStage& stage) {
    ++told;
    CHECK(stage.result.candidates.size() >= 2);
    for (const CandidateResult& candidate : stage.result.candidates) CHECK(candidate.median > 0);
  });
  CHECK(seconds_now() - begin < 20);
  CHECK(told == result.stages.size());
  CHECK(told >= 2);
  REQUIRE(result.entries.size() == 2);
  const AttentionSpec spec = problem_spec(request.problem);
  const gpu::DeviceInfo device = gpu::list_devices().at(0);
  gpu::use_tuned(reread(result.entries));
  CHECK(gpu::tuned_count(device) == 2);
  const gpu::Stream stream;
  const gpu::entmax::EntmaxAttention attention(spec, Dtype::bf16, stream);
  const gpu::entmax::Tuning forward = gpu::entmax::tuning_from_string(result.entries[0].choice);
  const gpu::entmax::Tuning backward = gpu::entmax::tuning_from_string(result.entries[1].choice);
  CHECK(attention.tuning().sampled_keys == forward.sampled_keys);
  CHECK(attention.tuning().portable == forward.portable);
  CHECK(attention.tuning().long_parts == backward.long_parts);
  gpu::use_tuned({});
}

TEST_CASE("a rung that chooses goes by what was measured") {
  SKIP_WITHOUT_GPU();
  const gpu::DeviceInfo device = gpu::list_devices().at(0);
  int tuned = 0;
  for (const gpu::Chooser& chooser : gpu::choosers()) {
    CAPTURE(chooser.rung);
    const gpu::Variant& rung = gpu::find_variant(chooser.rung);
    TuneRequest request = request_of(chooser.rung, {{"head_dim", int64_t{128}}, {"block", int64_t{128}}});
    request.budget_seconds = 3;
    const AttentionSpec spec = problem_spec(request.problem);
    if (!gpu::unsupported_reason(rung, spec, Dtype::bf16, device).empty()) continue;
    ++tuned;
    const TuneResult result = tune(request, [](const TuneStage&) {});
    REQUIRE(result.entries.size() == 1);
    // Whichever candidate is fastest: each one runs when the cache names it.
    for (const CandidateResult& candidate : result.stages.at(0).result.candidates) {
      CAPTURE(candidate.name);
      std::vector<gpu::TunedEntry> entries = result.entries;
      entries[0].choice = candidate.name;
      gpu::use_tuned(reread(entries));
      const gpu::Variant* const taken = gpu::tuned_variant(chooser.rung, spec, Dtype::bf16, device);
      REQUIRE(taken != nullptr);
      CHECK(taken->id() == candidate.name);
      const gpu::Plan plan = rung.plan(spec, Dtype::bf16, device);
      CHECK(plan.kernels.front().function == taken->plan(spec, Dtype::bf16, device).kernels.front().function);
      const gpu::Stream stream;
      const gpu::PreparedAttention attention(rung, spec, Dtype::bf16, stream);
      const auto host = make_inputs<float>({.seed = 3}, spec.shape);
      const auto q = gpu::DeviceTensor::from(stream, Dtype::bf16, host.q),
                 k = gpu::DeviceTensor::from(stream, Dtype::bf16, host.k),
                 v = gpu::DeviceTensor::from(stream, Dtype::bf16, host.v);
      gpu::DeviceTensor out(stream, Dtype::bf16, q.view().extents);
      attention.enqueue(q.view(), k.view(), v.view(), out.view());
      const CheckedRows checked = checked_rows(spec, 128);
      const Tensor<double> expected = oracle(checked, q.to_host(), k.to_host(), v.to_host()).out,
                           got = checked.of(out.to_host());
      double off = 0, all = 0;
      for (int64_t i = 0; i < got.size(); ++i) {
        off += std::pow(got.data()[i] - expected.data()[i], 2);
        all += std::pow(expected.data()[i], 2);
      }
      CHECK(off <= rung.tolerance.of(Dtype::bf16) * all);
    }
    gpu::use_tuned({});
  }
  CHECK(tuned > 0);
}
