#include "analysis/decode_bytes.h"

#include <algorithm>

#include "core/low_bit_page.h"
#include "core/round.h"

namespace splash::analysis {

DecodeBytes decode_bytes(const AttentionShape& shape, Dtype dtype, int page_size, int bits, int64_t l2_bytes,
                         const DecodeCounts& counts) {
  const int64_t rows_of_head = shape.group() * shape.q_len;
  const auto units_of_head = static_cast<double>(ceil_div(rows_of_head, kDecodeUnitRows));
  const auto key = static_cast<double>(shape.head_dim * bytes_of(dtype));
  const double copy =
      bits == 0
          ? key
          : static_cast<double>(LowBitLayout{page_size, static_cast<int>(shape.head_dim), bits}.bytes()) /
                page_size;
  const double listed_rows =
      static_cast<double>(round_up(std::min<int64_t>(rows_of_head, kDecodeUnitRows), 2));
  const double lists = counts.candidates * (sizeof(int32_t) + sizeof(float) * listed_rows);
  const double screened = counts.screened / units_of_head, began = counts.began / units_of_head;
  return {.copies = screened * copy,
          .start = (began - screened) * key,
          .lists = lists > static_cast<double>(l2_bytes) ? 2 * lists : 0,
          .rescored = counts.rescored * key,
          .fallback = counts.fell_back / units_of_head * key,
          .values = counts.values * key,
          .rows = 2 * key * static_cast<double>(shape.rows())};
}

double dense_decode_bytes(const AttentionShape& shape, Dtype dtype) {
  const auto keys = static_cast<double>(shape.batch * shape.kv_heads * shape.kv_len);
  return 2 * static_cast<double>(shape.head_dim * bytes_of(dtype)) *
         (keys + static_cast<double>(shape.rows()));
}

}  // namespace splash::analysis
