#pragma once
// What a warp makes of upper scores: of its first tiles it holds them (Held) until there is a bound; of the
// rest it lists the keys that are above the bound of any row (Found), in key order, in a segment of its own.
// For each row it proposes some of the best keys, which refine_bounds scores exactly.

#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// A warp's best keys of each row, by upper scores as the screen has them, in a unit that is the row's own. A
// lane sees rows 2 t and 2 t + 1 of keys g and g + 8.
class Proposals {
 public:
  __device__ __forceinline__ void see(int j, float upper, int key) {
    if (upper > best_[j].upper) best_[j] = {upper, key};
  }

  // To a block's shared memory: of each row eight, from the at'th on.
  template <int kMostRows, int kKeys>
  __device__ __forceinline__ void put(Best (&best)[kMostRows][kKeys], int at, int lane) const {
    if (2 * (lane % 4) >= kMostRows) return;
    best[2 * (lane % 4)][at + lane / 4] = best_[0];
    best[2 * (lane % 4) + 1][at + lane / 4] = best_[1];
  }

  // segment: the warp's; pass: 0 or 1.
  __device__ void write(const Step& p, const Unit& unit, int segment, int pass, int lane) const {
    const int apart = 4 * kMostBest / p.best_of_run;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Best best = best_[j];
      for (int lanes = 4; lanes < apart; lanes *= 2) {
        const float upper = __shfl_xor_sync(kAllLanes, best.upper, lanes);
        const int key = __shfl_xor_sync(kAllLanes, best.key, lanes);
        if (upper > best.upper) best = {upper, key};
      }
      const int64_t of_row = (int64_t{unit.index} * kRows + 2 * (lane % 4) + j) * 2 + pass;
      if (lane % apart < 4)
        p.best[(of_row * p.segments.runs + segment - 1) * p.best_of_run + lane / apart] = best;
    }
  }

 private:
  Best best_[2] = {{-INFINITY, -1}, {-INFINITY, -1}};
};

// The list that a warp makes.
class Found {
 public:
  // known: of keys that are proposed again.
  __device__ Found(const Step& p, const Unit& unit, int segment, int lane, const Proposals& known)
      : lane_(lane), stride_(p.listed_rows), proposals_(known) {
    const int64_t list = int64_t{unit.index} * p.segments.total() + p.segments.first(segment);
    keys_ = p.keys + list;
    all_scores_ = p.scores + list * p.listed_rows;
    if (2 * (lane % 4) < p.listed_rows) scores_ = all_scores_ + 2 * (lane % 4);
  }

  // upper: as d of mma.m16n8k16, times `unit` in <q, k>; wanted: those above their row's bound. key: the
  // lane's key g.
  __device__ __forceinline__ void add(int key, const float (&upper)[4], const bool (&wanted)[4],
                                      const float (&unit)[2]) {
    if (!__any_sync(kAllLanes, wanted[0] || wanted[1] || wanted[2] || wanted[3])) return;
    const WantedOfQuads of(wanted, lane_, count_);
    if ((of.low >> (lane_ & ~3) & 1) != 0) put(of.low_place, key, upper[0], upper[1], unit);
    if ((of.high >> (lane_ & ~3) & 1) != 0) put(of.high_place, key + 8, upper[2], upper[3], unit);
  }

  // Those of 32 keys, one per lane, that are wanted; upper(row): of the lane's key, in <q, k>.
  template <class Upper>
  __device__ __forceinline__ void add(int key, bool wanted, const Upper& upper) {
    const int place = place_of(wanted, lane_, count_);
    if (!wanted) return;
    keys_[place] = key;
    for (int row = 0; row < stride_; ++row) all_scores_[place * stride_ + row] = upper(row);
  }

  __device__ int count() const { return count_; }
  __device__ const Proposals& proposals() const { return proposals_; }

 private:
  __device__ __forceinline__ void put(int place, int key, float first, float second, const float (&unit)[2]) {
    if (lane_ % 4 == 0) keys_[place] = key;
    if (scores_ != nullptr)
      *reinterpret_cast<float2*>(scores_ + place * stride_) = {first * unit[0], second * unit[1]};
    proposals_.see(0, first, key);
    proposals_.see(1, second, key);
  }

  int lane_, stride_;
  int32_t* keys_;
  float* all_scores_;
  float* scores_ = nullptr;  // of the lane's rows; null where none is listed
  int count_ = 0;
  Proposals proposals_;
};

// The upper scores of a warp's first tiles: a byte for each key and row, in steps of 1 / 32 in z from the
// row's base on, rounded up. 0 is at or below the base, where p = 0; 255 may be anything above.
struct HeldCodes {
  static constexpr int kMost = 255;
  static constexpr float kSteps = 32;  // per unit of z

  // More than what float32 rounds of a sum of a score and a base, both in steps, where it is a code.
  static __device__ __forceinline__ float slack(float base) { return 0x1p-20f * (fabsf(base) + 256); }

  // Of an upper score, given in steps above the base. The next integer but one at most; 255 for NaN.
  static __device__ __forceinline__ uint32_t of_upper(float above) {
    constexpr float kToInteger = 0x1p23f;  // a sum with it is rounded to an integer, its lowest bits
    const float code = fmaxf(fminf(above + 0.5f, static_cast<float>(kMost)), 0.0f);
    return __float_as_uint(code + kToInteger);  // its low byte
  }
  // What a key's code is above where its score is above a row's bound.
  static __device__ __forceinline__ unsigned of_bound(const Entmax& entmax, float bound, float row_base) {
    const float factor = kSteps, steps = factor * entmax.gain * bound, base = factor * row_base,
                above = steps - base - 2 * slack(base);
    return above < kMost - 1 ? static_cast<unsigned>(fmaxf(above, 0.0f)) : kMost - 1;
  }
  // An upper score, in steps of z.
  static __device__ __forceinline__ float upper_of(unsigned code, float base) {
    return code == kMost ? INFINITY : base + static_cast<float>(code) + slack(base);
  }
};

// Whether a byte of a is above b's.
__device__ __forceinline__ bool any_byte_above(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__
  return __vcmpgtu4(a, b) != 0;
#else
  for (int at = 0; at < 32; at += 8) {
    if ((a >> at & 0xFFu) > (b >> at & 0xFFu)) return true;
  }
  return false;
#endif
}

// The first tiles of a warp's run, which it holds until there is a bound.
class Held {
 public:
  // unit: what turns sums into <q, k>, of the lane's rows; memory: the warp's.
  __device__ Held(const Step& p, const Ranges& ranges, const Run& run, const RowBounds& rows,
                  const Entmax (&entmax)[kRows], const float (&unit)[2], unsigned char* memory, int lane)
      : codes_(memory),
        keys_(min(run.count, p.held_tiles) * ranges.tile_keys),
        first_key_(run.first * ranges.tile_keys),
        row_bytes_(held_rows(p)),
        lane_(lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = 2 * (lane % 4) + j;
      // A row that is not there, or has no threshold, lists no key.
      const bool has_threshold = entmax[row].gain > 0;
      const float base = HeldCodes::kSteps * rows.bases[row];
      factor_[j] = has_threshold ? HeldCodes::kSteps * entmax[row].gain * unit[j] : 0.0f;
      offset_[j] = has_threshold ? HeldCodes::slack(base) - base : 0.0f;
    }
    for (int at = 4 * lane; at < keys_ * row_bytes_; at += 4 * 32)
      *reinterpret_cast<uint32_t*>(codes_ + at) = 0;  // head and holes stay so
    __syncwarp();
  }

  // Takes 16 upper scores per row: chunk `chunk` of the run. key: the lane's key g.
  __device__ __forceinline__ void take(int chunk, int key, const float (&upper)[4]) {
    uint32_t codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      proposals_.see(i % 2, upper[i], key + i / 2 * 8);
      codes[i] = HeldCodes::of_upper(fmaf(upper[i], factor_[i % 2], offset_[i % 2]));
    }
    if (2 * (lane_ % 4) >= row_bytes_) return;
    unsigned char* to = codes_ + (16 * chunk + lane_ / 4) * row_bytes_ + 2 * (lane_ % 4);
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(__byte_perm(codes[0], codes[1], 0x0040));
    *reinterpret_cast<uint16_t*>(to + 8 * row_bytes_) =
        static_cast<uint16_t>(__byte_perm(codes[2], codes[3], 0x0040));
  }

  // Calls add(key, wanted, codes) for 32 keys at a time, one per lane, from the at'th on, until it says no:
  // whether the key is above the bound of any row, and its codes, of four rows each. Returns whether keys are
  // left, from `at` on.
  template <class Add>
  __device__ __forceinline__ bool visit(const RowBounds& rows, int& at, const Add& add) const {
    __syncwarp();  // codes of other lanes
    const auto* bounds = reinterpret_cast<const uint32_t*>(rows.codes);
#pragma unroll 1
    for (bool go_on = true; at < keys_; at += 32) {
      if (!go_on) return true;
      uint32_t codes[2] = {};
      if (at + lane_ < keys_) {
        const auto* of_key = reinterpret_cast<const uint32_t*>(codes_ + (at + lane_) * row_bytes_);
        codes[0] = of_key[0];
        if (row_bytes_ > 4) codes[1] = of_key[1];
      }
      go_on = add(first_key_ + at + lane_,
                  any_byte_above(codes[0], bounds[0]) || any_byte_above(codes[1], bounds[1]), codes);
    }
    return false;
  }

  __device__ const Proposals& proposals() const {
    return proposals_;
  }

 private:
  unsigned char* codes_;  // [keys_, row_bytes_]
  int keys_, first_key_, row_bytes_, lane_;
  float factor_[2], offset_[2];  // of the lane's rows: from sums to steps above the base
  Proposals proposals_;
};

// Lists the held keys that are above a bound.
__device__ __forceinline__ void list_held(const Held& held, const RowBounds& rows,
                                          const Entmax (&entmax)[kRows], Found& found) {
  int at = 0;
  held.visit(rows, at, [&](int key, bool wanted, const uint32_t(&codes)[2]) {
    found.add(key, wanted, [&](int row) {
      const float gain = HeldCodes::kSteps * entmax[row].gain;
      const unsigned code = codes[row / 4] >> 8 * (row % 4) & HeldCodes::kMost;
      return gain > 0 ? HeldCodes::upper_of(code, HeldCodes::kSteps * rows.bases[row]) / gain : 0.0f;
    });
    return true;
  });
}

}  // namespace splash::gpu::decode
