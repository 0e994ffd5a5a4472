#pragma once
// The screen of caches without a copy, in 16 bits and in float8: keys are read whole, so its upper scores are
// the exact ones.

#include "gpu/arch/cp_async.cuh"
#include "gpu/decode/key_stage.cuh"
#include "gpu/decode/problem.h"
#include "gpu/decode/team.cuh"
#include "gpu/decode/unit.cuh"

namespace splash::gpu::decode {

template <class T, int kDim>
class ExactScreen {
  using Stage = KeyStage<T, kDim>;
  // For chunks of 16 keys on their way: no more memory than the lists take that follow here.
  static constexpr int kMostBytes = 8192, kBytes = 64 * kDim < kMostBytes ? 64 * kDim : kMostBytes,
                       kStages = kBytes / Stage::kBytes, kHalf = kStages > 1 ? kStages / 2 : 1;

 public:
  static constexpr int kWarpBytes = kStages * Stage::kBytes;

  struct Shared {};
  static __device__ void prepare(Shared& /*shared*/, const HeldQueries<T, kDim>& /*q*/, int /*lane*/) {}
  static __device__ ScreenLane lane_of(const Step& /*p*/, int lane) { return {lane, false}; }

  // Starts the copies of the run's first keys. All arguments outlive the screen. stages: the warp's.
  __device__ ExactScreen(const Step& p, const Unit& unit, const Ranges& ranges, const Run& run,
                         const HeldQueries<T, kDim>& q, const Shared& /*shared*/, unsigned char* stages,
                         const ScreenLane& lane)
      : p_(p),
        unit_(unit),
        ranges_(ranges),
        run_(run),
        stages_(stages),
        lane_(lane.lane),
        stages_ahead_(p.screens_ahead ? kStages : kHalf),
        q_(q, lane.lane),
        following_(run.first * ranges.tile_keys) {
    page_ahead_ = page_of(following_);
#pragma unroll 1
    for (int i = 0; i < stages_ahead_; ++i) load(i);
  }

  __device__ void load_ahead() {}  // all are

  __device__ const float (&unit() const)[2] {
    return unit_of_;
  }
  __device__ const float (&from_unit() const)[2] {
    return unit_of_;
  }

  // As LowBitScreen's.
  template <class Take>
  __device__ __forceinline__ void screen(int begin, int end, const Take& take) {
    const int run_key = run_.first * ranges_.tile_keys, chunks = ranges_.tile_keys / 16;
#pragma unroll 1
    for (int i = begin * chunks; i < end * chunks; ++i) {
      if (stages_ahead_ == kStages) {
        arch::cp_async_wait<kStages - 1>();
      } else {
        arch::cp_async_wait<kHalf - 1>();
      }
      __syncwarp();
      const bool is_there = (exist_ >> place_of(i) & 1) != 0;
      KeyChunk<T, kDim> keys;
      Stage::read(stage(i), lane_, keys);
      if constexpr (kStages == 1) refill(i);  // the only one: it fills while these are scored
      float d[4];
      keys.score(q_, d);
      if constexpr (kStages > 1) refill(i);
      if (is_there) take(run_key + 16 * i + lane_ / 4, d);
    }
  }

 private:
  // Of a chunk of the run.
  __device__ __forceinline__ int place_of(int i) const {
    return i & (stages_ahead_ - 1);
  }
  __device__ __forceinline__ unsigned char* stage(int i) const {
    return stages_ + place_of(i) * Stage::kBytes;
  }

  // The page of a key of the run; -1 for a hole, and behind the run.
  __device__ __forceinline__ int page_of(int key) const {
    return key < (run_.first + run_.count) * ranges_.tile_keys ? unit_.page(p_, key) : -1;
  }

  __device__ __forceinline__ void refill(int i) {
    __syncwarp();  // all lanes have read chunk i
    load(i);
  }

  // Starts the copy of the following chunk in the place of chunk i. Of the head and of holes there is none.
  __device__ __forceinline__ void load(int i) {
    if ((following_ & (ranges_.tile_keys - 1)) == 0) {  // tiles are of 2^n keys
      page_ = page_ahead_;
      page_ahead_ = page_of(following_ + ranges_.tile_keys);
      from_ = unit_.in_page<T>(p_, p_.cache.keys, page_ < 0 ? 0 : page_, following_ + Stage::key_of(lane_)) +
              Stage::element_of(lane_);
    }
    const unsigned bit = 1u << place_of(i);
    exist_ &= ~bit;
    if (page_ >= 0 && following_ >= kHeadKeys) {
      exist_ |= bit;
      Stage::copy(stage(i), from_, p_.cache.keys.token_stride, lane_);
    }
    arch::cp_async_commit();
    from_ += 16 * p_.cache.keys.token_stride;
    following_ += 16;
  }

  const Step& p_;
  const Unit& unit_;
  const Ranges& ranges_;
  const Run& run_;
  unsigned char* stages_;
  int lane_;
  int stages_ahead_;  // a power of two
  Queries<T, kDim> q_;
  int following_;                    // the first key of the chunk that is asked for next
  int page_ = -1, page_ahead_ = -1;  // its page, and that of the next tile
  const T* from_ = nullptr;          // where the lane's first copy of it begins, if there is its page
  unsigned exist_ = 0;               // stages that hold keys to be screened, as bits
  float unit_of_[2] = {1, 1};
};

}  // namespace splash::gpu::decode
