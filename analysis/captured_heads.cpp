#include "analysis/captured_heads.h"

#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/normalizer.h"
#include "report/hdf5/apart.h"
#include "report/hdf5/file.h"

namespace splash::analysis {
namespace {

using nlohmann::json;

constexpr const char* kMethodAttribute = "method";
constexpr int64_t kMostHeads = 1 << 16;  // a file may declare tensors that it does not hold

// The method of one layer in one file, for messages.
struct MethodPlace {
  std::string path;
  int64_t layer = 0;

  [[noreturn]] void refuse(const std::string& what) const {
    throw ReportError(fmt::format("{}: the attribute {}: {}", path, kMethodAttribute, what));
  }
};

json layer_of(const MethodPlace& place, const std::string& text) {
  const json method = json::parse(text, nullptr, false);
  if (method.is_discarded()) place.refuse("it is not JSON");
  const auto schema = method.is_object() ? method.find("schema") : method.end();
  if (!method.is_object() || schema == method.end() || *schema != kMethodSchema)
    place.refuse(fmt::format("its schema is not \"{}\"", kMethodSchema));
  const auto layers = method.find("layers");
  if (layers != method.end() && !layers->is_object()) place.refuse("its layers are no object");
  const std::string name = std::to_string(place.layer);
  const bool is_named = layers != method.end() && layers->contains(name);
  if (!is_named && !method.contains("default"))
    place.refuse(fmt::format("it has neither layer {} nor a default", name));
  json layer = is_named ? layers->at(name) : method.at("default");
  if (!layer.is_object() || !layer.contains("kind") || !layer.at("kind").is_string())
    place.refuse(fmt::format("layer {} has no kind", name));
  return layer;
}

// One number a query head of the file. `wrong` says what is wrong with a number, or nothing. A list is of the
// model's heads, of which the file holds those of kv_heads, or all.
template <class Wrong>
std::vector<double> numbers_of(const MethodPlace& place, const json& layer, const std::string& name,
                               double otherwise, const std::optional<std::vector<int64_t>>& kv_heads,
                               const AttentionShape& shape, const Wrong& wrong) {
  const json held = layer.contains(name) ? layer.at(name) : json(otherwise);
  const auto number_of = [&](const json& entry) {
    if (!entry.is_number())
      place.refuse(
          fmt::format("{} of layer {} must be a number, or a list with one a query head", name, place.layer));
    const auto number = entry.get<double>();
    if (const std::string why = wrong(number); !why.empty())
      place.refuse(fmt::format("{} of layer {} is {}; {}", name, place.layer, number, why));
    return number;
  };
  if (!held.is_array()) return std::vector<double>(static_cast<size_t>(shape.q_heads), number_of(held));
  std::vector<double> all;
  for (const json& entry : held) all.push_back(number_of(entry));
  const auto count = static_cast<int64_t>(all.size()), group = shape.group();
  if (kv_heads ? count % group != 0 : count != shape.q_heads)
    place.refuse(fmt::format("{} of layer {} has {} entries; the file holds {} query heads{}", name,
                             place.layer, count, shape.q_heads,
                             kv_heads ? fmt::format(", {} a key head", group) : ""));
  if (!kv_heads) return all;
  std::vector<double> numbers;
  for (const int64_t kv_head : *kv_heads) {
    if (kv_head < 0 || kv_head >= count / group)
      place.refuse(fmt::format("{} of layer {} has {} entries, {} a key head; the file holds the key head {}",
                               name, place.layer, count, group, kv_head));
    const auto first = all.begin() + kv_head * group;
    numbers.insert(numbers.end(), first, first + group);
  }
  return numbers;
}

std::string wrong_alpha(double alpha) {
  return entmax_takes(alpha) ? "" : fmt::format("entmax takes {} to {}", kLeastAlpha, kMostAlpha);
}

std::string wrong_factor(double factor) {
  using Float = std::numeric_limits<float>;
  return factor >= Float::min() && factor <= Float::max() ? ""
                                                          : "a factor must be above 0 and finite, in float32";
}

// The model's key heads that the file holds; nothing where it holds all.
std::optional<std::vector<int64_t>> kv_heads_of(const std::string& path, const report::hdf5::Group& root,
                                                const AttentionShape& shape) {
  if (!root.has("kv_head")) return std::nullopt;
  std::vector<int64_t> held = root.dataset("kv_head").integers();
  if (static_cast<int64_t>(held.size()) != shape.kv_heads)
    throw ReportError(fmt::format("{}: /kv_head lists {} key heads; the tensors have {}", path, held.size(),
                                  shape.kv_heads));
  return held;
}

std::optional<CapturedHeads> captured_heads_of(const std::string& path, int64_t layer_number,
                                               const AttentionShape& shape) {
  const report::hdf5::Group root = report::hdf5::File::open(path).root();
  if (!root.has_attribute(kMethodAttribute)) return std::nullopt;
  const MethodPlace place{path, layer_number};
  const json layer = layer_of(place, root.text_attribute(kMethodAttribute));
  CapturedHeads heads{.kind = layer.at("kind").get<std::string>()};
  if (heads.kind != "entmax") return heads;
  if (shape.q_heads > kMostHeads)
    place.refuse(
        fmt::format("the file holds {} query heads; at most {} are taken", shape.q_heads, kMostHeads));
  const auto kv_heads = kv_heads_of(path, root, shape);
  heads.alpha = numbers_of(place, layer, "alpha", 1.5, kv_heads, shape, wrong_alpha);
  heads.factor = numbers_of(place, layer, "factor", 1, kv_heads, shape, wrong_factor);
  return heads;
}

}  // namespace

std::optional<CapturedHeads> read_captured_heads(const std::string& path, int64_t layer,
                                                 const AttentionShape& shape) {
  return report::hdf5::read_apart_first(path, [&] { return captured_heads_of(path, layer, shape); });
}

}  // namespace splash::analysis
