#include "gpu/decode/plan.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <type_traits>

#include "core/error.h"
#include "core/low_bit_page.h"
#include "core/round.h"

namespace splash::gpu::decode {
namespace {

constexpr int kLeastTiles = 4;        // that a warp should have before another block joins
constexpr double kPhaseBytes = 60e6;  // that a device reads while a step's phases wait for one another
constexpr int kMostFallbackBlocks = 128;
constexpr int64_t kFallbackBytes = int64_t{64} << 20;  // of their room, where eight blocks need no more

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument("decode: " + what);
}

void check_strides(const char* name, int64_t a, int64_t b, int64_t c) {
  if (a % 8 != 0 || b % 8 != 0 || c % 8 != 0)
    refuse(std::string("strides of ") + name + " must be multiples of 8 elements");
}

void check_aligned(const char* name, const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) refuse(std::string(name) + " must be 16-byte aligned");
}

// The number that takes the least time, by a model: waves of blocks, each as long as its phases and its keys.
int blocks_per_unit(int units, const Ranges& most, const Cache& cache, const Device& device) {
  const double slots = device.multiprocessors * blocks_per_multiprocessor(cache.head_dim);
  const double bytes = static_cast<double>(most.tiles) * most.tile_keys *
                       (cache.bits == 0 ? 16 : cache.bits) * cache.head_dim / 8;
  int best = 1;
  double least = INFINITY;
  for (int team = 1; team <= device.most_team && (team == 1 || team * kWarps <= most.tiles); team *= 2) {
    const double time = std::ceil(units * team / slots) * (kPhaseBytes / slots + bytes / team);
    if (time < least) {
      least = time;
      best = team;
    }
  }
  return best;
}

// Calls place(pointer, count) for each array of the workspace.
template <class Place>
void visit_workspace(Step& s, const Place& place) {
  const int64_t units = s.units, segments = s.segments.count(), listed = int64_t{s.segments.total()} * units;
  const int64_t room = int64_t{s.table.width} * s.cache.page_size * s.listed_rows * s.fallback_blocks;
  place(s.counts, units * segments);
  place(s.kept, units * segments);
  place(s.keys, listed);
  place(s.scores, listed * s.listed_rows);
  place(s.row_keys, listed * s.listed_rows);
  place(s.found, units * segments * kRows);
  place(s.best, units * kRows * 2 * s.segments.runs * s.best_of_run);
  place(s.overflowed, units);
  place(s.all_keys, room);
  place(s.all_scores, room);
}

}  // namespace

void check_rows(const char* name, const RowTensor& rows) {
  check_strides(name, rows.batch_stride, rows.query_stride, rows.head_stride);
  check_aligned(name, rows.data);
}

void check_cache(const Cache& c) {
  if (c.dtype != Dtype::bf16 && c.dtype != Dtype::f16)
    throw Unsupported("decode takes caches in bfloat16 and float16, not " + std::string(to_string(c.dtype)));
  if (c.head_dim != 64 && c.head_dim != 128 && c.head_dim != 256)
    throw Unsupported("decode takes head_dim 64, 128 and 256, not " + std::to_string(c.head_dim));
  if (c.page_size < 16 || c.page_size > kMostPage || !std::has_single_bit(static_cast<unsigned>(c.page_size)))
    throw Unsupported("decode takes pages of 16, 32, 64, 128 or 256 keys, not " +
                      std::to_string(c.page_size));
  if (c.bits != 0 && c.bits != 4 && c.bits != 8)
    throw Unsupported("decode keeps copies of 4 or 8 bits, or none (0), not " + std::to_string(c.bits));
  if (c.pages < 0 || c.kv_heads < 1)
    refuse("a cache has 0 or more pages and 1 or more kv_heads, not " + std::to_string(c.pages) + " and " +
           std::to_string(c.kv_heads));
  check_strides("keys", c.keys.page_stride, c.keys.token_stride, c.keys.head_stride);
  check_strides("values", c.values.page_stride, c.values.token_stride, c.values.head_stride);
  check_aligned("keys", c.keys.data);
  check_aligned("values", c.values.data);
  check_aligned("the low-bit copies", c.low_bit);
}

int64_t low_bit_bytes(const Cache& cache) {
  check_cache(cache);
  if (cache.bits == 0) return 0;
  return int64_t{cache.pages} * cache.kv_heads *
         LowBitLayout{cache.page_size, cache.head_dim, cache.bits}.bytes();
}

void check_step(const Cache& cache, const PageTable& table, const StepInputs& in) {
  check_cache(cache);
  if (table.batch < 0 || table.width < 0)
    refuse("a page table is [batch, width] with both 0 or more, not [" + std::to_string(table.batch) + ", " +
           std::to_string(table.width) + "]");
  if (int64_t{table.width} * cache.page_size > int64_t{1} << 22)
    throw Unsupported("decode takes sequences of up to 4194304 keys; the page table has room for " +
                      std::to_string(int64_t{table.width} * cache.page_size));
  if (in.q_len < 1 || in.q_len > 16)
    throw Unsupported("decode takes 1 to 16 queries per sequence, not " + std::to_string(in.q_len));
  if (in.q_heads < 1 || in.q_heads % cache.kv_heads != 0)
    refuse("q_heads must be a positive multiple of kv_heads (" + std::to_string(cache.kv_heads) + "), not " +
           std::to_string(in.q_heads));
  if ((in.alphas != 1 && in.alphas != in.q_heads) || (in.scales != 1 && in.scales != in.q_heads))
    refuse("alpha and scale are one number each, or one per query head (" + std::to_string(in.q_heads) + ")");
  if (in.window < 0 || (in.window == 0 && in.sinks != 0))
    refuse("a window is of 0 or more keys (0: all), and sinks belong to one, not " +
           std::to_string(in.window) + " and " + std::to_string(in.sinks));
  if (in.sinks < 0 || in.sinks > kHeadKeys)
    throw Unsupported("decode takes 0 to 16 sinks beside a window, not " + std::to_string(in.sinks));
  check_rows("q", in.q);
  check_rows("out", in.out);
}

StepPlan plan_step(const Cache& cache, const PageTable& table, const StepInputs& in, const Device& device) {
  StepPlan plan;
  Step& s = plan.step;
  s.cache = cache;
  s.table = table;
  s.q = in.q;
  s.out = in.out;
  s.alpha = in.alpha;
  s.alphas = in.alphas;
  s.scale = in.scale;
  s.scales = in.scales;
  s.q_heads = in.q_heads;
  s.q_len = in.q_len;
  s.group = in.q_heads / cache.kv_heads;
  s.rows = s.group * in.q_len;
  s.row_tiles = static_cast<int>(ceil_div(s.rows, kRows));
  s.units = table.batch * cache.kv_heads * s.row_tiles;
  s.listed_rows = static_cast<int>(round_up(std::min(s.rows, kRows), 2));
  const int64_t of_block = std::max<int64_t>(int64_t{8} * s.listed_rows * table.width * cache.page_size, 1);
  s.fallback_blocks = static_cast<int>(std::clamp<int64_t>(
      s.units, 1, std::clamp<int64_t>(kFallbackBytes / of_block, 8, kMostFallbackBlocks)));

  s.page_shift = std::countr_zero(static_cast<unsigned>(cache.page_size));
  s.window = in.window;
  s.sinks = in.sinks;
  const Ranges most = ranges_of(s, table.width * cache.page_size);
  s.team = blocks_per_unit(s.units, most, cache, device);
  s.best_of_run = std::max(kMostBest / s.team, 1);
  const int warps = s.team * kWarps;
  s.least_tiles = std::clamp(static_cast<int>(ceil_div(most.tiles, warps)), 1, kLeastTiles);
  // Room for all of a run's keys: a unit that falls back takes as long as the others together.
  const int64_t run = std::max(ceil_div(most.tiles, warps), int64_t{s.least_tiles}) * most.tile_keys;
  if (most.tiles > 0) s.segments = {warps, static_cast<int>(run)};
  visit_workspace(s, [&](auto*& array, int64_t count) {
    plan.bytes += round_up(count * static_cast<int64_t>(sizeof *array), 256);
  });
  return plan;
}

void place_workspace(StepPlan& plan, void* workspace) {
  auto* at = static_cast<unsigned char*>(workspace);
  visit_workspace(plan.step, [&](auto*& array, int64_t count) {
    array = reinterpret_cast<std::remove_reference_t<decltype(array)>>(at);
    at += round_up(count * static_cast<int64_t>(sizeof *array), 256);
  });
}

}  // namespace splash::gpu::decode
