#pragma once
// Runs blocks of a kernel on the CPU, for tests without a GPU. A test of kernels includes this first
// (-include), and finds this folder's gpu/arch before the real one.
//
// Threads are fibers that run until they meet others: at a barrier, a shuffle, a vote, a matrix product.
// Their order is drawn anew in each turn, and at times a warp is held back until the others cannot continue
// without it, so a missing barrier shows sooner or later. The program ends with a message if threads meet at
// different operations or wait for threads that have ended. Copies of cp.async land when they are waited for,
// tiles of TMA at any time; until then their target is poison. The blocks of a cluster run together, and
// their shared memory is dynamic. It supports whole warps, blocks of one dimension, and only what the kernels
// need.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <vector>
#include <vector_types.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#undef __align__
#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __host__
#undef __launch_bounds__
#undef __noinline__
#undef __shared__
#define __align__(n) __attribute__((aligned(n)))
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)
#define __noinline__
#define __shared__

namespace splash::gpu::simt {

struct Index {
  unsigned x = 0, y = 0;
};
Index thread();  // the running thread
Index block();
Index grid();
Index block_size();
unsigned char* dynamic_memory();  // its block's
inline int lane() {
  return static_cast<int>(thread().x) % 32;
}

// How a kernel is launched: blocks of a cluster, along x, and bytes of each block's dynamic shared memory.
struct Cluster {
  unsigned blocks = 1;
  size_t shared_bytes = 0;
};

// Runs the clusters one after the other. order: seed of the order of threads and of clusters.
void run(Index blocks, int threads, uint64_t order, const std::function<void()>& kernel,
         const Cluster& cluster = {});
inline void run(unsigned blocks, int threads, uint64_t order, const std::function<void()>& kernel) {
  run(Index{blocks, 1}, threads, order, kernel);
}

[[noreturn]] void fail(const char* what);

// Waits until all threads of the warp, the block or the cluster have brought a value; returns what each has
// brought. Threads of a cluster that have ended are not waited for.
using Brought = std::array<unsigned char, 32>;
enum class Scope { warp, block, cluster };
const std::vector<Brought>& meet(Scope scope, const char* operation, const Brought& brought);

// Each thread's value, valid until the thread meets the others again.
template <class T>
class Values {
 public:
  explicit Values(const std::vector<Brought>& brought) : brought_(&brought) {}
  int size() const { return static_cast<int>(brought_->size()); }
  T operator[](int thread) const {
    T value;
    std::memcpy(&value, (*brought_)[static_cast<size_t>(thread)].data(), sizeof value);
    return value;
  }

 private:
  const std::vector<Brought>* brought_;
};

template <class T>
Values<T> exchange(Scope scope, const char* operation, const T& value) {
  static_assert(sizeof(T) <= sizeof(Brought));
  Brought brought{};
  std::memcpy(brought.data(), &value, sizeof value);
  return Values<T>(meet(scope, operation, brought));
}

// This thread's copies: those since its last commit, and groups of committed ones, of which `pending` stay
// pending.
void start_copy(void* to, const void* from, int bytes, bool zeros);
void commit_copies();
void land_copies(size_t pending);

// The same for a warpgroup's products, in groups. finish_products() does them in order, until `pending`
// groups are left.
void add_product(std::function<void()> product);
void commit_products();
void finish_products(size_t pending);

// mbarriers. arrive() returns how many arrivals were missing before this one; `bytes` is what the phase must
// also wait for.
void init_barrier(uint64_t* barrier, int arrivals);
int arrive(uint64_t* barrier, int64_t bytes);
bool has_passed(const uint64_t* barrier, uint32_t parity);
void start_load(uint64_t* barrier, int64_t bytes, std::function<void()> land);

void pause();  // lets other threads run

inline unsigned char* shared_memory = nullptr;  // the block's, for kernels that use addresses in it
inline void poison_shared_memory(std::span<unsigned char> of_block) {
  std::fill(of_block.begin(), of_block.end(), static_cast<unsigned char>(0xFF));
  shared_memory = of_block.data();
}

}  // namespace splash::gpu::simt

#define threadIdx (::splash::gpu::simt::thread())
#define blockIdx (::splash::gpu::simt::block())
#define gridDim (::splash::gpu::simt::grid())
#define blockDim (::splash::gpu::simt::block_size())

using std::isfinite;
using std::max;
using std::min;

// NOLINTBEGIN(readability-identifier-naming): CUDA's names
inline float __fmul_rn(float a, float b) {
  const volatile float product = a * b;
  return product;
}
template <class T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int lanes) {
  using namespace splash::gpu::simt;
  return exchange(Scope::warp, "shfl_xor", value)[lane() ^ lanes];
}
template <class T>
T __shfl_sync(unsigned /*mask*/, T value, int from, int width = 32) {
  using namespace splash::gpu::simt;
  return exchange(Scope::warp, "shfl", value)[lane() / width * width + from % width];
}
template <class T>
T __shfl_up_sync(unsigned /*mask*/, T value, int by, int width = 32) {
  using namespace splash::gpu::simt;
  const auto values = exchange(Scope::warp, "shfl_up", value);
  return lane() % width >= by ? values[lane() - by] : value;
}
inline unsigned __ballot_sync(unsigned /*mask*/, bool vote) {
  using namespace splash::gpu::simt;
  const auto votes = exchange(Scope::warp, "ballot", vote);
  unsigned mask_of_votes = 0;
  for (int i = 0; i < 32; ++i) mask_of_votes |= static_cast<unsigned>(votes[i]) << i;
  return mask_of_votes;
}
inline bool __any_sync(unsigned mask, bool vote) {
  return __ballot_sync(mask, vote) != 0;
}
inline bool __all_sync(unsigned mask, bool vote) {
  return __ballot_sync(mask, vote) == 0xFFFFFFFFu;
}
template <class T>
T __reduce_max_sync(unsigned /*mask*/, T value) {
  using namespace splash::gpu::simt;
  const auto values = exchange(Scope::warp, "reduce_max", value);
  for (int i = 0; i < 32; ++i) value = max(value, values[i]);
  return value;
}
inline int __reduce_add_sync(unsigned /*mask*/, int value) {
  using namespace splash::gpu::simt;
  const auto values = exchange(Scope::warp, "reduce_add", value);
  int sum = 0;
  for (int i = 0; i < 32; ++i) sum += values[i];
  return sum;
}
template <class T>
T __reduce_min_sync(unsigned /*mask*/, T value) {
  using namespace splash::gpu::simt;
  const auto values = exchange(Scope::warp, "reduce_min", value);
  for (int i = 0; i < 32; ++i) value = min(value, values[i]);
  return value;
}
inline void __syncwarp() {
  using namespace splash::gpu::simt;
  exchange(Scope::warp, "syncwarp", 0);
}
inline void __threadfence() {}
inline void __syncthreads() {
  using namespace splash::gpu::simt;
  exchange(Scope::block, "syncthreads", 0);
}
inline int __syncthreads_or(int vote) {
  using namespace splash::gpu::simt;
  const auto votes = exchange(Scope::block, "syncthreads_or", vote);
  for (int i = 0; i < votes.size(); ++i) {
    if (votes[i] != 0) return 1;
  }
  return 0;
}
inline int __syncthreads_count(int vote) {
  using namespace splash::gpu::simt;
  const auto votes = exchange(Scope::block, "syncthreads_count", vote);
  int count = 0;
  for (int i = 0; i < votes.size(); ++i) count += votes[i] != 0 ? 1 : 0;
  return count;
}
inline int __syncthreads_and(int vote) {
  return __syncthreads_or(vote == 0) == 0 ? 1 : 0;
}
inline int __ffs(int x) {
  return __builtin_ffs(x);
}
inline int __clz(int x) {
  return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x));
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t both = uint64_t{y} << 32 | x;
  unsigned bytes = 0;
  for (int i = 0; i < 4; ++i)
    bytes |= static_cast<unsigned>(both >> 8 * (selector >> 4 * i & 7) & 0xFF) << 8 * i;
  return bytes;
}
inline int __float_as_int(float x) {
  int bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float __int_as_float(int bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline unsigned __float_as_uint(float x) {
  return static_cast<unsigned>(__float_as_int(x));
}
inline float __uint_as_float(unsigned bits) {
  return __int_as_float(static_cast<int>(bits));
}
inline int __popc(unsigned x) {
  return __builtin_popcount(x);
}
inline int __popcll(unsigned long long x) {
  return __builtin_popcountll(x);
}
inline int __ffsll(long long x) {
  return __builtin_ffsll(x);
}
template <class T>
T __ldg(const T* from) {
  return *from;
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __fmaf_rn(float a, float b, float c) {
  return std::fma(a, b, c);
}
inline float __fmaf_ru(float a, float b, float c) {
  const double exact = std::fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c));
  const float nearest = static_cast<float>(exact);
  return static_cast<double>(nearest) < exact ? std::nextafter(nearest, INFINITY) : nearest;
}
inline float __fmaf_rz(float a, float b, float c) {
  const double exact = std::fma(static_cast<double>(a), static_cast<double>(b), static_cast<double>(c));
  const float nearest = static_cast<float>(exact);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(exact) ? std::nextafter(nearest, 0.0f) : nearest;
}
inline float __saturatef(float x) {
  return x > 0 ? min(x, 1.0f) : 0;
}
inline int __vimax3_s32(int a, int b, int c) {
  return max(max(a, b), c);
}
inline float __fsub_rd(float a, float b) {
  return std::nextafter(a - b, -INFINITY);
}
template <class T, class X>
T atomicAdd(T* to, X x) {
  const T before = *to;
  *to += static_cast<T>(x);
  return before;
}
template <class T>
T atomicSub(T* from, T x) {
  const T before = *from;
  *from -= x;
  return before;
}
inline unsigned atomicOr(unsigned* to, unsigned x) {
  splash::gpu::simt::pause();  // a thread may try until another lets it
  const unsigned before = *to;
  *to |= x;
  return before;
}
inline unsigned atomicAnd(unsigned* to, unsigned x) {
  const unsigned before = *to;
  *to &= x;
  return before;
}
inline int atomicMin(int* to, int x) {
  const int before = *to;
  *to = min(before, x);
  return before;
}
template <class T>
T atomicMax(T* to, T x) {
  const T before = *to;
  *to = max(before, x);
  return before;
}
// NOLINTEND(readability-identifier-naming)
