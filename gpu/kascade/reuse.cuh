#pragma once
// Attention to the keys of lists (sm_90a): persistent blocks in which one warpgroup gathers and two multiply.
// Rungs 5 and 6 of the ladder kascade say why, and what it gains.

#include "gpu/arch/cp_async_4.cuh"
#include "gpu/kascade/consumer.cuh"

namespace splash::gpu::kascade {

// Keys of a tile, and tiles of K and of V that shared memory holds. Beside a thread's sums of head_dim 256,
// registers hold half as many scores.
template <int kDim>
constexpr int kTileKeys = kDim > 128 ? 64 : 128;
template <int kDim>
constexpr int kStages = kDim > 128 ? 2 : 3;

// Tiles whose keys a lane reads at once, as many tiles before it needs them. A read takes as long as the
// copies of a tile; read one tile ahead, it was what producers waited for.
constexpr int kTilesAhead = 4;

template <int kDim>
struct Shared {
  static constexpr int kKeyBytes = kTileBytes<kDim, kTileKeys<kDim>>;
  alignas(1024) unsigned char q[kTileBytes<kDim>], k[kStages<kDim>][kKeyBytes], v[kStages<kDim>][kKeyBytes];
  uint64_t k_full[kStages<kDim>], k_empty[kStages<kDim>], v_full[kStages<kDim>], v_empty[kStages<kDim>],
      q_full, q_empty;
  int keys[kStages<kDim>][kTileKeys<kDim>];  // of tiles that need masking; arrive with k
  int item, visible;  // the item to work on (-1: none) and its visible keys; arrive with q
  int next_item[2];   // passes the leader's item to the other producers
};

template <int kDim>
__device__ void prepare_barriers(Shared<kDim>& shared) {
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages<kDim>; ++i) {
      arch::mbarrier_init(&shared.k_full[i], kProducers);
      arch::mbarrier_init(&shared.v_full[i], kProducers);
      arch::mbarrier_init(&shared.k_empty[i], kConsumerWarps);
      arch::mbarrier_init(&shared.v_empty[i], kConsumerWarps);
    }
    arch::mbarrier_init(&shared.q_full, kProducers + 1);  // one more, after item and visible are written
    arch::mbarrier_init(&shared.q_empty, 32 * kConsumerWarps);  // every thread has read item and visible
    arch::mbarrier_init_fence();
  }
  __syncthreads();
}

// Of a list with so many visible keys: whole tiles of 128.
template <class P>
__device__ int keys_of_part(const P& p, int visible) {
  const int tiles = (visible + kTileRows - 1) / kTileRows;
  return (tiles + p.parts - 1) / p.parts * kTileRows;
}

// Loads an item's first tiles of keys before its queries, because the last product of the previous item frees
// the place of the queries: until then all stages but that product's have copies under way.
template <int kDim, class P>
__device__ void produce(const P& p, Shared<kDim>& shared, int* queue) {
  constexpr int kKeys = kTileKeys<kDim>;
  const ProducerShare<kDim, kKeys> share(p.head_dim);
  const ProducerShare<kDim> of_queries(p.head_dim);
  const bool leader = threadIdx.x % kProducers == 0;
  const uint32_t row_bytes = p.head_dim * 2;
  arch::RingPosition<kStages<kDim>> turn;
  arch::RingPosition<2> next_turn;
  arch::RingPosition<1> q_turn;
  // Tells the consumers the next item. The end of q_empty's phase says that they have read the previous one.
  const auto announce = [&](int item, int visible) {
    if (leader) {
      shared.item = item;
      shared.visible = visible;
      arch::mbarrier_arrive(&shared.q_full);
    }
    arch::cp_async_arrive(&shared.q_full);
  };
  // What is read of an item before its turn: the end of its list and the keys of its first tiles.
  const auto count_of = [&](int item) { return item < p.items ? p.count(p.address(item)) : 0; };
  // Places past the end repeat the last key: their scores are hidden, and no row is read that the list does
  // not name.
  const auto key_at = [&](const int32_t* keys, int begin, int end) {
    return keys[min(begin + share.held_row(), end - 1)];
  };
  int ahead[kTilesAhead] = {};  // keys of the tiles behind those of rows
  const auto read_ahead = [&](const int32_t* keys, int begin, int end) {
    if (end == 0) return;
#pragma unroll
    for (int i = 0; i < kTilesAhead; ++i) ahead[i] = key_at(keys, begin + i * kKeys, end);
  };
  int last = 0;  // entry of a list
  const auto read_first = [&](int item, int count) {
    if (count == 0) return;
    const int32_t* const keys = p.keys(p.address(item));
    last = keys[count - 1];
    read_ahead(keys, 0, count);  // mostly all keys are visible
  };
  int item = blockIdx.x, count = count_of(item);
  read_first(item, count);
  while (item < p.items) {
    int next = item + gridDim.x;
    if (queue != nullptr && leader) next = atomicAdd(queue, 1);  // long before it is needed
    const TileAddress at = p.address(item);
    const int32_t* keys = p.keys(at);
    const int limit = p.last_key(at) - p.missing(at);
    int visible = last <= limit ? count : entries_up_to(keys, count, limit);
    if (p.parts > 1) {
      const int first = min(item % p.parts * keys_of_part(p, visible), visible);
      keys += first;
      visible = min(visible - first, keys_of_part(p, visible));
    }
    if (visible < count) read_ahead(keys, 0, visible);
    uint32_t rows[kTilesAhead] = {};
    int next_count = 0;
    const int64_t first_row = p.first_row(at), first_query = at.kv_head * p.group * p.q_len;
    const char* const k = static_cast<const char*>(p.k) + first_row * row_bytes;
    const char* const v = static_cast<const char*>(p.v) + first_row * row_bytes;
    const auto load_keys = [&](int begin) {
      const int tile = begin / kKeys % kTilesAhead;
      if (tile == 0) {
#pragma unroll
        for (int i = 0; i < kTilesAhead; ++i) rows[i] = p.row_of(at, ahead[i]);
        const int behind = begin + kTilesAhead * kKeys;
        if (behind < visible) {
          read_ahead(keys, behind, visible);
        } else if (begin > 0) {
          read_first(next, next_count);
        }
      }
      uint32_t source = rows[0];
#pragma unroll
      for (int i = 1; i < kTilesAhead; ++i) source = tile == i ? rows[i] : source;
      arch::mbarrier_wait(&shared.k_empty[turn.stage], turn.parity ^ 1);
      share.copy(shared.k[turn.stage], k, row_bytes, source);
      const int place = begin + threadIdx.x % kProducers;
      if (p.masks(begin, kKeys, visible) && threadIdx.x % kProducers < kKeys && place < visible)
        arch::cp_async_4(&shared.keys[turn.stage][place - begin], keys + place);
      arch::cp_async_arrive(&shared.k_full[turn.stage]);
      arch::mbarrier_wait(&shared.v_empty[turn.stage], turn.parity ^ 1);
      share.copy(shared.v[turn.stage], v, row_bytes, source);
      arch::cp_async_arrive(&shared.v_full[turn.stage]);
      turn.next();
    };
    const auto load_queries = [&] {
      const int64_t query =
          max(p.query_row(at, of_queries.held_row()), first_query);  // rows that are not there repeat one
      arch::mbarrier_wait(&shared.q_empty, q_turn.parity ^ 1);
      of_queries.copy(shared.q, static_cast<const char*>(p.q) + first_query * row_bytes, row_bytes,
                      static_cast<uint32_t>(query - first_query));
      announce(item, visible);
      q_turn.next();
    };
    int begin = 0;
    for (; begin < min(visible, (kStages<kDim> - 1) * kKeys); begin += kKeys) load_keys(begin);
    load_queries();
    if (queue != nullptr) {  // two places: all have read one when the leader writes it again, a barrier later
      if (leader) shared.next_item[next_turn.stage] = next;
      arch::named_barrier_sync(1, kProducers);
      next = shared.next_item[next_turn.stage];
      next_turn.next();
    }
    next_count = count_of(next);
    for (; begin < visible; begin += kKeys) load_keys(begin);
    if (visible <= kTilesAhead * kKeys) read_first(next, next_count);  // no load_keys did
    item = next;
    count = next_count;
  }
  arch::mbarrier_wait(&shared.q_empty, q_turn.parity ^ 1);
  announce(-1, 0);
  arch::cp_async_commit();
  arch::cp_async_wait<0>();  // no thread exits before its copies have landed
}

template <class Element, int kDim, class P>
__device__ void store_rows(const P& p, const TileAddress& at, int row, const float (&o)[kDim / 2],
                           const RowState (&state)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t query = p.query_row(at, row + 8 * half);
    const float inverse = inverse_or_zero(quad_sum(state[half].sum));
    if (query < 0) continue;
    Element* const out = static_cast<Element*>(p.out) + query * p.head_dim;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      const int column = 8 * j + threadIdx.x % 4 * 2;
      if (column >= p.head_dim) break;
      *reinterpret_cast<uint32_t*>(out + column) =
          arch::pack_pair<Element>(o[4 * j + 2 * half] * inverse, o[4 * j + 2 * half + 1] * inverse);
    }
  }
}

// What the parts of a list leave for merge_parts.
struct Parts {
  float* out = nullptr;  // [parts, batch q_heads q_len, head_dim]: sums of 2^(score - largest) v
  float2* states =
      nullptr;  // [parts, batch q_heads q_len]: largest score, times scale, and sum of 2^(score - largest)
};

template <int kDim, class P>
__device__ void store_part(const P& p, const Parts& parts, const TileAddress& at, int row, int64_t part,
                           const float (&o)[kDim / 2], const RowState (&state)[2]) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t query = p.query_row(at, row + 8 * half);
    const float sum = quad_sum(state[half].sum);
    if (query < 0) continue;
    const int64_t place = part * p.queries() + query;
    if (threadIdx.x % 4 == 0) parts.states[place] = {__fmul_rn(state[half].largest, p.scale), sum};
    float* const out = parts.out + place * p.head_dim;
#pragma unroll
    for (int j = 0; j < kDim / 8; ++j) {
      const int column = 8 * j + threadIdx.x % 4 * 2;
      if (column >= p.head_dim) break;
      *reinterpret_cast<float2*>(out + column) = {o[4 * j + 2 * half], o[4 * j + 2 * half + 1]};
    }
  }
}

// One warp for 128 columns of a query.
template <class Element, class P>
__global__ void __launch_bounds__(128) merge_parts(const P p, const Parts parts) {
  entmax::wait_for_kernels_before();
  const int64_t query = int64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  if (query >= p.queries()) return;
  float largest = -INFINITY, sum = 0;
  for (int part = 0; part < p.parts; ++part)
    largest = arch::larger_or_nan(largest, parts.states[part * p.queries() + query].x);
  const float shift = largest == -INFINITY ? 0.0f : largest;
  const int column = static_cast<int>(blockIdx.y * 128 + threadIdx.x % 32 * 4);
  float4 o{};
  for (int part = 0; part < p.parts; ++part) {
    const int64_t place = part * p.queries() + query;
    const float weight = exp2f(parts.states[place].x - shift);
    sum += weight * parts.states[place].y;
    if (column >= p.head_dim) continue;
    const float4 of_part = *reinterpret_cast<const float4*>(parts.out + place * p.head_dim + column);
    o = {fmaf(weight, of_part.x, o.x), fmaf(weight, of_part.y, o.y), fmaf(weight, of_part.z, o.z),
         fmaf(weight, of_part.w, o.w)};
  }
  if (column >= p.head_dim) return;
  const float inverse = inverse_or_zero(sum);
  *reinterpret_cast<uint2*>(static_cast<Element*>(p.out) + query * p.head_dim + column) = {
      arch::pack_pair<Element>(o.x * inverse, o.y * inverse),
      arch::pack_pair<Element>(o.z * inverse, o.w * inverse)};
}

template <class Element, int kDim, class P>
__device__ void consume(const P& p, Shared<kDim>& shared, const Parts& parts) {
  const int group = consumer_group(), row = group * 64 + threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4;
  const uint64_t q = arch::k_major_descriptor(shared.q + group * 64 * 128);
  constexpr int kKeys = kTileKeys<kDim>, kScores = kKeys / 2;
  arch::RingPosition<kStages<kDim>> k_turn, v_turn;
  arch::RingPosition<1> q_turn;
  while (true) {
    acquire(&shared.q_full, q_turn.parity);
    if (shared.item < 0) break;
    q_turn.next();
    const TileAddress at = p.address(shared.item);
    const int visible = shared.visible, part = shared.item % p.parts;
    if (at.first_row + group * 64 >= p.group * p.tokens()) {  // rows of no head
      arch::mbarrier_arrive(&shared.q_empty);
      for (int begin = 0; begin < visible; begin += kKeys) {
        arch::mbarrier_wait(&shared.k_full[k_turn.stage], k_turn.parity);
        release(&shared.k_empty[k_turn.stage]);
        k_turn.next();
        arch::mbarrier_wait(&shared.v_full[v_turn.stage], v_turn.parity);
        release(&shared.v_empty[v_turn.stage]);
        v_turn.next();
      }
      continue;
    }
    float s[kScores], o[kDim / 2] = {}, factor[2];
    uint32_t probabilities[kScores / 8][4];
    RowState state[2];
    const auto take_scores = [&](int begin) {
      arch::wgmma_hold(s);
      if (p.masks(begin, kKeys, visible)) {
        mask_scores(
            s, p, at, row,
            [&](int column) {
              return begin + column < visible ? shared.keys[k_turn.stage][column] : kHiddenKey;
            },
            p.missing(at));
      }
      release(&shared.k_empty[k_turn.stage]);
      if (begin + kKeys >= visible) arch::mbarrier_arrive(&shared.q_empty);
      k_turn.next();
      online_softmax(s, state, factor, p.scale, quad_max_or_nan);
    };
    const auto issue_next_scores = [&] {
      acquire(&shared.k_full[k_turn.stage], k_turn.parity);
      issue_scores<Element, kDim>(s, q, arch::k_major_descriptor(shared.k[k_turn.stage]));
    };
    const auto issue_next_values = [&] {
      acquire(&shared.v_full[v_turn.stage], v_turn.parity);
      issue_values<Element, kDim>(o, probabilities,
                                  arch::mn_major_descriptor(shared.v[v_turn.stage], kKeys * 128));
    };
    const auto take_values = [&] {
      arch::wgmma_wait<0>();
      arch::wgmma_hold(o);
      release(&shared.v_empty[v_turn.stage]);
      v_turn.next();
    };
    if (visible == 0) arch::mbarrier_arrive(&shared.q_empty);
    if (visible > 0) {
      issue_next_scores();
      arch::wgmma_wait<0>();
      take_scores(0);
      pack_probabilities<Element>(probabilities, s);
      for (int begin = kKeys; begin < visible; begin += kKeys) {
        issue_next_scores();
        issue_next_values();
        arch::wgmma_wait<1>();
        take_scores(begin);  // runs beside the previous tile's P V
        take_values();
#pragma unroll
        for (int i = 0; i < kDim / 2; ++i) o[i] *= factor[i % 4 / 2];
        pack_probabilities<Element>(probabilities, s);
      }
      issue_next_values();
      take_values();
    }
    if (p.parts == 1) {
      store_rows<Element, kDim>(p, at, row, o, state);
    } else {
      store_part<kDim>(p, parts, at, row, part, o, state);
    }
  }
}

// Lets the next kernel be launched before it waits itself, for it takes less time than a launch.
static __global__ void reset_queue(int* queue, int taken) {
  entmax::let_next_kernel_start();
  entmax::wait_for_kernels_before_alone();
  if (threadIdx.x == 0) *queue = taken;
}

// `queue` counts the items that blocks have taken; it starts at one item per block. Null: block b takes items
// b, b + blocks, ...
template <class Element, int kDim, class P>
__global__ void __launch_bounds__(kThreads, 1) attend_gathering(const P p, int* queue, const Parts parts) {
  extern __shared__ __align__(1024) unsigned char shared_memory[];
  auto& shared = *reinterpret_cast<Shared<kDim>*>(shared_memory);
  prepare_barriers(shared);
  entmax::wait_for_kernels_before();
  if (threadIdx.x < kProducers) {
    arch::give_registers_back<72>();
    produce(p, shared, queue);
  } else {
    arch::take_registers<216>();
    consume<Element>(p, shared, parts);
  }
}

// Calls f with a kernel for such problems and the bytes of its shared memory. kMost: as of
// with_element_and_dim.
template <class P, int kMost = kMostHeadDim, class F>
auto with_kernel(const AttentionSpec& spec, Dtype dtype, F&& f) {
  return with_element_and_dim<kMost>(dtype, spec.shape.head_dim, [&](auto element, auto dim) {
    return f(&attend_gathering<decltype(element), dim(), P>, int64_t{sizeof(Shared<dim()>)});
  });
}

}  // namespace splash::gpu::kascade
