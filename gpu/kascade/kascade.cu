// What an anchor and the layers behind it launch.

#include "gpu/kascade/kascade.h"

#include <algorithm>

#include "core/error.h"
#include "core/round.h"
#include "gpu/arch/tensor_map.h"
#include "gpu/kascade/pool.cuh"
#include "gpu/kascade/quantize.cuh"
#include "gpu/kascade/reuse.cuh"
#include "gpu/kascade/select.cuh"
#include "gpu/kascade/steps.cuh"
#include "gpu/kascade/values.cuh"

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
  bool attends = false;

  FindPlan(const AttentionSpec& spec, bool attends)
      : problem(Problem::of(spec, kTileRows)),
        lists(problem.items / problem.row_blocks),
        pitch(round_up(problem.kv_len, kKeyGroup)),
        attends(attends) {
    if (problem.tiles == 1 && problem.group * problem.q_len <= kMostStepRows) {
      step_rows = problem.group * problem.q_len;
      chunks = static_cast<int>(ceil_div(problem.kv_len, step_chunk(problem.head_dim, 2)));
    }
  }

  bool by_steps() const { return step_rows > 0; }
  int64_t sums_bytes() const { return pitch * int64_t{sizeof(float)}; }
  bool pools_in_shared() const {
    return by_steps() && problem.kv_len <= int64_t{kMostPooledKeys} * kMostPoolBlocks;
  }
  int64_t partial_bytes() const { return int64_t{chunks} * kStepWarps * step_rows * int64_t{sizeof(float2)}; }
  int64_t value_bytes() const {
    return attends
               ? ceil_div(problem.kv_len, kValueKeys) * step_rows * problem.head_dim * int64_t{sizeof(float)}
               : 0;
  }
  int64_t list_bytes() const {  // 16-byte aligned, as pitch is
    return ((pools_in_shared() ? 0 : 1) + step_rows) * sums_bytes() + round_up(partial_bytes(), 16) +
           value_bytes() + round_up(step_rows * int64_t{sizeof(float)}, 16);
  }
  int64_t most_lists_at_once() const {
    return std::clamp<int64_t>((by_steps() ? kStepSlabBytes : kSlabBytes) / list_bytes(), 1,
                               std::min(lists, kMostLists));
  }
  int64_t fixed_bytes() const {
    return by_steps() ? 0 : kQueueBytes + int64_t{problem.items} * kTileRows * int64_t{sizeof(float)};
  }
};

// A kernel that begins with wait_for_kernels_before: it is launched while the one before still runs.
template <class... Parameters, class... Given>
void launch_clusters(int cluster, const char* name, void (*kernel)(Parameters...), const dim3& blocks,
                     int threads, int64_t shared_bytes, StreamHandle stream, const Given&... given) {
  const auto with_addresses = [&](Parameters... converted) {
    void* addresses[] = {const_cast<void*>(static_cast<const void*>(&converted))...};
    entmax::launch(name, reinterpret_cast<const void*>(kernel), blocks, threads,
                   static_cast<int>(shared_bytes), stream, addresses, true, cluster);
  };
  with_addresses(Parameters(given)...);
}

template <class... Parameters, class... Given>
void launch(const char* name, void (*kernel)(Parameters...), const dim3& blocks, int threads,
            int64_t shared_bytes, StreamHandle stream, const Given&... given) {
  launch_clusters(1, name, kernel, blocks, threads, shared_bytes, stream, given...);
}

template <class Pass>
void sweep(const AnchorSlab& slab, Dtype dtype, StreamHandle stream) {
  const int blocks = std::min(slab.pairs(), device_attribute(cudaDevAttrMultiProcessorCount));
  launch("reset_queue", &reset_queue, 1, 32, 0, stream, slab.queue, blocks);
  with_element_and_dim(dtype, slab.problem.head_dim, [&](auto element, auto dim) {
    launch("sweep_scores", &sweep_scores<decltype(element), dim(), Pass>, static_cast<unsigned>(blocks),
           kSweepThreads, sizeof(AnchorShared<dim()>), stream, slab);
  });
}

void select(const AnchorSlab& slab, int32_t* keys, StreamHandle stream) {
  launch("select_largest", &select_largest, static_cast<unsigned>(slab.lists), kSelectThreads, 0, stream,
         slab, keys);
}

template <int kBytes>
void find_by_steps(const AnchorSlab& slab, const StepRows& steps, Dtype dtype, int32_t* keys,
                   StreamHandle stream) {
  const dim3 grid(static_cast<unsigned>(steps.blocks), static_cast<unsigned>(slab.lists));
  with_element_and_dim(dtype, slab.problem.head_dim, [&](auto element, auto dim) {
    using Element = decltype(element);
    const auto kernel = steps.rows <= 8    ? &score_steps<Element, dim(), 1, kBytes>
                        : steps.rows <= 16 ? &score_steps<Element, dim(), 2, kBytes>
                                           : &score_steps<Element, dim(), 4, kBytes>;
    launch("score_steps", kernel, grid, kStepThreads, sizeof(StepShared<dim(), kBytes>), stream, slab, steps);
  });
  if (slab.pooled == nullptr) {
    const int blocks = pool_blocks(slab.problem.kv_len);
    const int64_t kept = ListKeys::keys_of_block(slab.problem.kv_len, blocks) * int64_t{sizeof(uint32_t)};
    launch_clusters(blocks, "select_pooled", &select_pooled<kBytes>,
                    static_cast<unsigned>(slab.lists * blocks), kSelectThreads, kept, stream, slab, steps,
                    keys);
    return;
  }
  const dim3 pools(static_cast<unsigned>(ceil_div(slab.problem.kv_len, kPoolChunk)), grid.y);
  launch("pool_steps", &pool_steps<kBytes>, pools, kStepThreads, 0, stream, slab, steps);
  select(slab, keys, stream);
}

// Chunks of a block that goes through some: it keeps copies under way from one to the next, but all
// multiprocessors need some blocks.
int rounds_of(int64_t chunks, int64_t lists) {
  const int64_t blocks = 8 * device_attribute(cudaDevAttrMultiProcessorCount);
  return static_cast<int>(std::clamp<int64_t>(chunks * lists / blocks, 1, 8));
}

// values: of weigh_values.
void attend_by_steps(const AnchorSlab& slab, const StepRows& steps, Dtype dtype, float* values,
                     StreamHandle stream) {
  const Problem& p = slab.problem;
  const int64_t chunks = ceil_div(p.kv_len, kValueKeys);
  const auto blocks = static_cast<unsigned>(ceil_div(chunks, rounds_of(chunks, slab.lists))),
             lists = static_cast<unsigned>(slab.lists);
  const auto keys = static_cast<int>(ceil_div(chunks, int64_t{blocks}) * kValueKeys);
  with_element_and_dim<128>(dtype, std::min(p.head_dim, 128), [&](auto element, auto dims) {
    using Element = decltype(element);
    const auto kernel =
        steps.rows <= 16 ? &weigh_values<Element, dims(), 2> : &weigh_values<Element, dims(), 4>;
    const dim3 grid(blocks, lists, static_cast<unsigned>(ceil_div(p.head_dim, dims())));
    launch("weigh_values", kernel, grid, kStepThreads, sizeof(ValueShared<dims()>), stream, slab, steps, keys,
           values);
    launch("add_values", &add_values<Element>, dim3(static_cast<unsigned>(steps.rows), lists), 128, 0, stream,
           slab, steps, values, static_cast<int>(blocks), keys);
  });
}

void require_pitch(int64_t pitch, int64_t kv_len) {
  if (pitch < kv_len || pitch % kKeyGroup != 0)
    throw InvalidArgument("keys in 8 bits have room for " + std::to_string(pitch) +
                          "; it must be a multiple of " + std::to_string(kKeyGroup) +
                          " and at least kv_len, " + std::to_string(kv_len));
}

void require_pages(const Pages& pages, int64_t kv_len) {
  if (pages.table == nullptr) return;
  if (pages.page_size < kKeyGroup || pages.page_size % kKeyGroup != 0 || kv_len % pages.page_size != 0)
    throw InvalidArgument(
        "kv_len is " + std::to_string(kv_len) + ", page_size " + std::to_string(pages.page_size) +
        "; kv_len must be a multiple of page_size, and that of " + std::to_string(kKeyGroup));
  if (pages.pages < 1)
    throw InvalidArgument("a pool of " + std::to_string(pages.pages) + " pages; it must have one at least");
}

// Calls f with the problem of reuse. The rows of a step's queries follow one another, so that a block has all
// of them, up to 128.
template <class F>
auto with_reuse_problem(const AttentionSpec& spec, const Arguments& tensors, F&& f) {
  if (spec.shape.q_len > kTokens) return f(Problem::of(spec, kTileRows, tensors));
  AttentionSpec of_step = spec;
  of_step.selection.block = spec.shape.q_len;
  return f(StepProblem::of(of_step, kTileRows, tensors));
}

// Parts of a list: as many as fill the GPU where lists are few, none of them empty.
template <class P>
int parts_of(const P& p, int64_t most) {
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

int64_t least_find_bytes(const AttentionSpec& spec, bool attends) {
  const FindPlan plan(spec, attends);
  return plan.fixed_bytes() + plan.list_bytes();
}

int64_t find_bytes(const AttentionSpec& spec, bool attends) {
  const FindPlan plan(spec, attends);
  return plan.fixed_bytes() + plan.most_lists_at_once() * plan.list_bytes();
}

void find_keys(const AttentionSpec& spec, Dtype dtype, const FindArguments& arguments) {
  require_taken(spec, dtype);
  const bool attends = arguments.v != nullptr;
  FindPlan plan(spec, attends);
  plan.problem.q = arguments.q;
  plan.problem.k = arguments.k;
  plan.problem.v = arguments.v;
  plan.problem.out = arguments.out;
  plan.problem.k_keep = arguments.most;
  plan.problem.key_counts = arguments.counts;
  plan.problem.starts = arguments.starts;
  plan.problem.pages = arguments.pages;
  const bool paged = arguments.pages.table != nullptr;
  if ((arguments.starts != nullptr || paged || attends) && !plan.by_steps())
    throw Unsupported("find_keys takes starts, pages and values where a key head has at most " +
                      std::to_string(kMostStepRows) + " rows");
  if (paged && (arguments.starts != nullptr || arguments.k8 != nullptr))
    throw Unsupported("find_keys takes pages without starts and without keys in 8 bits");
  require_pages(arguments.pages, plan.problem.kv_len);
  const int64_t room = (arguments.workspace_bytes - plan.fixed_bytes()) / plan.list_bytes();
  if (room < 1)
    throw InvalidArgument("find_keys has " + std::to_string(arguments.workspace_bytes) +
                          " bytes of workspace; it needs " + std::to_string(least_find_bytes(spec, attends)));
  const bool in_8_bits = plan.by_steps() && arguments.k8 != nullptr && !attends;
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
      steps.rounds = rounds_of(steps.chunks, slab.lists);
      steps.blocks = static_cast<int>(ceil_div(steps.chunks, steps.rounds));
      float* const scores = plan.pools_in_shared() ? sums : sums + slab.lists * plan.pitch;
      const int64_t numbers = slab.lists * plan.step_rows * plan.pitch;
      steps.scores = scores;
      steps.weights = reinterpret_cast<__nv_bfloat16*>(scores);  // half of that room
      steps.largest = scores + numbers / 2;
      steps.partial = reinterpret_cast<float2*>(scores + numbers);
      auto* const values = reinterpret_cast<float*>(steps.partial + slab.lists * plan.chunks *
                                                                        int64_t{kStepWarps} * plan.step_rows);
      steps.normalizers = values + slab.lists * plan.value_bytes() / int64_t{sizeof(float)};
      (in_8_bits ? &find_by_steps<1> : &find_by_steps<2>)(slab, steps, dtype, arguments.keys,
                                                          arguments.stream);
      if (attends) attend_by_steps(slab, steps, dtype, values, arguments.stream);
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
    launch("quantize", kernel, grid, kQuantizeThreads, 0, arguments.stream, to);
  });
}

int64_t reuse_bytes(const AttentionSpec& spec, int64_t most) {
  return with_reuse_problem(spec, {}, [&](const auto& p) {
    const int64_t parts = parts_of(p, most);
    return 256 + (parts > 1 ? parts * p.queries() * (p.head_dim + 2) * int64_t{sizeof(float)} : 0);
  });
}

void attend_to_keys(const AttentionSpec& spec, Dtype dtype, const ReuseArguments& arguments) {
  require_taken(spec, dtype);
  const Arguments tensors{.q = arguments.q,
                          .k = arguments.k,
                          .v = arguments.v,
                          .out = arguments.out,
                          .key_indices = arguments.keys,
                          .key_counts = arguments.counts};
  with_reuse_problem(spec, tensors, [&](auto p) {
    using P = decltype(p);
    if (arguments.pages.table != nullptr && p.tiles > 1)
      throw Unsupported("attend_to_keys takes pages where q_len is at most " + std::to_string(kTokens));
    require_pages(arguments.pages, p.kv_len);
    p.k_keep = arguments.most;
    p.anchor_heads = arguments.heads;
    p.pages = arguments.pages;
    p.parts = parts_of(p, arguments.most);
    p.items *= p.parts;
    auto* const queue = static_cast<int*>(arguments.workspace);
    auto* const sums = reinterpret_cast<float*>(queue + 64);  // merge_parts reads four at once
    const Parts parts{.out = sums,
                      .states = reinterpret_cast<float2*>(sums + p.parts * p.queries() * p.head_dim)};
    const int blocks = std::min(p.items, device_attribute(cudaDevAttrMultiProcessorCount));
    const bool queued = p.items > blocks;
    if (queued) launch("reset_queue", &reset_queue, 1, 32, 0, arguments.stream, queue, blocks);
    with_kernel<P>(spec, dtype, [&](auto kernel, int64_t shared_bytes) {
      launch("attend_gathering", kernel, static_cast<unsigned>(blocks), kThreads, shared_bytes,
             arguments.stream, p, queued ? queue : nullptr, parts);
    });
    if (p.parts == 1) return;
    with_element(dtype, [&](auto element) {
      const dim3 grid(static_cast<unsigned>(ceil_div(p.queries(), 4)),
                      static_cast<unsigned>(ceil_div(p.head_dim, 128)));
      launch("merge_parts", &merge_parts<decltype(element), P>, grid, 128, 0, arguments.stream, p, parts);
    });
  });
}

}  // namespace splash::gpu::kascade
