// The portable path's kernels themselves, thread by thread on the CPU (simt/simt.h), against the double
// oracle: barriers, indices, lists and passes, where there is no GPU. Tensor cores' own rounding is not among
// that.

#include "gpu/entmax/dispatch.h"
#include "gpu/entmax/portable/kernels.cuh"
#include "gpu/tests/entmax_portable_case.h"

namespace splash::gpu::entmax::portable {
alignas(1024) unsigned char dynamic[100 * 1024];  // shared memory of a block
}

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;
namespace portable = splash::gpu::entmax::portable;

namespace {

void poison_shared_memory() {
  std::fill(std::begin(portable::dynamic), std::end(portable::dynamic), 0xFF);
}

template <class T>
std::vector<T> elements_of(const Tensor<double>& tensor) {
  std::vector<T> elements;
  for (int64_t i = 0; i < tensor.size(); ++i)
    elements.push_back(static_cast<T>(static_cast<float>(tensor.data()[i])));
  return elements;
}

template <class T, int kDim>
void run_case(const PortableCase& c) {
  const AttentionShape& s = c.spec.shape;
  const int64_t rows = s.rows(), capacity = rows * s.kv_len;
  const auto q = elements_of<T>(c.inputs.q), k = elements_of<T>(c.inputs.k), v = elements_of<T>(c.inputs.v);
  const std::vector<float> alpha(c.spec.normalizer.alpha.begin(), c.spec.normalizer.alpha.end());
  std::vector<T> out(static_cast<size_t>(rows * s.head_dim), static_cast<T>(NAN));
  RowResults results{std::vector<float>(rows, NAN), std::vector<int64_t>(rows, -1),
                     std::vector<int32_t>(rows, -1), std::vector<int32_t>(capacity, -1),
                     std::vector<float>(capacity, NAN)};
  const entmax::MaskTables tables(c.spec);
  const entmax::ForwardArguments arguments{.q = q.data(),
                                           .k = k.data(),
                                           .v = v.data(),
                                           .out = out.data(),
                                           .alpha = alpha.data(),
                                           .mask = tables.at(tables.data()),
                                           .tau = results.tau.data(),
                                           .support = {.capacity = capacity,
                                                       .used = &results.used,
                                                       .offsets = results.offsets.data(),
                                                       .counts = results.counts.data(),
                                                       .columns = results.columns.data(),
                                                       .excess = results.excess.data()}};
  portable::Problem p = portable::problem_of(c.spec, arguments);
  const int words = entmax::row_mask_words(p.q_len);
  std::vector<uint32_t> masks(static_cast<size_t>(p.heads * words), 0xFFFFFFFF);
  std::vector<int> queries(static_cast<size_t>(rows), -1), counts(static_cast<size_t>(p.heads), 0);
  p.broad_masks = masks.data();

  using Tiles = portable::Tiles<T, kDim>;
  const auto blocks = static_cast<unsigned>(p.heads * ceil_div(s.q_len, Tiles::kQueries));
  poison_shared_memory();
  simt::run(blocks, Tiles::kThreads, test_seed(), [&] { portable::screen_kernel<T, kDim>(p); });
  for (int head = 0; head < p.heads; ++head) {  // as gather_rows
    for (int query = 0; query < p.q_len; ++query) {
      if ((masks[static_cast<size_t>(head * words + query / 32)] >> query % 32 & 1) != 0)
        queries[static_cast<size_t>(head * p.q_len + counts[static_cast<size_t>(head)]++)] = query;
    }
  }
  p.rows = {queries.data(), counts.data()};
  poison_shared_memory();
  simt::run(blocks, Tiles::kThreads, test_seed() + 1, [&] { portable::stream_kernel<T, kDim>(p); });

  Tensor<double> output(s.batch, s.q_heads, s.q_len, s.head_dim);
  for (int64_t i = 0; i < output.size(); ++i)
    output.data()[i] = static_cast<double>(static_cast<float>(out[static_cast<size_t>(i)]));
  check_against_oracle(c, output, results);
}

template <class T>
void run_case(const PortableCase& c) {
  const int64_t dim = c.spec.shape.head_dim;
  if constexpr (sizeof(T) == 4) {
    if (dim <= 32) return run_case<T, 32>(c);
  }
  if (dim <= 64) return run_case<T, 64>(c);
  if (dim <= 128) return run_case<T, 128>(c);
  run_case<T, 256>(c);
}

}  // namespace

TEST_CASE("portable entmax on the CPU: problems in which all features meet, against the double oracle") {
  CaseDrawer drawer(test_seed());
  for (int i = 0; i < 60; ++i) {
    const PortableCase c = drawer.draw();
    if (c.dtype == Dtype::bf16) run_case<__nv_bfloat16>(c);
    if (c.dtype == Dtype::f16) run_case<__half>(c);
    if (c.dtype == Dtype::f32) run_case<float>(c);
  }
}
