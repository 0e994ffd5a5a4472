#pragma once
// What a warp makes of upper scores: of its first tiles it holds them (Held) until there is a bound; of the
// rest it lists the keys that are above the bound of any row (Found), in key order, in a segment of its own.
// For each row it proposes some of the best keys, which refine_bounds scores exactly. The keys that are above
// the last bounds are FoundKeys.

#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

// A warp's best keys of each row, by upper scores as the screen has them, in a unit that is the row's own. A
// lane sees its own keys.
class Proposals {
 public:
  __device__ explicit Proposals(const ScreenLane& lane) : lane_(lane) {}

  __device__ __forceinline__ void see(int j, float upper, int key) {
    if (upper > best_[j].upper) best_[j] = {upper, key};
  }

  // To a block's shared memory: of each row eight, from the at'th on.
  template <int kMostRows, int kKeys>
  __device__ __forceinline__ void put(Best (&best)[kMostRows][kKeys], int at) const {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const Best of_row = of_both_chunks(best_[j]);
      if (writes() && lane_.row() < kMostRows) best[lane_.row() + j][at + lane_.lane / 4] = of_row;
    }
  }

  // segment: the warp's; pass: 0 or 1.
  __device__ void write(const Step& p, const Unit& unit, int segment, int pass) const {
    const int apart = 4 * kMostBest / p.best_of_run;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      Best best = of_both_chunks(best_[j]);
      for (int lanes = 4; lanes < apart; lanes *= 2) best = better(best, lanes);
      const int64_t of_row = (int64_t{unit.index} * kRows + lane_.row() + j) * 2 + pass;
      if (writes() && lane_.lane % apart < 4)
        p.best[(of_row * p.segments.runs + segment - 1) * p.best_of_run + lane_.lane / apart] = best;
    }
  }

 private:
  static __device__ __forceinline__ Best better(const Best& mine, int lanes) {
    const float upper = __shfl_xor_sync(kAllLanes, mine.upper, lanes);
    const int key = __shfl_xor_sync(kAllLanes, mine.key, lanes);
    return upper > mine.upper ? Best{upper, key} : mine;
  }
  __device__ __forceinline__ Best of_both_chunks(const Best& mine) const {
    return lane_.has_two_chunks ? better(mine, 2) : mine;
  }
  // Of two lanes that have the same rows, of two chunks, one does.
  __device__ __forceinline__ bool writes() const {
    return lane_.lane % 4 == lane_.row() / 2;
  }

  ScreenLane lane_;
  Best best_[2] = {{-INFINITY, -1}, {-INFINITY, -1}};
};

// The list that a warp makes.
class Found {
 public:
  // known: of keys that are proposed again.
  __device__ Found(const Step& p, const Unit& unit, int segment, const ScreenLane& lane,
                   const Proposals& known)
      : lane_(lane), stride_(p.listed_rows), proposals_(known) {
    const int64_t list = int64_t{unit.index} * p.segments.total() + p.segments.first(segment);
    keys_ = p.keys + list;
    all_scores_ = p.scores + list * p.listed_rows;
    if (lane.row() < p.listed_rows) scores_ = all_scores_ + lane.row();
  }

  // The lane's upper scores, times `unit` in <q, k>; wanted: those above their row's bound. key: the lane's
  // first.
  __device__ __forceinline__ void add(int key, const float (&upper)[4], const bool (&wanted)[4],
                                      const float (&unit)[2]) {
    if (!__any_sync(kAllLanes, wanted[0] || wanted[1] || wanted[2] || wanted[3])) return;
    const WantedKeys of(wanted, lane_, count_);
    if (of.low) put(of.low_place, key, upper[0], upper[1], unit);
    if (of.high) put(of.high_place, key + 8, upper[2], upper[3], unit);
  }

  // wanted: of the lane's keys from `key` on, as bits; upper(i, row): of the i'th, in <q, k>.
  template <class Upper>
  __device__ __forceinline__ void add(int key, unsigned wanted, const Upper& upper) {
    if (!__any_sync(kAllLanes, wanted != 0)) return;
    for (int place = places_of(wanted, lane_.lane, count_); wanted != 0; wanted &= wanted - 1, ++place) {
      const int i = __ffs(static_cast<int>(wanted)) - 1;
      keys_[place] = key + i;
      for (int row = 0; row < stride_; ++row) all_scores_[place * stride_ + row] = upper(i, row);
    }
  }

  __device__ int count() const { return count_; }
  __device__ const Proposals& proposals() const { return proposals_; }

 private:
  __device__ __forceinline__ void put(int place, int key, float first, float second, const float (&unit)[2]) {
    if (lane_.leads()) keys_[place] = key;
    if (scores_ != nullptr)
      *reinterpret_cast<float2*>(scores_ + place * stride_) = {first * unit[0], second * unit[1]};
    proposals_.see(0, first, key);
    proposals_.see(1, second, key);
  }

  ScreenLane lane_;
  int stride_;
  int32_t* keys_;
  float* all_scores_;
  float* scores_ = nullptr;  // of the lane's rows; null where none is listed
  int count_ = 0;
  Proposals proposals_;
};

// The keys that a warp finds above a bound, in its segment; the first ones in shared memory, too.
template <int kInShared>
class FoundKeys {
 public:
  __device__ FoundKeys(const Step& p, const Unit& unit, int segment, int32_t (&shared)[kInShared],
                       const ScreenLane& lane)
      : keys_(p.keys + int64_t{unit.index} * p.segments.total() + p.segments.first(segment)),
        shared_(shared),
        lane_(lane) {}

  // wanted: of the lane's upper scores; key: the lane's first.
  __device__ __forceinline__ void add(int key, const bool (&wanted)[4]) {
    if (!__any_sync(kAllLanes, wanted[0] || wanted[1] || wanted[2] || wanted[3])) return;
    const WantedKeys of(wanted, lane_, count_);
    if (of.low && lane_.leads()) put(of.low_place, key);
    if (of.high && lane_.leads()) put(of.high_place, key + 8);
  }

  // wanted: of the lane's keys from `key` on, as bits.
  __device__ __forceinline__ void add(int key, unsigned wanted) {
    if (!__any_sync(kAllLanes, wanted != 0)) return;
    for (int place = places_of(wanted, lane_.lane, count_); wanted != 0; wanted &= wanted - 1, ++place)
      put(place, key + __ffs(static_cast<int>(wanted)) - 1);
  }

  __device__ int count() const { return count_; }

 private:
  __device__ __forceinline__ void put(int place, int key) {
    keys_[place] = key;
    if (place < kInShared) shared_[place] = key;
  }

  int32_t *keys_, *shared_;
  ScreenLane lane_;
  int count_ = 0;
};

// The upper scores of a warp's first tiles: a byte for each key and row, in steps of 1 / 32 in z from the
// row's base on, rounded up. 0 is at or below the base, where p = 0; 255 may be anything above.
struct HeldCodes {
  static constexpr int kMost = 255;
  static constexpr float kSteps = 32;  // per unit of z

  // More than what float32 rounds of a sum of a score and a base, both in steps, where it is a code.
  static __device__ __forceinline__ float slack(float base) { return 0x1p-20f * (fabsf(base) + 256); }

  // Of an upper score that lies upper * factor + offset below the highest code, in parts of kMost steps: the
  // next integer, as the low byte. 255 for NaN, which saturates to 0.
  static __device__ __forceinline__ uint32_t of_upper(float upper, float factor, float offset) {
    constexpr float kToInteger = 0x1p23f;  // a sum with it is rounded to an integer, its lowest bits
    const float below = __saturatef(fmaf(upper, factor, offset));
    return __float_as_uint(
        __fmaf_ru(-static_cast<float>(kMost), below, kToInteger + static_cast<float>(kMost)));
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

// Of a row: what HeldCodes::of_upper takes of its upper scores, of which one is `unit` in <q, k>.
struct HeldScale {
  float factor, offset;

  __device__ __forceinline__ HeldScale(const Entmax& entmax, float row_base, float unit) {
    constexpr float kPart = 1.0f / HeldCodes::kMost;
    const float base = HeldCodes::kSteps * row_base;
    factor = -kPart * (HeldCodes::kSteps * entmax.gain * unit);
    offset = 1 - kPart * (HeldCodes::slack(base) - base);
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
                  const Entmax (&entmax)[kRows], const float (&unit)[2], unsigned char* memory,
                  const ScreenLane& lane)
      : codes_(memory),
        keys_(min(run.count, p.held_tiles) * ranges.tile_keys),
        first_key_(run.first * ranges.tile_keys),
        row_bytes_(held_rows(p)),
        lane_(lane),
        proposals_(lane) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int row = lane.row() + j;
      // A row that is not there, or has no threshold, lists no key.
      const HeldScale scale(entmax[row], rows.bases[row], unit[j]);
      factor_[j] = entmax[row].gain > 0 ? scale.factor : 0.0f;
      offset_[j] = entmax[row].gain > 0 ? scale.offset : 1.0f;
    }
    for (int at = 4 * lane.lane; at < keys_ * row_bytes_; at += 4 * 32)
      *reinterpret_cast<uint32_t*>(codes_ + at) = 0;  // head and holes stay so
    __syncwarp();
  }

  // Takes the lane's upper scores. key: the lane's first.
  __device__ __forceinline__ void take(int key, const float (&upper)[4]) {
    uint32_t codes[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      proposals_.see(i % 2, upper[i], key + i / 2 * 8);
      codes[i] = HeldCodes::of_upper(upper[i], factor_[i % 2], offset_[i % 2]);
    }
    if (lane_.row() >= row_bytes_) return;
    unsigned char* to = codes_ + (key - first_key_) * row_bytes_ + lane_.row();
    *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(__byte_perm(codes[0], codes[1], 0x0040));
    *reinterpret_cast<uint16_t*>(to + 8 * row_bytes_) =
        static_cast<uint16_t>(__byte_perm(codes[2], codes[3], 0x0040));
  }

  // Calls add(key, wanted, codes) for 16 bytes of codes at a time: of up to four rows, a lane has four keys
  // from `key` on, a word each, else two. wanted: those of them, as bits, that are above the bound of any
  // row.
  template <class Add>
  __device__ __forceinline__ void visit(const RowBounds& rows, const Add& add) const {
    __syncwarp();  // codes of other lanes
    const auto* bounds = reinterpret_cast<const uint32_t*>(rows.codes);
    const uint32_t low = bounds[0], high = bounds[1];
    const int each = 16 / row_bytes_, first = each * lane_.lane;
#pragma unroll 1
    for (int at = 0; at < keys_; at += 32 * each) {
      uint4 codes{};
      if (at + first < keys_) codes = *reinterpret_cast<const uint4*>(codes_ + (at + first) * row_bytes_);
      const bool above[4] = {any_byte_above(codes.x, low), any_byte_above(codes.y, each == 4 ? low : high),
                             any_byte_above(codes.z, low), any_byte_above(codes.w, each == 4 ? low : high)};
      unsigned wanted = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) wanted |= above[i] ? 1u << (each == 4 ? i : i / 2) : 0u;
      add(first_key_ + at + first, wanted, codes);
    }
  }

  // Of codes.
  __device__ int words_of_key() const {
    return row_bytes_ / 4;
  }
  __device__ const Proposals& proposals() const {
    return proposals_;
  }

 private:
  unsigned char* codes_;  // [keys_, row_bytes_]
  int keys_, first_key_, row_bytes_;
  ScreenLane lane_;
  float factor_[2], offset_[2];  // of the lane's rows, from sums on: HeldCodes::of_upper
  Proposals proposals_;
};

// Lists the held keys that are above a bound.
__device__ __forceinline__ void list_held(const Held& held, const RowBounds& rows,
                                          const Entmax (&entmax)[kRows], Found& found) {
  held.visit(rows, [&](int key, unsigned wanted, const uint4& codes) {
    found.add(key, wanted, [&](int i, int row) {
      const int word = held.words_of_key() * i + row / 4;
      const uint32_t of_word = word < 2 ? (word == 0 ? codes.x : codes.y) : word == 2 ? codes.z : codes.w;
      const unsigned code = of_word >> 8 * (row % 4) & HeldCodes::kMost;
      const float gain = HeldCodes::kSteps * entmax[row].gain;
      return gain > 0 ? HeldCodes::upper_of(code, HeldCodes::kSteps * rows.bases[row]) / gain : 0.0f;
    });
  });
}

}  // namespace splash::gpu::decode
