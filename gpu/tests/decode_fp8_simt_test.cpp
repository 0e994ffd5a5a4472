// The kernels of decode over caches in float8, run thread by thread on the CPU (decode_simt.h).

#include "core/error.h"
#include "gpu/tests/decode_simt.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

// broad, recent: StepInputs'.
StepResults run(const DecodeCase& c, const decode::Device& device = {},
                std::vector<uint32_t>* broad = nullptr, std::vector<int32_t>* recent = nullptr) {
  const auto with_rows = [&]<class Row>(Row /*element*/) {
    return c.options.head_dim == 64    ? run_with<decode::Fp8, 64, Row>(c, device, broad, recent)
           : c.options.head_dim == 128 ? run_with<decode::Fp8, 128, Row>(c, device, broad, recent)
                                       : run_with<decode::Fp8, 256, Row>(c, device, broad, recent);
  };
  return c.options.dtype == Dtype::f16 ? with_rows(__half{}) : with_rows(__nv_bfloat16{});
}

StepResults run(const DecodeCase& c, std::vector<int32_t>& recent, const decode::Device& device = {}) {
  return run(c, device, nullptr, &recent);
}

// The nearest number of float8, ties to even; 448 at most.
float nearest_in_fp8(float x) {
  if (std::isnan(x)) return x;
  int best = 0;
  for (int byte = 1; byte < 127; ++byte) {
    const double far = std::abs(std::abs(double{x}) - double{of_byte(byte)}),
                 near = std::abs(std::abs(double{x}) - double{of_byte(best)});
    if (far < near || (far == near && byte % 2 == 0)) best = byte;
  }
  return std::copysign(std::isinf(x) ? 448.0f : of_byte(best), x);
}

template <class Row>
void check_append(Dtype dtype) {
  DecodeCase c = decode_case({.lengths = {100, 37}, .page_size = 16, .bits = 0, .dtype = dtype, .fp8 = true});
  const float scales[2] = {0.37f, 2.0f};
  std::vector<decode::Fp8> keys = pool_of<decode::Fp8>(c, c.cache.keys, 1),
                           values = pool_of<decode::Fp8>(c, c.cache.values, 1);
  constexpr int kTokens = 20, kDim = 64;
  const CounterRandom random(5);
  std::vector<Row> k, v;  // [batch, tokens, kv_heads, head_dim]
  for (uint64_t i = 0; i < 2 * kTokens * 2 * kDim; ++i) {
    const double x = random.normal(i) * std::exp2(random.stream(1).uniform(i) * 20 - 12);
    k.push_back(static_cast<Row>(static_cast<float>(i % 97 == 0 ? NAN : i % 89 == 0 ? -INFINITY : x)));
    v.push_back(static_cast<Row>(static_cast<float>(i % 83 == 0 ? INFINITY : -x)));
  }
  const decode::PageTable table{c.cache.table.data(), c.cache.lengths.data(), 2,
                                static_cast<int>(c.cache.width)};
  const auto rows = [&](std::vector<Row>& data) {
    return decode::RowTensor{data.data(), kTokens * 2 * kDim, 2 * kDim, kDim};
  };
  decode::Kernels<decode::Fp8, kDim>::append(device_cache(c, keys.data(), values.data(), nullptr, scales),
                                             table, rows(k), rows(v), kTokens, nullptr);
  for (int64_t sequence = 0; sequence < 2; ++sequence) {
    for (int64_t token = 0; token < kTokens; ++token) {
      const int64_t place = c.cache.lengths[static_cast<size_t>(sequence)] + token;
      if (place >= c.cache.width * 16) continue;
      for (int64_t i = 0; i < int64_t{2} * kDim; ++i) {
        const auto from = static_cast<size_t>((sequence * kTokens + token) * 2 * kDim + i),
                   to = static_cast<size_t>((c.cache.page_of(sequence, place) * 16 + place % 16) * 2 * kDim +
                                            i);
        for (const auto& [stored, given, scale] :
             {std::tuple{keys[to], k[from], scales[0]}, std::tuple{values[to], v[from], scales[1]}}) {
          const float is = static_cast<float>(stored),
                      want = nearest_in_fp8(static_cast<float>(given) / scale);
          CHECK((std::isnan(want) ? std::isnan(is) : is == want));
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("decode on the CPU: bytes of float8 are float16, exactly") {
  for (int byte = 0; byte < 256; ++byte) {
    CAPTURE(byte);
    const auto other = static_cast<uint32_t>((byte * 7 + 3) % 127);
    const uint2 halves =
        arch::halves_of_e4m3(static_cast<uint32_t>(byte) * 0x01000001u | other << 16 | other << 8);
    const float2 low = entmax::unpacked<__half>(halves.x), high = entmax::unpacked<__half>(halves.y);
    CHECK(low.y == of_byte(static_cast<int>(other)));
    CHECK(high.x == of_byte(static_cast<int>(other)));
    for (const float is : {low.x, high.y}) {
      if (byte % 128 == 127) {
        CHECK(std::isnan(is));
      } else {
        CHECK(__float_as_uint(is) == __float_as_uint(of_byte(byte)));  // signs of 0, too
      }
    }
  }
}

TEST_CASE("decode on the CPU: rows over float8 are the oracle's") {
  for (const DecodeOptions& options : fp8_cases()) {
    capture(options, [&] {
      const DecodeCase c = decode_case(options);
      check_step_results(c, run(c));
    });
  }
}

TEST_CASE(
    "decode on the CPU: float8 has the same bits for every split and from all keys at once, and no memory") {
  size_t number = 0;
  for (const DecodeOptions& options : in_fp8(without_copies(dense_cases()))) {
    capture(options, [&] {
      const DecodeCase c = decode_case(options);
      const StepResults alone = run(c);
      check_step_results(c, alone);
      const int team = number % 2 == 0 ? 2 : 4;
      const decode::Device device = with_teams(team, number % 3 != 0);
      check_same_bits(run(c, device), alone);
      check_same_bits(run(c, {.shared_bytes = 80 << 10}), alone);
      std::vector<uint32_t> all(pairs_of(c), 0xFFFFFFFF);
      const StepResults dense = run(c, {}, &all);
      CHECK(dense.counts[0] == 0);
      check_same_bits(dense, alone);
      std::vector<int32_t> recent = no_memory(c);
      check_same_bits(run(c, recent), alone);
      CHECK(recent == no_memory(c));
    });
    ++number;
  }
}

TEST_CASE("decode on the CPU: float8 has the same bits however many keys are on their way") {
  const DecodeCase c = decode_case({.lengths = {1300},
                                    .page_size = 32,
                                    .kv_heads = 1,
                                    .head_dim = 128,
                                    .bits = 0,
                                    .fp8 = true,
                                    .key_scale = 0.013f});
  const StepResults few = run(c), many = run(c, {.multiprocessors = 1000});
  check_step_results(c, few);
  check_same_bits(many, few);
}

TEST_CASE("decode on the CPU: a scale of float8 keys that is none gives NaN rows") {
  DecodeCase c = decode_case({.lengths = {300}, .kv_heads = 1, .bits = 0, .fp8 = true});
  for (const float scale : {0.0f, -1.0f, INFINITY, NAN}) {
    CAPTURE(scale);
    c.options.key_scale = scale;
    const StepResults results = run(c);
    for (const float tau : results.tau) CHECK(std::isnan(tau));
  }
}

TEST_CASE("decode on the CPU: new keys are rounded to the nearest float8") {
  check_append<__nv_bfloat16>(Dtype::bf16);
  check_append<__half>(Dtype::f16);
}

TEST_CASE("decode keeps no copies of float8, and reads its keys 16 bytes at a time") {
  const DecodeCase c = decode_case({.bits = 0, .fp8 = true});
  decode::Cache cache = device_cache(c, nullptr, nullptr, nullptr);
  decode::check_cache(cache);
  cache.bits = 8;
  CHECK_THROWS_WITH_AS(decode::check_cache(cache),
                       "decode keeps no copies of float8 caches, which are as small: bits must be 0, not 8",
                       Unsupported);
  cache.bits = 0;
  cache.keys.token_stride += 8;
  CHECK_THROWS_AS(decode::check_cache(cache), InvalidArgument);
}
