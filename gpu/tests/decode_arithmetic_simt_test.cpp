// The arithmetic by which the kernels of decode choose keys and find thresholds, on the CPU.

#include <cmath>
#include <cstdint>
#include <vector>

#include "gpu/tests/decode_simt.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

TEST_CASE("decode on the CPU: weights are summed as integers, each rounded down") {
  const CounterRandom random(1);
  decode::WeightSum sum;
  int64_t expected = 0;
  const auto add = [&](float weight) {
    sum.add(weight);
    expected += static_cast<int64_t>(weight * 0x1p40f);
    return sum.total() == expected;
  };
  for (const float weight : {0.0f, 1.0f, 0x1p-20f, 0x1.fffffep-21f, 0x1p-40f, 0x1.fffffep-41f, 1e-44f,
                             0x1.fffffep-1f, 0x1.000002p-1f, 0x1.fffffep-17f})
    CHECK(add(weight));
  int64_t differ = 0;
  for (uint64_t i = 0; i < decode::WeightSum::kMost - 10; ++i)
    differ += add(std::ldexp(static_cast<float>(random.bits(2 * i) >> 40) * 0x1p-24f,
                             -static_cast<int>(random.bits(2 * i + 1) % 45)))
                  ? 0
                  : 1;
  CHECK(differ == 0);
  decode::WeightSum most;
  for (int i = 0; i < decode::WeightSum::kMost; ++i) most.add(1);
  CHECK(most.total() == decode::WeightSum::kMost * decode::kOne);
}

TEST_CASE("decode on the CPU: a threshold is the least shift at which weights sum to 1") {
  const CounterRandom random(3);
  uint64_t at = 0;
  for (const float alpha : {1.5f, 2.0f, 1.25f}) {
    const decode::Entmax entmax(alpha, 1);
    for (const int count : {1, 2, 3, 7, 20, 31, 32, 33, 64, 500}) {
      CAPTURE(alpha);
      CAPTURE(count);
      std::vector<float> values(static_cast<size_t>(count));
      for (float& value : values) value = -1.2f * static_cast<float>(random.uniform(at++));
      values[static_cast<size_t>(count) / 2] = 0;  // the largest
      const auto weights_at = [&](int shift) {
        decode::WeightSum sum;
        for (const float value : values) {
          entmax.visit([&](auto kind) {
            sum.add(decode::weight_of(entmax, kind, value + static_cast<float>(shift) * 0x1p-24f));
          });
        }
        return sum.total();
      };
      decode::Root root{};
      simt::run(1, 32, 1, [&] {
        const decode::RowList list{nullptr, values.data(), count};
        decode::Root mine{};
        entmax.visit([&](auto kind) { mine = decode::root_of(entmax, kind, list, 1.0f, simt::lane()); });
        if (simt::lane() == 31) root = mine;
      });
      CHECK(root.weights == weights_at(root.shift));
      CHECK(root.weights >= decode::kOne);
      CHECK(weights_at(root.shift - 1) < decode::kOne);
    }
  }
}

TEST_CASE("decode on the CPU: the code of a score above a bound is above the bound's") {
  const CounterRandom random(2);
  uint64_t at = 0;
  const auto bits = [&] { return random.bits(at++); };
  const auto uniform = [&] { return static_cast<float>(bits() >> 40) * 0x1p-24f; };
  const auto power = [&](int least, uint64_t count) {
    return std::ldexp(1.0f, least + static_cast<int>(bits() % count));
  };
  int64_t too_low = 0, loose = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    decode::Entmax entmax(1.5f, 1);
    entmax.gain = (1 + uniform()) * power(-12, 16);
    const float unit = power(-30, 40), base = (uniform() - 0.5f) * power(0, 18);
    // An upper score above the base, in the screen's unit, and a bound below it, in <q, k>.
    const float upper = (base + 12 * uniform()) / entmax.gain / unit,
                bound = upper * unit - (trial % 2 == 0 ? 0.0f : 0.2f * uniform()) / entmax.gain;
    const double steps = 32 * (double{entmax.gain} * upper * unit - base);
    if (steps <= 0) continue;  // where p = 0
    const decode::HeldScale scale(entmax, base, unit);
    const unsigned code = decode::HeldCodes::of_upper(upper, scale.factor, scale.offset) & 0xFFu;
    too_low += code > decode::HeldCodes::of_bound(entmax, std::nextafter(bound, -INFINITY), base) ? 0 : 1;
    loose += code < 255 && code > std::ceil(steps + 2e-6 * (std::fabs(32.0 * base) + 256)) ? 1 : 0;
  }
  CHECK(too_low == 0);
  CHECK(loose == 0);
  const decode::HeldScale scale(decode::Entmax(1.5f, 1), 0, 1);
  for (const float upper : {NAN, INFINITY, 1e30f})
    CHECK((decode::HeldCodes::of_upper(upper, scale.factor, scale.offset) & 0xFFu) == 255);
  for (const float upper : {-INFINITY, -1e30f, -1.0f})
    CHECK((decode::HeldCodes::of_upper(upper, scale.factor, scale.offset) & 0xFFu) == 0);
}
