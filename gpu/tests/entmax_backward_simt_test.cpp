// The kernels of backward themselves, run thread by thread on the CPU (simt/simt.h), against the double
// oracle; no GPU is needed. entmax_backward_dense_simt.cpp has the dense products.

#include "gpu/tests/entmax_backward_case.h"
#include "gpu/tests/entmax_tunings.h"
#include "gpu/tests/simt_elements.h"

// One instance for all threads of a block, which are fibers of one thread.
#undef __shared__
#define __shared__ thread_local

#include "gpu/entmax/backward/backward.cpp"
#include "gpu/entmax/backward/bias.cu"
#include "gpu/entmax/backward/columns.cu"
#include "gpu/entmax/backward/heads.cu"
#include "gpu/entmax/backward/places.cu"
#include "gpu/entmax/backward/rows.cu"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

// The memory that kernels write, poisoned.
template <class T>
struct Outputs {
  explicit Outputs(const Case& c)
      : d_q(static_cast<size_t>(c.inputs.q.size()), static_cast<T>(NAN)),
        d_k(static_cast<size_t>(c.inputs.k.size()), static_cast<T>(NAN)),
        d_v(d_k),
        d_alpha(static_cast<size_t>(c.spec.shape.q_heads), NAN),
        d_sinks(c.spec.sinks.size(), NAN),
        d_bias(c.spec.bias.table.size(), NAN) {}
  std::vector<T> d_q, d_k, d_v;
  std::vector<float> d_alpha, d_sinks, d_bias;

  std::vector<char> bytes() const {
    std::vector<char> all;
    const auto append = [&](const auto& part) {
      const auto* const from = reinterpret_cast<const char*>(part.data());
      all.insert(all.end(), from, from + part.size() * sizeof(part[0]));
    };
    append(d_q);
    append(d_k);
    append(d_v);
    append(d_alpha);
    append(d_sinks);
    append(d_bias);
    return all;
  }
  Gradients gradients(const AttentionShape& s) const {
    return {tensor_of(s.batch, s.q_heads, s.q_len, s.head_dim, d_q),
            tensor_of(s.batch, s.kv_heads, s.kv_len, s.head_dim, d_k),
            tensor_of(s.batch, s.kv_heads, s.kv_len, s.head_dim, d_v),
            {d_alpha.begin(), d_alpha.end()},
            {d_sinks.begin(), d_sinks.end()},
            {d_bias.begin(), d_bias.end()}};
  }
};

// order: seed of the order of rows in the pool, and of the order in which threads run.
// dense: the rows that are left to dense products, as forward tells of them.
template <class T>
Outputs<T> outputs_of(
    const Case& c, uint64_t order, const std::function<bool(int64_t)>& stored = [](int64_t) { return true; },
    const entmax::Tuning& tuning = {}, const entmax::UnstoredRows& dense = {}) {
  SupportPool pool(c.support, order, stored);
  const std::vector<T> q = elements_of<T>(c.inputs.q), k = elements_of<T>(c.inputs.k),
                       v = elements_of<T>(c.inputs.v), d_out = elements_of<T>(c.d_out);
  const std::vector<float> alpha(c.spec.normalizer.alpha.begin(), c.spec.normalizer.alpha.end()),
      tau_offsets(c.tau_offsets.begin(), c.tau_offsets.end()), tau(c.tau.begin(), c.tau.end()),
      sinks(c.spec.sinks.begin(), c.spec.sinks.end()),
      bias(c.spec.bias.table.begin(), c.spec.bias.table.end());
  const entmax::MaskTables mask(c.spec);
  Outputs<T> out(c);
  const auto capacity = static_cast<int64_t>(pool.columns.size());
  struct alignas(256) Line {
    unsigned char bytes[256];
  };
  std::vector<Line> workspace(static_cast<size_t>(entmax::backward_workspace_bytes(
                                  c.spec, c.dtype, capacity, dense.rows.queries != nullptr, tuning)) /
                              sizeof(Line));
  std::memset(static_cast<void*>(workspace.data()), 0xFF, workspace.size() * sizeof(Line));
  entmax::order = order;
  entmax::enqueue_backward(c.spec, c.dtype,
                           {.q = q.data(),
                            .k = k.data(),
                            .v = v.data(),
                            .d_out = d_out.data(),
                            .support = {.capacity = capacity,
                                        .offsets = pool.offsets.data(),
                                        .counts = pool.counts.data(),
                                        .columns = pool.columns.data(),
                                        .excess = pool.excess.data()},
                            .unstored = dense,
                            .mask = mask.at(mask.data()),
                            .alpha = alpha.data(),
                            .tau_offsets = tau_offsets.empty() ? nullptr : tau_offsets.data(),
                            .tau = tau.empty() ? nullptr : tau.data(),
                            .sinks = sinks.empty() ? nullptr : sinks.data(),
                            .dropout_seed = &c.spec.dropout.seed,
                            .bias = bias.empty() ? nullptr : bias.data(),
                            .d_q = out.d_q.data(),
                            .d_k = out.d_k.data(),
                            .d_v = out.d_v.data(),
                            .d_alpha = out.d_alpha.data(),
                            .d_sinks = out.d_sinks.data(),
                            .d_bias = out.d_bias.data(),
                            .workspace = workspace.data(),
                            .tuning = tuning});
  return out;
}

template <class T>
void check_against_oracle(const Case& c) {
  const std::string name = to_string(c.spec.shape);
  CAPTURE(name);
  CAPTURE(to_string(c.dtype));
  CAPTURE(c.support.columns.size());
  const Outputs<T> out = outputs_of<T>(c, test_seed());
  check_close(out.gradients(c.spec.shape), c);
  CHECK(outputs_of<T>(c, test_seed() + 100).bytes() == out.bytes());
}

void check_against_oracle(const Case& c) {
  if (c.dtype == Dtype::bf16) check_against_oracle<__nv_bfloat16>(c);
  if (c.dtype == Dtype::f16) check_against_oracle<__half>(c);
  if (c.dtype == Dtype::f32) check_against_oracle<float>(c);
}

constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::f16, Dtype::bf16};

}  // namespace

TEST_CASE("entmax backward on the CPU: shapes, dtypes, head_dims and alphas, the same bits in any order") {
  std::mt19937_64 random(test_seed());
  const auto among = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  constexpr int64_t kHeadDims[] = {64, 8, 128, 40, 256, 96, 136};
  constexpr double kAlphas[] = {1.5, 2, 1.25, 1.75};
  for (int turn = 0; turn < 12; ++turn) {
    const int64_t kv_heads = among(1, 2), group = among(1, 3);
    AttentionSpec spec = entmax_spec(
        {among(1, 2), kv_heads * group, kv_heads, among(1, 90), among(1, 300), kHeadDims[among(0, 6)]},
        kAlphas[among(0, 3)]);
    if (turn % 3 == 2) spec.normalizer.alpha = alphas_a_head(kv_heads * group);
    if (turn % 4 == 3) spec.scale = 0.3;
    Case c = make_case(spec, kDtypes[turn % 3]);
    const int64_t most = std::min<int64_t>(spec.shape.kv_len, turn % 2 == 0 ? 8 : 200);
    draw_support(c, 0, most, {static_cast<int32_t>(among(0, spec.shape.kv_len - 1))});
    if (turn % 4 >= 2) take_a_cap(c);
    if (turn % 4 == 3) take_sinks(c);
    if (turn % 4 % 2 == 1) c.spec.dropout = {.rate = 0.3, .seed = random()};
    if (turn % 5 < 3) take_a_bias(c);
    check_against_oracle(c);
    if (turn % 3 != 1 || !c.spec.sinks.empty()) continue;  // f16, with all kinds of alphas and lengths
    take_offsets_of_support(c);
    check_against_oracle(c);
  }
}

TEST_CASE("entmax backward on the CPU: keys hardly above a threshold, solved or given") {
  for (const double alpha : {1.1, 1.25, 1.5, 2.0}) {
    CAPTURE(alpha);
    Case c = make_case(entmax_spec({1, 2, 1, 60, 200, 8}, alpha), Dtype::f32);
    draw_smallest_excesses(c, 20);
    check_against_oracle(c);
    take_offsets_of_support(c);
    check_against_oracle(c);
  }
}

TEST_CASE("entmax backward on the CPU: keys that all queries attend to") {
  for (const int64_t head_dim : {64, 128}) {
    Case c = make_case(entmax_spec({1, 4, 2, 1100, 90, head_dim}, 1.5), Dtype::bf16);
    draw_support(c, 0, 4, {0, 41, 89});
    check_against_oracle(c);
  }
}

TEST_CASE("entmax backward on the CPU: every value of every knob, against the double oracle") {
  Case c = make_case(entmax_spec({1, 4, 2, 1100, 90, 64}, 1.5), Dtype::f32);
  draw_support(c, 0, 4, {0, 41, 89});
  const auto all = [](int64_t) { return true; };
  for (const entmax::Tuning& tuning : every_value(true)) {
    CAPTURE(to_string(tuning));
    check_close(outputs_of<float>(c, test_seed(), all, tuning).gradients(c.spec.shape), c);
  }
}

TEST_CASE("entmax backward on the CPU: so many keys with many entries that none is divided") {
  Case c = make_case(entmax_spec({1, 1, 1, 1100, 12, 8}, 2), Dtype::f16);
  draw_support(c, 13, 13, {});  // two thirds of the keys in each row
  check_against_oracle(c);
}

TEST_CASE("entmax backward on the CPU: more rows a key than a scan tells apart, and one that all attend to") {
  Case c = make_case(entmax_spec({1, 8, 1, 4200, 90, 8}, 1.5), Dtype::bf16);  // 33,600 rows a key
  draw_support(c, 2, 2, {3});  // of each other key some 750, in one part; the one is cut into 33
  check_against_oracle(c);
}

TEST_CASE("entmax backward on the CPU: rows with many entries among those of each slice") {
  const int64_t rows = 1100;  // 1024 are a slice
  Case c = make_case(entmax_spec({1, 1, 1, rows, 300, 8}, 1.5), Dtype::f32);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t count = row % 40 == 9 ? 140 : 2;  // more than 128 get a block
    for (int64_t i = 0; i < count; ++i)
      c.support.add((row + 2 * i) % 300, 0.01F * static_cast<float>(1 + (row + i) % 97));
    c.support.end_row();
  }
  check_against_oracle(c);
}

TEST_CASE("entmax backward on the CPU: many keys, most of them without an entry; no entry at all") {
  for (const int64_t most : {6, 0}) {
    Case c = make_case(entmax_spec({1, 2, 2, 40, 20011, 8}, 1.75), Dtype::f32);
    draw_support(c, 0, most, {});
    check_against_oracle(c);
  }
}

TEST_CASE(
    "entmax backward on the CPU: a gradient that is not finite makes its head's bias NaN, and no other's") {
  Case c = make_case(entmax_spec({2, 4, 4, 30, 50, 8}, 1.5), Dtype::f32);
  draw_support(c, 2, 20, {7});
  take_a_bias(c);
  std::fill_n(c.inputs.v.row(1, 2, 7), c.spec.shape.head_dim, NAN);
  const std::vector<double> d_bias = outputs_of<float>(c, test_seed()).gradients(c.spec.shape).dbias;
  for (size_t i = 0; i < d_bias.size(); ++i)
    CHECK(std::isnan(d_bias[i]) == (static_cast<int64_t>(i) / c.spec.bias.distances == 2));
}

TEST_CASE("entmax backward on the CPU: where dropout dropped a key, its value and gradient may be NaN") {
  Case c = make_case(entmax_spec({1, 1, 1, 40, 30, 64}, 1.5), Dtype::f32);
  draw_support(c, 1, 20, {});
  c.spec.dropout = {.rate = 0.5, .seed = 5};
  const DropoutRow kept(c.spec.dropout, 0);
  c.support = c.support.only([](int64_t row) { return row == 0; });
  const Gradients of_row = outputs_of<float>(c, test_seed()).gradients(c.spec.shape);
  int64_t dropped = 0;
  for (int64_t key = 0; key < c.spec.shape.kv_len; ++key) {
    if (kept.keeps(key)) continue;
    ++dropped;
    std::fill_n(c.inputs.v.row(0, 0, key), c.spec.shape.head_dim, NAN);
  }
  CHECK(dropped > 5);
  const Gradients poisoned = outputs_of<float>(c, test_seed()).gradients(c.spec.shape);
  CHECK(nmse(poisoned.dq, of_row.dq) == 0);
  CHECK(nmse(poisoned.dk, of_row.dk) == 0);
}

TEST_CASE("entmax backward on the CPU: a row with one key has dQ 0, whatever the value is, beside any rows") {
  // The second has three slices of rows, and keys with entries of each.
  for (const AttentionShape& shape : {AttentionShape{1, 2, 1, 90, 400, 64}, {1, 3, 1, 1000, 60, 8}}) {
    Case c = make_case(entmax_spec(shape, 1.5), Dtype::bf16);
    const auto is_broad = [](int64_t row) { return row % 7 == 3; };
    std::mt19937_64 random(test_seed() + 2);
    std::uniform_real_distribution<double> excess(1e-3, 1);
    for (int64_t row = 0; row < shape.rows(); ++row) {
      for (int64_t j = is_broad(row) ? 12 : 1; j > 0; --j)
        c.support.add(is_broad(row) ? 10 + j : row % 6, static_cast<float>(excess(random)));
      c.support.end_row();
    }
    check_against_oracle(c);
    const auto clean = outputs_of<__nv_bfloat16>(c, test_seed());
    std::fill_n(c.inputs.v.row(0, 0, 5), shape.head_dim, NAN);  // that rows with one key attend to
    const auto spoilt = outputs_of<__nv_bfloat16>(c, test_seed());
    CHECK(spoilt.bytes() == clean.bytes());
    const Tensor<double> dq = spoilt.gradients(shape).dq;
    for (int64_t row = 0; row < shape.rows(); ++row) {
      const double* const of_row = dq.row(0, row / shape.q_len, row % shape.q_len);
      CHECK(std::all_of(of_row, of_row + shape.head_dim, [](double x) { return x == 0; }) == !is_broad(row));
    }
  }
}

TEST_CASE("entmax backward on the CPU: rows that are not stored add nothing") {
  Case c = make_case(entmax_spec({1, 2, 1, 90, 400, 64}, 1.5), Dtype::f32);
  draw_support(c, 1, 300, {});
  const auto is_stored = [](int64_t row) { return row % 3 != 1; };
  const auto out = outputs_of<float>(c, test_seed(), is_stored);
  c.support = c.support.only(is_stored);
  check_close(out.gradients(c.spec.shape), c);
}

TEST_CASE("entmax backward on the CPU: rows that are left to dense products") {
  struct Left {
    AttentionShape shape;
    std::vector<double> alpha;
    Dtype dtype;
    Mask mask{};
  };
  for (const Left& left :
       {Left{{1, 2, 1, 150, 210, 64}, {1.5}, Dtype::bf16, {.causal = true}},
        Left{{1, 1, 1, 70, 300, 40}, {2}, Dtype::f16},
        Left{{1, 4, 2, 90, 200, 64}, {1.4F, 1.25F, 1.5F, 1.75F}, Dtype::bf16, {.causal = true}},
        Left{{1, 1, 1, 130, 260, 64}, {1.3F}, Dtype::f16, {.causal = true, .window = 100}},
        Left{{1, 2, 1, 70, 400, 128}, {1.5}, Dtype::bf16},
        Left{{1, 1, 1, 560, 1100, 64}, {1.5}, Dtype::bf16, {.causal = true}}}) {  // the ring comes round
    CAPTURE(to_string(left.shape));
    CAPTURE(to_string(left.dtype));
    AttentionSpec spec = entmax_spec(left.shape, 1.5);
    spec.normalizer.alpha = left.alpha;
    spec.mask = left.mask;
    Case c = make_case(spec, left.dtype, {.query_variance = 0.05});
    take_support_of_forward(c);
    const auto forward = cpu_ref::attention_forward<double>(c.spec, c.inputs.q, c.inputs.k, c.inputs.v);
    const std::vector<float> tau(forward.tau.begin(), forward.tau.end());
    const auto is_stored = [](int64_t row) { return row % 5 == 1; };
    const int64_t heads = left.shape.batch * left.shape.q_heads, q_len = left.shape.q_len;
    std::vector<int> queries(static_cast<size_t>(heads * q_len), -1), counts(static_cast<size_t>(heads), 0);
    for (int64_t row = 0; row < heads * q_len; ++row) {
      int& count = counts[static_cast<size_t>(row / q_len)];
      if (!is_stored(row))
        queries[static_cast<size_t>(row / q_len * q_len + count++)] = static_cast<int>(row % q_len);
    }
    const entmax::UnstoredRows dense{.rows = {queries.data(), counts.data()}, .tau = tau.data()};
    const auto check = [&]<class T>() {
      const Outputs<T> out = outputs_of<T>(c, test_seed(), is_stored, {}, dense);
      const Gradients expected =
          cpu_ref::attention_backward<double>(c.spec, c.inputs.q, c.inputs.k, c.inputs.v, c.d_out);
      const Gradients found = out.gradients(c.spec.shape);
      const double bound = Tolerance().of(c.dtype);
      CHECK(nmse(found.dq, expected.dq) <= bound);
      CHECK(nmse(found.dk, expected.dk) <= bound);
      CHECK(nmse(found.dv, expected.dv) <= bound);
      CHECK(nmse(found.dalpha.data(), expected.dalpha.data(), static_cast<int64_t>(found.dalpha.size())) <=
            1e-6);
      CHECK(outputs_of<T>(c, test_seed() + 100, is_stored, {}, dense).bytes() == out.bytes());
    };
    left.dtype == Dtype::bf16 ? check.template operator()<__nv_bfloat16>()
                              : check.template operator()<__half>();
  }
}
