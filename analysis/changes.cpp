#include "analysis/changes.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "core/error.h"
#include "core/round.h"

namespace splash::analysis {
namespace {

constexpr double kExact = 0.02;  // relative tolerance of counts
constexpr int kMostThreads = 1024;

struct Cut {
  int64_t q, k;
  int stages;
};

// Number of (query tile, key tile) pairs of one head that hold a visible pair. In experiments, masks by
// positions hide what a causal mask hides.
double visible_tiles(const KernelCase& kernel, const Cut& cut) {
  const AttentionShape& shape = kernel.shape;
  const bool causal = kernel.causal || kernel.setting.find("positions") != std::string::npos;
  if (!causal) return static_cast<double>(ceil_div(shape.q_len, cut.q) * ceil_div(shape.kv_len, cut.k));
  int64_t tiles = 0;
  for (int64_t q = 0; q < shape.q_len; q += cut.q) {
    const int64_t last = std::min(q + cut.q, shape.q_len) - 1;
    const int64_t seen = std::clamp<int64_t>(last + shape.kv_len - shape.q_len + 1, 0, shape.kv_len);
    const int64_t hidden =
        kernel.window == 0 ? 0
                           : std::clamp<int64_t>(q + shape.kv_len - shape.q_len + 1 - kernel.window, 0, seen);
    tiles += ceil_div(seen, cut.k) - hidden / cut.k;
  }
  return static_cast<double>(tiles);
}

// Rows that a block holds: one tile of queries, plus the tiles of keys and values in flight.
double tile_elements(const Cut& cut) {
  return static_cast<double>(cut.q) + 2.0 * cut.stages * static_cast<double>(cut.k);
}

double row_bytes(const KernelCase& kernel) {  // bytes of all queries and results
  return 2.0 * static_cast<double>(kernel.shape.rows() * kernel.shape.head_dim * bytes_of(kernel.dtype));
}

int64_t query_tiles(const KernelCase& kernel, int64_t tile_q) {
  return kernel.shape.batch * kernel.shape.q_heads * ceil_div(kernel.shape.q_len, tile_q);
}

template <class Number>
void require_positive(const char* name, const std::optional<Number>& value) {
  if (value && *value < 1)
    throw InvalidArgument(fmt::format("{} is {}; it must be at least 1", name, *value));
}

void cut_again(KernelCase& kernel, const Change& change) {
  if (const std::string why = why_not_cut(kernel); !why.empty())
    throw InvalidArgument(fmt::format("{} cannot be cut otherwise: {}", kernel.implementation, why));
  const Cut before{kernel.tile_q, kernel.tile_k, kernel.stages};
  const Cut after{change.tile_q.value_or(before.q), change.tile_k.value_or(before.k),
                  change.stages.value_or(before.stages)};
  const double keys = visible_tiles(kernel, after) * static_cast<double>(after.k) /
                      (visible_tiles(kernel, before) * static_cast<double>(before.k));
  const double wider = static_cast<double>(after.q) / static_cast<double>(before.q);
  kernel.flops *= keys * wider;
  kernel.exponentials *= keys * wider;
  kernel.l2_bytes = row_bytes(kernel) + keys * (kernel.l2_bytes - row_bytes(kernel));
  const int64_t tiles = query_tiles(kernel, after.q);
  kernel.use.blocks =
      kernel.use.blocks == query_tiles(kernel, before.q) ? tiles : std::min(kernel.use.blocks, tiles);
  kernel.use.shared_bytes = std::llround(static_cast<double>(kernel.use.shared_bytes) * tile_elements(after) /
                                         tile_elements(before));
  const auto warps = static_cast<int>(std::lround(kernel.use.threads * wider / kWarp));
  kernel.use.threads = std::clamp(warps * kWarp, kWarp, kMostThreads);
  kernel.tile_q = after.q;
  kernel.tile_k = after.k;
  kernel.stages = after.stages;
}

}  // namespace

bool changes_nothing(const KernelCase& kernel, const Change& change) {
  return change.tile_q.value_or(kernel.tile_q) == kernel.tile_q &&
         change.tile_k.value_or(kernel.tile_k) == kernel.tile_k &&
         change.stages.value_or(kernel.stages) == kernel.stages &&
         change.launches.value_or(kernel.launches) == kernel.launches &&
         change.replayed.value_or(kernel.replayed) == kernel.replayed && change.batch == 1;
}

std::string why_not_cut(const KernelCase& kernel) {
  if (kernel.profiled) return "a profiler's table tells nothing of its tiles";
  if (kernel.launches != 1) return "a call of it starts several kernels";
  if (kernel.tile_q * kernel.tile_k == 1) return "it works on one query and one key at a time, not on tiles";
  const Cut cut{kernel.tile_q, kernel.tile_k, kernel.stages};
  if (kernel.use.blocks > query_tiles(kernel, cut.q)) return "several of its blocks share a tile of queries";
  const double of_keys = kernel.l2_bytes - row_bytes(kernel);
  const double tiles = visible_tiles(kernel, cut) * static_cast<double>(cut.k) *
                       static_cast<double>(kernel.shape.batch * kernel.shape.q_heads);
  const double all = 2.0 * tiles * static_cast<double>(kernel.shape.head_dim * bytes_of(kernel.dtype));
  // A selection reads fewer keys, or only the values of fewer keys.
  const bool selects = kernel.setting.find("top_k") != std::string::npos ||
                       kernel.setting.find("shared_keys") != std::string::npos;
  if (of_keys <= 0 || of_keys > (1 + kExact) * all || (!selects && of_keys < (1 - kExact) * all))
    return "the bytes that it is counted to ask of L2 are not those of its tiles";
  return "";
}

KernelCase with_batch(KernelCase kernel, int64_t batch) {
  const double part = static_cast<double>(batch) / static_cast<double>(kernel.shape.batch);
  const auto in_proportion = [&](int64_t blocks) {
    return std::max<int64_t>(1, std::llround(static_cast<double>(blocks) * part));
  };
  const int64_t tiles = query_tiles(kernel, kernel.tile_q);
  kernel.use.blocks = kernel.use.blocks < tiles
                          ? std::min(kernel.use.blocks, tiles / kernel.shape.batch * batch)
                          : in_proportion(kernel.use.blocks);
  for (double* count : {&kernel.flops, &kernel.useful_flops, &kernel.l2_bytes, &kernel.dram_bytes,
                        &kernel.exponentials, &kernel.input_bytes, &kernel.output_bytes})
    *count *= part;
  for (Launch& launch : kernel.all) {
    launch.use.blocks = in_proportion(launch.use.blocks);
    for (double* count : {&launch.flops, &launch.l2_bytes, &launch.dram_bytes, &launch.exponentials})
      *count *= part;
  }
  kernel.shape.batch = batch;
  return kernel;
}

KernelCase changed(const KernelCase& kernel, const Change& change) {
  require_positive("tile_q", change.tile_q);
  require_positive("tile_k", change.tile_k);
  require_positive("stages", change.stages);
  require_positive("launches", change.launches);
  require_positive("batch", std::optional(change.batch));
  KernelCase result = with_batch(kernel, kernel.shape.batch * change.batch);
  if (change.cuts()) cut_again(result, change);
  result.launches = change.launches.value_or(result.launches);
  if (result.launches != kernel.launches) {  // the recorded launches no longer apply
    result.all.clear();
    result.longest = -1;
  }
  result.replayed = change.replayed.value_or(result.replayed);
  return result;
}

}  // namespace splash::analysis
