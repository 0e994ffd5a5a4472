// decode_step: of each sequence and key head all scores in float first, by vector units.
//
// A score s in float is off by at most e = c |q| |k|, c = (head_dim + 8) 2^-23, and 2^-140 (1 + |q| + |k|)
// for what underflows: the inputs' rounding to float (none but of float64 and of scaled float8) and sums of
// head_dim products in any order. Entmax's threshold never falls where a score rises. So tau of all s - e is
// at or below tau, and a key whose s + e is not above it has p = 0. The others, in double, are the row.

#include <atomic>
#include <limits>

#include <Eigen/Core>

#include "core/parallel.h"
#include "cpu_ref/decode/row.h"

namespace splash::cpu_ref {
namespace {

using StepFloats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// What a thread needs again and again.
struct StepRoom {
  StepFloats q, keys, scores;  // [rows, head_dim]; [page_size, head_dim]; [rows, length]
  Eigen::VectorXf norms;       // [length], of keys; -1: it does not exist
  std::vector<int64_t> listed;
  std::vector<double> z, key, value;
};

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

  int64_t screened = 0, rescored = 0;  // keys, of all rows

  void solve() {
    score();
    for (int64_t r = 0; r < group_ * inputs_.q.length(); ++r) {
      const DecodeRow row = row_of(r);
      list(row, r);
      rescored += static_cast<int64_t>(room_.listed.size());
      room_.z.clear();
      room_.key.resize(static_cast<size_t>(cache_.head_dim));
      room_.value.resize(static_cast<size_t>(cache_.head_dim));
      for (const int64_t key : room_.listed)
        room_.z.push_back(row.z_of(read(cache_.keys, key, room_.key), cache_.head_dim));
      row.solve(
          room_.listed, room_.z, [&](int64_t key) { return read(cache_.values, key, room_.value); }, rows_);
    }
  }

 private:
  DecodeRow row_of(int64_t r) const {
    const int64_t q_len = inputs_.q.length();
    return {cache_, inputs_, sequence_, kv_head_ * group_ + r / q_len, r % q_len};
  }

  const double* read(const Pool& pool, int64_t key, std::vector<double>& to) const {
    pool.read(cache_.page_of(sequence_, key), key % cache_.page_size, kv_head_, 1, cache_.head_dim,
              to.data());
    return to.data();
  }

  // Scores <q, k> of all rows and keys, and the keys' norms. Keys that no row sees are left out.
  void score() {
    const int64_t rows = group_ * inputs_.q.length(), dim = cache_.head_dim, size = cache_.page_size;
    room_.q.resize(rows, dim);
    for (int64_t r = 0; r < rows; ++r)
      room_.q.row(r) = Eigen::Map<const Eigen::RowVectorXd>(row_of(r).q, dim).cast<float>();
    room_.keys.resize(size, dim);
    room_.scores.resize(rows, length_);
    room_.norms.setConstant(length_, -1);
    const int64_t first = row_of(0).begin;  // of all rows' windows
    for (int64_t key = 0; key < length_; key += size) {
      const int64_t page = cache_.page_of(sequence_, key), count = std::min(size, length_ - key);
      if (page < 0 || (key + count <= first && key >= inputs_.sinks)) continue;
      cache_.keys.read(page, 0, kv_head_, count, dim, room_.keys.data());
      const auto keys = room_.keys.topRows(count);
      room_.scores.middleCols(key, count).noalias() = room_.q * keys.transpose();
      room_.norms.segment(key, count) =
          (keys.rowwise().squaredNorm().array() + static_cast<float>(dim) * 0x1p-148f).sqrt();  // rounded up
    }
  }

  // Leaves in room_.listed, in order, the keys among which is the support of row r: all that it sees, where a
  // score or what it may be off is not finite.
  void list(const DecodeRow& row, int64_t r) {
    const float* scores = room_.scores.row(r).data();
    const double norm = Eigen::Map<const Eigen::RowVectorXd>(row.q, cache_.head_dim).norm(),
                 off_per_norm = static_cast<double>(cache_.head_dim + 8) * 0x1p-23 * norm + 0x1p-140,
                 off_always = 0x1p-140 * (1 + norm);
    const auto off = [&](int64_t key) { return off_per_norm * double{room_.norms[key]} + off_always; };
    const auto lower = [&](int64_t key) { return row.gain * (double{scores[key]} - off(key)); };
    room_.listed.clear();
    room_.z.clear();
    double largest = -std::numeric_limits<double>::infinity();
    bool finite = true;
    for (int64_t key = 0; key < row.end; ++key) {
      if (room_.norms[key] == -1 || !row.sees(key)) continue;
      room_.listed.push_back(key);
      const double z = lower(key);
      finite = finite && std::isfinite(z);
      largest = std::max(largest, z);
    }
    screened += static_cast<int64_t>(room_.listed.size());
    if (!finite || room_.listed.empty() || !(row.gain > 0)) return;
    for (const int64_t key : room_.listed) {
      const double z = lower(key);
      if (z > largest - 1) room_.z.push_back(z);  // the others have p = 0 among these
    }
    const Solver solver = supports_alpha(Solver::newton, row.alpha) ? Solver::newton : Solver::bisection;
    const double tau = solve_tau<double>(solver, room_.z, row.alpha).tau(),
                 bound = tau - 0x1p-40 * (1 + std::abs(tau));
    std::erase_if(room_.listed,
                  [&](int64_t key) { return row.gain * (double{scores[key]} + off(key)) <= bound; });
  }

  const CacheView& cache_;
  const DecodeInputs& inputs_;
  DecodeRows& rows_;
  StepRoom& room_;
  int64_t sequence_, kv_head_, group_, length_;
};

}  // namespace

DecodeRows decode_step(const CacheView& cache, const DecodeInputs& inputs, DecodeWork* work) {
  DecodeRows rows = empty_rows(cache, inputs);
  std::atomic<int64_t> screened{0}, rescored{0};
  parallel_for_with(
      cache.batch * cache.kv_heads, 1, [] { return StepRoom{}; },
      [&](StepRoom& room, int64_t number) {
        StepUnit unit(cache, inputs, rows, room, number);
        unit.solve();
        screened += unit.screened;
        rescored += unit.rescored;
      });
  if (work != nullptr) *work = {screened, rescored, rescored};
  return rows;
}

}  // namespace splash::cpu_ref
