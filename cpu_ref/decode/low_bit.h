#pragma once
// The low-bit copies of full pages (core/low_bit_page.h) in host memory: made, and screened by.
//
// A screen folds the page's channel scales into a query, q' = q scale, and rounds q' to integers n = q' f of
// 16 bits. It sums n code in 32 bits, which is exact: |n| < 2^15, |code| <= 2^7, head_dim <= 2^8. So
//   <q, k^> = <q, zero> + <n, code> / f, up to head_dim 2^(bits - 1) |n - q' f| / f,
// where |n - q' f| <= 1/2 + 2^-7. The margin covers the rest, which is less than what gpu/decode rounds: q
// and q' are floats here, float16s there, and q zero is summed in float in both. A 32nd more of the margin,
// which is at least 2^-18, is for what floats round behind that and for |q| itself. |q| lies in 2^-60 ...
// 2^60, so that nothing overflows, and what underflows is far below the margin.

#include <cstdint>
#include <span>
#include <vector>

#include <Eigen/Core>

#include "core/low_bit_page.h"
#include "cpu_ref/decode/cache_view.h"

namespace splash::cpu_ref {

using StepFloats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Bytes of all copies of a pool, [pages, kv_heads]; 0 where the layout has no such keys.
int64_t low_bit_bytes(int64_t pages, int64_t page_size, int64_t kv_heads, int64_t head_dim, int bits);

// Writes the copies of the pages that end after from_lengths ([batch]; empty: 0) and at or before the cache's
// lengths, in each sequence of `most_pages` of them at most. Scales, zero points and codes are bit for bit
// those of gpu/decode; a margin's sums are added in another order. A page that does not exist is passed over.
void fill_low_bit(const CacheView& cache, std::span<const int32_t> from_lengths, int64_t most_pages,
                  uint8_t* low_bit);

// Screens pages against some queries.
class PageScreen {
 public:
  // Takes queries [rows, head_dim] and their norms. False, where a screen says nothing of one of them.
  bool start(const LowBitLayout& layout, const StepFloats& queries, std::span<const double> norms);

  // Upper ends of the scores <q, k> of a page's keys: upper[row * stride + key]. False, where the page has no
  // usable copy.
  bool upper_ends(const uint8_t* page, float* upper, int64_t stride);

 private:
  template <int kDim, int kBits>
  void screen(const uint8_t* page, float* upper, int64_t stride);

  LowBitLayout layout_{};
  std::vector<int> channels_;    // [head_dim], in the order in which codes are unpacked
  StepFloats queries_, folded_;  // [rows, head_dim]; folded_ in that order
  Eigen::VectorXf norms_;        // [rows]
  // Of a page: scales in that order, margins; of each query: <q, zero> with what rounding n takes, and 1 / f.
  std::vector<uint16_t> halves_;
  Eigen::RowVectorXf scales_and_zeros_, scales_, margins_;
  Eigen::VectorXf starts_, steps_;
  std::vector<int16_t> rounded_, codes_;  // [rows, head_dim], [16, head_dim]
};

}  // namespace splash::cpu_ref
