#include "gpu/engine/work.h"

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/touched_bytes.h"

namespace splash::gpu {
namespace {

int64_t listed_and_visible(const AttentionSpec& spec, const RowMask& row, const int32_t* keys) {
  const int32_t* const end = std::find(keys, keys + spec.selection.k_keep, -1);
  return std::count_if(keys, end, [&](int32_t key) { return row.visible(key); });
}

int64_t kept_of_row(const AttentionSpec& spec, const RowMask& row) {
  const Selection& selection = spec.selection;
  if (selection.kind == SelectionKind::top_k_row) return std::min(row.count(), selection.k_keep);
  int64_t kept = 0;
  for (int64_t first = 0; first < row.end; first += selection.block) {
    RowMask block = row;
    block.begin = std::max(row.begin, first);
    block.end = std::min(row.end, first + selection.block);
    if (block.begin < block.end) kept += std::min(block.count(), selection.k_keep);
  }
  return kept;
}

// The trace counts the exponentials of softmax; other normalizers need another count.
double exponentials_of(const AttentionSpec& spec, double traced) {
  const Normalizer& normalizer = spec.normalizer;
  if (normalizer.kind == NormalizerKind::softmax) return traced;
  if (normalizer.kind != NormalizerKind::entmax) return 2 * selected_pairs(spec);
  const bool powers = std::any_of(normalizer.alpha.begin(), normalizer.alpha.end(),
                                  [](double alpha) { return alpha != 1.5 && alpha != 2; });
  return powers ? std::numeric_limits<double>::quiet_NaN() : 0;
}

double dram_bytes_of(const TouchedBytes& touched, const DeviceInfo& device) {
  const int64_t workspace = touched.of(Operand::workspace);
  const auto tensors = static_cast<double>(touched.all() - workspace);
  return workspace > device.l2_bytes ? tensors + 2 * static_cast<double>(workspace) : tensors;
}

}  // namespace

double selected_pairs(const AttentionSpec& spec) {
  const AttentionShape& s = spec.shape;
  const SelectionKind kind = spec.selection.kind;
  if (kind == SelectionKind::all) return static_cast<double>(visible_pairs(s, spec.mask));
  if (kind == SelectionKind::significant_blocks)
    throw InvalidArgument("which blocks are significant depends on the data; there is nothing to count");
  const bool lists = kind == SelectionKind::shared_keys;
  const bool alike = !lists && spec.mask.same_for_all_heads(s);
  double pairs = 0;
  for (int64_t b = 0; b < (alike ? 1 : s.batch); ++b) {
    for (int64_t h = 0; h < (alike ? 1 : s.q_heads); ++h) {
      for (int64_t i = 0; i < s.q_len; ++i) {
        const RowMask row = spec.mask.row(s, b, h, i);
        pairs += static_cast<double>(lists ? listed_and_visible(spec, row, spec.selection.keys_of(s, b, h, i))
                                           : kept_of_row(spec, row));
      }
    }
  }
  return alike ? pairs * static_cast<double>(s.batch * s.q_heads) : pairs;
}

Work count_work(const Variant& variant, const AttentionSpec& spec, Dtype dtype, const Plan& plan,
                const DeviceInfo& device) {
  Work work;
  work.useful_flops = 4 * static_cast<double>(spec.shape.head_dim) * selected_pairs(spec);
  TouchedBytes touched;
  BlockTrace trace;
  const std::vector<KernelTrace> kernels = variant.trace(spec, dtype, plan);
  for (const KernelTrace& kernel : kernels) {
    KernelWork of_kernel{.kernel = kernel.kernel};
    TouchedBytes touched_by_it;
    for (int64_t block = 0; block < kernel.blocks; ++block) {
      trace.clear();
      kernel.run(block, trace);
      of_kernel.executed_flops += trace.flops();
      of_kernel.exponentials += trace.exponentials();
      touched.add(trace);
      if (kernels.size() > 1) touched_by_it.add(trace);
      for (const BlockTrace::Range& range : trace.ranges())
        of_kernel.l2_bytes += static_cast<double>(range.bytes * range.rows);
    }
    work.executed_flops += of_kernel.executed_flops;
    work.l2_bytes += of_kernel.l2_bytes;
    work.exponentials += of_kernel.exponentials;
    of_kernel.dram_bytes = dram_bytes_of(touched_by_it, device);
    work.kernels.push_back(std::move(of_kernel));
  }
  work.dram_bytes = dram_bytes_of(touched, device);
  work.exponentials = exponentials_of(spec, work.exponentials);
  if (work.kernels.size() == 1) work.kernels.front().dram_bytes = work.dram_bytes;
  return work;
}

}  // namespace splash::gpu
