#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/low_bit_page.h"
#include "cpu_ref/decode/row.h"

namespace splash::cpu_ref {
namespace {

constexpr double kNoBound = std::numeric_limits<double>::infinity();
constexpr int64_t kScreenHead = 16, kScreenTail = 128, kBest = 16;

// The low-bit copy of one page and key head: what the screen knows of its keys.
struct ScreenedPage {
  std::vector<ChannelCode> channels;  // [head_dim]
  std::vector<double> keys;           // k^, [page_size, head_dim]
  std::vector<double> margins;        // [page_size]

  ScreenedPage(const PagedCache& cache, int64_t page, int64_t head, int bits)
      : channels(static_cast<size_t>(cache.head_dim)),
        keys(static_cast<size_t>(cache.page_size * cache.head_dim)),
        margins(static_cast<size_t>(cache.page_size)) {
    const auto at = [&](int64_t key, int64_t c) {
      return static_cast<float>(cache.keys[static_cast<size_t>(
          ((page * cache.page_size + key) * cache.kv_heads + head) * cache.head_dim + c)]);
    };
    bool usable = true;
    for (int64_t c = 0; c < cache.head_dim; ++c) {
      float low = at(0, c), high = low;
      for (int64_t key = 0; key < cache.page_size; ++key) {
        usable = usable && std::isfinite(at(key, c));
        low = std::min(low, at(key, c));
        high = std::max(high, at(key, c));
      }
      channels[static_cast<size_t>(c)] = ChannelCode(low, high, bits, usable);
    }
    for (int64_t key = 0; key < cache.page_size; ++key) {
      MarginSums sums;
      for (int64_t c = 0; c < cache.head_dim; ++c) {
        const ChannelCode& channel = channels[static_cast<size_t>(c)];
        const int code = channel.code(at(key, c), bits);
        sums.add(at(key, c), channel, code);
        keys[static_cast<size_t>(key * cache.head_dim + c)] =
            double{channel.zero} + double{channel.scale} * static_cast<double>(code);
      }
      margins[static_cast<size_t>(key)] =
          usable
              ? double{float_of_bfloat16(bfloat16_above(sums.margin(static_cast<int>(cache.head_dim), bits)))}
              : kNoBound;
    }
  }
};

// tau of these keys alone, which no further key can lower; -inf where it says nothing.
double bound_of_keys(std::vector<double> z, double alpha) {
  if (std::ranges::none_of(z, [](double x) { return x > -kNoBound; })) return -kNoBound;
  const double tau = solve_tau<double>(Solver::bisection, z, alpha).tau();
  return std::isfinite(tau) ? tau - 1e-6 * (1 + std::abs(tau)) : -kNoBound;
}

}  // namespace

DecodeRows decode_screened(const PagedCache& cache, const DecodeInputs& inputs, int bits, DecodeWork& work) {
  if (bits != 4 && bits != 8) throw InvalidArgument("a screen has 4 or 8 bits, not " + std::to_string(bits));
  DecodeRows rows = empty_rows(cache, inputs);
  const auto& q = inputs.q;
  for (int64_t b = 0; b < q.batch(); ++b) {
    const int64_t length = cache.lengths[static_cast<size_t>(b)];
    const int64_t tail =
        length > kScreenTail ? (length - kScreenTail) / cache.page_size * cache.page_size : 0;
    const int64_t head_end = std::min(kScreenHead, tail);
    for (int64_t kv_head = 0; kv_head < cache.kv_heads; ++kv_head) {
      std::vector<ScreenedPage> pages;
      for (int64_t key = 0; key < tail; key += cache.page_size)
        pages.emplace_back(cache, std::max<int64_t>(cache.page_of(b, key), 0), kv_head, bits);
      work.screened += tail - head_end;
      std::vector<bool> listed(static_cast<size_t>(length)), kept(static_cast<size_t>(length));  // by any row
      const int64_t group = q.heads() / cache.kv_heads;
      for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
        for (int64_t i = 0; i < q.length(); ++i) {
          const DecodeRow row(cache, inputs, b, h, i);
          std::vector<int64_t> keys;
          std::vector<double> z;
          const auto score = [&](int64_t key) {
            keys.push_back(key);
            z.push_back(row.z(cache, key));
          };
          for (int64_t key = 0; key < head_end; ++key) score(key);
          for (int64_t key = tail; key < row.end; ++key) score(key);
          double bound = bound_of_keys(z, row.alpha);
          // Screen.
          double norm = 0;
          for (int64_t c = 0; c < cache.head_dim; ++c) norm += row.q[c] * row.q[c];
          norm = std::sqrt(norm);
          std::vector<std::pair<double, int64_t>> candidates;  // upper z, key
          for (int64_t key = head_end; key < tail; ++key) {
            if (cache.page_of(b, key) < 0 || !row.sees(key)) continue;
            const ScreenedPage& page = pages[static_cast<size_t>(key / cache.page_size)];
            const int64_t in_page = key % cache.page_size;
            const double* k = page.keys.data() + in_page * cache.head_dim;
            const double margin = page.margins[static_cast<size_t>(in_page)];
            double upper = row.gain * (std::inner_product(k, k + cache.head_dim, row.q, 0.0) + norm * margin);
            if (std::isnan(upper)) upper = kNoBound;
            if (upper <= bound) continue;
            candidates.emplace_back(upper, key);
            listed[static_cast<size_t>(key)] = true;
          }
          // Score the best, and filter again.
          std::ranges::stable_sort(candidates, std::greater{}, [](const auto& c) { return c.first; });
          std::vector<double> best;
          for (size_t n = 0; n < candidates.size() && n < kBest; ++n)
            best.push_back(row.z(cache, candidates[n].second));
          bound = std::max(bound, bound_of_keys(best, row.alpha));
          for (const auto& [upper, key] : candidates) {
            if (upper <= bound) continue;
            score(key);
            kept[static_cast<size_t>(key)] = true;
          }
          row.solve(
              keys, z, [&](int64_t key) { return cache.at(cache.values, b, kv_head, key); }, rows);
        }
      }
      work.candidates += std::ranges::count(listed, true);
      work.rescored += std::ranges::count(kept, true);
    }
  }
  return rows;
}

}  // namespace splash::cpu_ref
