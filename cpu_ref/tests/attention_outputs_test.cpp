// Outputs of forward besides O: block map, sparse probabilities, support counts. Also determinism and memory.
#include <omp.h>
#include <sys/resource.h>

#include <doctest/doctest.h>

#include "cpu_ref/tests/attention_test_support.h"

using namespace splash;
using namespace splash::cpu_ref;
using namespace splash::cpu_ref::test;

namespace {

const AttentionShape kShape{2, 4, 2, 19, 37, 4};

// Runs `work` with the given number of OpenMP threads.
template <class Work>
auto with_threads(int threads, const Work& work) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  auto result = work();
  omp_set_num_threads(before);
  return result;
}

// The map by its definition, from the mask and the dense probabilities.
std::vector<uint8_t> expected_blocks(const AttentionSpec& spec, const Tensor<double>& p,
                                     const BlockMap& map) {
  const AttentionShape& s = spec.shape;
  std::vector<uint8_t> state(map.state.size(), BlockMap::hidden);
  for (int64_t r = 0; r < s.rows(); ++r) {
    const int64_t head = r / s.q_len, query = r % s.q_len;
    const RowMask mask = spec.mask.row(s, head / s.q_heads, head % s.q_heads, query);
    for (int64_t j = 0; j < s.kv_len; ++j) {
      uint8_t& tile = state[(head * map.q_blocks + query / map.block) * map.k_blocks + j / map.block];
      if (mask.visible(j)) tile = std::max<uint8_t>(tile, BlockMap::inactive);
      if (p.data()[r * s.kv_len + j] > 0) tile = BlockMap::active;
    }
  }
  return state;
}

#ifdef __SANITIZE_ADDRESS__
constexpr bool kKeepsFreedMemory = true;  // the sanitizer's quarantine
#else
constexpr bool kKeepsFreedMemory = false;
#endif

int64_t peak_memory() {  // bytes
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<int64_t>(usage.ru_maxrss) * 1024;
}

}  // namespace

TEST_CASE("block map, sparse probabilities and support counts tell one story") {
  const auto inputs = random_inputs<double>(kShape, 21);
  for (const NamedMask& mask : masks_for(kShape)) {
    for (const Selection& selection : all_selections(kShape)) {
      for (const NormalizerKind kind :
           {NormalizerKind::softmax, NormalizerKind::entmax, NormalizerKind::power}) {
        for (const int64_t block : {1, 5, 64}) {
          const AttentionSpec spec{kShape, 2, {kind, {1.5}}, selection, mask.mask};
          INFO(describe(spec, mask.name) << ", map block " << block);
          const auto result = forward(spec, inputs, {.map_block = block, .keep_probabilities = true});
          const SparseProbabilities<double>& p = *result.probabilities;
          bool consistent = p.row_offsets.size() == result.support.size() + 1 && p.row_offsets.front() == 0 &&
                            p.row_offsets.back() == static_cast<int64_t>(p.columns.size()) &&
                            p.columns.size() == p.values.size();
          for (int64_t r = 0; r < kShape.rows() && consistent; ++r) {
            const auto begin = p.row_offsets[r], end = p.row_offsets[r + 1];
            double sum = 0;
            for (int64_t e = begin; e < end; ++e) {
              consistent &= p.values[e] > 0 && (e == begin || p.columns[e - 1] < p.columns[e]);
              sum += p.values[e];
            }
            consistent &= end - begin == result.support[r] && (begin == end || std::abs(sum - 1) < 1e-10);
          }
          CHECK(consistent);
          const BlockMap& map = result.blocks;
          CHECK(map.q_blocks == (kShape.q_len + block - 1) / block);
          CHECK(map.k_blocks == (kShape.kv_len + block - 1) / block);
          CHECK(map.state == expected_blocks(spec, dense_probabilities(kShape, result), map));
          CHECK(map.count(BlockMap::hidden) + map.count(BlockMap::inactive) + map.count(BlockMap::active) ==
                static_cast<int64_t>(map.state.size()));
        }
      }
    }
  }
}

TEST_CASE("probabilities are returned only where asked for") {
  const AttentionSpec spec{kShape, 1, {}, {}, {}};
  CHECK_FALSE(forward(spec, random_inputs<float>(kShape, 22)).probabilities.has_value());
}

TEST_CASE_TEMPLATE("results do not depend on the number of threads, to the bit", T, float, double) {
  const auto inputs = random_inputs<T>(kShape, 23);
  const auto dout = random_dout<T>(kShape, 23);
  for (const Normalizer& normalizer : all_normalizers()) {
    for (const Selection& selection : all_selections(kShape)) {
      const AttentionSpec spec{kShape, 1, normalizer, selection, {.causal = true}};
      INFO(describe(spec));
      const auto run = [&] { return forward(spec, inputs, {.map_block = 8, .keep_probabilities = true}); };
      const auto one = with_threads(1, run), two = with_threads(2, run);
      CHECK(same_bits(one.out, two.out));
      CHECK(same_bits(one.tau, two.tau));
      CHECK(one.support == two.support);
      CHECK(one.blocks.state == two.blocks.state);
      CHECK(one.probabilities->columns == two.probabilities->columns);
      CHECK(same_bits(one.probabilities->values, two.probabilities->values));

      const auto run_back = [&] { return backward(spec, inputs, dout, {.straight_through = true}); };
      const auto back_one = with_threads(1, run_back), back_two = with_threads(2, run_back);
      CHECK(same_bits(back_one.dq, back_two.dq));
      CHECK(same_bits(back_one.dk, back_two.dk));
      CHECK(same_bits(back_one.dv, back_two.dv));
      CHECK(same_bits(back_one.dalpha, back_two.dalpha));
    }
  }
}

TEST_CASE("memory grows with the length, not with its square" * doctest::skip(kKeepsFreedMemory)) {
  const AttentionShape shape{1, 1, 1, 8192, 8192, 4};
  const auto inputs = random_inputs<float>(shape, 24);
  const auto dout = random_dout<float>(shape, 24);
  const AttentionSpec spec{shape, 0, {NormalizerKind::entmax, {1.5}}, {.kind = SelectionKind::top_k_row}, {}};
  const int64_t before = peak_memory();
  const auto result = forward(spec, inputs);
  const auto gradients = backward(spec, inputs, dout);
  CHECK(peak_memory() - before < int64_t{32} << 20);  // the matrix of scores alone takes 256 MiB
  CHECK(result.out.matrix(0, 0).allFinite());
  CHECK(gradients.dk.matrix(0, 0).allFinite());
}
