#pragma once
// The cases that decode is tested with on a GPU and, fewer of them, on the CPU.

#include "gpu/decode/plan.h"
#include "gpu/tests/decode_case.h"

namespace splash::gpu::testing {

// A division of a step with a given number of blocks per unit, as a cluster or not.
inline decode::Device with_teams(int team, bool is_cluster = true, int multiprocessors = 1000) {
  return {.multiprocessors = multiprocessors,
          .least_team = team,
          .most_team = is_cluster ? team : 1,
          .most_together = is_cluster ? 1 : team};
}

inline std::vector<DecodeOptions> decode_cases() {
  std::vector<DecodeOptions> cases;
  for (const int bits : {0, 4, 8}) {
    cases.push_back({.bits = bits});
    cases.push_back({.lengths = {600, 0, 1, 15, 16, 257, 333}, .page_size = 16, .bits = bits});
    cases.push_back({.lengths = {1500},
                     .page_size = 256,
                     .kv_heads = 1,
                     .group = 3,
                     .q_len = 2,
                     .bits = bits,
                     .heads_first = true});
    cases.push_back(
        {.lengths = {900}, .page_size = 32, .kv_heads = 1, .group = 5, .q_len = 16, .bits = bits});
    cases.push_back({.lengths = {800, 2}, .kv_heads = 1, .q_len = 4, .head_dim = 128, .bits = bits});
    cases.push_back({.lengths = {800}, .alpha = {1.25, 2, 1.1, 1.5, 1.7, 1.01, 1.3, 1.9}, .bits = bits});
    cases.push_back({.lengths = {777}, .page_size = 128, .temperature = 0.1, .bits = bits});  // broad
    cases.push_back({.lengths = {1000, 400}, .bits = bits, .dtype = Dtype::f16});
  }
  for (const int bits : {0, 4, 8}) {  // windows that begin in the tail, in a page, and before the sequence
    for (const int window : {1, 70, 300, 601, 5000})
      cases.push_back({.lengths = {900, 40},
                       .kv_heads = 1,
                       .q_len = 2,
                       .bits = bits,
                       .window = window,
                       .sinks = window % 4});
  }
  // Eight rows with more keys than a block lists.
  cases.push_back({.lengths = {777, 90}, .kv_heads = 1, .q_len = 2, .temperature = 0.1});
  // Where Newton's method from the right takes more steps than it is given.
  cases.push_back({.lengths = {900}, .kv_heads = 1, .alpha = {1.01, 1.1, 2, 1.02}, .nasty = "equal"});
  for (const uint64_t seed : {2, 3}) {  // runs of three tiles, and keys of the support in each range
    for (const int bits : {0, 4}) {
      DecodeOptions options{
          .lengths = {1700}, .page_size = 16, .kv_heads = 1, .temperature = 0.5, .bits = bits};
      options.seed = seed;
      cases.push_back(options);
    }
  }
  for (const char* nasty :
       {"sink", "equal", "huge channel", "zero", "unusable", "small", "shared", "holes", "nan key"}) {
    for (const int bits : {0, 4, 8})
      cases.push_back({.lengths = {900, 500}, .kv_heads = 1, .bits = bits, .nasty = nasty});
  }
  for (const int64_t page_size : {16, 64, 256}) {
    for (const int bits : {4, 8})
      cases.push_back({.lengths = {900, 700},
                       .page_size = page_size,
                       .kv_heads = 1,
                       .bits = bits,
                       .nasty = "between codes"});
  }
  // Pages of one chunk, some of them holes, and runs of more chunks than are on their way.
  cases.push_back(
      {.lengths = {900, 500}, .page_size = 16, .kv_heads = 1, .head_dim = 128, .bits = 0, .nasty = "holes"});
  return cases;
}

// What the dense pass must give the same bits for: rows that keep many keys, few, and none, of units that are
// broad and that are not, over several chunks and parts of one, in windows with sinks before them.
inline std::vector<DecodeOptions> dense_cases() {
  return {
      {.lengths = {2100, 1024, 700, 0, 1}, .kv_heads = 1, .temperature = 0.1},
      {.lengths = {1500}, .kv_heads = 1, .group = 5, .q_len = 3, .head_dim = 128, .temperature = 0.1},
      {.lengths = {1300}, .page_size = 16, .kv_heads = 1, .alpha = {1.02, 1.5, 2, 1.1}},
      {.lengths = {2500}, .kv_heads = 1, .q_len = 2, .temperature = 0.1, .window = 1200, .sinks = 3},
      {.lengths = {1500, 600}, .kv_heads = 1, .temperature = 0.1, .nasty = "holes"},
      {.lengths = {1500}, .kv_heads = 1, .nasty = "nan key"},
      {.lengths = {1100}, .kv_heads = 1, .nasty = "equal"},
      {.lengths = {1100, 900}, .group = 1, .dtype = Dtype::f16},
  };
}

// Cases of caches in float8: as `cases` without copies, with queries of both types, and scales.
inline std::vector<DecodeOptions> in_fp8(const std::vector<DecodeOptions>& cases) {
  std::vector<DecodeOptions> result;
  for (DecodeOptions options : cases) {
    if (options.bits != 0) continue;
    options.fp8 = true;
    options.dtype = result.size() % 3 == 1 ? Dtype::f16 : Dtype::bf16;
    options.key_scale = result.size() % 4 == 0 ? 1.0f : 0.013f;
    options.value_scale = result.size() % 4 == 0 ? 1.0f : 0.02f;
    result.push_back(options);
  }
  return result;
}
inline std::vector<DecodeOptions> without_copies(std::vector<DecodeOptions> cases) {
  for (DecodeOptions& options : cases) options.bits = 0;
  return cases;
}
inline std::vector<DecodeOptions> fp8_cases() {
  std::vector<DecodeOptions> cases = decode_cases();
  for (const int head_dim : {64, 128, 256})
    cases.push_back({.lengths = {700, 90},
                     .kv_heads = 1,
                     .head_dim = head_dim,
                     .temperature = 0.01,
                     .bits = 0,
                     .nasty = "bytes"});
  cases.push_back({.lengths = {700}, .temperature = 1e-30, .bits = 0});  // queries that float16 does not have
  cases.push_back({.lengths = {700}, .temperature = 1e6, .alpha = {2}, .bits = 0});
  return in_fp8(cases);
}

inline size_t pairs_of(const DecodeCase& c) {  // of sequences and key heads
  return static_cast<size_t>(c.cache.batch * c.cache.kv_heads);
}

// StepInputs::recent before the first step.
inline std::vector<int32_t> no_memory(const DecodeCase& c) {
  return std::vector<int32_t>(pairs_of(c) * decode::kRecentWords, 0);
}
// Whether the next step recalls keys, in every unit.
inline bool all_recall(const std::vector<int32_t>& recent) {
  for (size_t at = 0; at < recent.size(); at += decode::kRecentWords) {
    if ((recent[at] & 1) == 0) return false;
  }
  return true;
}
// Whether it does so where it should after a first step: over copies, units with all rows of their key head,
// none of which took the dense pass.
inline bool recall_as_expected(const DecodeCase& c, const std::vector<int32_t>& recent,
                               const StepResults& results) {
  const bool is_whole = c.options.bits != 0 && c.options.group * c.options.q_len <= decode::kRows;
  for (size_t pair = 0; pair < pairs_of(c); ++pair) {
    const bool recalls = (recent[pair * decode::kRecentWords] & 1) != 0;
    if (recalls != (is_whole && results.counts[4 * pair + 3] == 0)) return false;
  }
  return true;
}

// What memory must not change, a case for each thing that it might: the copies, sequences without a key to
// screen, queries whose keys differ, units that lack rows of their key head, alphas, rows for the dense pass,
// windows, keys that do not exist and scores that are no numbers. The CPU has time for no more.
inline std::vector<DecodeOptions> memory_cases() {
  std::vector<DecodeOptions> cases{
      {.lengths = {900, 500}, .kv_heads = 1},
      {.lengths = {600, 0, 1, 15, 16, 257, 333}, .page_size = 16, .kv_heads = 1},
      {.lengths = {1500},
       .page_size = 256,
       .kv_heads = 1,
       .group = 3,
       .q_len = 2,
       .bits = 0,
       .heads_first = true},
      {.lengths = {500}, .page_size = 32, .kv_heads = 1, .group = 5, .q_len = 2},
      {.lengths = {800, 2}, .kv_heads = 1, .q_len = 2, .head_dim = 128, .bits = 8},
      {.lengths = {800}, .kv_heads = 1, .alpha = {1.25, 2, 1.1, 1.01}},
      {.lengths = {777}, .page_size = 128, .kv_heads = 1, .temperature = 0.1},
      {.lengths = {900, 40}, .kv_heads = 1, .q_len = 2, .window = 300, .sinks = 3},
      {.lengths = {1000, 400}, .kv_heads = 1, .dtype = Dtype::f16},
  };
  for (const char* nasty : {"equal", "unusable", "shared", "holes", "nan key"})
    cases.push_back({.lengths = {900, 500}, .kv_heads = 1, .nasty = nasty});
  return cases;
}

// Memories of which the next step is to believe nothing but which keys they name. written: what a step wrote.
inline constexpr size_t memory_kinds() {
  return 9;
}
inline std::vector<int32_t> memory_of(size_t kind, const DecodeCase& c, const std::vector<int32_t>& written) {
  constexpr size_t kWords = decode::kRecentWords, kStates = decode::kRecentStateWords;
  std::vector<int32_t> memory = written;
  const CounterRandom random(kind);
  for (size_t pair = 0; pair < pairs_of(c); ++pair) {
    const auto length = c.cache.lengths[pair / static_cast<size_t>(c.cache.kv_heads)];
    int32_t* const of_pair = memory.data() + pair * kWords;
    // The keys that this pair's step wrote: one is in the support.
    std::vector<int32_t> known;
    for (size_t i = kStates; i < kWords; ++i) {
      if (written[pair * kWords + i] > 0) known.push_back(written[pair * kWords + i]);
    }
    if (known.empty()) known.push_back(20);
    of_pair[0] = kind == 8 ? static_cast<int32_t>(random.bits(pair)) | 1 : 1;
    for (size_t i = kStates; i < kWords; ++i) {
      const auto at = static_cast<int32_t>(i), bits = static_cast<int32_t>(random.bits(pair * kWords + i));
      if (kind == 0) of_pair[i] = bits;                  // anything
      if (kind == 1) of_pair[i] = -1 - (bits & 0xFFFF);  // below 0
      if (kind == 2) of_pair[i] = INT32_MAX - at % 3;    // far beyond
      if (kind == 3) of_pair[i] = known[0];              // one key of the support, again and again
      if (kind == 4) of_pair[i] = known[i % std::min<size_t>(known.size(), 3)];  // three of them
      if (kind == 5) of_pair[i] = at % 2 == 0 ? at % 16 : length - 1 - at % 80;  // of head and tail
      if (kind == 6)                                                             // another pair's
        of_pair[i] = written[(pair + 1) % pairs_of(c) * kWords + i];
      if (kind == 7) of_pair[i] = length - 40 + at % 80;  // the last ones, and some behind
      if (kind == 8) of_pair[i] = bits & 1023;            // any, some twice; of any state
    }
  }
  return memory;
}

// What short steps take and might get wrong: numbers of rows, pages, lengths about their limits, supports
// that outgrow a block's lists, windows, and keys of every kind.
inline std::vector<DecodeOptions> short_cases() {
  std::vector<DecodeOptions> cases;
  for (const int group : {1, 2, 3, 4}) {
    for (const int page_size : {16, 64, 256})
      cases.push_back(
          {.lengths = {900, 0, 17, 530}, .page_size = page_size, .kv_heads = 1, .group = group, .bits = 8});
  }
  cases.push_back({.lengths = {2048 - 64, 1}, .kv_heads = 1});
  cases.push_back({.lengths = {1000, 999}, .kv_heads = 1, .group = 2, .q_len = 2, .head_dim = 128});
  for (const double temperature : {0.01, 0.3, 1.0})
    cases.push_back({.lengths = {1000, 200}, .kv_heads = 1, .temperature = temperature});
  cases.push_back({.lengths = {1000}, .kv_heads = 1, .alpha = {1.25, 2, 1.1, 1.01}});
  cases.push_back({.lengths = {900, 40}, .kv_heads = 1, .q_len = 1, .window = 300, .sinks = 3});
  cases.push_back({.lengths = {700, 300}, .kv_heads = 1, .dtype = Dtype::f16, .heads_first = true});
  for (const char* nasty : {"sink", "equal", "huge channel", "zero", "unusable", "small", "holes", "nan key"})
    cases.push_back({.lengths = {900, 500}, .kv_heads = 1, .nasty = nasty});
  return cases;
}

inline void capture(const DecodeOptions& o, const auto& check) {
  CAPTURE(o.nasty);
  CAPTURE(o.bits);
  CAPTURE(o.fp8);
  CAPTURE(o.window);
  CAPTURE(o.page_size);
  CAPTURE(o.q_len);
  CAPTURE(o.head_dim);
  CAPTURE(o.lengths.size());
  CAPTURE(o.lengths[0]);
  check();
}

}  // namespace splash::gpu::testing
