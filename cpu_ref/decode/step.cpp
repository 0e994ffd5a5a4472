// decode_step: of each sequence and key head, upper ends of all scores first, by vector units.
//
// A score s in float is off by at most e = c |q| |k|, c = (head_dim + 8) 2^-23, and 2^-140 (1 + |q| + |k|)
// for what underflows: the inputs' rounding to float (none but of float64 and of scaled float8) and sums of
// head_dim products in any order. An eighth more covers that s + e and |k| are floats themselves. Full pages
// with low-bit copies are scored by these, with the copies' errors (low_bit.h).
//
// Entmax's threshold tau never falls where a score rises or a key is added. So tau of some keys' exact scores
// is at or below tau, and a key whose s + e is not above it has p = 0. First they are the keys with the
// largest upper ends. What they leave is scored in float, where only a copy has told. Then tau of all s - e
// is a second bound, and what it leaves is the row, in double.

#include <algorithm>
#include <atomic>
#include <limits>

#include <Eigen/Core>

#include "core/parallel.h"
#include "cpu_ref/decode/low_bit.h"
#include "cpu_ref/decode/row.h"

namespace splash::cpu_ref {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr size_t kBestKeys = 16;  // whose exact scores bound a row's threshold
constexpr int64_t kBroad = 8;     // where copies leave a row more than this part of its keys, they are no use

// A key that may be in a row's support: its score lies in lower ... upper.
struct StepCandidate {
  int64_t key;
  double lower, upper;
};

// What a thread needs again and again.
struct StepRoom {
  StepFloats q, keys, upper;    // [rows, head_dim]; [page_size, head_dim]; [rows, length], of scores
  Eigen::VectorXf norms;        // [length], of keys; -1: a copy stands for it
  std::vector<double> q_norms;  // [rows]
  PageScreen screen;
  std::vector<bool> finite;         // [rows]: all scores in float, and what they may be off
  std::vector<float> most, sorted;  // of a row's pages
  std::vector<StepCandidate> candidates;
  std::vector<int64_t> listed;
  std::vector<double> z, key, value;
};

double bound_of(std::span<const double> z, double alpha) {
  const Solver solver = supports_alpha(Solver::newton, alpha) ? Solver::newton : Solver::bisection;
  const double tau = solve_tau<double>(solver, z, alpha).tau();
  return tau - 0x1p-40 * (1 + std::abs(tau));
}

class StepUnit {  // a sequence and key head
 public:
  StepUnit(const CacheView& cache, const DecodeInputs& inputs, DecodeRows& rows, StepRoom& room, int64_t unit)
      : cache_(cache),
        inputs_(inputs),
        rows_(rows),
        room_(room),
        sequence_(unit / cache.kv_heads),
        kv_head_(unit % cache.kv_heads),
        group_(inputs.q.heads() / cache.kv_heads),
        length_(cache.lengths[static_cast<size_t>(sequence_)]) {}

  DecodeWork work;  // keys, of all rows

  void solve() {
    start();
    score(cache_.bits > 0);
    room_.key.resize(static_cast<size_t>(cache_.head_dim));
    room_.value.resize(static_cast<size_t>(cache_.head_dim));
    for (int64_t r = 0; r < group_ * inputs_.q.length(); ++r) {
      const DecodeRow row = row_of(r);
      list(row, r);
      work.rescored += static_cast<int64_t>(room_.listed.size());
      room_.z.clear();
      for (const int64_t key : room_.listed) room_.z.push_back(exact(row, key));
      row.solve(
          room_.listed, room_.z, [&](int64_t key) { return read(cache_.values, key, room_.value); }, rows_);
    }
  }

 private:
  DecodeRow row_of(int64_t r) const {
    const int64_t q_len = inputs_.q.length();
    return {cache_, inputs_, sequence_, kv_head_ * group_ + r / q_len, r % q_len};
  }

  template <class T>
  const T* read(const Pool& pool, int64_t key, std::vector<T>& to) const {
    pool.read(cache_.page_of(sequence_, key), key % cache_.page_size, kv_head_, 1, cache_.head_dim,
              to.data());
    return to.data();
  }

  double exact(const DecodeRow& row, int64_t key) {
    return row.z_of(read(cache_.keys, key, room_.key), cache_.head_dim);
  }

  float norm_above(float squared) const {
    return std::sqrt(squared + static_cast<float>(cache_.head_dim) * 0x1p-148f);
  }

  void start() {
    const int64_t rows = group_ * inputs_.q.length(), dim = cache_.head_dim;
    room_.q.resize(rows, dim);
    room_.q_norms.clear();
    for (int64_t r = 0; r < rows; ++r) {
      const auto q = Eigen::Map<const Eigen::RowVectorXd>(row_of(r).q, dim);
      room_.q.row(r) = q.cast<float>();
      room_.q_norms.push_back(q.norm());
    }
    room_.keys.resize(cache_.page_size, dim);
  }

  // What a score in float of row r may be off, and an eighth: off_per_norm |k| + off_always.
  float off_always(int64_t r) const {
    return static_cast<float>(0x1p-140 * (1 + room_.q_norms[static_cast<size_t>(r)]) * 1.125);
  }
  float off_per_norm(int64_t r) const {
    return static_cast<float>(
        (static_cast<double>(cache_.head_dim + 8) * 0x1p-23 * room_.q_norms[static_cast<size_t>(r)] +
         0x1p-140) *
        1.125);
  }

  // Upper ends of the scores <q, k> of all rows and keys. Keys that no row sees are left out.
  void score(bool by_copies) {
    const int64_t rows = room_.q.rows(), dim = cache_.head_dim, size = cache_.page_size;
    room_.upper.setConstant(rows, length_, kNothing);
    room_.norms.setConstant(length_, -1);
    room_.finite.assign(static_cast<size_t>(rows), true);
    const LowBitLayout layout{static_cast<int>(size), static_cast<int>(dim), cache_.bits};
    by_copies_ = by_copies && room_.screen.start(layout, room_.q, room_.q_norms);
    const int64_t first = row_of(0).begin;  // of all rows' windows
    for (int64_t key = 0; key < length_; key += size) {
      const int64_t page = cache_.page_of(sequence_, key), count = std::min(size, length_ - key);
      if (page < 0 || (key + count <= first && key >= inputs_.sinks)) continue;
      if (by_copies_ && count == size &&
          room_.screen.upper_ends(cache_.low_bit + (page * cache_.kv_heads + kv_head_) * layout.bytes(),
                                  room_.upper.data() + key, length_)) {
        work.by_copies += count;
        continue;
      }
      cache_.keys.read(page, 0, kv_head_, count, dim, room_.keys.data());
      const auto keys = room_.keys.topRows(count);
      auto norms = room_.norms.segment(key, count);
      norms = keys.rowwise().squaredNorm().unaryExpr([&](float squared) { return norm_above(squared); });
      auto upper = room_.upper.middleCols(key, count);
      upper.noalias() = room_.q * keys.transpose();
      for (int64_t r = 0; r < rows; ++r) {
        upper.row(r).array() += off_per_norm(r) * norms.transpose().array() + off_always(r);
        if (!((upper.row(r).array() * 0).sum() == 0)) room_.finite[static_cast<size_t>(r)] = false;
      }
    }
  }

  // Leaves in room_.listed, in order, the keys among which is the support of row r: all that it sees, where a
  // score or what it may be off is not finite.
  void list(const DecodeRow& row, int64_t r) {
    find_most(row, r);
    work.screened += seen_;
    if (room_.finite[static_cast<size_t>(r)] && row.gain > 0 && list_above_bounds(row, r)) return;
    room_.listed.clear();
    for (int64_t key = 0; key < row.end; ++key) {
      if (row.sees(key) && cache_.page_of(sequence_, key) >= 0) room_.listed.push_back(key);
    }
  }

  // The largest upper end of each page; -inf, where the row sees no key of it.
  void find_most(const DecodeRow& row, int64_t r) {
    const int64_t size = cache_.page_size;
    room_.most.assign(static_cast<size_t>((length_ + size - 1) / size), kNothing);
    seen_ = 0;
    for (int64_t first = 0; first < row.end; first += size) {
      const int64_t end = std::min(first + size, length_);
      if (cache_.page_of(sequence_, first) < 0 || (end <= row.begin && first >= row.sinks)) continue;
      float& most = room_.most[static_cast<size_t>(first / size)];
      if (end <= row.end && (first >= row.begin || end <= row.sinks)) {
        most = room_.upper.row(r).segment(first, end - first).maxCoeff();
        seen_ += end - first;
        continue;
      }
      for (int64_t key = first; key < end; ++key) {
        if (!row.sees(key)) continue;
        most = std::max(most, room_.upper(r, key));
        ++seen_;
      }
    }
  }

  // Calls with(key, upper) for the keys that row r sees whose upper end `may_be` lets through.
  template <class MayBe, class With>
  void for_keys(const DecodeRow& row, int64_t r, const MayBe& may_be, const With& with) {
    const int64_t size = cache_.page_size;
    for (size_t page = 0; page < room_.most.size(); ++page) {
      if (!may_be(room_.most[page])) continue;
      const int64_t first = static_cast<int64_t>(page) * size, end = std::min(first + size, row.end);
      for (int64_t key = first; key < end; ++key) {
        if (const float upper = room_.upper(r, key); may_be(upper) && row.sees(key)) with(key, upper);
      }
    }
  }

  // False, where there is no bound.
  bool list_above_bounds(const DecodeRow& row, int64_t r) {
    room_.listed.clear();
    const double first_bound = bound_of_best_keys(row, r);
    if (room_.z.empty()) return true;  // it sees no key
    if (!std::isfinite(first_bound)) return false;
    room_.candidates.clear();
    int64_t of_copies = 0;
    for_keys(
        row, r, [&](float upper) { return row.gain * double{upper} > first_bound; },
        [&](int64_t key, float upper) {
          const float norm = room_.norms[key];
          of_copies += norm < 0 ? 1 : 0;
          room_.candidates.push_back(
              {key, double{upper} - 2 * double{off_per_norm(r) * norm + off_always(r)}, upper});
        });
    if (of_copies > length_ / kBroad) {  // then the unit reads its keys whole
      score(false);
      find_most(row, r);
      return room_.finite[static_cast<size_t>(r)] && list_above_bounds(row, r);
    }
    work.candidates += static_cast<int64_t>(room_.candidates.size());
    if (of_copies > 0) score_candidates(r);
    double largest = -std::numeric_limits<double>::infinity();
    for (const StepCandidate& one : room_.candidates) largest = std::max(largest, row.gain * one.lower);
    room_.z.clear();
    for (const StepCandidate& one : room_.candidates) {
      const double z = row.gain * one.lower;
      if (!std::isfinite(z)) return false;
      if (z > largest - 1) room_.z.push_back(z);  // the others have p = 0 among these
    }
    const double bound = bound_of(room_.z, row.alpha);
    for (const StepCandidate& one : room_.candidates) {
      if (!(row.gain * one.upper <= bound)) room_.listed.push_back(one.key);
    }
    return true;
  }

  // tau of the exact scores, left in room_.z, of the keys with the largest upper ends.
  double bound_of_best_keys(const DecodeRow& row, int64_t r) {
    room_.z.clear();
    room_.sorted = room_.most;
    float least = kNothing;
    if (room_.sorted.size() > kBestKeys) {
      const auto last = room_.sorted.begin() + (kBestKeys - 1);
      std::ranges::nth_element(room_.sorted, last, std::greater{});
      least = *last;
    }
    room_.candidates.clear();
    for_keys(
        row, r, [&](float upper) { return upper >= least && upper > kNothing; },
        [&](int64_t key, float upper) {
          room_.candidates.push_back({key, upper, upper});
        });
    if (room_.candidates.size() > kBestKeys) {
      std::ranges::nth_element(room_.candidates, room_.candidates.begin() + kBestKeys, std::greater{},
                               &StepCandidate::upper);
      room_.candidates.resize(kBestKeys);
    }
    for (const StepCandidate& one : room_.candidates) room_.z.push_back(exact(row, one.key));
    return bound_of(room_.z, row.alpha);
  }

  // Scores in float the candidates that copies let through.
  void score_candidates(int64_t r) {
    const int64_t dim = cache_.head_dim;
    for (StepCandidate& one : room_.candidates) {
      if (room_.norms[one.key] >= 0) continue;
      cache_.keys.read(cache_.page_of(sequence_, one.key), one.key % cache_.page_size, kv_head_, 1, dim,
                       room_.keys.data());
      const auto key = room_.keys.row(0);
      const float off = off_per_norm(r) * norm_above(key.squaredNorm()) + off_always(r);
      const float score = room_.q.row(r).dot(key);
      one.lower = double{score} - double{off};
      one.upper = double{score} + double{off};
    }
  }

  const CacheView& cache_;
  const DecodeInputs& inputs_;
  DecodeRows& rows_;
  StepRoom& room_;
  int64_t sequence_, kv_head_, group_, length_;
  int64_t seen_ = 0;  // keys that the row sees
  bool by_copies_ = false;
};

}  // namespace

DecodeRows decode_step(const CacheView& cache, const DecodeInputs& inputs, DecodeWork* work) {
  DecodeRows rows = empty_rows(cache, inputs);
  std::atomic<int64_t> screened{0}, candidates{0}, rescored{0}, by_copies{0};
  parallel_for_with(
      cache.batch * cache.kv_heads, 1, [] { return StepRoom{}; },
      [&](StepRoom& room, int64_t number) {
        StepUnit unit(cache, inputs, rows, room, number);
        unit.solve();
        screened += unit.work.screened;
        candidates += unit.work.candidates;
        rescored += unit.work.rescored;
        by_copies += unit.work.by_copies;
      });
  if (work != nullptr) *work = {screened, candidates, rescored, by_copies};
  return rows;
}

}  // namespace splash::cpu_ref
