#include "cpu_ref/decode/low_bit.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/parallel.h"

namespace splash::cpu_ref {
namespace {

constexpr int kKeysAtOnce = 16;
constexpr float kLargest = 32700;     // of a query's rounded numbers
constexpr float kMore = 1 + 0x1p-5f;  // of margins, for what floats round

LowBitLayout layout_of(const CacheView& cache) {
  return {static_cast<int>(cache.page_size), static_cast<int>(cache.head_dim), cache.bits};
}

// What a thread needs again and again to make copies.
struct FillRoom {
  using Row = Eigen::Array<float, 1, Eigen::Dynamic>;

  StepFloats keys;
  Row low, high, scales, zeros, divisors, codes;

  void fill(const CacheView& cache, int64_t page, int64_t kv_head, uint8_t* to) {
    const LowBitLayout layout = layout_of(cache);
    keys.resize(layout.page_size, layout.head_dim);
    cache.keys.read(page, 0, kv_head, layout.page_size, layout.head_dim, keys.data());
    const bool usable = choose_channels(layout, to);
    divisors = (scales > 0).select(scales, std::numeric_limits<float>::infinity());  // codes are then 0
    MarginSums sums;
    sums.zero = zeros.square().sum();
    sums.scale = scales.square().sum();
    const float half_range = static_cast<float>(1 << (layout.bits - 1));
    for (int key = 0; key < layout.page_size; ++key) {
      const auto values = keys.row(key).array();
      codes = ((values - zeros) / divisors).rint().max(-half_range).min(half_range - 1);
      if (!usable) codes = (scales > 0).select(codes, 0);
      sums.residual = (values - zeros - scales * codes).square().sum();
      sums.deviation = (scales * codes).square().sum();
      sums.key = values.square().sum();
      const uint16_t margin = bfloat16_above(usable ? sums.margin(layout.head_dim, layout.bits)
                                                    : std::numeric_limits<float>::infinity());
      std::memcpy(to + layout.margins_at() + 2 * key, &margin, 2);
      codes += half_range;
      for (int group = 0; group < layout.head_dim / 8; ++group)
        pack(codes.data() + 8 * group, layout.bits, to + layout.group_at(key, group));
    }
  }

 private:
  // Writes scales and zero points. Returns whether the page is usable.
  bool choose_channels(const LowBitLayout& layout, uint8_t* to) {
    low = high = keys.row(0).array();
    for (int key = 1; key < layout.page_size; ++key) {
      low = low.min(keys.row(key).array());
      high = high.max(keys.row(key).array());
    }
    if (!((keys.array() * 0).sum() == 0)) {  // some are not finite; of a channel with NaN, NaN stays
      for (int c = 0; c < layout.head_dim; ++c) {
        if (keys.col(c).hasNaN()) low[c] = high[c] = std::numeric_limits<float>::quiet_NaN();
      }
    }
    scales.resize(layout.head_dim);
    zeros.resize(layout.head_dim);
    bool usable = true;
    for (int c = 0; c < layout.head_dim; ++c) {
      const ChannelCode channel(low[c], high[c], layout.bits, usable);
      scales[c] = channel.scale;
      zeros[c] = channel.zero;
      const uint16_t scale = half_bits(channel.scale), zero = half_bits(channel.zero);
      std::memcpy(to + 2 * c, &scale, 2);
      std::memcpy(to + layout.zeros_at() + 2 * c, &zero, 2);
    }
    return usable;
  }

  // Writes the codes of 8 channels, 0 and above.
  static void pack(const float* stored, int bits, uint8_t* to) {
    if (bits == 8) {
      for (int c = 0; c < 8; ++c) to[c] = static_cast<uint8_t>(static_cast<int>(stored[c]));
      return;
    }
    uint32_t word = 0;
    for (int c = 0; c < 8; ++c)
      word |= static_cast<uint32_t>(static_cast<int>(stored[c])) << 4 * nibble_of(c);
    std::memcpy(to, &word, 4);
  }
};

// A key's codes lie in runs of bytes, 16 apart, four to a line of the warp's loads.
template <int kDim, int kBits>
struct KeyCodes {
  static constexpr int kLaneBytes = kDim * kBits / 32;  // of one key
  static constexpr int kRun = std::min(kLaneBytes, 16);
  static constexpr int kLines = kLaneBytes / kRun;

  // Unpacks key 0 ... 15 of a block of codes. to: [kDim], in an order of its own: place().
  static void unpack(const uint8_t* block, int key, int16_t* to) {
    const int before = key / 8 * kLaneBytes;  // in a lane
    for (int line = 0; line < kLines; ++line) {
      const uint8_t* from = block + ((before / 16 + line) * 32 + 4 * (key % 8)) * 16 + before % 16;
      for (int t = 0; t < 4; ++t) {
        for (int i = 0; i < kRun; ++i) {
          const uint8_t byte = from[16 * t + i];
          if constexpr (kBits == 8) {
            to[4 * kRun * line + kRun * t + i] = static_cast<int16_t>(byte - 128);
          } else {
            to[8 * kRun * line + kRun * t + i] = static_cast<int16_t>((byte & 15) - 8);
            to[8 * kRun * line + 4 * kRun + kRun * t + i] = static_cast<int16_t>((byte >> 4) - 8);
          }
        }
      }
    }
  }
};

// Where KeyCodes::unpack puts a channel.
int place_of(const LowBitLayout& layout, int channel) {
  const int run = std::min(layout.head_dim * layout.bits / 32, 16);
  const int nibble = nibble_of(channel % 8);
  const int byte =
      layout.group_at(0, channel / 8) - layout.codes_at() + (layout.bits == 8 ? channel % 8 : nibble / 2);
  const int line = byte / 512, in_line = byte % 512 / 16 * run + byte % 16;
  return layout.bits == 8 ? 4 * run * line + in_line : 8 * run * line + 4 * run * (nibble % 2) + in_line;
}

template <int kDim>
int32_t dot(const int16_t* a, const int16_t* b) {
  int32_t sum = 0;
  for (int c = 0; c < kDim; ++c) sum += int32_t{a[c]} * int32_t{b[c]};
  return sum;
}

}  // namespace

int64_t low_bit_bytes(int64_t pages, int64_t page_size, int64_t kv_heads, int64_t head_dim, int bits) {
  if (bits == 0 || (head_dim != 64 && head_dim != 128 && head_dim != 256)) return 0;
  return pages * kv_heads *
         LowBitLayout{static_cast<int>(page_size), static_cast<int>(head_dim), bits}.bytes();
}

void fill_low_bit(const CacheView& cache, std::span<const int32_t> from_lengths, int64_t most_pages,
                  uint8_t* low_bit) {
  std::vector<int64_t> pages;  // sequences may share them
  for (int64_t b = 0; b < cache.batch; ++b) {
    const int64_t from = from_lengths.empty() ? 0 : from_lengths[static_cast<size_t>(b)];
    const int64_t first = std::max<int64_t>(from, 0) / cache.page_size;
    const int64_t end = std::min(
        {first + most_pages, cache.width, int64_t{cache.lengths[static_cast<size_t>(b)]} / cache.page_size});
    for (int64_t place = first; place < end; ++place) {
      const int64_t page = cache.page_of(b, place * cache.page_size);
      if (page >= 0 && page < cache.pool_pages) pages.push_back(page);
    }
  }
  std::ranges::sort(pages);
  pages.erase(std::ranges::unique(pages).begin(), pages.end());
  const int64_t bytes = layout_of(cache).bytes();
  parallel_for_with(
      static_cast<int64_t>(pages.size()) * cache.kv_heads, 1, [] { return FillRoom{}; },
      [&](FillRoom& room, int64_t number) {
        const int64_t page = pages[static_cast<size_t>(number / cache.kv_heads)],
                      kv_head = number % cache.kv_heads;
        room.fill(cache, page, kv_head, low_bit + (page * cache.kv_heads + kv_head) * bytes);
      });
}

bool PageScreen::start(const LowBitLayout& layout, const StepFloats& queries, std::span<const double> norms) {
  if (std::ranges::any_of(norms, [](double norm) { return !(norm >= 0x1p-60 && norm <= 0x1p60); }))
    return false;
  layout_ = layout;
  queries_ = queries;
  norms_ =
      Eigen::Map<const Eigen::VectorXd>(norms.data(), static_cast<Eigen::Index>(norms.size())).cast<float>();
  channels_.resize(static_cast<size_t>(layout.head_dim));
  folded_.resize(queries.rows(), queries.cols());
  for (int c = 0; c < layout.head_dim; ++c) {
    const int place = place_of(layout, c);
    channels_[static_cast<size_t>(place)] = c;
    folded_.col(place) = queries.col(c);
  }
  rounded_.resize(static_cast<size_t>(queries.size()));
  codes_.resize(static_cast<size_t>(kKeysAtOnce * layout.head_dim));
  halves_.resize(static_cast<size_t>(2 * layout.head_dim));
  scales_and_zeros_.resize(2 * layout.head_dim);
  margins_.resize(layout.page_size);
  scales_.resize(layout.head_dim);
  starts_.resize(queries.rows());
  steps_.resize(queries.rows());
  return true;
}

bool PageScreen::upper_ends(const uint8_t* page, float* upper, int64_t stride) {
  const int dim = layout_.head_dim;
  for (int key = 0; key < layout_.page_size; ++key) {
    uint16_t margin = 0;
    std::memcpy(&margin, page + layout_.margins_at() + 2 * key, 2);
    margins_[key] = float_of_bfloat16(margin);
  }
  if (!((margins_.array() * 0).sum() == 0)) return false;  // one is not finite
  std::memcpy(halves_.data(), page, static_cast<size_t>(4 * dim));
  floats_of_halves(halves_.data(), 2 * dim, scales_and_zeros_.data());
  for (int i = 0; i < dim; ++i) scales_[i] = scales_and_zeros_[channels_[static_cast<size_t>(i)]];
  const auto zeros = scales_and_zeros_.tail(dim);
  for (int64_t row = 0; row < queries_.rows(); ++row) {
    const auto folded = folded_.row(row).array() * scales_.array();
    const float largest = folded.abs().maxCoeff();
    const float factor = largest > 0x1p-110f ? kLargest / largest : 0;
    const float step = factor > 0 ? largest / kLargest : 0;
    int16_t* rounded = rounded_.data() + row * dim;
    for (int i = 0; i < dim; ++i)
      rounded[i] = static_cast<int16_t>(std::rint(folded_(row, i) * scales_[i] * factor));
    steps_[row] = step;
    starts_[row] = queries_.row(row).dot(zeros) +
                   static_cast<float>(dim << (layout_.bits - 1)) * (0.5f + 0x1p-7f) * kMore * step;
  }
  const auto with = [&]<int kDim>() {
    return layout_.bits == 8 ? screen<kDim, 8>(page, upper, stride) : screen<kDim, 4>(page, upper, stride);
  };
  dim == 64 ? with.operator()<64>() : dim == 128 ? with.operator()<128>() : with.operator()<256>();
  return true;
}

template <int kDim, int kBits>
void PageScreen::screen(const uint8_t* page, float* upper, int64_t stride) {
  const uint8_t* codes = page + layout_.codes_at();
  for (int first = 0; first < layout_.page_size; first += kKeysAtOnce, codes += 2 * kDim * kBits) {
    for (int key = 0; key < kKeysAtOnce; ++key)
      KeyCodes<kDim, kBits>::unpack(codes, key, codes_.data() + key * kDim);
    for (int64_t row = 0; row < queries_.rows(); ++row) {
      const int16_t* rounded = rounded_.data() + row * kDim;
      const float margin_factor = norms_[row] * kMore;
      int32_t sums[kKeysAtOnce];
      for (int key = 0; key < kKeysAtOnce; ++key) sums[key] = dot<kDim>(rounded, codes_.data() + key * kDim);
      float* to = upper + row * stride + first;
      for (int key = 0; key < kKeysAtOnce; ++key)
        to[key] = starts_[row] + steps_[row] * static_cast<float>(sums[key]) +
                  margin_factor * margins_[first + key];
    }
  }
}

}  // namespace splash::cpu_ref
