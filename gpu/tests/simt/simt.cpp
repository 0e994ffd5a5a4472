#include "gpu/tests/simt/simt.h"

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <string>
#include <ucontext.h>

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
  std::vector<char> stack = std::vector<char>(kStackBytes);
  bool ended = false;
  std::vector<Copy> started, committed;
};

// Threads that meet: those of a warp, or of the block.
struct Group {
  explicit Group(size_t size) : brought(size) {}
  std::string operation{};
  size_t arrived = 0;
  int64_t meetings = 0;
  std::vector<Brought> brought,
      shown{};  // shown: of the last meeting; none leaves the next before all saw it
};

struct Machine {
  std::vector<Fiber> fibers;
  std::vector<Group> warps;
  std::vector<Group> block;  // one
  unsigned current = 0, block_index = 0, blocks = 0;
  int64_t arrivals = 0;
  ucontext_t scheduler{};
  const std::function<void()>* kernel = nullptr;
};
Machine machine;

void leave() {
  swapcontext(&machine.fibers[machine.current].context, &machine.scheduler);
}

void enter() {
  (*machine.kernel)();
  machine.fibers[machine.current].ended = true;
  leave();
}

void prepare(int threads) {
  machine.fibers.resize(static_cast<size_t>(threads));
  machine.warps.assign(static_cast<size_t>(threads / 32), Group(32));
  machine.block.assign(1, Group(static_cast<size_t>(threads)));
  for (Fiber& fiber : machine.fibers) {
    fiber.ended = false;
    fiber.started.clear();
    fiber.committed.clear();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.data();
    fiber.context.uc_stack.ss_size = fiber.stack.size();
    makecontext(&fiber.context, enter, 0);
  }
}

}  // namespace

Index thread() {
  return {machine.current};
}
Index block() {
  return {machine.block_index};
}
Index grid() {
  return {machine.blocks};
}

void fail(const char* what) {
  std::fprintf(stderr, "thread %u of block %u: %s\n", machine.current, machine.block_index, what);
  std::abort();
}

void run(unsigned blocks, int threads, uint64_t order, const std::function<void()>& kernel) {
  std::mt19937_64 random(order);
  machine.kernel = &kernel;
  machine.blocks = blocks;
  std::vector<unsigned> turn(static_cast<size_t>(threads));
  std::iota(turn.begin(), turn.end(), 0);
  for (machine.block_index = 0; machine.block_index < blocks; ++machine.block_index) {
    prepare(threads);
    int idle = 0;  // turns in which no thread came anywhere: those that waited may be let go in the next
    for (size_t ended = 0; ended < turn.size();) {
      std::shuffle(turn.begin(), turn.end(), random);
      const int64_t arrivals = machine.arrivals;
      const size_t before = ended;
      for (const unsigned thread : turn) {
        Fiber& fiber = machine.fibers[thread];
        if (fiber.ended) continue;
        machine.current = thread;
        swapcontext(&machine.scheduler, &fiber.context);
        ended += fiber.ended ? 1 : 0;
      }
      idle = machine.arrivals == arrivals && ended == before ? idle + 1 : 0;
      if (idle > 2) fail("waits for threads that have ended or wait elsewhere");
    }
  }
}

const std::vector<Brought>& meet(Scope scope, const char* operation, const Brought& brought) {
  Group& group = scope == Scope::warp ? machine.warps[machine.current / 32] : machine.block.front();
  const size_t place = scope == Scope::warp ? machine.current % 32 : machine.current;
  if (group.arrived == 0) group.operation = operation;
  if (group.operation != operation)
    fail((std::string(operation) + " where others are at " + group.operation).c_str());
  ++machine.arrivals;
  group.brought[place] = brought;
  const int64_t meeting = group.meetings;
  if (++group.arrived == group.brought.size()) {
    group.shown = group.brought;
    group.arrived = 0;
    ++group.meetings;
  }
  do leave();
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
  fiber.committed.insert(fiber.committed.end(), fiber.started.begin(), fiber.started.end());
  fiber.started.clear();
}

void land_copies() {
  Fiber& fiber = machine.fibers[machine.current];
  for (const Copy& copy : fiber.committed) {
    if (copy.zeros) {
      std::memset(copy.to, 0, static_cast<size_t>(copy.bytes));
    } else {
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    }
  }
  fiber.committed.clear();
}

}  // namespace splash::gpu::simt
