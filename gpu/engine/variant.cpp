#include "gpu/engine/variant.h"

#include <algorithm>

#include <fmt/format.h>

#include "core/error.h"
#include "gpu/compute_capability.h"

namespace splash::gpu {
namespace {

std::vector<const Variant*>& registry() {
  static std::vector<const Variant*> variants;
  return variants;
}

bool before(const Variant* a, const Variant* b) {
  return a->ladder != b->ladder ? a->ladder < b->ladder : a->rung < b->rung;
}

template <class T>
bool contains(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

template <class T>
std::string joined(const std::vector<T>& list) {
  std::string text;
  for (const T& value : list) {
    if (!text.empty()) text += ", ";
    if constexpr (std::is_arithmetic_v<T>) {
      text += std::to_string(value);
    } else {
      text += to_string(value);
    }
  }
  return text;
}

std::string shape_limit(const Limits& limits, const AttentionSpec& spec) {
  const AttentionShape& s = spec.shape;
  if (s.head_dim < limits.head_dim_min || s.head_dim > limits.head_dim_max ||
      s.head_dim % limits.head_dim_multiple != 0) {
    return fmt::format("takes a head_dim from {} to {} that is a multiple of {}, not {}", limits.head_dim_min,
                       limits.head_dim_max, limits.head_dim_multiple, s.head_dim);
  }
  if (!limits.grouped_heads && s.q_heads != s.kv_heads)
    return fmt::format("takes as many key heads as query heads, not {} and {}", s.kv_heads, s.q_heads);
  if (limits.kv_len_max > 0 && s.kv_len > limits.kv_len_max)
    return fmt::format("takes at most {} keys, not {}", limits.kv_len_max, s.kv_len);
  return "";
}

std::string selection_limit(const Limits& limits, const Selection& selection) {
  if (!contains(limits.selections, selection.kind)) {
    return fmt::format("takes the selections {}, not {}", joined(limits.selections),
                       to_string(selection.kind));
  }
  const bool blocked =
      selection.kind == SelectionKind::top_k_block || selection.kind == SelectionKind::shared_keys;
  if (blocked && !limits.selection_blocks.empty() && !contains(limits.selection_blocks, selection.block))
    return fmt::format("takes selection blocks of {}, not {}", joined(limits.selection_blocks),
                       selection.block);
  if (selection.kind == SelectionKind::top_k_block && limits.k_keep_max > 0 &&
      selection.k_keep > limits.k_keep_max)
    return fmt::format("takes a k_keep of at most {}, not {}", limits.k_keep_max, selection.k_keep);
  return "";
}

std::string mask_limit(const Limits& limits, const Mask& mask) {
  if (mask.causal && !limits.causal) return "takes no causal mask";
  if (mask.window > 0 && !limits.window) return "takes no sliding window";
  if (!mask.q_positions.empty() && !limits.positions) return "takes no mask by positions";
  if (!mask.pairs.empty()) return "takes no mask by pairs";
  if (!mask.cu_seqlens_q.empty() && !limits.packed) return "takes no packed sequences";
  return "";
}

std::string modification_limit(const AttentionSpec& spec) {
  if (spec.softcap > 0) return "takes no soft cap of scores";
  if (spec.dropout.drops()) return "takes no dropout";
  if (spec.bias.any()) return "takes no bias";
  return "";
}

// The declared limit that the problem breaks; empty if none. Checked before a plan is made, because planning,
// and so the check of shared memory, relies on these limits.
std::string declared_limit(const Limits& limits, const AttentionSpec& spec, Dtype dtype,
                           const DeviceInfo& device) {
  const int capability = compute_capability_of(device);
  // sm_90a code, with its own instructions, runs on 9.0 alone.
  if (capability < limits.compute_capability || (limits.compute_capability == 90 && capability != 90)) {
    return fmt::format("needs compute capability {}.{}{}, and {} has {}.{}", limits.compute_capability / 10,
                       limits.compute_capability % 10, limits.compute_capability == 90 ? "" : " or more",
                       device.name, device.compute_major, device.compute_minor);
  }
  if (!contains(limits.dtypes, dtype))
    return fmt::format("takes {}, not {}", joined(limits.dtypes), to_string(dtype));
  if (!contains(limits.normalizers, spec.normalizer.kind))
    return fmt::format("takes the normalizers {}, not {}", joined(limits.normalizers),
                       to_string(spec.normalizer.kind));
  if (std::string limit = shape_limit(limits, spec); !limit.empty()) return limit;
  if (std::string limit = selection_limit(limits, spec.selection); !limit.empty()) return limit;
  if (std::string limit = modification_limit(spec); !limit.empty()) return limit;
  return mask_limit(limits, spec.mask);
}

}  // namespace

const char* to_string(MathUnit unit) {
  switch (unit) {
    case MathUnit::fp32:
      return "float32";
    case MathUnit::tf32:
      return "tf32";
    case MathUnit::f16:
      return "float16";
  }
  return "";
}

double Tolerance::of(Dtype dtype) const {
  return dtype == Dtype::f16 ? f16 : dtype == Dtype::bf16 ? bf16 : f32;
}

std::string Variant::id() const {
  return ladder + "/" + std::to_string(rung) + "-" + name;
}

const std::vector<const Variant*>& all_variants() {
  return registry();
}

const Variant& find_variant(const std::string& id) {
  const std::string ladder = id.substr(0, id.find('/'));
  std::string same_ladder, all;
  for (const Variant* variant : all_variants()) {
    if (variant->id() == id) return *variant;
    (variant->ladder == ladder ? same_ladder : all) += " " + variant->id();
  }
  if (all_variants().empty()) {
    throw NotBuilt(fmt::format("variant '{}' is unknown: this build has no CUDA parts", id));
  }
  throw InvalidArgument(
      fmt::format("variant '{}' is unknown; there are:{}", id, same_ladder.empty() ? all : same_ladder));
}

std::string unsupported_reason(const Variant& variant, const AttentionSpec& spec, Dtype dtype,
                               const DeviceInfo& device) {
  if (std::string limit = declared_limit(variant.limits, spec, dtype, device); !limit.empty()) return limit;
  Plan plan;
  try {
    plan = variant.plan(spec, dtype, device);
  } catch (const Unsupported& limit) {  // a limit that Limits cannot express
    return fmt::format("cannot plan it ({})", limit.what());
  }
  for (const KernelLaunch& kernel : plan.kernels) {
    if (kernel.shared_bytes > device.shared_bytes_per_block) {
      return fmt::format("needs {} bytes of shared memory a block here, and {} has {}", kernel.shared_bytes,
                         device.name, device.shared_bytes_per_block);
    }
  }
  return "";
}

void require_supported(const Variant& variant, const AttentionSpec& spec, Dtype dtype,
                       const DeviceInfo& device) {
  const std::string reason = unsupported_reason(variant, spec, dtype, device);
  if (reason.empty()) return;
  std::string others;
  for (const Variant* other : all_variants()) {
    if (unsupported_reason(*other, spec, dtype, device).empty()) others += " " + other->id();
  }
  throw Unsupported(
      fmt::format("{} {}; {}", variant.id(), reason,
                  others.empty() ? "no variant takes this problem" : "these take it:" + others));
}

VariantRegistration::VariantRegistration(const Variant& variant) {
  auto& list = registry();
  list.insert(std::upper_bound(list.begin(), list.end(), &variant, before), &variant);
}

}  // namespace splash::gpu
