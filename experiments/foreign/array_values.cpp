#include "experiments/foreign/array_values.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "core/low_bit_page.h"
#include "core/parallel.h"
#include "core/random.h"
#include "core/round.h"

namespace splash::experiments {
namespace {

constexpr int kHalfMantissa = 10, kHalfBias = 15;

// Nearest, ties to even; what is below the normal halves becomes 0, unlike in core, so that it has no branch.
uint16_t normal_half_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  constexpr uint32_t kShift = 23 - kHalfMantissa, kBiases = uint32_t{127 - kHalfBias} << kHalfMantissa;
  const uint32_t rounded = (magnitude + 0xfff + ((magnitude >> kShift) & 1)) >> kShift;
  return static_cast<uint16_t>(rounded < kBiases + 1024 ? sign : sign | (rounded - kBiases));
}

uint16_t bfloat_bits(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
T load(const char* memory, int64_t index) {
  T value;
  std::memcpy(&value, memory + index * static_cast<int64_t>(sizeof value), sizeof value);
  return value;
}

// Draws of one chunk of an array: the same for the same key, quick, and in no order that a kernel would see.
constexpr int64_t kChunk = 1 << 16;
class Draws {
 public:
  explicit Draws(uint64_t key) : low_(static_cast<uint32_t>(key)), high_(static_cast<uint32_t>(key >> 32)) {}
  [[gnu::always_inline]] uint32_t operator()(
      uint32_t i) const {  // the finalizer of MurmurHash3 (Appleby 2011), keyed
    uint32_t x = (i * 0x9e3779b9u) ^ low_;
    x = (x ^ (x >> 16)) * 0x85ebca6bu + high_;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
  }

 private:
  uint32_t low_, high_;
};

// Writes convert(i, draw) of a chunk's elements.
template <class T, class Convert>
void write(char* memory, int64_t count, const Draws& draw, const Convert& convert) {
  T* const to = reinterpret_cast<T*>(memory);
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<T>(convert(draw(static_cast<uint32_t>(i))));
}

void write_normal(const ForeignArray& array, char* memory, int64_t count, uint64_t key) {
  const CounterRandom random(key);
  const auto at = [&](int64_t i) { return random.normal(static_cast<uint64_t>(i)); };
  for (int64_t i = 0; i < count; ++i) {
    if (array.type == ElementType::f64) {
      reinterpret_cast<double*>(memory)[i] = at(i);
    } else if (array.type == ElementType::f32) {
      reinterpret_cast<float*>(memory)[i] = static_cast<float>(at(i));
    } else {
      reinterpret_cast<uint16_t*>(memory)[i] = array.type == ElementType::f16
                                                   ? normal_half_bits(static_cast<float>(at(i)))
                                                   : bfloat_bits(static_cast<float>(at(i)));
    }
  }
}

void write_even(const ForeignArray& array, char* memory, int64_t count, const Draws& draw) {
  constexpr float kUnit = 0x1p-24f;
  const auto low = static_cast<float>(array.low), width = static_cast<float>(array.high - array.low);
  const auto real = [&](uint32_t bits) { return low + width * (kUnit * static_cast<float>(bits >> 8)); };
  const double least = std::ceil(array.low), values = std::max(1.0, std::floor(array.high) - least + 1);
  const auto whole = [&](uint32_t bits) {
    return static_cast<int64_t>(least + std::floor(values * (0x1p-32 * bits)));
  };
  switch (array.type) {
    case ElementType::f64:
      return write<double>(memory, count, draw, real);
    case ElementType::f32:
      return write<float>(memory, count, draw, real);
    case ElementType::f16:
      return write<uint16_t>(memory, count, draw,
                             [&](uint32_t bits) { return normal_half_bits(real(bits)); });
    case ElementType::bf16:
      return write<uint16_t>(memory, count, draw, [&](uint32_t bits) { return bfloat_bits(real(bits)); });
    case ElementType::i64:
      return write<int64_t>(memory, count, draw, whole);
    case ElementType::i32:
      return write<int32_t>(memory, count, draw, whole);
    case ElementType::i16:
      return write<int16_t>(memory, count, draw, whole);
    case ElementType::i8:
      return write<int8_t>(memory, count, draw, whole);
    case ElementType::u8:
      return write<uint8_t>(memory, count, draw, whole);
    case ElementType::boolean:
      return write<uint8_t>(memory, count, draw, [](uint32_t bits) { return bits >> 31; });
  }
}

// What no sound result holds: NaN that says of which draw it is. Of whole numbers the draw itself.
void write_poison(const ForeignArray& array, char* memory, int64_t count, const Draws& draw) {
  switch (array.type) {
    case ElementType::f64:
      return write<uint64_t>(memory, count, draw, [](uint32_t bits) { return 0x7ff8000000000000ull | bits; });
    case ElementType::f32:
      return write<uint32_t>(memory, count, draw, [](uint32_t bits) { return 0x7fc00000u | (bits >> 10); });
    case ElementType::f16:
      return write<uint16_t>(memory, count, draw, [](uint32_t bits) { return 0x7e00u | (bits >> 23); });
    case ElementType::bf16:
      return write<uint16_t>(memory, count, draw, [](uint32_t bits) { return 0x7fc0u | (bits >> 26); });
    case ElementType::boolean:
      return write<uint8_t>(memory, count, draw, [](uint32_t bits) { return bits >> 31; });
    default:
      for (uint32_t i = 0; i < count; ++i) {
        const uint64_t bits = (uint64_t{draw(i)} << 32) | draw(~i);
        std::memcpy(memory + i * bytes_of(array.type), &bits, static_cast<std::size_t>(bytes_of(array.type)));
      }
  }
}

// Calls body(key, first element, elements) for each chunk of an array.
template <class Body>
void for_chunks(const ForeignArray& array, uint64_t seed, const Body& body) {
  const CounterRandom random(seed);
  parallel_for(ceil_div(array.count, kChunk), 1, [&](int64_t chunk) {
    body(random.bits(static_cast<uint64_t>(chunk)), chunk * kChunk,
         std::min(kChunk, array.count - chunk * kChunk));
  });
}

}  // namespace

void fill(const ForeignArray& array, uint64_t seed, char* memory) {
  if (array.role == ArrayRole::fixed) return;
  for_chunks(array, seed, [&](uint64_t key, int64_t first, int64_t count) {
    char* const to = memory + first * bytes_of(array.type);
    if (array.role == ArrayRole::output) {
      write_poison(array, to, count, Draws(key));
    } else if (array.normal) {
      write_normal(array, to, count, key);
    } else {
      write_even(array, to, count, Draws(key));
    }
  });
}

int64_t still_poisoned(const ForeignArray& array, uint64_t seed, const char* memory) {
  const int64_t size = bytes_of(array.type);
  if (array.role != ArrayRole::output || (!is_floating(array.type) && size <= 2)) return 0;
  std::atomic<int64_t> poisoned{0};
  for_chunks(array, seed, [&](uint64_t key, int64_t first, int64_t count) {
    std::vector<char> poison(static_cast<std::size_t>(count * size));
    write_poison(array, poison.data(), count, Draws(key));
    int64_t here = 0;
    for (int64_t i = 0; i < count; ++i)
      here += std::memcmp(memory + (first + i) * size, poison.data() + i * size,
                          static_cast<std::size_t>(size)) == 0
                  ? 1
                  : 0;
    poisoned += here;
  });
  return poisoned;
}

double value_at(const ForeignArray& array, int64_t i, const char* memory) {
  switch (array.type) {
    case ElementType::f64:
      return load<double>(memory, i);
    case ElementType::f32:
      return load<float>(memory, i);
    case ElementType::f16:
      return float_of_half(load<uint16_t>(memory, i));
    case ElementType::bf16:
      return float_of_bfloat16(load<uint16_t>(memory, i));
    case ElementType::i64:
      return static_cast<double>(load<int64_t>(memory, i));
    case ElementType::i32:
      return load<int32_t>(memory, i);
    case ElementType::i16:
      return load<int16_t>(memory, i);
    case ElementType::i8:
      return load<int8_t>(memory, i);
    case ElementType::u8:
    case ElementType::boolean:
      return load<uint8_t>(memory, i);
  }
  return 0;
}

std::vector<int64_t> indices_to_check(int64_t count, int64_t most, uint64_t seed) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; count <= most && i < count; ++i) indices.push_back(i);
  if (count <= most) return indices;
  const CounterRandom random(seed);
  indices = {0, count - 1};
  for (int64_t i = 2; i < most; ++i) {
    const double draw = random.uniform(static_cast<uint64_t>(i));
    indices.push_back(std::min(count - 1, static_cast<int64_t>(draw * static_cast<double>(count))));
  }
  std::sort(indices.begin(), indices.end());
  return indices;
}

Comparison compare(const ForeignArray& array, const char* memory, std::span<const int64_t> indices,
                   std::span<const double> expected, double relative, double absolute) {
  Comparison result;
  double squares = 0, finite = 0;
  for (const double value : expected) {
    if (!std::isfinite(value)) continue;
    squares += value * value;
    ++finite;
  }
  if (absolute < 0) absolute = finite > 0 ? relative * std::sqrt(squares / finite) : 0;
  const auto fits = [&](double value, double reference) {
    if (std::isnan(reference)) return std::isnan(value);
    if (std::isinf(reference)) return value == reference;
    return std::abs(value - reference) <= relative * std::abs(reference) + absolute;
  };
  std::vector<double> sorted(expected.begin(), expected.end());
  std::erase_if(sorted, [](double value) { return std::isnan(value); });
  std::sort(sorted.begin(), sorted.end());
  const double constant = sorted.empty() ? 0 : sorted[sorted.size() / 2];
  constexpr std::size_t kEnough = 8;  // elements of which a constant says something
  result.tells = expected.size() < kEnough;
  for (std::size_t i = 0; i < indices.size(); ++i) {
    const double value = value_at(array, indices[i], memory), reference = expected[i];
    result.tells = result.tells || !fits(constant, reference);
    ++result.checked;
    if (const double off = std::abs(value - reference); std::isfinite(off)) {
      result.max_absolute = std::max(result.max_absolute, off);
      if (reference != 0) result.max_relative = std::max(result.max_relative, off / std::abs(reference));
    }
    if (fits(value, reference)) continue;
    if (++result.wrong == 1)
      result.example =
          fmt::format("{}[{}] is {:.6g} and should be {:.6g}", array.name, indices[i], value, reference);
  }
  return result;
}

}  // namespace splash::experiments
