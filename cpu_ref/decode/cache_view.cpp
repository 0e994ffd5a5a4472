#include "cpu_ref/decode/cache_view.h"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <type_traits>

#include <Eigen/Core>

#include "core/error.h"
#include "core/low_bit_page.h"

namespace splash::cpu_ref {
namespace {

// float8_e4m3fn: a sign, four bits of exponent with bias 7, three of mantissa; 0x7F is NaN, nothing is
// infinite.
std::array<float, 256> e4m3_numbers() {
  std::array<float, 256> numbers{};
  for (int bits = 0; bits < 256; ++bits) {
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                     : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
    const float number = exponent == 15 && mantissa == 7 ? std::numeric_limits<float>::quiet_NaN() : size;
    numbers[static_cast<size_t>(bits)] = bits >> 7 != 0 ? -number : number;
  }
  return numbers;
}

}  // namespace

void floats_of_halves(const uint16_t* halves, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {  // float_of_half() without branches, for vector units
    const uint32_t sign = (halves[i] & 0x8000u) << 16, size = halves[i] & 0x7FFFu;
    const uint32_t is_subnormal = 0u - static_cast<uint32_t>(size < 0x400u),
                   is_infinite = 0u - static_cast<uint32_t>(size >= 0x7C00u);
    const float subnormal = static_cast<float>(static_cast<int32_t>(size)) * 0x1p-24f;
    const uint32_t normal = (size << 13) + 0x38000000u + (is_infinite & 0x38000000u);
    to[i] = std::bit_cast<float>(sign | (is_subnormal & std::bit_cast<uint32_t>(subnormal)) |
                                 (~is_subnormal & normal));
  }
}

Element element_from_string(std::string_view name) {
  if (name == "float64") return Element::f64;
  if (name == "float32") return Element::f32;
  if (name == "float16") return Element::f16;
  if (name == "bfloat16") return Element::bf16;
  if (name == "float8_e4m3fn") return Element::e4m3;
  throw InvalidArgument("decode takes float64, float32, float16, bfloat16 and float8_e4m3fn, not " +
                        std::string(name));
}

template <class T>
void Pool::read(int64_t page, int64_t token, int64_t head, int64_t count, int64_t head_dim, T* to) const {
  const int64_t first = page * page_stride + token * token_stride + head * head_stride;
  const auto each = [&](const auto* numbers, const auto& convert) {
    for (int64_t key = 0; key < count; ++key) {
      const auto* from = numbers + first + key * token_stride;
      for (int64_t c = 0; c < head_dim; ++c) to[key * head_dim + c] = convert(from[c]);
    }
  };
  const auto cast = [&]<class Stored>(const Stored* numbers) {
    for (int64_t key = 0; key < count; ++key)
      Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>(to + key * head_dim, head_dim) =
          Eigen::Map<const Eigen::Array<Stored, Eigen::Dynamic, 1>>(numbers + first + key * token_stride,
                                                                    head_dim)
              .template cast<T>();
  };
  switch (element) {
    case Element::f64:
      return cast(static_cast<const double*>(data));
    case Element::f32:
      return cast(static_cast<const float*>(data));
    case Element::f16:
      if constexpr (std::is_same_v<T, float>) {
        for (int64_t key = 0; key < count; ++key)
          floats_of_halves(static_cast<const uint16_t*>(data) + first + key * token_stride, head_dim,
                           to + key * head_dim);
        return;
      }
      return each(static_cast<const uint16_t*>(data),
                  [](uint16_t bits) { return static_cast<T>(float_of_half(bits)); });
    case Element::bf16:
      return each(static_cast<const uint16_t*>(data),
                  [](uint16_t bits) { return static_cast<T>(float_of_bfloat16(bits)); });
    case Element::e4m3: {
      static const std::array<float, 256> numbers = e4m3_numbers();
      return each(static_cast<const uint8_t*>(data),
                  [&](uint8_t bits) { return static_cast<T>(scale * double{numbers[bits]}); });
    }
  }
}

template void Pool::read(int64_t, int64_t, int64_t, int64_t, int64_t, float*) const;
template void Pool::read(int64_t, int64_t, int64_t, int64_t, int64_t, double*) const;

}  // namespace splash::cpu_ref
