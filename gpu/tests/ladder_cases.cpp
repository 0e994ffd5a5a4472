#include "gpu/tests/ladder_cases.h"

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <limits>
#include <random>

#include <fmt/format.h>

namespace splash::gpu::testing {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Shape {
  int64_t batch, q_heads, kv_heads, q_len, kv_len;
};

// Lengths that no tile divides, single rows and keys, more queries than keys, grouped heads.
constexpr Shape kShapes[] = {{1, 1, 1, 1, 1},   {1, 2, 2, 33, 65},   {2, 4, 2, 129, 129}, {1, 2, 2, 7, 200},
                             {1, 1, 1, 200, 7}, {1, 2, 1, 256, 256}, {1, 1, 1, 130, 513}};
constexpr Shape kNastyShape{1, 2, 1, 70, 130};
// Two tiles of 256 queries. With 8 heads a tile fills several of the largest blocks; with 3 heads it does not
// fill one.
constexpr Shape kWideShapes[] = {{1, 8, 1, 300, 326}, {1, 3, 1, 300, 326}};
constexpr int64_t kWideTile = 64;  // tiles of more queries are wide

// Very large heads get fewer queries and keys, but still two tiles of queries. At full length they were 96 %
// of the suite's bytes, and compute-sanitizer's racecheck did not finish them (nor 2 heads of 20 x 70, where
// a cluster's blocks wait for one another in five tiles of keys).
Shape shortened(const Shape& s, int64_t head_dim) {
  if (head_dim <= 2048) return s;
  return {1, 1, 1, std::min<int64_t>(s.q_len, 17), std::min<int64_t>(s.kv_len, 33)};
}

using Inputs = AttentionInputs<double>;

void for_each_row(Tensor<double>& tensor, const std::function<void(double* row, int64_t index)>& use) {
  for (int64_t i = 0; i < tensor.size() / tensor.dim(); ++i) use(tensor.data() + i * tensor.dim(), i);
}

// Gives every seventh key a score of -inf with every query: such keys are masked.
void hide_keys_by_infinity(Inputs& inputs) {
  for_each_row(inputs.q, [](double* row, int64_t) { row[0] = 1; });
  for_each_row(inputs.k, [](double* row, int64_t i) { row[0] = i % 7 == 3 ? -kInf : row[0]; });
}

// Gives all rows only scores of -inf: zero rows.
void hide_all_keys_by_infinity(Inputs& inputs) {
  for_each_row(inputs.q, [](double* row, int64_t) { row[0] = 1; });
  for_each_row(inputs.k, [](double* row, int64_t) { row[0] = -kInf; });
}

void put_nan_into_a_query(Inputs& inputs) {
  inputs.q.row(0, 0, inputs.q.length() / 2)[1] = std::numeric_limits<double>::quiet_NaN();
}

void put_infinity_into_a_query(Inputs& inputs) {
  double* const row = inputs.q.row(0, 0, inputs.q.length() / 3);
  std::fill(row, row + inputs.q.dim(), 0.0);
  row[0] = kInf;
  for_each_row(inputs.k, [](double* key, int64_t) { key[0] = 1; });
}

struct Nasty {
  const char* name;
  Workload workload;
  void (*spoil)(Inputs&);
};

const std::vector<Nasty>& nasty_inputs() {
  static const std::vector<Nasty> list{
      {"ties", {.kind = WorkloadKind::ties}, nullptr},    {"sink", {.kind = WorkloadKind::sink}, nullptr},
      {"huge logits", {.query_variance = 1e8}, nullptr},  {"some scores -inf", {}, hide_keys_by_infinity},
      {"all scores -inf", {}, hide_all_keys_by_infinity}, {"NaN in a query", {}, put_nan_into_a_query},
      {"+inf in a query", {}, put_infinity_into_a_query},
  };
  return list;
}

// The smallest and the largest head_dim, and up to two between that no bucket holds exactly.
std::vector<int64_t> head_dims(const Limits& limits) {
  std::vector<int64_t> allowed;
  for (const int64_t dim : {8, 16, 24, 32, 40, 64, 72, 96, 128, 136, 192, 200, 256, 512, 1032, 2048, 8192}) {
    if (dim >= limits.head_dim_min && dim <= limits.head_dim_max && dim % limits.head_dim_multiple == 0)
      allowed.push_back(dim);
  }
  const size_t n = allowed.size();
  if (n <= 4) return allowed;
  return {allowed[n / 3], allowed[0], allowed[2 * n / 3], allowed[n - 1]};
}

class CaseList {
 public:
  CaseList(const Variant& variant, const DeviceInfo& device) : variant_(variant), device_(device) {}

  // Adds one case if the variant takes it. What the case leaves open (normalizer, selection) cycles through
  // what is allowed.
  void add(const char* name, const Shape& full, int64_t head_dim, Dtype dtype, const char* mask,
           const Workload& workload, void (*spoil)(Inputs&)) {
    const Shape shape = shortened(full, head_dim);
    LadderCase c;
    c.dtype = dtype;
    c.spec.shape = {shape.batch, shape.q_heads, shape.kv_heads, shape.q_len, shape.kv_len, head_dim};
    set_mask(c.spec, mask);
    set_normalizer(c.spec);
    set_selection(c.spec);
    ++turn_;
    c.name = fmt::format("{}, {}, {}, {}, {} alpha {}, {} k_keep {} block {}", name, to_string(c.spec.shape),
                         to_string(dtype), mask, to_string(c.spec.normalizer.kind),
                         c.spec.normalizer.alpha.front(), to_string(c.spec.selection.kind),
                         c.spec.selection.k_keep, c.spec.selection.block);
    const bool known =
        std::any_of(cases_.begin(), cases_.end(), [&](auto& other) { return other.name == c.name; });
    if (known || !unsupported_reason(variant_, c.spec, dtype, device_).empty()) return;
    c.workload = workload;
    c.workload.seed = test_seed();
    c.spoil = spoil;
    cases_.push_back(std::move(c));
  }

  std::vector<LadderCase> take() { return std::move(cases_); }

 private:
  static void set_mask(AttentionSpec& spec, const std::string& mask) {
    spec.mask.causal = mask == "causal" || mask == "window";
    if (mask == "window") spec.mask.window = 5;
    if (mask != "positions") return;
    const AttentionShape& shape = spec.shape;  // a table per head: positions neither start at 0 nor rise
    for (int64_t i = 0; i < shape.batch * shape.q_heads * shape.q_len; ++i)
      spec.mask.q_positions.push_back(3 + (i * 37) % (shape.q_len + i % 5));
    for (int64_t i = 0; i < shape.batch * shape.q_heads * shape.kv_len; ++i)
      spec.mask.k_positions.push_back((i * 29) % shape.kv_len);
  }

  void set_normalizer(AttentionSpec& spec) const {
    constexpr double kAlphas[] = {1.5, 2.0, 1.25, 1.75};
    const auto& allowed = variant_.limits.normalizers;
    spec.normalizer.kind = allowed[turn_ % allowed.size()];
    spec.normalizer.alpha = {kAlphas[turn_ / allowed.size() % std::size(kAlphas)]};
    const bool power = spec.normalizer.kind == NormalizerKind::power ||
                       spec.normalizer.kind == NormalizerKind::power_unnormalized;
    if (power) spec.normalizer.alpha = {2.0};
    const bool softmax = spec.normalizer.kind == NormalizerKind::softmax;
    for (int64_t head = 1; !softmax && turn_ % 3 == 2 && head < spec.shape.q_heads; ++head)  // one per head
      spec.normalizer.alpha.push_back(1.2 + 0.1 * static_cast<double>(head));
  }

  void set_selection(AttentionSpec& spec) const {
    constexpr int64_t kKeeps[] = {8, 2, 4, 1};
    const Limits& limits = variant_.limits;
    Selection& selection = spec.selection;
    selection.kind = limits.selections[turn_ % limits.selections.size()];
    if (!limits.selection_blocks.empty())
      selection.block = limits.selection_blocks[turn_ % limits.selection_blocks.size()];
    selection.k_keep = kKeeps[turn_ % std::size(kKeeps)];
    if (selection.kind != SelectionKind::shared_keys) return;
    constexpr double kShares[] = {0.1, 0.5, 1.0};
    selection = make_shared_keys(spec.shape, spec.mask, selection.block, kShares[turn_ % std::size(kShares)],
                                 test_seed());
    // Empties the first tile's list, which gives zero rows; not if a wide tile is the only one.
    if (selection.block <= kWideTile || selection.tiles(spec.shape) > 1)
      std::fill_n(selection.keys.begin(), selection.k_keep, -1);
  }

  const Variant& variant_;
  const DeviceInfo& device_;
  uint64_t turn_ = 0;
  std::vector<LadderCase> cases_;
};

}  // namespace

TestSeed TestSeed::of(const char* variable) {
  if (variable == nullptr) return {};
  if (std::string(variable) != "random") return {std::strtoull(variable, nullptr, 10), ""};
  const uint64_t drawn = std::random_device()();
  return {drawn, fmt::format("SPLASH_TEST_SEED={} draws the same numbers", drawn)};
}

uint64_t test_seed() {
  static const TestSeed seed = [] {
    TestSeed made = TestSeed::of(std::getenv("SPLASH_TEST_SEED"));
    if (!made.told.empty()) fmt::print(stderr, "{}\n", made.told);
    return made;
  }();
  return seed.number;
}

void round_inputs(Inputs& inputs, Dtype dtype) {
  for (Tensor<double>* tensor : {&inputs.q, &inputs.k, &inputs.v}) {
    for (int64_t i = 0; i < tensor->size(); ++i) tensor->data()[i] = round_to(dtype, tensor->data()[i]);
  }
}

Inputs LadderCase::inputs() const {
  auto made = make_inputs<double>(workload, spec.shape);
  if (spoil != nullptr) spoil(made);
  round_inputs(made, dtype);
  return made;
}

std::vector<LadderCase> ladder_cases(const Variant& variant, const DeviceInfo& device) {
  CaseList list(variant, device);
  const auto dims = head_dims(variant.limits);
  const auto& blocks = variant.limits.selection_blocks;
  const bool wide =
      std::any_of(variant.limits.selections.begin(), variant.limits.selections.end(),
                  [](SelectionKind kind) { return kind == SelectionKind::shared_keys; }) &&
      std::any_of(blocks.begin(), blocks.end(), [](int64_t block) { return block > kWideTile; });
  size_t turn = 0;
  for (const Dtype dtype : variant.limits.dtypes) {
    for (const Shape& shape : kShapes) {
      for (const char* mask : {"none", "causal", "positions"}) {
        list.add("random", shape, dims[turn++ % dims.size()], dtype, mask, {}, nullptr);
      }
    }
    for (const Shape& shape : kShapes) {
      if (variant.limits.window)
        list.add("random", shape, dims[turn++ % dims.size()], dtype, "window", {}, nullptr);
    }
    for (const Shape& shape : kWideShapes) {
      for (size_t block = 0; wide && block < blocks.size(); ++block) {  // each mask with each of four blocks
        for (const char* mask : {"none", "causal", "positions"})
          list.add("wide tiles", shape, dims[turn++ % dims.size()], dtype, mask, {}, nullptr);
      }
    }
    for (const Nasty& nasty : nasty_inputs()) {
      for (const char* mask : {"none", "causal", "positions"}) {
        list.add(nasty.name, kNastyShape, dims.front(), dtype, mask, nasty.workload, nasty.spoil);
      }
    }
  }
  return list.take();
}

}  // namespace splash::gpu::testing
