// Chooses the block for the problem (source 001, section 3: "dynamic block sizing based on head dimension,
// sequence length, memory constraints"). The candidates are the tiles of rungs 2 and 3, for lists that 32
// tokens share, and the blocks of rung 7, for lists that more tokens share. The cheapest plan wins.
//
// The rule: among the candidates that support the problem and fit the device's shared memory, minimise
//   cost = turns x blocks per SM x (rows of a block / 128) x (padded keys of the longest list / 128)
//          x (work + loads head_dim / 128 + meeting)
//   turns = ceil(blocks / (SMs x blocks per SM))
// Shared memory limits the blocks per SM. Rows that a tile lacks, a last turn that fills few SMs, and keys
// that pad a tile all cost. work, loads and meeting (the cluster's barriers) are microseconds per 128 rows x
// 128 keys. For rungs 2 and 3, work + loads at head_dim 128 is measured (32k keys on an H200: ms / 825 tiles
// per SM), and rung 4's time, which has no loads to wait for, tells work from loads. For rung 7 the numbers
// are the arithmetic of its header. A measurement of the problem on this GPU (`splash tune kernels`)
// overrules the rule.
//
// Predicted: at 32k keys, head_dim 128 and 256 tokens x 4 heads, the 1024 rows. At head_dim 32, where there
// is little to load, 256 rows, because no blocks have to meet. For 256 rows in all, 256 rows. For lists of 32
// tokens, 128 x 64.

#include <algorithm>
#include <iterator>

#include "core/error.h"
#include "core/round.h"
#include "gpu/engine/chooser.h"
#include "gpu/ladders/kascade/rung.cuh"

namespace splash::gpu {
namespace {

using namespace kascade;

constexpr int kMostDim = 128;

struct Candidate {
  const char* id;
  int q, k;               // its tile, which identifies the rung behind a plan
  int cluster, together;  // blocks a cluster; blocks an SM
  double work, loads, meeting;
};

constexpr Candidate kCandidates[] = {
    {"kascade/2-no-broadcast", 128, 128, 1, 1, 6.2, 4.0, 0},
    {"kascade/3-tile-128x64", 128, 64, 1, 2, 5.1, 1.6, 0},
    {"kascade/3-tile-128x32", 128, 32, 1, 2, 5.4, 1.6, 0},
    {"kascade/3-tile-64x64", 64, 64, 1, 4, 5.1, 4.2, 0},
    {"kascade/7-block-256x128x128", 256, 128, 1, 1, 6.2, 2.0, 0},
    {"kascade/7-block-512x128x128", 512, 128, 2, 1, 6.2, 1.0, 0.8},
    {"kascade/7-block-512x256x256", 512, 256, 4, 1, 6.2, 1.0, 0.9},
    {"kascade/7-block-1024x128x128", 1024, 128, 4, 1, 6.2, 0.5, 0.9},
};

double cost_of(const Candidate& candidate, const AttentionSpec& spec, const Plan& plan,
               const DeviceInfo& device) {
  const int64_t blocks = plan.kernels.front().blocks, multiprocessors = device.multiprocessors;
  constexpr int64_t kReserved = 1024;  // bytes of shared memory that the system takes per block
  const int64_t fit =
      device.shared_bytes_per_multiprocessor / (plan.kernels.front().shared_bytes + kReserved);
  const int64_t together =
      std::min({int64_t{candidate.together}, std::max<int64_t>(1, fit), ceil_div(blocks, multiprocessors)});
  const int64_t turns = ceil_div(blocks, multiprocessors * together);
  const double rows = static_cast<double>(plan.tile.q) / candidate.cluster,
               keys = static_cast<double>(round_up(spec.selection.k_keep, plan.tile.k));
  return static_cast<double>(turns * together) * rows * keys *
         (candidate.work + candidate.loads * static_cast<double>(spec.shape.head_dim) / kMostDim +
          candidate.meeting);
}

constexpr const char* kSelf = "kascade/8-chosen-block";

const Variant& cheapest(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  const Variant* best = nullptr;
  double least = 0;
  for (const Candidate& candidate : kCandidates) {
    const Variant& variant = find_variant(candidate.id);
    if (!unsupported_reason(variant, spec, dtype, device).empty()) continue;
    const double cost = cost_of(candidate, spec, variant.plan(spec, dtype, device), device);
    if (best != nullptr && cost >= least) continue;
    best = &variant;
    least = cost;
  }
  if (best == nullptr) throw Unsupported("none of the blocks of rungs 2, 3 and 7 takes it on this device");
  return *best;
}

const Variant& chosen_by(const Plan& plan) {
  const auto of_plan = [&](const Candidate& c) { return c.q == plan.tile.q && c.k == plan.tile.k; };
  return find_variant(std::find_if(std::begin(kCandidates), std::end(kCandidates), of_plan)->id);
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  if (const Variant* const tuned = tuned_variant(kSelf, spec, dtype, device))
    return tuned->plan(spec, dtype, device);
  return cheapest(spec, dtype, device).plan(spec, dtype, device);
}

void launch(const AttentionSpec& spec, Dtype dtype, const Plan& plan, const Arguments& arguments) {
  chosen_by(plan).launch(spec, dtype, plan, arguments);
}

std::vector<KernelTrace> trace(const AttentionSpec& spec, Dtype dtype, const Plan& plan) {
  return chosen_by(plan).trace(spec, dtype, plan);
}

const Variant kVariant{
    .ladder = "kascade",
    .rung = 8,
    .name = "chosen-block",
    .idea = "the block of rungs 2, 3 and 7 whose plan is cheapest: by head_dim, lengths, lists and memory",
    .finding =
        "Within 1 % of the quickest block at 8k and 32k, with lists of 32 and of 256 tokens (an H100); at 1k "
        "it takes 44 us where (256, 128, 128) takes 27.",
    .predicted = {.over = "7-block-512x128x128"},
    .limits = limits_of({.compute_capability = 80, .selection_blocks = {kTokens, 64, 128, 256, 512}}),
    .plan = plan,
    .launch = launch,
    .trace = trace};
const VariantRegistration kRegistration(kVariant);

Chooser chooser() {
  Chooser chooser{kSelf, {}};
  for (const Candidate& candidate : kCandidates) chooser.candidates.emplace_back(candidate.id);
  return chooser;
}
const ChooserRegistration kChooser(chooser());

}  // namespace
}  // namespace splash::gpu
