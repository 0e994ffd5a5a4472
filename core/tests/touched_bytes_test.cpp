#include "core/touched_bytes.h"

#include <random>
#include <set>

#include <doctest/doctest.h>

using namespace splash;

TEST_CASE("each byte counts once, whatever the ranges overlap") {
  std::mt19937 generator(3);
  const auto pick = [&](int64_t most) { return std::uniform_int_distribution<int64_t>(0, most)(generator); };
  for (int turn = 0; turn < 50; ++turn) {
    TouchedBytes touched;
    std::set<int64_t> words, others;
    BlockTrace trace;
    for (int i = 0; i < 20; ++i) {
      const int64_t offset = 4 * pick(300), bytes = 4 * pick(100), rows = pick(3), pitch = 4 * pick(200);
      trace.read(Operand::k, offset, bytes, rows, pitch);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t at = 0; at < bytes; at += 4) words.insert(offset + row * pitch + at);
      }
      trace.write(Operand::out, 4 * i, 4);
      others.insert(4 * i);
    }
    touched.add(trace);
    CHECK(touched.of(Operand::k) == 4 * static_cast<int64_t>(words.size()));
    CHECK(touched.of(Operand::v) == 0);
    CHECK(touched.all() == 4 * static_cast<int64_t>(words.size() + others.size()));
  }
}

TEST_CASE("a trace keeps its ranges by step, and forgets what is empty") {
  BlockTrace trace;
  trace.read(Operand::q, 0, 64);
  trace.next_step();
  trace.read(Operand::k, 0, 0);
  trace.read(Operand::k, 64, 32, 0);
  trace.next_step();
  trace.write(Operand::out, 32, 16, 2, 128);
  trace.multiply(2, 3, 5);
  CHECK(trace.steps() == 3);
  CHECK(trace.end(0) - trace.begin(0) == 1);
  CHECK(trace.begin(1) == trace.end(1));
  CHECK(trace.begin(2)->write);
  CHECK(trace.begin(2)->pitch == 128);
  CHECK(trace.flops() == 60);
  trace.clear();
  CHECK(trace.steps() == 1);
  CHECK(trace.ranges().empty());
  CHECK(trace.flops() == 0);
}
