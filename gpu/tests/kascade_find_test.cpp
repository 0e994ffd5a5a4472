// Kascade's anchor against the double oracle: the same keys, except those whose sums are within rounding of
// the last that is kept; keys in 8 bits, and the choice by them.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "core/error.h"
#include "cpu_ref/attention/tile_top_k.h"
#include "cpu_ref/kascade/similarity.h"
#include "gpu/kascade/kascade.h"
#include "gpu/tests/kascade_case.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::kascade;
using namespace splash::gpu::testing;

namespace {

// Relative error of a sum of probabilities: float scores err by some 2^-24 |score| sqrt(head_dim), the
// exponential by 2^-22.
constexpr double kRounding = 3e-5, kSmallest = 1e-35;
constexpr double kRoundingIn8Bits = 0x1p-8 + kRounding;  // two sums of probabilities in bfloat16

// Keys in 8 bits, computed on the host, and their values.
struct Quantized {
  std::vector<int8_t> codes;  // [batch, kv_heads, kv_len, head_dim]
  std::vector<float> scales;
  Tensor<double> values;
};

Quantized quantized(const Tensor<double>& k, const AttentionShape& s) {
  Quantized made{
      .codes = {}, .scales = {}, .values = Tensor<double>(s.batch, s.kv_heads, s.kv_len, s.head_dim)};
  for (int64_t key = 0; key < s.batch * s.kv_heads * s.kv_len; ++key) {
    const double* const from = k.data() + key * s.head_dim;
    float largest = 0;
    bool finite = true;
    for (int64_t d = 0; d < s.head_dim; ++d) {
      finite &= std::isfinite(from[d]);
      largest = std::max(largest, std::abs(static_cast<float>(from[d])));
    }
    const float scale = finite ? largest / 127.0f : std::nanf("");
    made.scales.push_back(scale);
    for (int64_t d = 0; d < s.head_dim; ++d) {
      const float code = scale > 0 ? std::nearbyint(static_cast<float>(from[d]) / scale) : 0.0f;
      made.codes.push_back(static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f)));
      made.values.data()[key * s.head_dim + d] = double{scale} * made.codes.back();
    }
  }
  return made;
}

// Of each list the sums of all keys, of each sequence as if it were alone; -1 of padding.
std::vector<double> pooled_sums(const KascadeCase& c, const AttentionInputs<double>& inputs) {
  if (c.starts.empty()) return cpu_ref::tile_top_k(c.spec, inputs.q, inputs.k, {.tile = kTile}).pooled;
  const AttentionShape& s = c.spec.shape;
  std::vector<double> all;
  for (int64_t batch = 0; batch < s.batch; ++batch) {
    const int64_t start = c.start(batch), kv_len = s.kv_len - start;
    AttentionSpec spec = c.spec;
    spec.shape.batch = 1;
    spec.shape.kv_len = kv_len;
    Tensor<double> q(1, s.q_heads, s.q_len, s.head_dim), k(1, s.kv_heads, kv_len, s.head_dim);
    std::copy_n(inputs.q.row(batch, 0, 0), q.size(), q.data());
    for (int64_t head = 0; head < s.kv_heads; ++head)
      std::copy_n(inputs.k.row(batch, head, start), kv_len * s.head_dim, k.row(0, head, 0));
    const std::vector<double> pooled = cpu_ref::tile_top_k(spec, q, k, {.tile = kTile}).pooled;
    for (int64_t list = 0; list < s.kv_heads * c.tiles(); ++list) {
      all.insert(all.end(), start, -1.0);
      all.insert(all.end(), pooled.begin() + list * kv_len, pooled.begin() + (list + 1) * kv_len);
    }
  }
  return all;
}

// Calls visit(list, pooled sums of the keys that the tile's last query sees, first own key, keys to keep).
template <class Visit>
void for_each_list(const KascadeCase& c, const AttentionInputs<double>& inputs, Visit visit) {
  const AttentionShape& s = c.spec.shape;
  const std::vector<double> pooled = pooled_sums(c, inputs);
  const std::vector<int32_t> counts = c.counts();
  const int64_t tiles = c.tiles();
  for (int64_t list = 0; list < s.batch * s.kv_heads * tiles; ++list) {
    CAPTURE(list);
    const int64_t tile = list % tiles, before = s.kv_len - s.q_len + tile * kTile;
    const int64_t visible = std::max<int64_t>(0, s.kv_len - s.q_len + std::min((tile + 1) * kTile, s.q_len));
    std::vector<double> sums(pooled.begin() + list * s.kv_len, pooled.begin() + list * s.kv_len + visible);
    for (double& sum : sums) sum = std::isnan(sum) ? 0.0 : sum;
    visit(list, sums, std::max(c.start(list / tiles / s.kv_heads), before), int64_t{counts[list]});
  }
}

void check(const KascadeCase& c, AttentionInputs<double> inputs) {
  CAPTURE(to_string(c.spec.shape));
  CAPTURE(to_string(c.dtype));
  const std::vector<int32_t> ours = find(c, inputs);
  const double rounding = c.in_8_bits && c.by_steps() ? kRoundingIn8Bits : kRounding;
  if (c.in_8_bits && c.by_steps()) inputs.k = quantized(inputs.k, c.spec.shape).values;
  for_each_list(c, inputs, [&](int64_t list, const std::vector<double>& sums, int64_t own, int64_t count) {
    const std::vector<int32_t> expected = cpu_ref::tile_set(sums, own, count);
    const auto begin = ours.begin() + list * c.most(), end = begin + count;
    CHECK(std::all_of(end, begin + c.most(), [&](int32_t key) { return key == c.spec.shape.kv_len; }));
    REQUIRE(std::ranges::adjacent_find(begin, end, std::greater_equal<>()) == end);
    std::vector<int32_t> differing;
    std::set_symmetric_difference(begin, end, expected.begin(), expected.end(),
                                  std::back_inserter(differing));
    double smallest = INFINITY;
    for (const int32_t key : expected) {
      if (key < own) smallest = std::min(smallest, sums[key]);  // its own it has anyhow
    }
    for (const int32_t key : differing) {
      CAPTURE(key);
      REQUIRE(key < own);
      CHECK(std::abs(sums[key] - smallest) <= rounding * smallest + kSmallest);
    }
  });
}

void check(const KascadeCase& c) {
  check(c, rounded_inputs(c));
}

const std::vector<AttentionShape> kShapes{
    {1, 1, 1, 1, 1, 8},       {2, 4, 1, 129, 129, 128}, {1, 8, 2, 33, 700, 64},  {1, 2, 1, 200, 90, 40},
    {1, 8, 1, 70, 257, 72},   {1, 3, 3, 65, 513, 128},  {1, 4, 1, 64, 5000, 64}, {1, 12, 2, 40, 300, 16},
    {3, 8, 2, 1, 1000, 128},  {2, 12, 1, 1, 1500, 40},  {1, 8, 2, 7, 2000, 64},  {1, 1, 1, 5, 3, 64},
    {2, 4, 1, 129, 129, 256}, {1, 8, 2, 70, 1200, 192}, {1, 6, 2, 100, 90, 200}, {1, 10, 2, 65, 400, 136},
    {1, 3, 3, 33, 700, 248},  {70000, 1, 1, 1, 3, 8}};  // more lists than a grid is wide

}  // namespace

TEST_CASE("kascade: an anchor keeps the oracle's keys: shapes, types, budgets, signs") {
  SKIP_WITHOUT_GPU();
  for (const AttentionShape& shape : kShapes) {
    KascadeCase c = case_of(shape);
    check(c);
    c.dtype = Dtype::f16;
    c.budget.share = 1;
    check(c);
    c.budget = {.tile = kTile, .share = 0.01, .least_keys = 1};
    c.spec.scale = -0.3;
    check(c);
  }
}

TEST_CASE("kascade: normalisers that are given spare a pass, and the keys are the oracle's") {
  SKIP_WITHOUT_GPU();
  for (const AttentionShape& shape : kShapes) {
    if (shape.batch > 100) continue;  // a step: reads no normalisers
    KascadeCase c = case_of(shape);
    c.gives_normalizers = true;
    check(c);
    c.spec.scale = -0.3;
    check(c);
  }
}

// Steps of decoding: rows of one, two and four tiles, keys that no tile divides, lists that one block holds,
// or a cluster of 2, 4 or 8, and longer ones.
const std::vector<AttentionShape> kSteps{
    {3, 8, 2, 1, 1000, 128}, {2, 12, 1, 1, 1500, 40},  {1, 8, 2, 7, 2000, 64},   {1, 1, 1, 5, 3, 64},
    {2, 3, 3, 1, 777, 8},    {1, 24, 1, 1, 513, 24},   {1, 4, 2, 16, 4099, 128}, {1, 2, 1, 9, 1025, 96},
    {1, 1, 1, 1, 1, 16},     {1, 4, 1, 1, 49152, 8},   {1, 4, 1, 1, 49153, 8},   {70000, 1, 1, 1, 3, 8},
    {3, 8, 2, 1, 1000, 256}, {2, 12, 1, 1, 777, 200},  {1, 4, 2, 16, 2051, 192}, {1, 2, 1, 9, 1025, 136},
    {1, 1, 1, 5, 3, 248},    {1, 4, 1, 1, 49153, 136}, {3, 2, 1, 1, 16385, 64},  {1, 2, 2, 1, 100001, 8},
    {1, 3, 1, 2, 393216, 8}, {1, 3, 1, 2, 393217, 8}};

TEST_CASE("kascade: a step chooses from the keys that it is given: shapes, types, signs") {
  SKIP_WITHOUT_GPU();
  for (const AttentionShape& shape : kSteps) {
    for (const bool in_8_bits : {false, true}) {
      CAPTURE(in_8_bits);
      KascadeCase c = case_of(shape);
      c.in_8_bits = in_8_bits;
      check(c);
      c.dtype = Dtype::f16;
      check(c);
      c.budget = {.tile = kTile, .share = 0.01, .least_keys = 1};
      c.spec.scale = -0.3;
      check(c);
    }
  }
}

TEST_CASE("kascade: a step keeps of each sequence of a padded batch what it keeps of the sequence alone") {
  SKIP_WITHOUT_GPU();
  for (const AttentionShape& shape :
       {AttentionShape{4, 8, 2, 1, 1000, 128}, AttentionShape{3, 12, 1, 1, 1500, 40},
        AttentionShape{4, 8, 2, 7, 2000, 64}, AttentionShape{3, 1, 1, 5, 6, 64},
        AttentionShape{2, 4, 2, 16, 4099, 128}, AttentionShape{3, 4, 1, 1, 49153, 8},
        AttentionShape{4, 8, 2, 1, 1000, 256}, AttentionShape{2, 4, 1, 5, 1500, 200}}) {
    for (const bool in_8_bits : {false, true}) {
      CAPTURE(in_8_bits);
      KascadeCase c = case_of(shape);
      c.in_8_bits = in_8_bits;
      c.starts = some_starts(shape);
      auto inputs = rounded_inputs(c);
      for (int64_t batch = 0; batch < shape.batch; ++batch) {  // padding may hold anything
        for (int64_t head = 0; head < shape.kv_heads; ++head)
          std::fill_n(inputs.k.row(batch, head, 0), c.start(batch) * shape.head_dim, std::nan(""));
      }
      check(c, inputs);
      c.workspace_lists = 1;
      check(c, inputs);
    }
  }
  KascadeCase c = case_of({1, 8, 1, 5, 90, 64});
  c.starts = {3};
  CHECK_THROWS_AS(find(c, rounded_inputs(c)), Unsupported);
}

TEST_CASE("kascade: many queries do not look at keys in 8 bits") {
  SKIP_WITHOUT_GPU();
  for (const AttentionShape& shape :
       {AttentionShape{2, 4, 1, 129, 129, 128}, AttentionShape{1, 8, 1, 5, 90, 64},
        AttentionShape{1, 8, 1, 5, 90, 256}}) {
    KascadeCase c = case_of(shape);
    c.in_8_bits = true;
    check(c);  // nothing wrote them
  }
}

// Zeros, infinity, NaN, numbers that are huge and smaller than all normal ones: a key each.
void spoil(Tensor<double>& k, const AttentionShape& s, Dtype dtype) {
  const double values[] = {0.0, INFINITY, std::nan(""), dtype == Dtype::f16 ? 65504.0 : 3e38,
                           dtype == Dtype::f16 ? 6e-8 : 1e-40};
  for (size_t i = 0; i < std::size(values); ++i) {
    for (int64_t d = 0; d < s.head_dim; ++d) {
      double& one = k.row(0, 0, static_cast<int64_t>(2 * i))[d];
      if (i == 0 || i > 2 || d == 3) one = round_to(dtype, one < 0 ? -values[i] : values[i]);
    }
  }
}

TEST_CASE("kascade: keys in 8 bits are the host's to the bit, and those before and behind are left alone") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const AttentionShape& shape :
       {AttentionShape{2, 2, 2, 1, 100, 128}, AttentionShape{3, 1, 1, 1, 37, 8},
        AttentionShape{1, 3, 3, 1, 16, 24}, AttentionShape{1, 2, 2, 1, 51, 64},
        AttentionShape{2, 2, 2, 1, 100, 256}, AttentionShape{3, 1, 1, 1, 37, 136},
        AttentionShape{70000, 1, 1, 1, 10, 8}}) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      CAPTURE(to_string(shape));
      CAPTURE(to_string(dtype));
      KascadeCase c = case_of(shape);
      c.dtype = dtype;
      auto inputs = rounded_inputs(c);
      spoil(inputs.k, shape, dtype);
      const Quantized expected = quantized(inputs.k, shape);
      const DeviceTensor k = DeviceTensor::from(stream, dtype, inputs.k);
      for (const int64_t begin : {shape.kv_len / 2, shape.kv_len - 1, int64_t{0}}) {
        DeviceKeys keys(stream, shape, 0x5A);
        keys.write(c, k.view().data, begin, stream);
        std::vector<int8_t> codes(keys.codes.bytes());
        std::vector<float> scales(keys.scales.bytes() / sizeof(float));
        keys.codes.download(codes.data(), keys.codes.bytes());
        keys.scales.download(scales.data(), keys.scales.bytes());
        float poison;
        std::memset(&poison, 0x5A, sizeof(poison));
        int64_t wrong = 0;
        for (int64_t place = 0; place < static_cast<int64_t>(scales.size()); ++place) {
          const int64_t head = place / keys.pitch, key = place % keys.pitch, from = head * shape.kv_len + key;
          const bool written = key >= begin && key < shape.kv_len;
          const float scale = written ? expected.scales[from] : poison;
          if (std::isnan(scale) ? !std::isnan(scales[place]) : scales[place] != scale) ++wrong;
          for (int64_t d = 0; d < shape.head_dim; ++d) {
            const int8_t code = written ? expected.codes[from * shape.head_dim + d] : int8_t{0x5A};
            if (codes[place * shape.head_dim + d] != code) ++wrong;
          }
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE(
    "kascade: a step's rows that see a key in 8 bits which is not finite choose nothing; huge keys are "
    "keys") {
  SKIP_WITHOUT_GPU();
  for (const int64_t head_dim : {64, 256}) {
    for (const Dtype dtype : {Dtype::bf16, Dtype::f16}) {
      KascadeCase c = case_of({2, 4, 2, 1, 300, head_dim});
      c.dtype = dtype;
      c.in_8_bits = true;
      auto inputs = rounded_inputs(c);
      spoil(inputs.k, c.spec.shape, dtype);
      check(c, inputs);
      for (const int64_t not_finite : {2, 4}) std::fill_n(inputs.k.row(0, 0, not_finite), head_dim, 1.0);
      std::fill_n(inputs.k.row(0, 0, 6), head_dim, dtype == Dtype::f16 ? 60000.0 : 1e30);
      check(c, inputs);
    }
  }
}

TEST_CASE("kascade: room for keys in 8 bits is whole groups of 16") {
  SKIP_WITHOUT_GPU();
  const AttentionSpec spec = case_of({1, 1, 1, 1, 20, 8}).spec;
  CHECK_THROWS_AS(quantize_keys(spec, Dtype::f16, {.pitch = 24}), InvalidArgument);
  CHECK_THROWS_AS(quantize_keys(spec, Dtype::f16, {.pitch = 16}), InvalidArgument);
  CHECK_THROWS_AS(quantize_keys(spec, Dtype::f32, {.pitch = 32}), Unsupported);
}

TEST_CASE("kascade: a small workspace changes nothing") {
  SKIP_WITHOUT_GPU();
  for (const AttentionShape& shape :
       {AttentionShape{2, 4, 2, 150, 300, 64}, AttentionShape{2, 4, 2, 1, 3000, 64},
        AttentionShape{2, 4, 2, 1, 50001, 8}, AttentionShape{2, 4, 2, 150, 300, 256}}) {
    KascadeCase c = case_of(shape);
    c.in_8_bits = true;
    const auto inputs = rounded_inputs(c);
    const std::vector<int32_t> whole = find(c, inputs);
    for (const int64_t lists : {1, 3}) {
      c.workspace_lists = lists;
      CHECK(find(c, inputs) == whole);
    }
  }
}

TEST_CASE("kascade: of equal sums the lower key is kept") {
  SKIP_WITHOUT_GPU();
  for (const int64_t head_dim : {64, 200}) {
    KascadeCase c = case_of({1, 4, 1, 64, 400, head_dim});
    c.workload = {.kind = WorkloadKind::ties, .clusters = 5};
    const auto inputs = rounded_inputs(c);
    const std::vector<int32_t> ours = find(c, inputs);
    for_each_list(c, inputs, [&](int64_t list, const std::vector<double>& sums, int64_t own, int64_t count) {
      const auto begin = ours.begin() + list * c.most();
      CHECK(std::vector<int32_t>(begin, begin + count) == cpu_ref::tile_set(sums, own, count));
    });
  }
}

namespace {

void check_rows_with_nan(int64_t head_dim) {
  const KascadeCase c = case_of({1, 2, 1, 96, 200, head_dim});
  auto inputs = rounded_inputs(c);
  const std::vector<int32_t> clean = find(c, inputs);
  for (int64_t i = 32; i < 64; ++i) {  // all rows of tile 1 but one
    for (int64_t h = 0; h < 2; ++h) {
      if (h + i > 32) inputs.q.row(0, h, i)[3] = std::nan("");
    }
  }
  const std::vector<int32_t> spoilt = find(c, inputs);
  for (const int64_t tile : {0, 2}) {
    const int64_t first = tile * c.most();
    CHECK(std::equal(clean.begin() + first, clean.begin() + first + c.most(), spoilt.begin() + first));
  }
  KascadeCase of_one = c;  // the row that is left chooses as if it were alone, but for the tile's own keys
  of_one.spec.shape = {1, 1, 1, 1, 200 - 96 + 33, head_dim};
  AttentionInputs<double> alone{Tensor<double>(1, 1, 1, head_dim), Tensor<double>(1, 1, 137, head_dim),
                                Tensor<double>(1, 1, 137, head_dim)};
  for (int64_t d = 0; d < head_dim; ++d) {
    alone.q.row(0, 0, 0)[d] = inputs.q.row(0, 0, 32)[d];
    for (int64_t j = 0; j < 137; ++j) alone.k.row(0, 0, j)[d] = inputs.k.row(0, 0, j)[d];
  }
  const std::vector<double> sums = cpu_ref::tile_top_k(of_one.spec, alone.q, alone.k, {.tile = kTile}).pooled;
  std::vector<double> all(200 - 96 + 64, 0.0);
  std::copy(sums.begin(), sums.end(), all.begin());
  const int64_t count = c.counts()[1];
  const std::vector<int32_t> expected = cpu_ref::tile_set(all, 200 - 96 + 32, count);
  CHECK(std::vector<int32_t>(spoilt.begin() + c.most(), spoilt.begin() + c.most() + count) == expected);
}

}  // namespace

TEST_CASE("kascade: a row with NaN chooses nothing, and leaves other tiles alone") {
  SKIP_WITHOUT_GPU();
  for (const int64_t head_dim : {64, 256}) check_rows_with_nan(head_dim);
}
