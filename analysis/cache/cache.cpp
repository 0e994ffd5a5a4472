#include "analysis/cache/cache.h"

#include <algorithm>
#include <bit>
#include <utility>

#include <fmt/format.h>

#include "core/error.h"

namespace splash::analysis {
namespace {

uint64_t hashed(uint64_t x) {  // Stafford's mix 13, a 64-bit hash finaliser
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

std::size_t set_count(int64_t bytes) {
  const int64_t sets = bytes / (int64_t{kLineBytes} * Cache::kWays);
  if (sets < 1) {
    throw InvalidArgument(fmt::format("a cache of {} bytes; allowed: at least {}, one set of {} lines", bytes,
                                      kLineBytes * Cache::kWays, Cache::kWays));
  }
  return static_cast<std::size_t>(sets);
}

}  // namespace

Cache::Cache(int64_t bytes) : sets_(set_count(bytes)) {}

Cache::Set& Cache::set_of(uint64_t line) {
  const uint64_t high = hashed(line) >> 32;
  return sets_[static_cast<std::size_t>(high * sets_.size() >> 32)];
}

void Cache::prefetch(uint64_t line) {
  const auto* const set = reinterpret_cast<const char*>(&set_of(line));
  __builtin_prefetch(set);
  __builtin_prefetch(set + 64);
  __builtin_prefetch(set + 128);
}

Cache::Outcome Cache::use(uint64_t line, unsigned sectors, bool write) {
  Set& set = set_of(line);
  const auto wanted = static_cast<uint32_t>(line) + 1;
  int way = 0;
  for (int w = 0; w < kWays; ++w) way = set.line[w] == wanted ? w : way;
  Outcome outcome;
  if (set.line[way] != wanted) {
    uint32_t oldest = UINT32_MAX;
    for (uint32_t w = 0; w < kWays; ++w) oldest = std::min(oldest, set.used[w] + w);
    way = static_cast<int>(oldest % kWays);
    outcome.written_out = write_out(set, way);
    set.line[way] = wanted;
    set.valid[way] = 0;
  }
  outcome.missing = sectors & ~unsigned{set.valid[way]};
  set.valid[way] |= static_cast<uint8_t>(sectors);
  if (write) {
    set.dirty[way] |= static_cast<uint8_t>(sectors);
    outcome.written_out += write_out_beyond(set, way);
  }
  now_ += kWays;
  set.used[way] = now_;
  if (now_ > UINT32_MAX - 2 * kWays) {  // before it overflows: old lines become equally old
    for (Set& other : sets_) {
      for (uint32_t& used : other.used) used = used >> 16 & ~uint32_t{kWays - 1};
    }
    now_ = now_ >> 16 & ~uint32_t{kWays - 1};
  }
  return outcome;
}

int Cache::write_out(Set& set, int way) {
  return std::popcount(std::exchange(set.dirty[way], uint8_t{0}));
}

// If a set holds more written lines than it may, writes the least recently used of them to memory. The line
// stays in the cache, now clean.
int Cache::write_out_beyond(Set& set, int kept_way) {
  int written = 0, oldest = kept_way;
  for (int w = 0; w < kWays; ++w) {
    if (set.dirty[w] == 0) continue;
    ++written;
    if (w != kept_way && (oldest == kept_way || set.used[w] < set.used[oldest])) oldest = w;
  }
  return written > kWrittenWays ? write_out(set, oldest) : 0;
}

int64_t Cache::unwritten_sectors() const {
  int64_t sectors = 0;
  for (const Set& set : sets_) {
    for (const uint8_t dirty : set.dirty) sectors += std::popcount(dirty);
  }
  return sectors;
}

MemorySystem::MemorySystem(const L2Size& l2) {
  if (l2.partitions < 1 || l2.partitions > 2)
    throw InvalidArgument(fmt::format("an L2 of {} partitions; allowed: 1 or 2", l2.partitions));
  for (int p = 0; p < l2.partitions; ++p) partitions_.emplace_back(l2.bytes / l2.partitions);
}

void MemorySystem::use_line(int partition, uint64_t line, unsigned sectors, bool write) {
  // Most accesses go to consecutive lines.
  constexpr int kAhead = 4;
  if (!write) partitions_[partition].prefetch(line + kAhead);
  // Pages of 4 KB are spread over the halves by a hash. Writes go to the page's own half.
  const int home = static_cast<int>(hashed(line / 32) % partitions_.size());
  if (write || home != partition) partitions_[home].prefetch(line + kAhead);
  traffic_.asked += kSectorBytes * std::popcount(sectors);
  unsigned missing = sectors;
  const auto ask = [&](int of) {
    const Cache::Outcome outcome = partitions_[of].use(line, missing, write);
    traffic_.dram_written += int64_t{kSectorBytes} * outcome.written_out;
    missing = outcome.missing;
  };
  if (!write && partition != home) ask(partition);
  if (missing != 0) ask(home);
  if (write) missing = 0;  // writes cover whole sectors, so nothing is fetched
  traffic_.hits += kSectorBytes * (std::popcount(sectors) - std::popcount(missing));
  traffic_.dram_read += kSectorBytes * std::popcount(missing);
}

MemoryTraffic MemorySystem::traffic() const {
  MemoryTraffic traffic = traffic_;
  for (const Cache& cache : partitions_) traffic.unwritten += kSectorBytes * cache.unwritten_sectors();
  return traffic;
}

}  // namespace splash::analysis
