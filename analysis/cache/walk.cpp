#include "analysis/cache/walk.h"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::analysis {
namespace {

int64_t tiles_of(int64_t length, int64_t tile) {
  return (length + tile - 1) / tile;
}

// A block at work.
struct Resident {
  int64_t head = 0, tile = 0, next = 0, tiles = 0;  // key tiles: the next, and how many there are
};

class Run {
 public:
  Run(const TileWalk& walk, const L2Size& l2) : walk_(walk), memory_(l2) {
    const int64_t of_queries = walk.heads * walk.q_len * walk.row_bytes;
    const int64_t of_keys = walk.heads / walk.group * walk.kv_len * walk.row_bytes;
    k_ = aligned(of_queries);
    v_ = k_ + aligned(of_keys);
    out_ = v_ + aligned(of_keys);
  }

  Resident start(int64_t block, int partition) {
    const int64_t q_tiles = tiles_of(walk_.q_len, walk_.tile_q);
    Resident r;
    if (walk_.order == BlockOrder::by_head) {
      r.head = block / q_tiles;
      r.tile = block % q_tiles;
    } else {
      r.head = block % walk_.heads;
      r.tile = q_tiles - 1 - block / walk_.heads;
    }
    r.tiles = walk_.key_tiles(r.tile);
    use_queries(0, r, partition, false);
    return r;
  }
  void step(Resident& r, int partition) {
    const int64_t first = r.next++ * walk_.tile_k, rows = std::min(walk_.tile_k, walk_.kv_len - first);
    const int64_t at = (r.head / walk_.group * walk_.kv_len + first) * walk_.row_bytes;
    for (const int64_t tensor : {k_, v_}) memory_.use(partition, tensor + at, rows * walk_.row_bytes, false);
  }
  void finish(const Resident& r, int partition) { use_queries(out_, r, partition, true); }
  MemoryTraffic traffic() const { return memory_.traffic(); }

 private:
  static int64_t aligned(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }
  void use_queries(int64_t tensor, const Resident& r, int partition, bool write) {
    const int64_t first = r.tile * walk_.tile_q, rows = std::min(walk_.tile_q, walk_.q_len - first);
    memory_.use(partition, tensor + (r.head * walk_.q_len + first) * walk_.row_bytes, rows * walk_.row_bytes,
                write);
  }

  const TileWalk& walk_;
  MemorySystem memory_;
  int64_t k_, v_, out_;
};

}  // namespace

int64_t TileWalk::blocks() const {
  return heads * tiles_of(q_len, tile_q);
}

int64_t TileWalk::key_tiles(int64_t query_tile) const {
  const int64_t last = std::min((query_tile + 1) * tile_q, q_len) - 1;
  const int64_t end = causal ? std::clamp<int64_t>(last + 1 + kv_len - q_len, 0, kv_len) : kv_len;
  return tiles_of(end, tile_k);
}

void TileWalk::validate() const {
  const std::array<std::pair<const char*, int64_t>, 7> numbers{{{"heads", heads},
                                                                {"group", group},
                                                                {"q_len", q_len},
                                                                {"kv_len", kv_len},
                                                                {"row_bytes", row_bytes},
                                                                {"tile_q", tile_q},
                                                                {"tile_k", tile_k}}};
  for (const auto& [name, value] : numbers) {
    if (value < 1) throw InvalidArgument(fmt::format("{} is {}; it must be at least 1", name, value));
  }
  if (heads % group != 0)
    throw InvalidArgument(fmt::format("{} heads in groups of {}; the group must divide them", heads, group));
}

MemoryTraffic simulate(const TileWalk& walk, int multiprocessors, int blocks_each, const L2Size& l2) {
  walk.validate();
  if (multiprocessors < 1 || blocks_each < 1) {
    throw InvalidArgument(fmt::format("{} multiprocessors with {} blocks each; both must be at least 1",
                                      multiprocessors, blocks_each));
  }
  Run run(walk, l2);
  const auto partition_of = [&](std::size_t slot) {
    return static_cast<int>(slot % static_cast<std::size_t>(multiprocessors)) % l2.partitions;
  };
  const int64_t blocks = walk.blocks();
  int64_t next = 0;
  std::vector<Resident> residents;
  while (next < blocks && next < int64_t{multiprocessors} * blocks_each) {
    residents.push_back(run.start(next, partition_of(residents.size())));
    ++next;
  }
  for (bool working = !residents.empty(); working;) {
    working = false;
    for (std::size_t slot = 0; slot < residents.size(); ++slot) {
      Resident& r = residents[slot];
      const int partition = partition_of(slot);
      if (r.tiles < 0) continue;  // nothing was left for this place
      if (r.next < r.tiles) {
        run.step(r, partition);
      } else {
        run.finish(r, partition);
        r.tiles = -1;
        if (next < blocks) r = run.start(next++, partition);
      }
      working = true;
    }
  }
  return run.traffic();
}

int64_t working_set(const TileWalk& walk, int stages) {
  return (walk.tile_q + 2 * stages * walk.tile_k) * walk.row_bytes;
}

int64_t wave_working_set(const TileWalk& walk, int64_t resident_blocks) {
  const int64_t q_tiles = tiles_of(walk.q_len, walk.tile_q), key_heads = walk.heads / walk.group;
  const int64_t heads =
      walk.order == BlockOrder::by_head ? tiles_of(resident_blocks, q_tiles) : resident_blocks;
  return 2 * std::min(tiles_of(heads, walk.group), key_heads) * walk.kv_len * walk.row_bytes;
}

int64_t longest_in_l2(TileWalk walk, int64_t resident_blocks, const L2Size& l2) {
  int64_t longest = 0;
  for (int64_t length = 1; length <= int64_t{1} << 24; length *= 2) {
    walk.q_len = walk.kv_len = length;
    if (wave_working_set(walk, resident_blocks) <= l2.bytes / l2.partitions) longest = length;
  }
  return longest;
}

}  // namespace splash::analysis
