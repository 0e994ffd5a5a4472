// Kascade's steps over keys in pages: what each sequence gets alone, whatever lies in other pages and behind
// its end.

#include "core/error.h"
#include "cpu_ref/attention/forward.h"
#include "gpu/kascade/kascade.h"
#include "gpu/tests/kascade_case.h"
#include "gpu/tests/nmse.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::kascade;
using namespace splash::gpu::testing;

namespace {

// Sequences of other lengths than one another, in a pool of pages in no order.
struct PagedCase {
  KascadeCase whole;  // its kv_len: the room of each sequence
  int page_size = 16;
  bool heads_first = false;
  std::vector<int32_t> lengths{}, table{};

  int64_t width() const { return whole.spec.shape.kv_len / page_size; }
  int64_t pages() const { return static_cast<int64_t>(table.size()) + 3; }  // of the pool: some are unused

  // The row of the pool that holds a key.
  int64_t row(int64_t batch, int64_t head, int64_t key) const {
    const int64_t page = table[batch * width() + key / page_size], heads = whole.spec.shape.kv_heads;
    return heads_first ? (page * heads + head) * page_size + key % page_size
                       : (page * page_size + key % page_size) * heads + head;
  }
  Pages on_device(const DeviceBuffer& of_table, const DeviceBuffer& of_lengths) const {
    const int64_t heads = whole.spec.shape.kv_heads;
    return {.table = static_cast<const int32_t*>(of_table.data()),
            .lengths = static_cast<const int32_t*>(of_lengths.data()),
            .page_rows = heads * page_size,
            .token_rows = heads_first ? 1 : heads,
            .head_rows = heads_first ? page_size : 1,
            .pages = static_cast<int>(pages()),
            .page_size = page_size};
  }
  // A sequence alone, without pages.
  KascadeCase alone(int64_t batch) const {
    KascadeCase c = whole;
    c.spec.shape.batch = 1;
    c.spec.shape.kv_len = lengths[batch];
    return c;
  }
};

PagedCase paged_case(const KascadeCase& whole, int page_size, bool heads_first) {
  PagedCase c{.whole = whole, .page_size = page_size, .heads_first = heads_first};
  const AttentionShape& s = whole.spec.shape;
  const auto room = static_cast<int32_t>(s.kv_len), least = static_cast<int32_t>(s.q_len);
  const int32_t some[] = {room / 3 + 1, room, least, std::min(least + 17, room), room - page_size + 1};
  for (int64_t batch = 0; batch < s.batch; ++batch) c.lengths.push_back(std::max(least, some[batch % 5]));
  c.table.resize(s.batch * c.width());
  for (size_t i = 0; i < c.table.size(); ++i)  // a permutation: 7919 is prime, and no pool here has as many
    c.table[i] = static_cast<int32_t>(i * 7919 % c.table.size());
  return c;
}

// NaN where no sequence has a key.
Tensor<double> pool_of(const PagedCase& c, const Tensor<double>& keys) {
  const AttentionShape& s = c.whole.spec.shape;
  Tensor<double> pool(1, 1, c.pages() * c.page_size * s.kv_heads, s.head_dim);
  std::fill_n(pool.data(), pool.size(), std::nan(""));
  for (int64_t batch = 0; batch < s.batch; ++batch) {
    for (int64_t head = 0; head < s.kv_heads; ++head) {
      for (int64_t key = 0; key < c.lengths[batch]; ++key)
        std::copy_n(keys.row(batch, head, key), s.head_dim, pool.row(0, 0, c.row(batch, head, key)));
    }
  }
  return pool;
}

AttentionInputs<double> inputs_of(const AttentionInputs<double>& all, const PagedCase& c, int64_t batch) {
  const AttentionShape s = c.alone(batch).spec.shape;
  AttentionInputs<double> one{Tensor<double>(1, s.q_heads, s.q_len, s.head_dim),
                              Tensor<double>(1, s.kv_heads, s.kv_len, s.head_dim),
                              Tensor<double>(1, s.kv_heads, s.kv_len, s.head_dim)};
  std::copy_n(all.q.row(batch, 0, 0), one.q.size(), one.q.data());
  for (int64_t head = 0; head < s.kv_heads; ++head) {
    std::copy_n(all.k.row(batch, head, 0), s.kv_len * s.head_dim, one.k.row(0, head, 0));
    std::copy_n(all.v.row(batch, head, 0), s.kv_len * s.head_dim, one.v.row(0, head, 0));
  }
  return one;
}

void check(const PagedCase& c) {
  const Stream stream;
  const AttentionSpec& spec = c.whole.spec;
  const AttentionShape& s = spec.shape;
  CAPTURE(to_string(s));
  CAPTURE(c.page_size);
  CAPTURE(c.heads_first);
  const auto inputs = rounded_inputs(c.whole);
  const DeviceTensor q = DeviceTensor::from(stream, c.whole.dtype, inputs.q),
                     k = DeviceTensor::from(stream, c.whole.dtype, pool_of(c, inputs.k)),
                     v = DeviceTensor::from(stream, c.whole.dtype, pool_of(c, inputs.v));
  std::vector<int32_t> of_lists;  // counts
  for (const int32_t length : c.lengths)
    of_lists.insert(of_lists.end(), s.kv_heads, c.whole.budget.keys_of_tiles(s.q_len, length)[0]);
  const int64_t most = std::ranges::max(of_lists);
  const DeviceBuffer table = on_device(stream, c.table), lengths = on_device(stream, c.lengths),
                     counts = on_device(stream, of_lists);
  const Pages pages = c.on_device(table, lengths);
  std::vector<int32_t> lists(s.batch * s.kv_heads * most), heads(s.kv_heads);
  DeviceBuffer keys = on_device(stream, lists);
  DeviceBuffer workspace(stream, std::max(find_bytes(spec, true), reuse_bytes(spec, most)));
  DeviceTensor out(stream, c.whole.dtype, q.view().extents);
  const auto find_in_pages = [&](bool attends) {
    keys.fill(0xFF);
    workspace.fill(0xFF);
    out.buffer().fill(0xFF);
    find_keys(spec, c.whole.dtype,
              {.q = q.view().data,
               .k = k.view().data,
               .counts = static_cast<const int32_t*>(counts.data()),
               .keys = static_cast<int32_t*>(keys.data()),
               .most = most,
               .v = attends ? v.view().data : nullptr,
               .out = out.view().data,
               .pages = pages,
               .workspace = workspace.data(),
               .workspace_bytes = workspace.bytes(),
               .stream = stream.handle()});
    std::vector<int32_t> found(lists.size());
    keys.download(found.data(), keys.bytes());
    return found;
  };
  lists = find_in_pages(true);
  const Tensor<double> of_every_key = out.to_host();
  CHECK(find_in_pages(false) == lists);
  for (int64_t h = 0; h < s.kv_heads; ++h) heads[h] = static_cast<int32_t>((h + 1) % s.kv_heads / 2);
  const DeviceBuffer of_heads = on_device(stream, heads);
  out.buffer().fill(0xFF);
  workspace.fill(0xFF);
  attend_to_keys(spec, c.whole.dtype,
                 {.q = q.view().data,
                  .k = k.view().data,
                  .v = v.view().data,
                  .out = out.view().data,
                  .counts = static_cast<const int32_t*>(counts.data()),
                  .keys = static_cast<const int32_t*>(keys.data()),
                  .most = most,
                  .heads = static_cast<const int32_t*>(of_heads.data()),
                  .pages = pages,
                  .workspace = workspace.data(),
                  .stream = stream.handle()});
  const Tensor<double> ours = out.to_host();
  for (int64_t batch = 0; batch < s.batch; ++batch) {
    CAPTURE(batch);
    const KascadeCase alone = c.alone(batch);
    const auto own = inputs_of(inputs, c, batch);
    const std::vector<int32_t> expected = find(alone, own);
    AttentionSpec of_lists_alone = alone.spec;
    of_lists_alone.selection = {.kind = SelectionKind::shared_keys, .k_keep = alone.most(), .block = kTile};
    for (int64_t head = 0; head < s.kv_heads; ++head) {
      const auto found = lists.begin() + (batch * s.kv_heads + head) * most;
      CHECK(std::equal(found, found + alone.most(), expected.begin() + head * alone.most()));
      const auto from = expected.begin() + heads[head] * alone.most();
      of_lists_alone.selection.keys.insert(of_lists_alone.selection.keys.end(), from, from + alone.most());
    }
    const auto check_rows = [&](const Tensor<double>& out, const AttentionSpec& of) {
      Tensor<double> rows(1, s.q_heads, s.q_len, s.head_dim);
      std::copy_n(out.row(batch, 0, 0), rows.size(), rows.data());
      CHECK(nmse(rows, cpu_ref::attention_forward<double>(of, own.q, own.k, own.v).out) <= 3e-5);
    };
    check_rows(ours, of_lists_alone);
    check_rows(of_every_key, alone.spec);
  }
}

}  // namespace

TEST_CASE("kascade: a step over pages chooses, reuses and attends to all as each sequence does alone") {
  SKIP_WITHOUT_GPU();
  int seed = 0;
  for (const AttentionShape& shape :
       {AttentionShape{5, 8, 2, 1, 1024, 128}, AttentionShape{3, 9, 3, 1, 2048, 64},
        AttentionShape{2, 4, 2, 16, 4352, 128}, AttentionShape{4, 8, 1, 4, 512, 256},
        AttentionShape{1, 8, 8, 1, 9216, 64}, AttentionShape{3, 4, 1, 1, 49408, 64},
        AttentionShape{2, 2, 2, 5, 256, 72}}) {
    for (const int page_size : {16, 64, 256}) {
      KascadeCase whole = case_of(shape);
      whole.workload.seed = ++seed;
      whole.dtype = page_size == 64 ? Dtype::f16 : Dtype::bf16;
      if (page_size == 16) whole.spec.scale = -0.3;
      check(paged_case(whole, page_size, seed % 2 == 0));
    }
  }
}

TEST_CASE("kascade: pages that no cache has, and calls that take none, are refused") {
  SKIP_WITHOUT_GPU();
  const int32_t none = 0;
  const Stream stream;
  DeviceBuffer workspace(stream, 1 << 20);
  const auto find_in = [&](const AttentionShape& shape, Pages pages, const int32_t* starts = nullptr) {
    pages.table = pages.lengths = &none;  // not read: refused before
    find_keys(case_of(shape).spec, Dtype::bf16,
              {.starts = starts, .pages = pages, .workspace = workspace.data(), .workspace_bytes = 1 << 20});
  };
  const AttentionShape step{1, 2, 1, 1, 64, 64};
  CHECK_THROWS_AS(find_in(step, {.pages = 4, .page_size = 8}), InvalidArgument);
  CHECK_THROWS_AS(find_in(step, {.pages = 4, .page_size = 48}), InvalidArgument);
  CHECK_THROWS_AS(find_in(step, {.pages = 0, .page_size = 16}), InvalidArgument);
  CHECK_THROWS_AS(find_in(step, {.pages = 4, .page_size = 16}, &none), Unsupported);
  CHECK_THROWS_AS(find_in({1, 2, 1, 40, 64, 64}, {.pages = 4, .page_size = 16}), Unsupported);
}
