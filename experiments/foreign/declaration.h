#pragma once
// What a kernel of others declares: its arrays, its work and its tolerance. Read from what its process says,
// and limited.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace splash::experiments {

enum class ElementType { f64, f32, f16, bf16, i64, i32, i16, i8, u8, boolean };

std::string to_string(ElementType type);  // "float32", "bool"
int64_t bytes_of(ElementType type);
bool is_floating(ElementType type);

// input: read; output: written, poison before; update: read and written; fixed: an input that the processes
// themselves read from a file.
enum class ArrayRole { input, output, update, fixed };

struct ForeignArray {
  std::string name;
  ElementType type = ElementType::f32;
  ArrayRole role = ArrayRole::input;
  std::vector<int64_t> shape;
  bool normal = false;        // values are standard normal; otherwise even between low and high
  double low = -1, high = 1;  // of whole numbers both included
  int64_t count = 0, bytes = 0;
  int64_t offset = 0;  // of its bytes in those of a set

  bool written() const { return role == ArrayRole::output || role == ArrayRole::update; }
};

struct ForeignKernel {
  std::map<std::string, int64_t> sizes;
  std::vector<ForeignArray> arrays;
  double flops = 0, bytes = 0;  // of a call; bytes that it must move
  double output_bytes = 0;      // of arrays that are written
  std::string unit;             // "float32", "tf32", "float16", "bfloat16", "float64"
  double relative = 0;      // an output may differ from its reference by relative * |reference| + absolute
  double absolute = -1;     // below 0: relative * root mean square of the reference
  std::string name;         // of the kernel, where it tells; else ""
  std::string libraries{};  // JSON: name -> version, where it tells; else ""
  std::string device;       // as the driver names it; "cpu"
  int compute_capability = 0, multiprocessors = 0;
  int64_t cache_bytes = 0;  // L2 of a GPU, the last level of a processor
  int64_t set_bytes = 0;    // of all arrays of a call

  bool on_cpu() const { return device == "cpu"; }
  std::string problem() const;  // "n 1024, x [1024] float32, ..."
};

// Throws InvalidArgument, one sentence, if something is missing, of another type, or beyond the limits: 64
// arrays of 8 dimensions, 8 GiB a call.
ForeignKernel parse_kernel(const nlohmann::json& json);

}  // namespace splash::experiments
