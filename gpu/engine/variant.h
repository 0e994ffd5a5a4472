#pragma once
// One declaration per kernel variant. Tests, benchmarks, the roofline, `splash list variants` and the tables
// in the docs read it. A ladder is a series of variants, its rungs, each of which adds one idea; a new rung
// is one new file under gpu/ladders/. Compiles without nvcc.
//
//   const Variant kVariant{.ladder = "wmma", .rung = 3, .name = "tile-64", .idea = "…", .limits = {…},
//                          .plan = plan, .launch = launch, .trace = trace};
//   const VariantRegistration kRegistration(kVariant);

#include <functional>
#include <string>
#include <vector>

#include "core/attention_spec.h"
#include "core/block_trace.h"
#include "core/dtype.h"
#include "gpu/device.h"
#include "gpu/engine/memory.h"

namespace splash::gpu {

// The problems that a variant takes. Any other is Unsupported.
struct Limits {
  std::vector<Dtype> dtypes;
  int64_t head_dim_min = 8, head_dim_max = 256, head_dim_multiple = 8;
  std::vector<NormalizerKind> normalizers{NormalizerKind::softmax};
  std::vector<SelectionKind> selections{SelectionKind::all};
  std::vector<int64_t> selection_blocks{};  // of top_k_block (keys) and shared_keys (queries); empty: any
  int64_t k_keep_max = 0;                   // of top_k_block; 0: any
  bool causal = false, window = false, positions = false, packed = false;
  bool grouped_heads = true;    // q_heads != kv_heads
  int64_t kv_len_max = 0;       // 0: any
  int compute_capability = 80;  // 75 or 80: the least that runs it; 90: only 9.0 runs it (sm_90a)
};

// The unit whose rate bounds the products.
enum class MathUnit { fp32, tf32, f16 };  // f16 stands for fp16 and bf16 tensor products
const char* to_string(MathUnit unit);     // "float32", "tf32", "float16"

// The work of one kernel of a call; fields as in Work.
struct KernelWork {
  std::string kernel;  // as its trace names it
  double executed_flops = 0, dram_bytes = 0, l2_bytes = 0;
  double exponentials = 0;
};

// Counted by count_work() from the variant's trace, not measured (MATH: Counting).
struct Work {
  double useful_flops = 0;    // 4 d per (query, key) pair that is visible and selected; d: head_dim
  double executed_flops = 0;  // of the products as they run, with padding, masked halves of tiles and repeats
  // Counts each touched byte of Q, K, V, the result and lists of keys once. Workspace that fits in L2 costs
  // no DRAM traffic; for a larger one, each touched byte counts twice, for the write and the read.
  double dram_bytes = 0;
  double l2_bytes = 0;  // bytes that the blocks request, as if L1 held nothing
  // Results of the special function units. Softmax: one per score as executed (padding and masked halves of
  // tiles included) and one per thread that rescales a sum; the few that merge parts of a row are not
  // counted. Entmax with alpha 1.5 or 2: none. Other alphas: NaN, because the data decides. The power
  // normalizer: at most a logarithm and an exponential per selected pair.
  double exponentials = 0;
  std::vector<KernelWork> kernels{};  // in order of launch; DRAM bytes that two kernels touch count for both
};

struct Tile {
  int q = 1, k = 1, d = 0;  // queries, keys and head dimensions per block at a time; d = 0: all
  int stages = 1;           // tiles of K and V in flight
  int instruction_q = 0;  // rows of the multiplying instruction: 64 for wgmma; 0: 16 on tensor cores, else 1
};

struct KernelLaunch {
  std::string name;
  const void* function = nullptr;  // its address; the engine reads attributes and opts in to shared memory
  int64_t blocks = 0;
  int threads = 0;
  int64_t shared_bytes = 0;  // dynamic, per block
};

// What a variant does for one problem: a pure function of the problem and the device.
struct Plan {
  Tile tile{};
  std::vector<KernelLaunch> kernels{};  // in order of launch
  int64_t workspace_bytes = 0;
  MathUnit unit = MathUnit::fp32;
};

// Device addresses of one call. The engine checks that q, k, v and out are contiguous and 16-byte aligned
// before it calls launch.
struct Arguments {
  const void* q = nullptr;               // [batch, q_heads, q_len, head_dim]
  const void* k = nullptr;               // [batch, kv_heads, kv_len, head_dim]
  const void* v = nullptr;               // [batch, kv_heads, kv_len, head_dim]
  void* out = nullptr;                   // [batch, q_heads, q_len, head_dim]
  const int32_t* q_positions = nullptr;  // [batch, q_heads, q_len], with Mask::positions
  const int32_t* k_positions = nullptr;  // [batch, q_heads, kv_len]
  const int32_t* key_indices =
      nullptr;  // [batch, kv_heads, q_tiles, k_keep], with Selection shared_keys; -1 pads
  const int32_t* key_counts = nullptr;  // [batch, kv_heads, q_tiles]: entries before the padding
  void* workspace = nullptr;            // Plan::workspace_bytes, 256-byte aligned, contents undefined
  StreamHandle stream = nullptr;
};

// An instrumented twin of a variant's kernel, for `gpu_bench --profile`. Empty if the variant has none.
struct PhaseProfile {
  std::vector<std::string> phases{};
  // Enqueues it. The kernel adds the cycles that all warps together spend in each phase to the workspace, one
  // uint64_t per phase, and writes the result as launch does.
  std::function<void(const AttentionSpec&, Dtype, const Plan&, const Arguments&)> launch{};
};

// The speed-up that the source document predicts for this rung.
struct Prediction {
  std::string over;          // the rung it is compared with, for example "0-one-query"
  double low = 0, high = 0;  // time of that rung / time of this one; 0: no prediction
  std::string claim{};       // its entry in data/claims
};

// Largest allowed ||out - oracle||^2 / ||oracle||^2 against the double oracle on the rounded inputs.
struct Tolerance {
  double f32 = 1e-11, f16 = 2e-6, bf16 = 4e-5;
  bool half_scores = false;  // also allows what rounding every score to fp16 loses on this problem
  double of(Dtype dtype) const;
};

struct Variant {
  std::string ladder;     // its folder in gpu/ladders, such as "wmma"
  int rung = 0;           // order of the story
  std::string name;       // kebab-case, unique in the ladder
  std::string idea;       // what is new, one sentence
  std::string finding{};  // after measuring: why it gains what it gains, one candid sentence
  Prediction predicted{};
  Limits limits{};
  Tolerance tolerance{};
  bool backward = false;  // gpu/entmax/attention.h computes its gradients
  std::function<Plan(const AttentionSpec&, Dtype, const DeviceInfo&)> plan{};
  // Enqueues the plan's kernels and nothing else: no allocation, no waiting. May be captured into a graph.
  std::function<void(const AttentionSpec&, Dtype, const Plan&, const Arguments&)> launch{};
  // What the plan's kernels read, write and multiply, as far as the data does not decide it. The traces refer
  // to the spec and the plan, which must outlive them.
  std::function<std::vector<KernelTrace>(const AttentionSpec&, Dtype, const Plan&)> trace{};
  PhaseProfile profile{};

  std::string id() const;  // "wmma/3-tile-64"
};

// By ladder, then rung. Empty in a build without CUDA.
const std::vector<const Variant*>& all_variants();
const Variant& find_variant(const std::string& id);  // InvalidArgument, naming the ladder's, or NotBuilt

// Why a variant cannot take a problem, one clause that names the limit; empty if it can.
std::string unsupported_reason(const Variant& variant, const AttentionSpec& spec, Dtype dtype,
                               const DeviceInfo& device);

// Throws Unsupported unless the variant takes the problem. The message names the limit and the variants that
// take the problem.
void require_supported(const Variant& variant, const AttentionSpec& spec, Dtype dtype,
                       const DeviceInfo& device);

struct VariantRegistration {
  explicit VariantRegistration(const Variant& variant);
};

}  // namespace splash::gpu
