#include "cpu_ref/decode/decode.h"

#include "cpu_ref/decode/row.h"

namespace splash::cpu_ref {

DecodeRows decode(const PagedCache& cache, const DecodeInputs& inputs) {
  DecodeRows rows = empty_rows(cache, inputs);
  const auto& q = inputs.q;
  for (int64_t b = 0; b < q.batch(); ++b) {
    for (int64_t h = 0; h < q.heads(); ++h) {
      for (int64_t i = 0; i < q.length(); ++i) {
        const DecodeRow row(cache, inputs, b, h, i);
        std::vector<int64_t> keys;
        std::vector<double> z;
        for (int64_t key = 0; key < row.end; ++key) {
          keys.push_back(key);
          z.push_back(row.z(cache, key));
        }
        row.solve(
            keys, z, [&](int64_t key) { return cache.at(cache.values, b, row.kv_head, key); }, rows);
      }
    }
  }
  return rows;
}

}  // namespace splash::cpu_ref
