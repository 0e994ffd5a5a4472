#include "core/dtype.h"

#include <array>
#include <cmath>

#include <Eigen/Core>
#include <fmt/format.h>

#include "core/error.h"

namespace splash {
namespace {

struct Entry {
  Dtype dtype;
  std::string_view name;
  int64_t bytes;
  int significand_bits;
};

constexpr std::array<Entry, 4> kEntries{{{Dtype::f64, "float64", 8, 53},
                                         {Dtype::f32, "float32", 4, 24},
                                         {Dtype::f16, "float16", 2, 11},
                                         {Dtype::bf16, "bfloat16", 2, 8}}};

const Entry& entry(Dtype dtype) {
  return kEntries[static_cast<size_t>(dtype)];
}

}  // namespace

std::string_view to_string(Dtype dtype) {
  return entry(dtype).name;
}

Dtype dtype_from_string(std::string_view name) {
  for (const Entry& e : kEntries) {
    if (e.name == name) return e.dtype;
  }
  throw InvalidArgument(
      fmt::format("dtype '{}' is unknown; allowed: float64, float32, float16, bfloat16", name));
}

int64_t bytes_of(Dtype dtype) {
  return entry(dtype).bytes;
}

double unit_roundoff(Dtype dtype) {
  return std::ldexp(1.0, -entry(dtype).significand_bits);
}

double round_to(Dtype dtype, double value) {
  switch (dtype) {
    case Dtype::f64:
      return value;
    case Dtype::f32:
      return static_cast<float>(value);
    case Dtype::f16:
      return static_cast<float>(Eigen::half(static_cast<float>(value)));
    case Dtype::bf16:
      return static_cast<float>(Eigen::bfloat16(static_cast<float>(value)));
  }
  return value;
}

}  // namespace splash
