#pragma once
// A model of a GPU's cache. It is set-associative; a line of 128 bytes has four sectors, which are fetched
// one by one. A written sector stays until its line is evicted or too many other lines of the set are
// written. Vendors do not publish ways, set mapping or replacement policy. The model has 16 ways, maps sets
// by a hash and evicts the least recently used line. It holds three written lines per set, which matches an
// H200's counters: that GPU keeps 5 to 20 of its 60 MB, however much a kernel writes
// (docs/decisions/0020-caches-as-the-counters-tell.md).

#include <algorithm>
#include <cstdint>
#include <vector>

namespace splash::analysis {

constexpr int kLineBytes = 128, kSectorBytes = 32;
constexpr unsigned kAllSectors = 0xF;  // one bit per sector of a line

// Calls use(line, sectors) for each line that holds some of the bytes [address, address + bytes).
template <class Use>
void for_each_line(uint64_t address, int64_t bytes, const Use& use) {
  constexpr uint64_t kSectors = kLineBytes / kSectorBytes;
  const uint64_t end = (address + static_cast<uint64_t>(bytes) + kSectorBytes - 1) / kSectorBytes;
  for (uint64_t sector = address / kSectorBytes; sector < end;) {
    const uint64_t line = sector / kSectors, upto = std::min(end, kSectors * (line + 1));
    use(line, (1u << (upto - kSectors * line)) - (1u << (sector - kSectors * line)));
    sector = upto;
  }
}

class Cache {
 public:
  static constexpr int kWays = 16, kWrittenWays = 3;

  // Throws InvalidArgument if `bytes` is less than one set of lines.
  explicit Cache(int64_t bytes);

  struct Outcome {
    unsigned missing = 0;  // sectors that were not in the cache
    int written_out = 0;   // number of written sectors that went to memory
  };
  // Reads or writes sectors of a line. The line's number is address / kLineBytes, below 2^32 - 1. Missing
  // sectors are in the cache afterwards.
  Outcome use(uint64_t line, unsigned sectors, bool write);

  void prefetch(uint64_t line);  // a hint to the host's own caches: the simulation will use this line soon

  int64_t unwritten_sectors() const;  // written to the cache, not yet to memory

 private:
  struct Set {
    uint32_t line[kWays];  // line number plus 1; 0: empty
    uint32_t used[kWays];  // time of last use: a multiple of kWays, which leaves room for the way's number
    uint8_t valid[kWays], dirty[kWays];
  };
  Set& set_of(uint64_t line);
  static int write_out(Set& set, int way);
  static int write_out_beyond(Set& set, int kept_way);
  std::vector<Set> sets_;
  uint32_t now_ = 0;
};

// A GPU's L2. It has one or two partitions. Each serves the multiprocessors next to it and keeps copies of
// what these read from the other partition's half of the memory, so data that all multiprocessors read is
// held twice (NVIDIA A100 and H100 architecture white papers, "L2 cache").
struct L2Size {
  int64_t bytes = 0;
  int partitions = 1;
};

struct MemoryTraffic {  // bytes
  int64_t asked = 0;    // of L2 by the multiprocessors, in sectors
  int64_t hits = 0;     // of those, found in L2
  int64_t dram_read = 0, dram_written = 0;
  int64_t unwritten = 0;  // written to L2 and still there at the end
};

class MemorySystem {
 public:
  explicit MemorySystem(const L2Size& l2);
  // Reads or writes `bytes` from `address` on, for a multiprocessor next to `partition`.
  void use(int partition, uint64_t address, int64_t bytes, bool write) {
    for_each_line(address, bytes,
                  [&](uint64_t line, unsigned sectors) { use_line(partition, line, sectors, write); });
  }
  void use_line(int partition, uint64_t line, unsigned sectors, bool write);
  MemoryTraffic traffic() const;

 private:
  std::vector<Cache> partitions_;
  MemoryTraffic traffic_{};
};

}  // namespace splash::analysis
