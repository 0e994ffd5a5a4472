#include "gpu/entmax/forward.h"

#include <algorithm>

#include "gpu/cuda_check.h"
#include "gpu/entmax/checks.h"
#include "gpu/entmax/hopper/forward.h"
#include "gpu/entmax/portable/problem.h"

namespace splash::gpu::entmax {
namespace {

// 90 for 9.0, of the current device.
int compute_capability() {
  return 10 * device_attribute(cudaDevAttrComputeCapabilityMajor) +
         device_attribute(cudaDevAttrComputeCapabilityMinor);
}

ForwardPath path_of(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args) {
  return choose_path(spec, dtype, args.path, compute_capability(), args.tuning,
                     args.tau_offsets != nullptr || args.mask.pairs != nullptr);
}

}  // namespace

int64_t forward_workspace_bytes(const AttentionSpec& spec, Dtype dtype, const Tuning& tuning) {
  const int64_t portable = portable::PortableWorkspace(spec.shape).bytes;
  if (!takes_hopper(spec, dtype)) return portable;
  const int64_t hopper = hopper::HopperWorkspace(spec, dtype, tuning).bytes;
  return kept_keys(spec) > 0 ? hopper + portable : std::max(portable, hopper);
}

UnstoredRows unstored_rows(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args) {
  if (path_of(spec, dtype, args) == ForwardPath::portable) return {};
  return hopper::unstored_rows(spec, dtype, args);
}

void enqueue_forward(const AttentionSpec& spec, Dtype dtype, const ForwardArguments& args) {
  require_forward(spec, dtype);
  require_mask(spec, args.mask);
  require_head_k_keep(spec, args);
  require_modifications(spec, args.sinks, args.dropout_seed, args.bias);
  if (!spec.sinks.empty() && args.tau_offsets != nullptr) throw Unsupported("given thresholds take no sinks");
  validate(args.tuning);
  if (path_of(spec, dtype, args) == ForwardPath::portable) return portable::enqueue(spec, dtype, args);
  const RowList left = hopper::enqueue(spec, dtype, args);
  if (left.queries == nullptr) return;
  ForwardArguments behind = args;
  behind.workspace =
      static_cast<char*>(args.workspace) + hopper::HopperWorkspace(spec, dtype, args.tuning).bytes;
  portable::enqueue(spec, dtype, behind, left);
}

}  // namespace splash::gpu::entmax
