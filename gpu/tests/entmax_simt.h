#pragma once
// Shared parts of the tests that run the flagship's kernels on the CPU (simt/simt.h).

#include <cmath>
#include <vector>

#include "gpu/entmax/problem.h"
#include "gpu/tests/entmax_portable_case.h"
#include "gpu/tests/entmax_tunings.h"
#include "gpu/tests/simt_elements.h"

namespace splash::gpu::testing {

// A case's tensors in the kernels' types, with poison where they write.
template <class T>
struct SimtRun {
  explicit SimtRun(const PortableCase& c)
      : q(elements_of<T>(c.inputs.q)),
        k(elements_of<T>(c.inputs.k)),
        v(elements_of<T>(c.inputs.v)),
        out(q.size(), static_cast<T>(NAN)),
        alpha(c.spec.normalizer.alpha.begin(), c.spec.normalizer.alpha.end()),
        tau_offsets(c.tau_offsets.begin(), c.tau_offsets.end()),
        sinks(c.spec.sinks.begin(), c.spec.sinks.end()),
        bias(c.spec.bias.table.begin(), c.spec.bias.table.end()),
        head_k_keep(c.spec.selection.head_k_keep.begin(), c.spec.selection.head_k_keep.end()),
        dropout_seed(c.spec.dropout.seed) {
    const auto rows = static_cast<size_t>(c.spec.shape.rows()),
               capacity = rows * static_cast<size_t>(c.spec.shape.kv_len);
    results = {std::vector<float>(rows, NAN), std::vector<int64_t>(rows, -1), std::vector<int32_t>(rows, -1),
               std::vector<int32_t>(capacity, -1), std::vector<float>(capacity, NAN)};
  }

  entmax::ForwardArguments arguments() {
    return {.q = q.data(),
            .k = k.data(),
            .v = v.data(),
            .out = out.data(),
            .alpha = alpha.data(),
            .head_k_keep = head_k_keep.empty() ? nullptr : head_k_keep.data(),
            .tau_offsets = tau_offsets.empty() ? nullptr : tau_offsets.data(),
            .sinks = sinks.data(),
            .dropout_seed = &dropout_seed,
            .bias = bias.data(),
            .tau = results.tau.data(),
            .support = {.capacity = static_cast<int64_t>(results.columns.size()),
                        .used = &results.used,
                        .offsets = results.offsets.data(),
                        .counts = results.counts.data(),
                        .columns = results.columns.data(),
                        .excess = results.excess.data()}};
  }

  Tensor<double> output(const AttentionShape& s) const {
    return tensor_of(s.batch, s.q_heads, s.q_len, s.head_dim, out);
  }

  std::vector<T> q, k, v, out;
  std::vector<float> alpha, tau_offsets, sinks, bias;
  std::vector<int> head_k_keep;
  uint64_t dropout_seed;
  RowResults results{};
};

// For each head, the rows that a mask names, listed as gather_rows lists them.
struct NamedRows {
  std::vector<int> queries, counts;  // [heads, q_len], [heads]

  NamedRows(const std::vector<uint32_t>& masks, int heads, int q_len)
      : queries(static_cast<size_t>(heads * q_len), -1), counts(static_cast<size_t>(heads), 0) {
    for (int head = 0; head < heads; ++head) {
      for (int query = 0; query < q_len; ++query) {
        const auto word = static_cast<size_t>(head * entmax::row_mask_words(q_len) + query / 32);
        int& count = counts[static_cast<size_t>(head)];
        if ((masks[word] >> query % 32 & 1) != 0)
          queries[static_cast<size_t>(head * q_len + count++)] = query;
      }
    }
  }
  entmax::RowList list() const { return {queries.data(), counts.data()}; }
};

}  // namespace splash::gpu::testing
