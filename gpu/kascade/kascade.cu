// What an anchor and the layers behind it launch.

#include "gpu/kascade/kascade.h"

#include <algorithm>

#include "core/error.h"
#include "core/round.h"
#include "gpu/arch/tensor_map.h"
#include "gpu/kascade/quantize.cuh"
#include "gpu/kascade/reuse.cuh"
#include "gpu/kascade/select.cuh"
#include "gpu/kascade/steps.cuh"

namespace splash::gpu::kascade {
namespace {

constexpr int64_t kSlabBytes = int64_t{256} << 20;      // of lists at once: enough to fill a GPU
constexpr int64_t kStepSlabBytes = int64_t{384} << 20;  // by steps.cuh, where each kernel's end costs more
constexpr int64_t kQueueBytes = 256;
constexpr int64_t kMostLists = 65535;  // at once: the second extent of a grid

void require_taken(const AttentionSpec& spec, Dtype dtype) {
  const std::string reason = not_taken_here(spec, dtype, kTokens);
  if (!reason.empty()) throw Unsupported("Kascade's kernels do not take " + reason);
}

// The workspace of find_keys: first what all lists need, then as many lists as there is room for.
struct FindPlan {
  Problem problem;
  int64_t lists = 0, pitch = 0;
  int step_rows = 0, chunks = 0;  // of steps.cuh; 0: not by it. Chunks of keys in 16 bits, which are more

  explicit FindPlan(const AttentionSpec& spec)
      : problem(Problem::of(spec, kTileRows)),
        lists(problem.items / problem.row_blocks),
        pitch(round_up(problem.kv_len, kKeyGroup)) {
    if (problem.tiles == 1 && problem.group * problem.q_len <= kMostStepRows) {
      step_rows = problem.group * problem.q_len;
      chunks = static_cast<int>(ceil_div(problem.kv_len, step_chunk(problem.head_dim, 2)));
    }
  }

  bool by_steps() const { return step_rows > 0; }
  int64_t sums_bytes() const { return pitch * int64_t{sizeof(float)}; }
  bool pools_in_shared() const { return by_steps() && problem.kv_len <= kMostPooled; }
  int64_t partial_bytes() const { return int64_t{chunks} * step_rows * int64_t{sizeof(float2)}; }
  int64_t list_bytes() const {  // 16-byte aligned, as pitch is
    return ((pools_in_shared() ? 0 : 1) + step_rows) * sums_bytes() + round_up(partial_bytes(), 16);
  }
  int64_t most_lists_at_once() const {
    return std::clamp<int64_t>((by_steps() ? kStepSlabBytes : kSlabBytes) / list_bytes(), 1,
                               std::min(lists, kMostLists));
  }
  int64_t fixed_bytes() const {
    return by_steps() ? 0 : kQueueBytes + int64_t{problem.items} * kTileRows * int64_t{sizeof(float)};
  }
};

template <class Kernel, class... Given>
void launch(const char* name, Kernel kernel, const dim3& blocks, int threads, int64_t shared_bytes,
            StreamHandle stream, const Given&... given) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shared_bytes)),
             std::string("opt in to shared memory for ") + name);
  kernel<<<blocks, static_cast<unsigned>(threads), static_cast<size_t>(shared_bytes), stream>>>(given...);
  check_launch(name);
}

template <class Pass>
void sweep(const AnchorSlab& slab, Dtype dtype, StreamHandle stream) {
  const int blocks = std::min(slab.pairs(), device_attribute(cudaDevAttrMultiProcessorCount));
  reset_queue<<<1, 32, 0, stream>>>(slab.queue, blocks);
  check_launch("reset_queue");
  with_element_and_dim(dtype, slab.problem.head_dim, [&](auto element, auto dim) {
    launch("sweep_scores", &sweep_scores<decltype(element), dim(), Pass>, static_cast<unsigned>(blocks),
           kSweepThreads, sizeof(AnchorShared<dim()>), stream, slab);
  });
}

void select(const AnchorSlab& slab, int32_t* keys, StreamHandle stream) {
  select_largest<<<static_cast<unsigned>(slab.lists), kSelectThreads, 0, stream>>>(slab, keys);
  check_launch("select_largest");
}

template <int kBytes>
void find_by_steps(const AnchorSlab& slab, const StepRows& steps, Dtype dtype, int32_t* keys,
                   StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(steps.chunks), static_cast<unsigned>(slab.lists));
  with_element_and_dim(dtype, slab.problem.head_dim, [&](auto element, auto dim) {
    using Element = decltype(element);
    const auto kernel = steps.rows <= 8    ? &score_steps<Element, dim(), 1, kBytes>
                        : steps.rows <= 16 ? &score_steps<Element, dim(), 2, kBytes>
                                           : &score_steps<Element, dim(), 4, kBytes>;
    launch("score_steps", kernel, grid, kStepThreads, sizeof(StepShared<dim(), kBytes>), stream, slab, steps);
  });
  if (slab.pooled == nullptr) {
    launch("select_pooled", &select_pooled<kBytes>, static_cast<unsigned>(slab.lists), kPoolThreads,
           slab.pitch * int64_t{sizeof(float)}, stream, slab, steps, keys);
    return;
  }
  const dim3 pools(static_cast<unsigned>(ceil_div(slab.problem.kv_len, kPoolChunk)), grid.y);
  pool_steps<kBytes><<<pools, kStepThreads, 0, stream>>>(slab, steps);
  check_launch("pool_steps");
  select(slab, keys, stream);
}

void require_pitch(int64_t pitch, int64_t kv_len) {
  if (pitch < kv_len || pitch % kKeyGroup != 0)
    throw InvalidArgument("keys in 8 bits have room for " + std::to_string(pitch) +
                          "; it must be a multiple of " + std::to_string(kKeyGroup) +
                          " and at least kv_len, " + std::to_string(kv_len));
}

// Parts of a list: as many as fill the GPU where lists are few, none of them empty.
int parts_of(const Problem& p, int64_t most) {
  const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount);
  const auto tiles = static_cast<int>(std::max<int64_t>(1, ceil_div(most, kTileRows)));
  return std::clamp(multiprocessors / p.items, 1, tiles);
}

}  // namespace

std::string not_taken(const AttentionSpec& spec, Dtype dtype, int64_t tile, int capability) {
  using std::to_string;
  if (capability != 90)
    return "a GPU of compute capability " + to_string(capability / 10) + "." + to_string(capability % 10);
  if (dtype != Dtype::f16 && dtype != Dtype::bf16) return std::string(splash::to_string(dtype));
  if (spec.normalizer.kind != NormalizerKind::softmax)
    return std::string(splash::to_string(spec.normalizer.kind));
  if (spec.shape.head_dim % 8 != 0 || spec.shape.head_dim > kMostHeadDim)
    return "a head_dim of " + to_string(spec.shape.head_dim);
  if (tile != kTokens) return "tiles of " + to_string(tile) + " queries";
  if (!spec.mask.causal) return "a mask that is not causal";
  return "";
}

std::string not_taken_here(const AttentionSpec& spec, Dtype dtype, int64_t tile) {
  return not_taken(spec, dtype, tile,
                   10 * device_attribute(cudaDevAttrComputeCapabilityMajor) +
                       device_attribute(cudaDevAttrComputeCapabilityMinor));
}

int64_t least_find_bytes(const AttentionSpec& spec) {
  const FindPlan plan(spec);
  return plan.fixed_bytes() + plan.list_bytes();
}

int64_t find_bytes(const AttentionSpec& spec) {
  const FindPlan plan(spec);
  return plan.fixed_bytes() + plan.most_lists_at_once() * plan.list_bytes();
}

void find_keys(const AttentionSpec& spec, Dtype dtype, const FindArguments& arguments) {
  require_taken(spec, dtype);
  FindPlan plan(spec);
  plan.problem.q = arguments.q;
  plan.problem.k = arguments.k;
  plan.problem.k_keep = arguments.most;
  plan.problem.key_counts = arguments.counts;
  plan.problem.starts = arguments.starts;
  if (arguments.starts != nullptr && !plan.by_steps())
    throw Unsupported("find_keys takes starts where a key head has at most " + std::to_string(kMostStepRows) +
                      " rows");
  const int64_t room = (arguments.workspace_bytes - plan.fixed_bytes()) / plan.list_bytes();
  if (room < 1)
    throw InvalidArgument("find_keys has " + std::to_string(arguments.workspace_bytes) +
                          " bytes of workspace; it needs " + std::to_string(least_find_bytes(spec)));
  const bool in_8_bits = plan.by_steps() && arguments.k8 != nullptr;
  if (in_8_bits) require_pitch(arguments.k8_pitch, plan.problem.kv_len);
  const AttentionShape& s = spec.shape;
  const auto tiles_of = [&](const void* data, int64_t heads, int64_t length, int rows) {
    return arch::encode_tiles({.data = data,
                               .dtype = dtype,
                               .heads = s.batch * heads,
                               .length = length,
                               .dim = s.head_dim,
                               .tile_rows = rows,
                               .tile_columns = 64});
  };
  auto* const workspace = static_cast<char*>(arguments.workspace);
  AnchorSlab slab{.queries = {}, .keys = {}, .problem = plan.problem, .pitch = plan.pitch};
  if (!plan.by_steps()) {
    slab.queries = tiles_of(arguments.q, s.q_heads, s.q_len, kTokens);
    slab.keys = tiles_of(arguments.k, s.kv_heads, s.kv_len, kTileRows);
    slab.queue = reinterpret_cast<int*>(workspace);
    slab.normalizers = reinterpret_cast<float*>(workspace + kQueueBytes);
    slab.given_normalizers = arguments.normalizers;
    if (arguments.normalizers == nullptr) {
      slab.lists = static_cast<int>(plan.lists);
      sweep<RowNormalizers>(slab, dtype, arguments.stream);
    }
  }
  StepRows steps{.rows = plan.step_rows,
                 .chunks = in_8_bits
                               ? static_cast<int>(ceil_div(plan.problem.kv_len, step_chunk(s.head_dim, 1)))
                               : plan.chunks};
  if (in_8_bits) {
    steps.k8 = arguments.k8;
    steps.k8_scales = arguments.k8_scales;
    steps.k8_pitch = arguments.k8_pitch;
  }
  auto* const sums = reinterpret_cast<float*>(workspace + plan.fixed_bytes());
  slab.pooled = plan.pools_in_shared() ? nullptr : sums;
  for (int64_t first = 0; first < plan.lists; first += slab.lists) {
    slab.first = static_cast<int>(first);
    slab.lists = static_cast<int>(std::min({room, plan.lists - first, kMostLists}));
    if (plan.by_steps()) {
      float* const scores = plan.pools_in_shared() ? sums : sums + slab.lists * plan.pitch;
      const int64_t numbers = slab.lists * plan.step_rows * plan.pitch;
      steps.scores = scores;
      steps.weights = reinterpret_cast<__nv_bfloat16*>(scores);  // half of that room
      steps.largest = scores + numbers / 2;
      steps.partial = reinterpret_cast<float2*>(scores + numbers);
      (in_8_bits ? &find_by_steps<1> : &find_by_steps<2>)(slab, steps, dtype, arguments.keys,
                                                          arguments.stream);
    } else {
      sweep<PooledProbabilities>(slab, dtype, arguments.stream);
      select(slab, arguments.keys, arguments.stream);
    }
  }
}

void quantize_keys(const AttentionSpec& spec, Dtype dtype, const QuantizeArguments& arguments) {
  require_taken(spec, dtype);
  const AttentionShape& shape = spec.shape;
  require_pitch(arguments.pitch, shape.kv_len);
  const int64_t count = shape.kv_len - arguments.begin, heads = shape.batch * shape.kv_heads;
  if (count <= 0 || heads == 0) return;
  const KeysIn8Bits to{.k = arguments.k,
                       .codes = arguments.k8,
                       .scales = arguments.k8_scales,
                       .heads = heads,
                       .kv_len = shape.kv_len,
                       .pitch = arguments.pitch,
                       .begin = arguments.begin,
                       .head_dim = static_cast<int>(shape.head_dim)};
  const int key_lanes = shape.head_dim > 128 ? 32 : 16;
  const dim3 grid(static_cast<unsigned>(ceil_div(count, kQuantizeThreads / key_lanes)),
                  static_cast<unsigned>(std::min(heads, kMostLists)));
  with_element(dtype, [&](auto element) {
    const auto kernel = key_lanes == 16 ? &quantize<decltype(element), 16> : &quantize<decltype(element), 32>;
    kernel<<<grid, kQuantizeThreads, 0, arguments.stream>>>(to);
  });
  check_launch("quantize");
}

int64_t reuse_bytes(const AttentionSpec& spec, int64_t most) {
  const Problem p = Problem::of(spec, kTileRows);
  const int64_t parts = parts_of(p, most);
  return 256 + (parts > 1 ? parts * p.queries() * (p.head_dim + 2) * int64_t{sizeof(float)} : 0);
}

void attend_to_keys(const AttentionSpec& spec, Dtype dtype, const ReuseArguments& arguments) {
  require_taken(spec, dtype);
  Problem p = Problem::of(spec, kTileRows,
                          {.q = arguments.q,
                           .k = arguments.k,
                           .v = arguments.v,
                           .out = arguments.out,
                           .key_indices = arguments.keys,
                           .key_counts = arguments.counts});
  p.k_keep = arguments.most;
  p.anchor_heads = arguments.heads;
  p.parts = parts_of(p, arguments.most);
  p.items *= p.parts;
  auto* const queue = static_cast<int*>(arguments.workspace);
  auto* const states = reinterpret_cast<float2*>(queue + 64);
  const Parts parts{.out = reinterpret_cast<float*>(states + p.parts * p.queries()), .states = states};
  const int blocks = std::min(p.items, device_attribute(cudaDevAttrMultiProcessorCount));
  reset_queue<<<1, 32, 0, arguments.stream>>>(queue, blocks);
  check_launch("reset_queue");
  with_kernel(spec, dtype, [&](auto kernel, int64_t shared_bytes) {
    launch("attend_gathering", kernel, static_cast<unsigned>(blocks), kThreads, shared_bytes,
           arguments.stream, p, queue, parts);
  });
  if (p.parts == 1) return;
  with_element(dtype, [&](auto element) {
    const dim3 grid(static_cast<unsigned>(ceil_div(p.queries(), 4)),
                    static_cast<unsigned>(ceil_div(p.head_dim, 128)));
    merge_parts<decltype(element)><<<grid, 128, 0, arguments.stream>>>(p, parts);
  });
  check_launch("merge_parts");
}

}  // namespace splash::gpu::kascade
