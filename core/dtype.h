#pragma once
// The element types of tensors, and rounding to them.

#include <cstdint>
#include <string>
#include <string_view>

namespace splash {

enum class Dtype { f64, f32, f16, bf16 };

std::string_view to_string(Dtype dtype);         // "float64", "float32", "float16", "bfloat16"
Dtype dtype_from_string(std::string_view name);  // throws InvalidArgument that lists what is allowed
int64_t bytes_of(Dtype dtype);                   // bytes per element
double unit_roundoff(Dtype dtype);               // largest relative rounding error, 2^-(mantissa bits + 1)
double round_to(Dtype dtype, double value);      // nearest representable value, ties to even

}  // namespace splash
