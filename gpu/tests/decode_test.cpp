// Decode on a GPU, against the double oracle for the same rounded keys, with outputs and workspace poisoned.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "core/error.h"
#include "gpu/decode/plan.h"
#include "gpu/engine/device_vector.h"
#include "gpu/entmax/schedule/launch.h"
#include "gpu/tests/decode_cases.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

// A case in device memory; run() may be called again. T: of the cache; Row: of queries and outputs.
template <class T, class Row = T>
class OnDevice {
 public:
  explicit OnDevice(const DecodeCase& c) : c_(c) {
    const auto& q = c.inputs.q;
    keys_ = uploaded(stream_, pool_of<T>(c, c.cache.keys, c.options.key_scale));
    values_ = uploaded(stream_, pool_of<T>(c, c.cache.values, c.options.value_scale));
    scales_ = uploaded(stream_, std::vector<float>{c.options.key_scale, c.options.value_scale});
    std::vector<Row> queries(static_cast<size_t>(q.size()));
    for (size_t i = 0; i < queries.size(); ++i)
      queries[i] = static_cast<Row>(static_cast<float>(q.data()[i]));
    q_ = uploaded(stream_, queries);
    out_ = DeviceBuffer(stream_, static_cast<int64_t>(queries.size() * sizeof(Row)));
    table_ = uploaded(stream_, c.cache.table);
    lengths_ = uploaded(stream_, c.cache.lengths);
    alpha_ = uploaded(stream_, std::vector<float>(c.inputs.alpha.begin(), c.inputs.alpha.end()));
    scale_ = uploaded(stream_, std::vector<float>(c.inputs.scale.begin(), c.inputs.scale.end()));
    low_bit_ = DeviceBuffer(
        stream_, std::max<int64_t>(decode::low_bit_bytes(device_cache(c, nullptr, nullptr, nullptr)), 16));
    low_bit_.fill(0xFF);
    cache = device_cache(c, keys_.data(), values_.data(), low_bit_.data(),
                         static_cast<const float*>(scales_.data()));
    pages = {static_cast<const int32_t*>(table_.data()), static_cast<const int32_t*>(lengths_.data()),
             static_cast<int>(c.cache.batch), static_cast<int>(c.cache.width)};
    broad_ = uploaded(stream_, std::vector<uint32_t>(pairs_of(c), 0));
    inputs = {.q = rows_of(c, q_.data()),
              .out = rows_of(c, out_.data()),
              .q_heads = static_cast<int>(q.heads()),
              .q_len = static_cast<int>(q.length()),
              .alpha = static_cast<const float*>(alpha_.data()),
              .scale = static_cast<const float*>(scale_.data()),
              .alphas = static_cast<int>(c.inputs.alpha.size()),
              .scales = static_cast<int>(c.inputs.scale.size()),
              .window = c.options.window,
              .sinks = c.options.sinks};
    decode::fill(cache, pages, nullptr, pages.width, stream_.handle());
  }

  // team: blocks per unit, if the device has as many; 0: as the model has it. Steps are not short.
  StepResults run(int team = 0, bool is_cluster = true) {
    using Kernels = decode::Kernels<T, 64>;
    decode::Device device{.multiprocessors = entmax::multiprocessors(),
                          .most_team = Kernels::most_team(),
                          .most_together = Kernels::most_together()};
    is_cluster = is_cluster || device.most_together == 1;
    if (team > 0) {
      const int most = is_cluster ? device.most_team : device.most_together;
      device = with_teams(std::min(team, most), is_cluster, device.multiprocessors);
    }
    StepResults results = run_on(device);
    if (!is_cluster) REQUIRE(!was_cluster_);
    return results;
  }

  // A short step of so many warps a block, if it may be one.
  StepResults run_short(int warps) {
    decode::Device device{.multiprocessors = entmax::multiprocessors(), .prefers_short = true};
    with_kernels([&](auto kernels) {
      (warps == decode::kWarps ? device.short_bytes : device.few_short_bytes) =
          kernels.short_bytes(cache.bits, warps);
    });
    return run_on(device);
  }

  StepResults run_on(decode::Device device) {
    const auto& q = c_.inputs.q;
    const auto rows = q.batch() * q.heads() * q.length();
    with_kernels([&](auto kernels) { device.step_bytes = kernels.step_bytes(cache.bits); });
    decode::StepPlan plan = decode::plan_step(cache, pages, inputs, device);
    DeviceBuffer workspace(stream_, plan.bytes), tau(stream_, 4 * rows), maximum(stream_, 4 * rows),
        support(stream_, 4 * rows), counts(stream_, int64_t{16} * plan.step.units);
    for (DeviceBuffer* buffer : {&workspace, &tau, &maximum, &support, &counts, &out_}) buffer->fill(0xFF);
    was_cluster_ = plan.step.is_cluster;
    decode::place_workspace(plan, workspace.data());
    plan.step.outputs = {static_cast<float*>(tau.data()), static_cast<float*>(maximum.data()),
                         static_cast<int32_t*>(support.data()), static_cast<int32_t*>(counts.data())};
    with_kernels([&](auto kernels) { kernels.step(plan.step, stream_.handle(), {}); });
    stream_.synchronize();
    StepResults results;
    results.short_warps = plan.step.short_warps;
    const std::vector<Row> out = downloaded<Row>(out_);
    results.out = Tensor<double>(q.batch(), q.heads(), q.length(), q.dim());
    for (size_t i = 0; i < out.size(); ++i) results.out.data()[i] = static_cast<float>(out[i]);
    results.tau = downloaded<float>(tau);
    results.maximum = downloaded<float>(maximum);
    results.support = downloaded<int32_t>(support);
    results.counts = downloaded<int32_t>(counts);
    return results;
  }

  // Sets or clears what steps remember of their units (StepInputs::broad); later steps read and change it.
  void remember(bool broad) {
    broad_.fill(broad ? 0xFF : 0);
    inputs.broad = static_cast<uint32_t*>(broad_.data());
  }
  std::vector<uint32_t> remembered() const { return downloaded<uint32_t>(broad_); }

  // Sets what steps know of the last one (StepInputs::recent); empty: they have no memory.
  void recall(const std::vector<int32_t>& recent) {
    recent_ = uploaded(stream_, recent);
    inputs.recent = recent.empty() ? nullptr : static_cast<int32_t*>(recent_.data());
  }
  std::vector<int32_t> recalled() const { return downloaded<int32_t>(recent_); }

  decode::Cache cache{};
  decode::PageTable pages{};
  decode::StepInputs inputs{};

 private:
  bool was_cluster_ = true;  // the last step

  // Calls use(Kernels<T, kDim>{}) for the case's head dimension.
  template <class Use>
  void with_kernels(const Use& use) const {
    if (cache.head_dim == 64) use(decode::Kernels<T, 64>{});
    if (cache.head_dim == 128) use(decode::Kernels<T, 128>{});
    if (cache.head_dim == 256) use(decode::Kernels<T, 256>{});
  }

  const DecodeCase& c_;
  Stream stream_;
  DeviceBuffer keys_, values_, scales_, q_, out_, table_, lengths_, alpha_, scale_, low_bit_, broad_, recent_;
};

// Calls use(OnDevice(c)).
template <class Use>
auto on_device_of(const DecodeCase& c, const Use& use) {
  const bool is_f16 = c.options.dtype == Dtype::f16;
  if (c.options.fp8)
    return is_f16 ? use(OnDevice<__nv_fp8_e4m3, __half>(c)) : use(OnDevice<__nv_fp8_e4m3, __nv_bfloat16>(c));
  return is_f16 ? use(OnDevice<__half>(c)) : use(OnDevice<__nv_bfloat16>(c));
}

StepResults run(const DecodeCase& c) {
  return on_device_of(c, [](auto on_device) { return on_device.run(); });
}

// Cases, and the same without a copy in float8.
std::vector<DecodeOptions> with_fp8(std::vector<DecodeOptions> cases) {
  for (const DecodeOptions& options : in_fp8(cases)) cases.push_back(options);
  return cases;
}

}  // namespace

TEST_CASE("decode: rows are the oracle's for lengths, groups, pages, alphas and nasty keys") {
  SKIP_WITHOUT_GPU();
  std::vector<DecodeOptions> cases = decode_cases();
  for (const DecodeOptions& options : fp8_cases()) cases.push_back(options);
  for (const DecodeOptions& options : cases) {
    capture(options, [&] {
      const DecodeCase c = decode_case(options);
      check_step_results(c, run(c));
    });
  }
}

TEST_CASE("decode: short steps have the bits of others, and the oracle's rows") {
  SKIP_WITHOUT_GPU();
  std::vector<DecodeOptions> cases = short_cases();
  for (const DecodeOptions& options : decode_cases()) cases.push_back(options);
  for (const int head_dim : {128, 256}) {
    for (const double temperature : {0.3, 1.0, 2.449})
      cases.push_back({.lengths = {1900, 0, 700}, .head_dim = head_dim, .temperature = temperature});
  }
  for (const int warps : {decode::kWarps, decode::kFewWarps}) {
    CAPTURE(warps);
    size_t taken = 0;
    for (DecodeOptions options : cases) {
      for (const int bits : {4, 8}) {
        options.bits = bits;
        capture(options, [&] {
          const DecodeCase c = decode_case(options);
          on_device_of(c, [&](auto on_device) {
            const StepResults results = on_device.run_short(warps);
            if (results.short_warps == 0) return;
            ++taken;
            check_step_results(c, results);
            for (int i = 0; i < 20; ++i) check_same_bits(on_device.run_short(warps), results);
            check_same_bits(on_device.run(), results);
          });
        });
      }
    }
    CHECK(taken > cases.size());
  }
}

TEST_CASE("decode: long sequences, wide heads, and the work that a screen saves") {
  SKIP_WITHOUT_GPU();
  std::vector<DecodeOptions> cases;
  for (const int bits : {0, 4, 8}) {
    for (const int head_dim : {64, 128, 256})
      cases.push_back({.lengths = {20000, 5000}, .kv_heads = 1, .head_dim = head_dim, .bits = bits});
  }
  for (const DecodeOptions& options : with_fp8(cases)) {
    capture(options, [&] {
      const DecodeCase c = decode_case(options);
      const StepResults results = run(c);
      check_step_results(c, results);
      CHECK(results.counts[3] == 0);
      CHECK(results.counts[1] < results.counts[0] / 2);
      CHECK(results.counts[2] < results.counts[0] / 4);
    });
  }
}

TEST_CASE("decode: the same bits in every run, for every split, and with any copy") {
  SKIP_WITHOUT_GPU();
  const DecodeOptions options{
      .lengths = {9000, 3000, 700}, .head_dim = 128, .alpha = {1.5, 1.3, 2, 1.5, 1.2, 1.7, 1.5, 1.9}};
  const DecodeCase c = decode_case(options);
  OnDevice<__nv_bfloat16> on_device(c);
  const StepResults first = on_device.run();
  for (int i = 0; i < 1000; ++i) check_same_bits(on_device.run(), first);
  for (const int team : {1, 2, 4, 8, 16}) check_same_bits(on_device.run(team), first);
  for (const int team : {2, 8, 16, 32}) {
    for (int i = 0; i < 100; ++i) check_same_bits(on_device.run(team, false), first);
  }
  for (const int bits : {0, 8}) {
    DecodeOptions other = options;
    other.bits = bits;
    const DecodeCase same_keys = decode_case(other);
    check_same_bits(OnDevice<__nv_bfloat16>(same_keys).run(), first);
  }
}

TEST_CASE("decode: the same bits in every run and for every split over float8") {
  SKIP_WITHOUT_GPU();
  for (const int head_dim : {64, 128, 256}) {
    CAPTURE(head_dim);
    const DecodeCase c = decode_case({.lengths = {9000, 3000, 700},
                                      .head_dim = head_dim,
                                      .alpha = {1.5, 1.3, 2, 1.5, 1.2, 1.7, 1.5, 1.9},
                                      .bits = 0,
                                      .fp8 = true,
                                      .key_scale = 0.013f,
                                      .value_scale = 0.02f});
    OnDevice<__nv_fp8_e4m3, __nv_bfloat16> on_device(c);
    const StepResults first = on_device.run();
    check_step_results(c, first);
    for (int i = 0; i < 300; ++i) check_same_bits(on_device.run(), first);
    for (const int team : {1, 2, 4, 8, 16}) check_same_bits(on_device.run(team), first);
    for (const int team : {2, 16}) check_same_bits(on_device.run(team, false), first);
  }
}

TEST_CASE("decode: warps share a row's list, of more keys than they read at once") {
  SKIP_WITHOUT_GPU();
  for (const int group : {1, 2, 4}) {  // eight, four and two warps a row
    CAPTURE(group);
    const DecodeCase c =
        decode_case({.lengths = {1700}, .page_size = 16, .kv_heads = 1, .group = group, .temperature = 0.3});
    OnDevice<__nv_bfloat16> on_device(c);
    const StepResults alone = on_device.run(1);
    check_step_results(c, alone);
    CHECK(alone.counts[3] == 0);
    for (const bool is_cluster : {true, false}) {
      for (const int team : {2, 4, 8, 16}) check_same_bits(on_device.run(team, is_cluster), alone);
    }
  }
}

TEST_CASE("decode: a length or a page that does not exist gives NaN rows of that sequence alone") {
  SKIP_WITHOUT_GPU();
  for (const bool bad_page : {false, true}) {
    DecodeCase c = decode_case({.lengths = {800, 700, 600}});
    const DecodeCase good = c;
    if (bad_page) {
      c.cache.table[static_cast<size_t>(c.cache.width + 3)] = static_cast<int32_t>(c.cache.pages());
    } else {
      c.cache.lengths[1] = 1 << 20;
    }
    const StepResults expected = run(good), results = run(c);
    const auto heads = static_cast<size_t>(c.inputs.q.heads());
    for (size_t i = 0; i < 3 * heads; ++i) {
      const bool bad = i / heads == 1;
      CHECK(std::isnan(results.tau[i]) == bad);
      if (!bad) CHECK(results.tau[i] == expected.tau[i]);
    }
  }
}

TEST_CASE("decode: the dense pass gives the same bits as lists, in every run and for every split") {
  SKIP_WITHOUT_GPU();
  std::vector<DecodeOptions> cases = dense_cases();
  for (const int head_dim : {64, 128, 256})
    cases.push_back({.lengths = {20000, 5000, 3},
                     .kv_heads = 1,
                     .q_len = 2,
                     .head_dim = head_dim,
                     .alpha = {1.5, 1.1, 1.02, 2}});
  cases.push_back({.lengths = {9000}, .kv_heads = 1, .temperature = 0.05});
  for (const DecodeOptions& options : in_fp8(without_copies(cases))) cases.push_back(options);
  for (const DecodeOptions& options : cases) {
    capture(options, [&] {
      const DecodeCase c = decode_case(options);
      const auto check = [&](auto on_device) {
        const StepResults screened = on_device.run();
        check_step_results(c, screened);
        for (const int team : {0, 0, 1, 2, 4, 8, 16}) {
          CAPTURE(team);
          on_device.remember(true);
          const StepResults dense = on_device.run(team);
          CHECK(dense.counts[0] == 0);
          check_same_bits(dense, screened);
        }
      };
      on_device_of(c, check);
    });
  }
}

TEST_CASE("decode: a step remembers which units were broad, and forgets") {
  SKIP_WITHOUT_GPU();
  const DecodeOptions broad{.lengths = {9000, 5000}, .temperature = 0.1};
  DecodeOptions sparse = broad;
  sparse.temperature = 6;
  const DecodeCase c = decode_case(broad), other = decode_case(sparse);
  OnDevice<__nv_bfloat16> on_device(c), others(other);
  on_device.remember(false);
  const StepResults first = on_device.run();
  CHECK(first.counts[0] > 0);
  CHECK(on_device.remembered() == std::vector<uint32_t>(pairs_of(c), 1));
  for (int i = 0; i < 100; ++i) check_same_bits(on_device.run(), first);
  others.remember(true);
  const StepResults dense = others.run();
  CHECK(dense.counts[3] == 1);
  check_step_results(other, dense);
  const std::vector<uint32_t> left = others.remembered();
  CHECK((left[0] & 1) == 0);
  check_same_bits(others.run(), dense);
}

TEST_CASE("decode: what a step remembers, and memory of anything, changes no bit") {
  SKIP_WITHOUT_GPU();
  std::vector<DecodeOptions> cases = decode_cases();
  for (const int bits : {0, 4, 8}) {
    for (const int head_dim : {64, 128, 256})
      cases.push_back({.lengths = {20000, 5000}, .kv_heads = 1, .head_dim = head_dim, .bits = bits});
  }
  for (const int group : {1, 3, 8, 16})
    cases.push_back({.lengths = {9000, 3000}, .kv_heads = 1, .group = group, .q_len = group <= 3 ? 2 : 1});
  for (const DecodeOptions& options : with_fp8(cases)) {
    capture(options, [&] {
      const DecodeCase c = decode_case(options);
      const auto check = [&](auto on_device) {
        const StepResults without = on_device.run();
        check_step_results(c, without);
        on_device.recall(no_memory(c));
        check_same_bits(on_device.run(), without);
        const std::vector<int32_t> written = on_device.recalled();
        CHECK(recall_as_expected(c, written, without));
        for (const int team : {0, 0, 0, 1, 2, 4, 8, 16}) check_same_bits(on_device.run(team), without);
        for (const int team : {2, 2, 4, 4}) check_same_bits(on_device.run(team, false), without);
        for (size_t kind = 0; kind < memory_kinds(); ++kind) {
          CAPTURE(kind);
          for (const int team : {0, 1, 2}) {
            on_device.recall(memory_of(kind, c, written));
            check_same_bits(on_device.run(team), without);
          }
          on_device.recall(memory_of(kind, c, written));
          check_same_bits(on_device.run(4, false), without);
        }
      };
      on_device_of(c, check);
    });
  }
}

TEST_CASE("decode: a step that remembers lists fewer keys, the same ones every time") {
  SKIP_WITHOUT_GPU();
  const DecodeCase c = decode_case({.lengths = {20000, 9000}, .head_dim = 128});
  OnDevice<__nv_bfloat16> on_device(c);
  const StepResults without = on_device.run();
  on_device.recall(no_memory(c));
  on_device.run();
  const StepResults again = on_device.run();
  CHECK(again.counts[1] < without.counts[1]);
  for (int i = 0; i < 300; ++i) {
    const StepResults other = on_device.run();
    check_same_bits(other, without);
    CHECK(other.counts == again.counts);
  }
  CHECK(all_recall(on_device.recalled()));
}

TEST_CASE("decode: memory that is no use is left alone for longer and longer") {
  SKIP_WITHOUT_GPU();
  const DecodeCase c = decode_case({.lengths = {20000, 20000}});
  OnDevice<__nv_bfloat16> on_device(c);
  const StepResults without = on_device.run();
  on_device.recall(no_memory(c));
  std::vector<int> tries;
  for (int step = 0; step < 160; ++step) {
    std::vector<int32_t> recent = on_device.recalled();
    if (all_recall(recent)) tries.push_back(step);
    for (size_t at = 0; at < recent.size(); ++at) {
      if (at % decode::kRecentWords >= decode::kRecentStateWords) recent[at] = -1;
    }
    on_device.recall(recent);
    check_same_bits(on_device.run(), without);
  }
  CHECK(tries == std::vector<int>{1, 18, 147});
}
