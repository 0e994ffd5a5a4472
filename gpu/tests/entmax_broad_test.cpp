// Rows with broad supports, which forward leaves out of the store and backward computes by dense products.
// Their gradients are compared with the double oracle's, and with those from a stored support.

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "gpu/entmax/attention.h"
#include "gpu/entmax/forward.h"
#include "gpu/tests/entmax_backward_case.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;
using entmax::StoredRows;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Runs forward and backward of a case, with everything that they write poisoned first.
class Training {
 public:
  Training(const Stream& stream, const Case& c, StoredRows stored)
      : case_(c),
        stream_(stream),
        stored_(stored),
        q_(DeviceTensor::from(stream, c.dtype, c.inputs.q)),
        k_(DeviceTensor::from(stream, c.dtype, c.inputs.k)),
        v_(DeviceTensor::from(stream, c.dtype, c.inputs.v)),
        d_out_(DeviceTensor::from(stream, c.dtype, c.d_out)),
        out_(stream, c.dtype, q_.view().extents),
        d_q_(stream, c.dtype, q_.view().extents),
        d_k_(stream, c.dtype, k_.view().extents),
        d_v_(stream, c.dtype, v_.view().extents),
        d_alpha_(stream, c.spec.shape.q_heads * 4),
        tables_(c.spec) {
    const int64_t rows = c.spec.shape.rows(), room = visible_pairs(c.spec.shape, c.spec.mask);
    const std::vector<float> alpha(c.spec.normalizer.alpha.begin(), c.spec.normalizer.alpha.end());
    alpha_ = upload(stream, alpha);
    if (tables_.bytes() > 0) mask_ = upload(stream, tables_.data(), static_cast<size_t>(tables_.bytes()));
    const auto make = [&](int64_t bytes) {
      scratch_.emplace_back(stream, std::max<int64_t>(bytes, 16));
      return scratch_.back().data();
    };
    support_ = {.capacity = room,
                .used = static_cast<unsigned long long*>(make(8)),
                .offsets = static_cast<int64_t*>(make(rows * 8)),
                .counts = static_cast<int32_t*>(make(rows * 4)),
                .columns = static_cast<int32_t*>(make(room * 4)),
                .excess = static_cast<float*>(make(room * 4))};
    tau_ = static_cast<float*>(make(rows * 4));
    forward_workspace_ = make(entmax::forward_workspace_bytes(c.spec, c.dtype));
    backward_workspace_ =
        make(entmax::backward_workspace_bytes(c.spec, c.dtype, room, stored == StoredRows::sparse));
  }

  Training& run() {
    for (DeviceBuffer& buffer : scratch_) buffer.fill(0xFF);
    for (DeviceBuffer* buffer : results()) buffer->fill(0xFF);
    scratch_.front().fill(0);  // support.used
    const auto* alpha = static_cast<const float*>(alpha_.data());
    const entmax::DeviceMask mask = tables_.at(mask_.data());
    const entmax::ForwardArguments forward{.q = q_.view().data,
                                           .k = k_.view().data,
                                           .v = v_.view().data,
                                           .out = out_.view().data,
                                           .alpha = alpha,
                                           .mask = mask,
                                           .tau = tau_,
                                           .support = support_,
                                           .stored = stored_,
                                           .workspace = forward_workspace_,
                                           .stream = stream_.handle()};
    entmax::enqueue_forward(case_.spec, case_.dtype, forward);
    const bool sparse = stored_ == StoredRows::sparse;
    entmax::enqueue_backward(case_.spec, case_.dtype,
                             {.q = q_.view().data,
                              .k = k_.view().data,
                              .v = v_.view().data,
                              .d_out = d_out_.view().data,
                              .support = support_,
                              .unstored = sparse ? entmax::unstored_rows(case_.spec, case_.dtype, forward)
                                                 : entmax::UnstoredRows{},
                              .mask = mask,
                              .alpha = alpha,
                              .d_q = d_q_.view().data,
                              .d_k = d_k_.view().data,
                              .d_v = d_v_.view().data,
                              .d_alpha = static_cast<float*>(d_alpha_.data()),
                              .workspace = backward_workspace_,
                              .stream = stream_.handle()});
    return *this;
  }

  Gradients gradients() const {
    std::vector<float> alpha(static_cast<size_t>(case_.spec.shape.q_heads));
    d_alpha_.download(alpha.data(), d_alpha_.bytes());
    return {d_q_.to_host(), d_k_.to_host(), d_v_.to_host(), {alpha.begin(), alpha.end()}};
  }

  std::vector<char> bytes() {
    std::vector<char> all;
    for (const DeviceBuffer* buffer : results()) {
      std::vector<char> part(static_cast<size_t>(buffer->bytes()));
      buffer->download(part.data(), buffer->bytes());
      all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

  // Rows that backward computes as dense products.
  int64_t unstored() const {
    if (stored_ == StoredRows::all) return 0;
    const auto rows = entmax::unstored_rows(case_.spec, case_.dtype,
                                            {.stored = StoredRows::sparse, .workspace = forward_workspace_});
    std::vector<int> counts(static_cast<size_t>(case_.spec.shape.batch * case_.spec.shape.q_heads));
    for (const DeviceBuffer& buffer : scratch_) {
      if (buffer.data() != forward_workspace_) continue;
      std::vector<char> workspace(static_cast<size_t>(buffer.bytes()));
      buffer.download(workspace.data(), buffer.bytes());
      std::memcpy(counts.data(),
                  &workspace[static_cast<size_t>(reinterpret_cast<const char*>(rows.rows.counts) -
                                                 static_cast<const char*>(forward_workspace_))],
                  counts.size() * sizeof(int));
    }
    return std::accumulate(counts.begin(), counts.end(), int64_t{0});
  }

  int64_t entries() const {
    unsigned long long used = 0;
    scratch_.front().download(&used, 8);
    return static_cast<int64_t>(used);
  }

 private:
  std::array<DeviceBuffer*, 4> results() {
    return {&d_q_.buffer(), &d_k_.buffer(), &d_v_.buffer(), &d_alpha_};
  }

  const Case& case_;
  const Stream& stream_;
  StoredRows stored_;
  DeviceTensor q_, k_, v_, d_out_, out_, d_q_, d_k_, d_v_;
  DeviceBuffer d_alpha_, alpha_, mask_;
  entmax::MaskTables tables_;
  std::vector<DeviceBuffer> scratch_;
  entmax::Support support_{};
  float* tau_ = nullptr;
  void *forward_workspace_ = nullptr, *backward_workspace_ = nullptr;
};

AttentionSpec spec_of(const AttentionShape& shape, std::vector<double> alpha, bool causal) {
  AttentionSpec spec;
  spec.shape = shape;
  spec.normalizer.alpha = std::move(alpha);
  spec.mask.causal = causal;
  return spec;
}

AttentionSpec windowed(AttentionSpec spec, int64_t window) {
  spec.mask.window = window;
  return spec;
}

AttentionSpec packed(AttentionSpec spec) {
  const AttentionShape& s = spec.shape;
  spec.mask.cu_seqlens_q = {0, 1, 130, 130, s.q_len / 2, s.q_len};
  spec.mask.cu_seqlens_k = {0, 70, 300, 320, s.kv_len / 2, s.kv_len};
  return spec;
}

Case near_dense(const AttentionSpec& spec, Dtype dtype, double query_variance = 0.01) {
  return make_case(spec, dtype, {.kind = WorkloadKind::gaussian, .query_variance = query_variance});
}

// Values with a common part, so that g is far from 0.
Case shifted(const AttentionSpec& spec, Dtype dtype) {
  Case c = near_dense(spec, dtype);
  for (int64_t i = 0; i < c.inputs.v.size(); ++i)
    c.inputs.v.data()[i] = round_to(dtype, 10 + c.inputs.v.data()[i]);
  return c;
}

// Blocks of 48 queries that alternate between near-dense rows and rows with a few keys.
Case mixed(const AttentionSpec& spec, Dtype dtype) {
  Case c = near_dense(spec, dtype);
  const AttentionShape& s = spec.shape;
  for (int64_t row = 0; row < s.rows(); ++row) {
    double* const q = c.inputs.q.data() + row * s.head_dim;
    if (row % s.q_len / 48 % 2 == 1)
      for (int64_t d = 0; d < s.head_dim; ++d) q[d] = round_to(dtype, 40 * q[d]);
  }
  return c;
}

// Sixteen queries in a row of each head with some 60 keys, the others with a few.
Case few_broad(const AttentionSpec& spec, Dtype dtype) {
  Case c = near_dense(spec, dtype, 0.5);
  const AttentionShape& s = spec.shape;
  for (int64_t row = 0; row < s.rows(); ++row) {
    double* const q = c.inputs.q.data() + row * s.head_dim;
    if (row % s.q_len / 16 != 20)
      for (int64_t d = 0; d < s.head_dim; ++d) q[d] = round_to(dtype, 5 * q[d]);
  }
  return c;
}

struct Shares {
  double entries = 0, unstored_rows = 0;  // of the support what is stored; of the rows those that are not
};

// Compares gradients with the double oracle's.
Shares check_shares(const Stream& stream, const char* name, Case c) {
  const std::string shape = to_string(c.spec.shape);
  CAPTURE(name);
  CAPTURE(shape);
  CAPTURE(to_string(c.dtype));
  const auto& in = c.inputs;
  const auto forward = cpu_ref::attention_forward<double>(c.spec, in.q, in.k, in.v);
  leave_unclear_rows_out(c, forward.tau);
  Training training(stream, c, StoredRows::sparse);
  const Gradients out = training.run().gradients();
  const Gradients expected = cpu_ref::attention_backward<double>(c.spec, in.q, in.k, in.v, c.d_out);
  const int64_t support = std::accumulate(forward.support.begin(), forward.support.end(), int64_t{0});
  const double bound = Tolerance().of(c.dtype);
  const double dalpha =
      nmse(out.dalpha.data(), expected.dalpha.data(), static_cast<int64_t>(out.dalpha.size()));
  MESSAGE(fmt::format("{:24} {:5} dq {:.1e} dk {:.1e} dv {:.1e} dalpha {:.1e} stored {} of {}", name,
                      to_string(c.dtype), nmse(out.dq, expected.dq), nmse(out.dk, expected.dk),
                      nmse(out.dv, expected.dv), dalpha, training.entries(), support));
  CHECK(nmse(out.dq, expected.dq) <= bound);
  CHECK(nmse(out.dk, expected.dk) <= bound);
  CHECK(nmse(out.dv, expected.dv) <= bound);
  CHECK(dalpha <= 1e-6);
  return {static_cast<double>(training.entries()) / static_cast<double>(support),
          static_cast<double>(training.unstored()) / static_cast<double>(c.spec.shape.rows())};
}

// Returns the share of the support that is stored.
double check(const Stream& stream, const char* name, Case c) {
  return check_shares(stream, name, std::move(c)).entries;
}

}  // namespace

TEST_CASE("entmax, broad rows: gradients agree with the double oracle") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  // Exact in float, because the device's alphas are float.
  const double low = static_cast<double>(1.2F);
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    CHECK(check(stream, "causal", near_dense(spec_of({1, 2, 2, 500, 500, 64}, {1.5}, true), dtype)) < 0.2);
    CHECK(check(stream, "full", near_dense(spec_of({2, 4, 2, 200, 700, 64}, {1.5}, false), dtype)) < 0.2);
    check(stream, "odd lengths", near_dense(spec_of({1, 3, 1, 131, 1001, 40}, {1.5}, false), dtype));
    check(stream, "odd, causal", near_dense(spec_of({1, 4, 4, 333, 457, 8}, {1.5}, true), dtype));
    check(stream, "128 dimensions", near_dense(spec_of({1, 4, 2, 300, 700, 128}, {1.5}, true), dtype));
    check(stream, "96 dimensions", near_dense(spec_of({1, 1, 1, 129, 900, 96}, {low}, false), dtype));
    CHECK(check(stream, "alpha 2", near_dense(spec_of({1, 2, 1, 300, 1500, 64}, {2}, true), dtype, 1e-4)) <
          0.5);
    check(stream, "alpha 1.2", near_dense(spec_of({1, 2, 2, 300, 300, 64}, {low}, true), dtype));
    check(stream, "an alpha a head",
          near_dense(spec_of({1, 4, 2, 300, 600, 64}, {1.25, 1.5, 1.75, 2}, true), dtype));
    check(stream, "nearly uniform", near_dense(spec_of({1, 2, 1, 200, 900, 64}, {1.5}, false), dtype, 1e-4));
    check(stream, "values far from 0", shifted(spec_of({1, 2, 1, 300, 700, 64}, {1.5}, true), dtype));
    check(stream, "rows without keys", near_dense(spec_of({1, 1, 1, 400, 270, 64}, {1.5}, true), dtype));
    const double share = check(stream, "mixed", mixed(spec_of({1, 4, 2, 600, 900, 64}, {1.5}, true), dtype));
    CHECK(share > 0);
    CHECK(share < 0.5);
  }
}

TEST_CASE("entmax, broad rows: gradients where rows see a window, or packed sequences") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (const int64_t window : {70, 128, 129, 300, 899}) {
      CAPTURE(window);
      const AttentionSpec square = windowed(spec_of({1, 4, 2, 900, 900, 64}, {1.5}, true), window);
      CHECK(check(stream, "window", near_dense(square, dtype, 1e-3)) < 0.5);
      check(stream, "wider spread", near_dense(square, dtype));
      check(stream, "mixed", mixed(square, dtype));
      check(stream, "odd lengths",
            near_dense(windowed(spec_of({2, 2, 2, 333, 1001, 40}, {1.5}, true), window), dtype));
      check(stream, "rows without keys",
            near_dense(windowed(spec_of({1, 1, 1, 1400, 1000, 64}, {1.5}, true), window), dtype));
      check(stream, "an alpha a head, 128 dimensions",
            near_dense(windowed(spec_of({1, 4, 2, 300, 1000, 128}, {1.25, 1.5, 1.75, 2}, true), window),
                       dtype));
      check(stream, "packed",
            mixed(packed(windowed(spec_of({1, 2, 1, 800, 1100, 64}, {1.5}, true), window)), dtype));
    }
    for (const bool causal : {false, true})
      check(stream, "packed", near_dense(packed(spec_of({2, 4, 2, 800, 1100, 64}, {1.5}, causal)), dtype));
  }
}

// Some 60 to 120 keys a row: forward lists most rows, and backward takes dense products.
TEST_CASE("entmax, broad rows: rows that forward lists are left to backward's dense products") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const auto exact = [](float alpha) { return static_cast<double>(alpha); };
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (const bool causal : {false, true}) {
      CAPTURE(causal);
      const Shares listed = check_shares(
          stream, "listed", near_dense(spec_of({1, 4, 2, 700, 1500, 64}, {1.5}, causal), dtype, 0.2));
      CHECK(listed.entries > 0.3);  // forward listed them
      CHECK(listed.unstored_rows > 0.8);
      const AttentionSpec powers =
          spec_of({1, 4, 2, 700, 1500, 64}, {exact(1.4F), exact(1.3F), exact(1.45F), exact(1.6F)}, causal);
      // Three of four heads: the last has some 25 keys a row, and is stored.
      const double unstored =
          check_shares(stream, "listed, powers", near_dense(powers, dtype, 0.3)).unstored_rows;
      CHECK(unstored > 0.7);
      CHECK(unstored < 0.8);
      check(stream, "listed, 128 dimensions",
            near_dense(spec_of({1, 2, 1, 300, 1500, 128}, {exact(1.4F)}, causal), dtype, 0.5));
    }
    check(stream, "listed, in a window",
          near_dense(windowed(spec_of({1, 4, 2, 900, 900, 64}, {exact(1.4F)}, true), 500), dtype, 0.5));
    // A few broad rows in a head are stored.
    const Shares few = check_shares(stream, "few are broad",
                                    few_broad(spec_of({1, 4, 2, 600, 900, 64}, {1.5}, true), dtype));
    CHECK(few.unstored_rows < 0.01);
  }
}

TEST_CASE("entmax, broad rows: NaN and infinity reach as far as through a stored support") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  struct Spoilt {
    const char* name = nullptr;
    void (*spoil)(Case& c) = nullptr;
    int64_t kv_len = 400;
  };
  const Spoilt cases[] = {
      {"rows without keys, and keys without weight whose values are no numbers",
       [](Case& c) {
         for (int64_t i = 0; i < 400; ++i) c.inputs.q.row(0, 0, i)[0] = c.inputs.q.row(0, 1, i)[0] = 1;
         for (int64_t j = 7; j < 350; j += 50) {
           c.inputs.k.row(0, 0, j)[0] = -kInf;
           c.inputs.v.row(0, 0, j)[0] = kNan;
         }
       },
       350},
      {"NaN in a query", [](Case& c) { c.inputs.q.row(0, 1, 130)[3] = kNan; }},
      {"NaN in a key", [](Case& c) { c.inputs.k.row(0, 0, 390)[3] = kNan; }},
      {"a key without weight",
       [](Case& c) {
         for (int64_t i = 0; i < 400; ++i) c.inputs.q.row(0, 0, i)[0] = c.inputs.q.row(0, 1, i)[0] = 1;
         for (int64_t j = 0; j < 400; ++j) c.inputs.k.row(0, 0, j)[0] = j % 50 == 7 ? -kInf : 1;
       }},
      {"NaN in a value", [](Case& c) { c.inputs.v.row(0, 0, 100)[5] = kNan; }},
      {"infinity in a value", [](Case& c) { c.inputs.v.row(0, 0, 350)[5] = kInf; }},
      {"NaN in a gradient", [](Case& c) { c.d_out.row(0, 0, 300)[63] = kNan; }},
      {"large gradients",
       [](Case& c) {
         for (int64_t i = 0; i < c.d_out.size(); ++i)
           c.d_out.data()[i] = round_to(c.dtype, 3000 * c.d_out.data()[i]);
       }},
  };
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
    for (const int64_t head_dim : {64, 128}) {
      for (const Spoilt& spoilt : cases) {
        CAPTURE(spoilt.name);
        CAPTURE(head_dim);
        CAPTURE(to_string(dtype));
        const int64_t window = head_dim == 64 ? 0 : 150;
        // Of a window all keys fit on lists: scores are closer there, so that rows go to the dense path at
        // once.
        Case c = near_dense(windowed(spec_of({1, 2, 1, 400, spoilt.kv_len, head_dim}, {1.5}, true), window),
                            dtype, window > 0 ? 0.002 : 0.01);
        spoilt.spoil(c);
        Training dense(stream, c, StoredRows::sparse), stored(stream, c, StoredRows::all);
        const Gradients out = dense.run().gradients(), expected = stored.run().gradients();
        REQUIRE(dense.entries() < stored.entries() / 2);
        const double bound = Tolerance().of(dtype);
        CHECK(nmse_or_inf(out.dq, expected.dq) <= bound);
        CHECK(nmse_or_inf(out.dk, expected.dk) <= bound);
        CHECK(nmse_or_inf(out.dv, expected.dv) <= bound);
        for (size_t head = 0; head < 2; ++head)
          CHECK(std::isfinite(out.dalpha[head]) == std::isfinite(expected.dalpha[head]));
      }
    }
  }
}

TEST_CASE("entmax, broad rows: every run gives the same bits") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int64_t head_dim : {64, 128}) {
    const int64_t window = head_dim == 64 ? 400 : 0;
    const Case c =
        mixed(windowed(spec_of({1, 8, 2, 1500, 1500, head_dim}, {1.5}, true), window), Dtype::bf16);
    Training training(stream, c, StoredRows::sparse);
    const auto expected = training.run().bytes();
    int differing = 0;
    for (int i = 0; i < 50; ++i) differing += training.run().bytes() != expected ? 1 : 0;
    CHECK(differing == 0);
  }
}

TEST_CASE("entmax, broad rows: what is stored is said, and what is not taken") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const AttentionSpec wide = spec_of({1, 1, 1, 200, 400, 192}, {1.5}, false);
  CHECK_THROWS_AS(entmax::backward_workspace_bytes(wide, Dtype::bf16, 64, true), InvalidArgument);
  const Case c = near_dense(wide, Dtype::bf16);  // its broad rows are stored
  const auto q = DeviceTensor::from(stream, c.dtype, c.inputs.q),
             k = DeviceTensor::from(stream, c.dtype, c.inputs.k),
             v = DeviceTensor::from(stream, c.dtype, c.inputs.v);
  const DeviceTensor out(stream, c.dtype, q.view().extents);
  entmax::EntmaxAttention attention(c.spec, c.dtype, stream);
  attention.forward(q.view(), k.view(), v.view(), out.view());
  CHECK(attention.support_entries() > 200 * 52);
}
