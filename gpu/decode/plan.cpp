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
constexpr int kReservedBytes = 1024;  // of each block's shared memory, by CUDA
// Of the model by which a step is divided, as an H200 has them (decision 0078). Seconds of a step's phases
// with 64 blocks, and the share that twice as many blocks add over copies; per block of a team; where teams
// meet at barriers; of a second pass over keys; per key of a block and per channel of it, from the screen to
// exact scores, without and with copies; and the share that is added where a multiprocessor holds as many
// blocks as it can, at head_dim 64. Bytes that a block reads per second with 64 KB on their way, half
// with 32.
constexpr double kPhases = 24e-6, kMorePhases = 0.12, kTeamPhases = 0.12e-6, kBarrierPhases = 1e-6,
                 kPassPhases = 10e-6, kExactKey = 2e-9, kExactChannel = 8e-12, kLowBitKey = 3e-9,
                 kLowBitChannel = 16e-12, kSharedKeys = 0.8, kReadRate = 55e9;
// The same of short steps, of kWarps and of kFewWarps: a block's phases, and per key and channel where warps
// fill a multiprocessor (decision 0085).
constexpr double kShortPhases = 20e-6, kFewShortPhases = 28e-6, kShortKey = 3e-9, kShortChannel = 40e-12;
constexpr int kPartMultiprocessors = 16;             // of a GPC
constexpr int64_t kDenseBytes = int64_t{192} << 20;  // of the dense pass's teams, where eight need no more
constexpr int kLeastDenseTeams = 8;

[[noreturn]] void refuse(const std::string& what) {
  throw InvalidArgument("decode: " + what);
}

void check_strides(const char* name, int64_t a, int64_t b, int64_t c, int of = 8) {
  if (a % of != 0 || b % of != 0 || c % of != 0)
    refuse(std::string("strides of ") + name + " must be multiples of " + std::to_string(of) +
           " elements, so that they are multiples of 16 bytes");
}

void check_pool_strides(const char* name, const PagedTensor& pool, bool fp8) {
  check_strides(name, pool.page_stride, pool.token_stride, pool.head_stride, fp8 ? 16 : 8);
  for (const int64_t stride : {pool.page_stride, pool.token_stride, pool.head_stride}) {
    if (stride < 0 || stride >= int64_t{1} << 31)
      throw Unsupported("decode takes strides of " + std::string(name) +
                        " from 0 to 2147483647 elements, not " + std::to_string(stride));
  }
}

void check_aligned(const char* name, const void* data) {
  if (reinterpret_cast<uintptr_t>(data) % 16 != 0) refuse(std::string(name) + " must be 16-byte aligned");
}

// Blocks that run together. A cluster lies in one part of the device, some of which have fewer
// multiprocessors than others; a pair fits anywhere. of_part: multiprocessors that each part has at least.
int blocks_at_once(const Device& device, int team, int resident, int of_part = kPartMultiprocessors - 1) {
  if (team <= 2) return device.multiprocessors * resident;
  const int parts = std::max(device.multiprocessors / kPartMultiprocessors, 1);
  return parts * (of_part * resident / team) * team;
}

// The blocks of a unit.
struct Blocks {
  int team = 1, resident = 1;  // resident: blocks that a multiprocessor has room for
  bool is_cluster = true;

  int at_once(const Device& device) const {
    return is_cluster ? blocks_at_once(device, team, resident) : device.multiprocessors * resident;
  }
};

// How many blocks a multiprocessor needs to hold for `blocks` to run at once, at least.
int few_resident(Blocks of_unit, int64_t blocks, const Device& device) {
  const int most = of_unit.resident;
  for (of_unit.resident = 1; of_unit.resident < most && of_unit.at_once(device) < blocks;) ++of_unit.resident;
  return of_unit.resident;
}

// How a step is divided, what a warp holds, and the seconds that this takes by a model.
struct Division {
  Blocks blocks{};
  int held_tiles = 0;
  double seconds = INFINITY;
};

// Waves of blocks, each as long as its phases and its keys. Blocks of a multiprocessor share its arithmetic,
// all together the device's DRAM.
Division divided(const Step& step, const Ranges& most, const Device& device, const Blocks& of_unit) {
  Step s = step;
  s.held_tiles = 1;
  const int team = of_unit.team;
  const int room = device.shared_bytes / of_unit.resident - kReservedBytes - device.step_bytes -
                   sample_bytes(s) - held_page_bytes(s);
  const int run = static_cast<int>(ceil_div(most.tiles, team * kWarps));
  Division d{of_unit, std::clamp(room / (kWarps * held_score_bytes(s)), 0, run)};
  if (d.held_tiles < run) d.held_tiles = std::min(d.held_tiles, std::max(run / 8, 1));
  const int slots = of_unit.at_once(device);
  const int64_t blocks = int64_t{s.units} * team, at_once = std::min<int64_t>(blocks, slots);
  if (room < 0 || slots == 0 || (!of_unit.is_cluster && blocks > slots)) return d;
  const int head_dim = s.cache.head_dim,
            bits = s.cache.bits != 0 ? s.cache.bits
                   : s.cache.fp8     ? 8
                                     : 16,
            most_resident = blocks_per_multiprocessor(head_dim),
            together = few_resident(of_unit, at_once, device);
  const double sharing = most_resident == 1 ? 0 : (together - 1.0) / (most_resident - 1),
               alone = s.cache.bits == 0 ? kExactKey + kExactChannel * head_dim
                                         : kLowBitKey + kLowBitChannel * head_dim,
               key_bytes = static_cast<double>(bits * head_dim) / 8,
               of_key = std::max({alone * (1 + kSharedKeys * 64 / head_dim * sharing * sharing),
                                  key_bytes * static_cast<double>(at_once) / device.dram_rate,
                                  key_bytes / (together == 1 && head_dim > 64 ? kReadRate : kReadRate / 2)}),
               more_blocks =
                   s.cache.bits == 0 ? 0 : std::max(std::log2(static_cast<double>(at_once) / 64), 0.0);
  d.seconds = static_cast<double>(ceil_div(blocks, slots)) *
              (kPhases * (1 + kMorePhases * more_blocks) + kTeamPhases * team +
               (of_unit.is_cluster ? 0 : kBarrierPhases) + (d.held_tiles < run ? kPassPhases : 0) +
               static_cast<double>(most.tiles) * most.tile_keys / team * of_key);
  return d;
}

// The same of a short step: a block of so many warps a unit. Infinite where its kernel does not take it.
Division divided_short(const Step& step, const Ranges& most, const Device& device, int warps) {
  Step s = step;
  s.short_warps = warps;
  s.held_tiles = static_cast<int>(ceil_div(most.tiles, warps));
  Division d{.held_tiles = s.held_tiles};
  const int bytes = warps == kWarps ? device.short_bytes : device.few_short_bytes;
  if (s.cache.bits == 0 || bytes == 0 || device.least_team > 1 || s.rows > kShortRows ||
      most.tiles * most.tile_keys > short_keys(warps))
    return d;
  const int each = bytes + dynamic_bytes(s) + kReservedBytes,
            most_resident = short_blocks_per_multiprocessor(s.cache.head_dim, warps);
  d.blocks.resident = std::min(device.shared_bytes / each, most_resident);
  const int slots = d.blocks.at_once(device);
  if (slots == 0) return d;
  const int64_t at_once = std::min<int64_t>(s.units, slots);
  const double full = std::min(few_resident(d.blocks, at_once, device) * warps / 16.0, 1.0),
               head_dim = s.cache.head_dim,
               of_key =
                   std::max((kShortKey + kShortChannel * head_dim) * kWarps / warps * (0.45 + 0.55 * full),
                            s.cache.bits * head_dim / 8 * static_cast<double>(at_once) / device.dram_rate);
  d.seconds = static_cast<double>(ceil_div(s.units, slots)) *
              ((warps == kWarps ? kShortPhases : kFewShortPhases) +
               static_cast<double>(most.tiles) * most.tile_keys * of_key);
  return d;
}

// Sets the step's division to the one that takes least.
void divide(Step& s, const Ranges& most, const Device& device) {
  Division best{.blocks = {.team = device.least_team}};
  for (const bool is_cluster : {true, false}) {
    for (int team = device.least_team; team <= (is_cluster ? device.most_team : device.most_together) &&
                                       (team == device.least_team || team * kWarps <= most.tiles);
         team *= 2) {
      for (int resident = blocks_per_multiprocessor(s.cache.head_dim); resident > 0; --resident) {
        const Division d = divided(s, most, device, {team, resident, is_cluster});
        if (d.seconds < best.seconds) best = d;
      }
    }
  }
  for (const int warps : {kWarps, kFewWarps}) {
    const Division d = divided_short(s, most, device, warps);
    if (d.seconds == INFINITY || (d.seconds >= best.seconds && !device.prefers_short)) continue;
    best = d;
    s.short_warps = warps;
  }
  s.team = best.blocks.team;
  s.is_cluster = best.blocks.is_cluster;
  s.held_tiles = best.held_tiles;
  // A multiprocessor takes as many blocks as it has room for, while others have none. So blocks ask for more
  // shared memory than they need where fewer in each would do.
  const int64_t blocks = std::min<int64_t>(int64_t{s.units} * s.team, best.blocks.at_once(device));
  const int together = few_resident(best.blocks, blocks, device);
  const int most_resident = s.short_warps > 0
                                ? short_blocks_per_multiprocessor(s.cache.head_dim, s.short_warps)
                                : blocks_per_multiprocessor(s.cache.head_dim);
  s.least_shared_bytes = together < most_resident ? device.shared_bytes / (together + 1) : 0;
  s.screens_ahead = together == 1 || s.cache.head_dim <= 64;  // else they take memory's time from one another
}

// Calls place(pointer, count) for each array of the dense pass's workspace.
template <class Place>
void visit_dense(Step& s, const Place& place) {
  Dense& d = s.dense;
  const int64_t rows = int64_t{d.teams} * s.listed_rows, keys = rows * d.chunks * kChunkKeys;
  place(d.scores, keys);
  place(d.masks, keys / 32);
  place(d.sums, rows * d.chunks * kWarps * s.cache.head_dim);
  place(d.asked, int64_t{d.teams} * 2 * d.team * kRows);
  place(d.largest, int64_t{d.teams} * d.team * kRows);
  place(d.keys, rows * most_listed(s.cache.head_dim));
  place(d.weights, rows * most_listed(s.cache.head_dim));
}

// Sets the dense pass's division: at least two blocks a unit, where chunks are as many, so that few broad
// units still fill the device.
void divide_dense(Step& s, const Device& device) {
  Dense& d = s.dense;
  d.chunks = static_cast<int>(ceil_div(int64_t{s.table.width} * s.cache.page_size, kChunkKeys));
  const int resident = dense_blocks_per_multiprocessor(s.cache.head_dim);
  const auto of_unit =
      static_cast<unsigned>(std::max(device.multiprocessors * resident / std::max(s.units, 1), 2));
  const auto most = std::bit_floor(static_cast<unsigned>(std::clamp(d.chunks, 1, device.most_team)));
  d.team = std::max(static_cast<int>(std::min(std::bit_floor(of_unit), most)),
                    std::min(device.least_team, device.most_team));
  int64_t bytes = 0;  // of a team
  d.teams = 1;
  visit_dense(s, [&](auto* array, int64_t count) { bytes += count * static_cast<int64_t>(sizeof *array); });
  // A team that finds no multiprocessors begins when another ends, so parts may count as whole.
  const int64_t room = std::max<int64_t>(kDenseBytes / std::max<int64_t>(bytes, 1), kLeastDenseTeams),
                at_once =
                    std::max(blocks_at_once(device, d.team, resident, kPartMultiprocessors) / d.team, 1);
  d.teams = static_cast<int>(std::clamp<int64_t>(s.units, 1, std::min(room, at_once)));
}

// Calls place(pointer, count) for each array of the workspace.
template <class Place>
void visit_workspace(Step& s, const Place& place) {
  const int64_t units = s.units, segments = s.segments.count(), listed = int64_t{s.segments.total()} * units;
  place(s.counts, units * segments);
  place(s.kept, units * segments);
  place(s.keys, listed);
  place(s.scores, listed * s.listed_rows);
  place(s.row_keys, listed * s.listed_rows);
  place(s.found, units * segments * kRows);
  place(s.best, units * kRows * 2 * s.segments.runs * s.best_of_run);
  place(s.overflowed, units);
  if (!s.is_cluster) place(s.barriers, units * kBarrierWords);
  visit_dense(s, place);
}

}  // namespace

void check_rows(const char* name, const RowTensor& rows) {
  check_strides(name, rows.batch_stride, rows.query_stride, rows.head_stride);
  check_aligned(name, rows.data);
}

void check_cache(const Cache& c) {
  if (c.dtype != Dtype::bf16 && c.dtype != Dtype::f16)
    throw Unsupported("decode takes " + std::string(c.fp8 ? "queries beside float8" : "caches") +
                      " in bfloat16 and float16, not " + std::string(to_string(c.dtype)));
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
  if (c.fp8 && c.bits != 0)
    throw Unsupported("decode keeps no copies of float8 caches, which are as small: bits must be 0, not " +
                      std::to_string(c.bits));
  check_pool_strides("keys", c.keys, c.fp8);
  check_pool_strides("values", c.values, c.fp8);
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
  s.broad = in.broad;
  // Bounds from the last step's keys save a second pass, of which there is none without copies.
  s.recent = s.row_tiles == 1 && cache.bits != 0 ? in.recent : nullptr;
  s.page_shift = std::countr_zero(static_cast<unsigned>(cache.page_size));
  s.window = in.window;
  s.sinks = in.sinks;
  const Ranges most = ranges_of(s, table.width * cache.page_size);
  s.held_pages = s.table.width <= kHeldPages ? s.table.width : 0;
  divide(s, most, device);
  divide_dense(s, device);
  if (s.short_warps > 0) s.recent = nullptr;  // its kernel recalls nothing
  s.best_of_run = std::max(kMostBest / s.team, 1);
  const int warps = s.team * kWarps;
  s.least_tiles = std::clamp(static_cast<int>(ceil_div(most.tiles, warps)), 1, kLeastTiles);
  // Room for all of a run's keys: a row that outgrows its room would have to take the dense pass.
  const int64_t run = std::max(ceil_div(most.tiles, warps), int64_t{s.least_tiles}) * most.tile_keys;
  if (most.tiles > 0 && s.short_warps == 0) s.segments = {warps, static_cast<int>(run)};
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
