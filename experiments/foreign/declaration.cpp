#include "experiments/foreign/declaration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "core/checked.h"
#include "core/error.h"
#include "core/round.h"
#include "core/text.h"

namespace splash::experiments {
namespace {

using Json = nlohmann::json;

struct TypeInfo {
  ElementType type;
  const char* name;
  int64_t bytes;
  double relative;  // usual tolerance of an output
};
constexpr std::array<TypeInfo, 10> kTypes{{{ElementType::f64, "float64", 8, 1e-9},
                                           {ElementType::f32, "float32", 4, 1e-4},
                                           {ElementType::f16, "float16", 2, 1e-2},
                                           {ElementType::bf16, "bfloat16", 2, 2e-2},
                                           {ElementType::i64, "int64", 8, 0},
                                           {ElementType::i32, "int32", 4, 0},
                                           {ElementType::i16, "int16", 2, 0},
                                           {ElementType::i8, "int8", 1, 0},
                                           {ElementType::u8, "uint8", 1, 0},
                                           {ElementType::boolean, "bool", 1, 0}}};
constexpr std::array<const char*, 4> kRoles{"input", "output", "update", "fixed"};
constexpr std::array<const char*, 5> kUnits{"float32", "float64", "tf32", "float16", "bfloat16"};
constexpr std::size_t kMostArrays = 64, kMostDimensions = 8, kMostSizes = 64, kLongestName = 200;
constexpr int64_t kMostBytes = int64_t{8} << 30, kAlignment = 256;

const TypeInfo& info_of(ElementType type) {
  return kTypes[static_cast<std::size_t>(type)];
}

const Json& entry(const Json& json, const char* name) {
  if (json.is_object() && json.contains(name)) return json[name];
  throw InvalidArgument(fmt::format("the kernel's declaration lacks '{}'", name));
}

double number(const Json& json, const char* name, double least) {
  const Json& value = entry(json, name);
  if (value.is_number() && std::isfinite(value.get<double>()) && value.get<double>() >= least)
    return value.get<double>();
  throw InvalidArgument(
      fmt::format("'{}' of the kernel's declaration must be a number, {:g} or more", name, least));
}

int64_t whole(const Json& value, const std::string& name) {
  const auto count = value.is_number() ? checked_count(value.get<double>()) : std::nullopt;
  if (count) return *count;
  throw InvalidArgument(
      fmt::format("{} of the kernel's declaration must be a whole number, 0 or more", name));
}

std::string text(const Json& json, const char* name) {
  const Json& value = entry(json, name);
  if (value.is_string() && value.get<std::string>().size() <= kLongestName)
    return one_line(value.get<std::string>());
  throw InvalidArgument(
      fmt::format("'{}' of the kernel's declaration must be a text of up to {} bytes", name, kLongestName));
}

template <class List>
std::size_t place_of(const std::string& word, const List& list, const char* what) {
  const auto found = std::find(list.begin(), list.end(), word);
  if (found != list.end()) return static_cast<std::size_t>(found - list.begin());
  throw InvalidArgument(fmt::format("'{}' is no {} of a kernel's declaration; there are {}", word, what,
                                    fmt::join(list, ", ")));
}

ForeignArray parse_array(const Json& json) {
  std::array<std::string, kTypes.size()> names;
  std::transform(kTypes.begin(), kTypes.end(), names.begin(), [](const TypeInfo& type) { return type.name; });
  ForeignArray array;
  array.name = text(json, "name");
  array.type = kTypes[place_of(text(json, "dtype"), names, "dtype")].type;
  array.role = static_cast<ArrayRole>(place_of(text(json, "role"), kRoles, "role"));
  const Json& shape = entry(json, "shape");
  if (!shape.is_array() || shape.size() > kMostDimensions)
    throw InvalidArgument(
        fmt::format("'{}' must have a shape of up to {} extents", array.name, kMostDimensions));
  for (const Json& extent : shape)
    array.shape.push_back(whole(extent, fmt::format("an extent of '{}'", array.name)));
  const auto count = checked_product(array.shape);
  const auto bytes = count ? checked_product({*count, bytes_of(array.type)}) : std::nullopt;
  if (!bytes || *bytes > kMostBytes || *bytes == 0) {
    throw InvalidArgument(
        fmt::format("'{}' of shape [{}] is empty or too large: up to {} GiB a call can be benched",
                    array.name, fmt::join(array.shape, ", "), kMostBytes >> 30));
  }
  array.count = *count;
  array.bytes = *bytes;
  array.normal = json.contains("normal") && json["normal"] == true && is_floating(array.type);
  if (!array.normal) {
    constexpr double kFar = -1e300;
    array.low = number(json, "low", kFar);
    array.high = number(json, "high", array.low);
  }
  return array;
}

}  // namespace

std::string to_string(ElementType type) {
  return info_of(type).name;
}

int64_t bytes_of(ElementType type) {
  return info_of(type).bytes;
}

bool is_floating(ElementType type) {
  return type <= ElementType::bf16;
}

std::string ForeignKernel::problem() const {
  std::vector<std::string> words;
  for (const auto& [name, value] : sizes) words.push_back(fmt::format("{} {}", name, value));
  for (const ForeignArray& array : arrays) {
    if (sizes.empty())
      words.push_back(
          fmt::format("{} {} [{}]", array.name, to_string(array.type), fmt::join(array.shape, " x ")));
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

ForeignKernel parse_kernel(const Json& json) {
  ForeignKernel kernel;
  const Json& sizes = entry(json, "sizes");
  if (!sizes.is_object() || sizes.size() > kMostSizes)
    throw InvalidArgument(fmt::format("a kernel's declaration has up to {} sizes", kMostSizes));
  for (const auto& [name, value] : sizes.items())
    kernel.sizes[one_line(name.substr(0, kLongestName))] = whole(value, fmt::format("the size '{}'", name));
  const Json& arrays = entry(json, "arrays");
  if (!arrays.is_array() || arrays.size() > kMostArrays)
    throw InvalidArgument(fmt::format("a kernel's declaration has up to {} arrays", kMostArrays));
  std::set<std::string> names;
  double once = 0;
  for (const Json& declared : arrays) {
    ForeignArray array = parse_array(declared);
    if (!names.insert(array.name).second)
      throw InvalidArgument(fmt::format("the kernel's declaration has two arrays '{}'", array.name));
    array.offset = kernel.set_bytes;
    kernel.set_bytes += round_up(array.bytes, kAlignment);
    const auto bytes = static_cast<double>(array.bytes);
    once += array.role == ArrayRole::update ? 2 * bytes : bytes;
    if (array.written()) {
      kernel.output_bytes += bytes;
      kernel.relative = std::max(kernel.relative, info_of(array.type).relative);
    }
    kernel.arrays.push_back(std::move(array));
  }
  if (kernel.output_bytes == 0)
    throw InvalidArgument("the kernel declares no output, so nothing can be checked");
  if (kernel.set_bytes > kMostBytes)
    throw InvalidArgument(fmt::format("the arrays of a call are more than {} GiB", kMostBytes >> 30));
  kernel.flops = number(json, "flops", 0);
  constexpr double kUntold = -1;
  const double bytes = number(json, "bytes", kUntold), relative = number(json, "relative", kUntold),
               absolute = number(json, "absolute", kUntold);
  kernel.bytes = bytes < 0 ? once : bytes;
  if (relative >= 0) kernel.relative = relative;
  kernel.absolute = absolute;
  if (json.contains("name")) kernel.name = text(json, "name");
  constexpr std::size_t kMostText = 4096;
  if (json.contains("libraries") && json["libraries"].dump().size() <= kMostText)
    kernel.libraries = json["libraries"].dump();
  kernel.unit = kUnits[place_of(text(json, "unit"), kUnits, "unit")];
  kernel.device = text(json, "device");
  kernel.compute_capability = static_cast<int>(
      std::min<int64_t>(whole(entry(json, "compute_capability"), "'compute_capability'"), 1000));
  kernel.multiprocessors =
      static_cast<int>(std::min<int64_t>(whole(entry(json, "multiprocessors"), "'multiprocessors'"), 10000));
  kernel.cache_bytes = whole(entry(json, "cache_bytes"), "'cache_bytes'");
  return kernel;
}

}  // namespace splash::experiments
