#pragma once
// Entmax attention of a few queries over a paged cache, on the CPU: what gpu/decode computes, in double.
//
// Row (b, h, i) sees the keys j < lengths[b] - (q_len - 1 - i) of key head h / (q_heads / kv_heads) that no
// hole of the page table hides. A row without keys has out 0, tau +inf and maximum -inf; a row with a score
// of NaN or +inf is NaN.

#include <cstdint>
#include <vector>

#include "core/tensor.h"
#include "cpu_ref/decode/cache_view.h"

namespace splash::cpu_ref {

// The caller rounds keys and values to the cache's element type.
struct PagedCache {
  int64_t page_size = 16, kv_heads = 1, head_dim = 64;
  std::vector<double> keys{}, values{};  // [pages, page_size, kv_heads, head_dim]
  int64_t batch = 1, width = 1;
  std::vector<int32_t> table{};    // [batch, width]: pages; below 0: a hole
  std::vector<int32_t> lengths{};  // [batch]

  int64_t page_elements() const { return page_size * kv_heads * head_dim; }
  int64_t pages() const { return static_cast<int64_t>(keys.size()) / page_elements(); }
  int64_t page_of(int64_t sequence, int64_t key) const {
    return table[static_cast<size_t>(sequence * width + key / page_size)];
  }
  // Of `keys` or `values`; null in a hole.
  const double* at(const std::vector<double>& of, int64_t sequence, int64_t head, int64_t key) const {
    const int64_t page = page_of(sequence, key);
    if (page < 0) return nullptr;
    return of.data() + ((page * page_size + key % page_size) * kv_heads + head) * head_dim;
  }
};

struct DecodeInputs {
  Tensor<double> q;                  // [batch, q_heads, q_len, head_dim]
  std::vector<double> alpha, scale;  // [1] or [q_heads]
  int64_t window = 0, sinks = 0;     // a row sees its last `window` keys and the first `sinks`; window 0: all

  double of_head(const std::vector<double>& values, int64_t head) const {
    return values[values.size() == 1 ? 0 : static_cast<size_t>(head)];
  }
};

struct DecodeRows {
  Tensor<double> out;                // [batch, q_heads, q_len, head_dim]
  std::vector<double> tau, maximum;  // [batch, q_heads, q_len], in units of z = (alpha - 1) scale <q, k>
  std::vector<int64_t> support;      // the same
};

// Throws InvalidArgument if the tensors do not fit together, a page lies outside the pool or a length outside
// the table.
DecodeRows decode(const PagedCache& cache, const DecodeInputs& inputs);

// The work of a step, summed over sequences and key heads; decode_step's over query heads and queries, too:
// keys that a row sees, that the first bound lets through, and that are scored in double.
struct DecodeWork {
  int64_t screened = 0, candidates = 0, rescored = 0;
  int64_t by_copies = 0;  // of decode_step: keys screened by copies, summed over sequences and key heads
};

// The same rows, quickly and in parallel: keys are screened by the cache's low-bit copies, else in float, and
// scored in double where that cannot keep them out of the support. Reads copies of full pages, keys of the
// others, what the screen lets through, and the values of the support. work: may be null.
DecodeRows decode_step(const CacheView& cache, const DecodeInputs& inputs, DecodeWork* work = nullptr);

// The same rows by a screen like that of gpu/decode: a bound of tau from the first 16 and the last 128 keys,
// a screen of the full pages between them in `bits` bits (4 or 8), a bound from each head's 16 best keys,
// exact scores of what is left.
DecodeRows decode_screened(const PagedCache& cache, const DecodeInputs& inputs, int bits, DecodeWork& work);

}  // namespace splash::cpu_ref
