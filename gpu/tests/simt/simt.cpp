#include "gpu/tests/simt/simt.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <ucontext.h>
#include <utility>

namespace splash::gpu::simt {
namespace {

constexpr size_t kStackBytes = size_t{1} << 18;

struct Copy {
  void* to;
  const void* from;
  int bytes;
  bool zeros;
};

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack{new char[kStackBytes]};  // its pages are allocated when first written
  bool ended = false;
  std::vector<Copy> started;
  std::deque<std::vector<Copy>> committed{};  // groups
  using Products = std::vector<std::function<void()>>;
  Products products{};
  std::deque<Products> groups{};
};

struct Barrier {
  int arrivals = 0, missing = 0;
  int64_t bytes = 0;  // still to arrive
  uint32_t phase = 0;
};

struct Load {
  uint64_t* barrier;
  int64_t bytes;
  std::function<void()> land;
};

// Threads that meet: those of one warp, of a block, or of the cluster.
struct Group {
  explicit Group(size_t size) : brought(size) {}
  std::string operation{};
  size_t arrived = 0, ended = 0;  // ended: threads of the cluster
  int64_t meetings = 0;
  std::vector<Brought> brought,
      shown{};  // shown: values of the last meeting; no thread leaves the next one before all have seen them
};

struct Machine {
  std::vector<Fiber> fibers;  // of all threads of a cluster, block by block
  std::vector<Group> warps;
  std::vector<Group> of_block;
  std::vector<Group> cluster;                        // a single group
  std::vector<std::vector<unsigned char>> memory{};  // dynamic, of each block
  unsigned current = 0, threads = 0;                 // threads: of a block
  Index first_block{}, blocks{};
  int64_t arrivals = 0;
  std::map<const uint64_t*, Barrier> barriers{};
  std::vector<Load> loads{};
  ucontext_t scheduler{};
  const std::function<void()>* kernel = nullptr;
};
Machine machine;

void meet_if_all_arrived(Group& group) {
  if (group.arrived == 0 || group.arrived + group.ended < group.brought.size()) return;
  group.shown = group.brought;
  group.arrived = 0;
  ++group.meetings;
}

void enter() {
  (*machine.kernel)();
  machine.fibers[machine.current].ended = true;
  ++machine.cluster.front().ended;
  meet_if_all_arrived(machine.cluster.front());
  pause();
}

Barrier& barrier_at(const uint64_t* address) {
  const auto found = machine.barriers.find(address);
  if (found == machine.barriers.end()) fail("is at a barrier that was not initialised");
  return found->second;
}

void end_phase_if_complete(Barrier& barrier) {
  ++machine.arrivals;
  if (barrier.missing > 0 || barrier.bytes > 0) return;
  barrier.missing = barrier.arrivals;
  ++barrier.phase;
}

// Each load in flight lands now or later, at random.
void land_some(std::mt19937_64& random) {
  std::vector<Load> later;
  for (Load& load : machine.loads) {
    if (random() % 2 == 0) {
      later.push_back(std::move(load));
      ++machine.arrivals;
      continue;
    }
    load.land();
    Barrier& barrier = barrier_at(load.barrier);
    barrier.bytes -= load.bytes;
    end_phase_if_complete(barrier);
  }
  machine.loads = std::move(later);
}

void prepare(size_t threads, const Cluster& cluster) {
  const size_t all = threads * cluster.blocks;
  machine.threads = static_cast<unsigned>(threads);
  machine.barriers.clear();
  if (machine.fibers.size() < all) machine.fibers.resize(all);
  machine.warps.assign(all / 32, Group(32));
  machine.of_block.assign(cluster.blocks, Group(threads));
  machine.cluster.assign(1, Group(all));
  machine.memory.assign(cluster.blocks, std::vector<unsigned char>(cluster.shared_bytes + 16, 0xFF));
  for (size_t i = 0; i < all; ++i) {
    Fiber& fiber = machine.fibers[i];
    fiber.ended = false;
    fiber.started.clear();
    fiber.committed.clear();
    fiber.products.clear();
    fiber.groups.clear();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    makecontext(&fiber.context, enter, 0);
  }
}

}  // namespace

Index thread() {
  return {machine.current % machine.threads};
}
Index block() {
  return {machine.first_block.x + machine.current / machine.threads, machine.first_block.y};
}
Index grid() {
  return machine.blocks;
}
Index block_size() {
  return {machine.threads, 1};
}
unsigned char* dynamic_memory() {
  unsigned char* memory = machine.memory[machine.current / machine.threads].data();
  return memory + (16 - reinterpret_cast<uintptr_t>(memory) % 16) % 16;
}

void fail(const char* what) {
  std::fprintf(stderr, "thread %u of block %u, %u: %s\n", thread().x, block().x, block().y, what);
  std::abort();
}

void run(Index blocks, int threads, uint64_t order, const std::function<void()>& kernel,
         const Cluster& cluster) {
  std::mt19937_64 random(order);
  machine.kernel = &kernel;
  machine.blocks = blocks;
  std::vector<unsigned> turn(static_cast<size_t>(threads) * cluster.blocks);
  std::iota(turn.begin(), turn.end(), 0);
  const unsigned clusters = blocks.x / cluster.blocks;
  std::vector<unsigned> cluster_turn(size_t{clusters} * blocks.y);
  std::iota(cluster_turn.begin(), cluster_turn.end(), 0);
  std::shuffle(cluster_turn.begin(), cluster_turn.end(), random);
  for (const unsigned i : cluster_turn) {
    machine.first_block = {i % clusters * cluster.blocks, i / clusters};
    prepare(static_cast<size_t>(threads), cluster);
    // Turns without progress: threads that waited may continue in the next one, and one that asks for
    // something again and again (atomicOr) may get it after some.
    constexpr int kMostIdle = 500;
    int idle = 0;
    // `late` is a warp that is held back until the others cannot continue without it.
    const auto warps = static_cast<unsigned>(turn.size() / 32);
    std::optional<unsigned> late;
    for (size_t ended = 0; ended < turn.size();) {
      if (!late && random() % 4 == 0) late = random() % warps;
      std::shuffle(turn.begin(), turn.end(), random);
      const int64_t arrivals = machine.arrivals;
      const size_t before = ended;
      for (const unsigned thread : turn) {
        Fiber& fiber = machine.fibers[thread];
        if (fiber.ended || thread / 32 == late) continue;
        machine.current = thread;
        swapcontext(&machine.scheduler, &fiber.context);
        ended += fiber.ended ? 1 : 0;
      }
      land_some(random);
      if (machine.arrivals != arrivals || ended != before) {
        idle = 0;
      } else if (late) {
        late.reset();
      } else if (++idle > kMostIdle) {
        fail("waits for threads that have ended or wait elsewhere");
      }
    }
    if (!machine.loads.empty()) fail("has ended while loads are under way");
    for (const unsigned thread : turn) {
      const Fiber& fiber = machine.fibers[thread];
      if (!fiber.products.empty() || !fiber.groups.empty()) fail("has ended without waiting for products");
    }
  }
}

const std::vector<Brought>& meet(Scope scope, const char* operation, const Brought& brought) {
  Group& group = scope == Scope::warp    ? machine.warps[machine.current / 32]
                 : scope == Scope::block ? machine.of_block[machine.current / machine.threads]
                                         : machine.cluster.front();
  const size_t place = machine.current % group.brought.size();
  if (group.arrived == 0) group.operation = operation;
  if (group.operation != operation)
    fail((std::string(operation) + " where others are at " + group.operation).c_str());
  ++machine.arrivals;
  group.brought[place] = brought;
  const int64_t meeting = group.meetings;
  ++group.arrived;
  meet_if_all_arrived(group);
  do pause();
  while (group.meetings == meeting);
  return group.shown;
}

void start_copy(void* to, const void* from, int bytes, bool zeros) {
  const auto address = reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from);
  if (address % static_cast<unsigned>(bytes) != 0) fail("copies from or to an address that is not aligned");
  std::memset(to, 0xFF, static_cast<size_t>(bytes));
  machine.fibers[machine.current].started.push_back({to, from, bytes, zeros});
}

void commit_copies() {
  Fiber& fiber = machine.fibers[machine.current];
  fiber.committed.push_back(std::exchange(fiber.started, {}));
}

void land_copies(size_t pending) {
  Fiber& fiber = machine.fibers[machine.current];
  for (; fiber.committed.size() > pending; fiber.committed.pop_front()) {
    for (const Copy& copy : fiber.committed.front()) {
      if (copy.zeros) {
        std::memset(copy.to, 0, static_cast<size_t>(copy.bytes));
      } else {
        std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
      }
    }
  }
}

void add_product(std::function<void()> product) {
  machine.fibers[machine.current].products.push_back(std::move(product));
}

void commit_products() {
  Fiber& fiber = machine.fibers[machine.current];
  fiber.groups.push_back(std::exchange(fiber.products, {}));
}

void finish_products(size_t pending) {
  Fiber& fiber = machine.fibers[machine.current];
  while (fiber.groups.size() > pending) {
    for (const auto& product : fiber.groups.front()) product();
    fiber.groups.pop_front();
  }
}

void init_barrier(uint64_t* barrier, int arrivals) {
  machine.barriers[barrier] = {.arrivals = arrivals, .missing = arrivals};
}

int arrive(uint64_t* barrier, int64_t bytes) {
  Barrier& at = barrier_at(barrier);
  const int missing = at.missing--;
  at.bytes += bytes;
  end_phase_if_complete(at);
  return missing;
}

bool has_passed(const uint64_t* barrier, uint32_t parity) {
  return barrier_at(barrier).phase % 2 != parity;
}

void start_load(uint64_t* barrier, int64_t bytes, std::function<void()> land) {
  machine.loads.push_back({barrier, bytes, std::move(land)});
}

void pause() {
  swapcontext(&machine.fibers[machine.current].context, &machine.scheduler);
}

}  // namespace splash::gpu::simt
