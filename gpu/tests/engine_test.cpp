// The engine on a device: memory, timing, and errors before anything is launched.

#include <algorithm>
#include <array>
#include <deque>
#include <random>
#include <vector>

#include <cuda_runtime_api.h>

#include "core/workload.h"
#include "gpu/benchmark/timing.h"
#include "gpu/engine/attention.h"
#include "gpu/engine/exchange.h"
#include "gpu/engine/runs.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;

namespace {

// Copies q to out, so that only the engine is tested.
void copy_q(const AttentionSpec& spec, Dtype dtype, const Plan& /*plan*/, const Arguments& a) {
  const auto bytes = static_cast<size_t>(spec.shape.rows() * spec.shape.head_dim * bytes_of(dtype));
  static_cast<void>(cudaMemcpyAsync(a.out, a.q, bytes, cudaMemcpyDeviceToDevice, a.stream));
}

Plan copy_plan(const AttentionSpec& spec, Dtype /*dtype*/, const DeviceInfo& /*device*/) {
  Plan plan;
  plan.workspace_bytes = spec.shape.kv_len >= 1 << 20 ? int64_t{1} << 50 : 0;
  return plan;
}

const Variant kCopy{.ladder = "engine_test",
                    .rung = 0,
                    .name = "copy",
                    .idea = "copies q",
                    .limits = {.dtypes = {Dtype::f32, Dtype::f16, Dtype::bf16}},
                    .plan = copy_plan,
                    .launch = copy_q};

struct Problem {
  Stream stream;
  AttentionSpec spec;
  DeviceTensor q, k, v, out;

  explicit Problem(Dtype dtype, AttentionShape shape = {1, 2, 2, 33, 65, 64}) {
    spec.shape = shape;
    spec.normalizer.kind = NormalizerKind::softmax;
    const auto inputs = make_inputs<float>({}, shape);
    q = DeviceTensor::from(stream, dtype, inputs.q);
    k = DeviceTensor::from(stream, dtype, inputs.k);
    v = DeviceTensor::from(stream, dtype, inputs.v);
    out = DeviceTensor(stream, dtype, q.view().extents);
  }
};

}  // namespace

TEST_CASE("tensors are rounded on their way to the device, and come back exactly") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const auto host = make_inputs<double>({}, {2, 3, 3, 17, 17, 24}).q;
  for (const Dtype dtype : {Dtype::f64, Dtype::f32, Dtype::f16, Dtype::bf16}) {
    CAPTURE(to_string(dtype));
    const Tensor<double> back = DeviceTensor::from(stream, dtype, host).to_host();
    int64_t wrong = 0;
    for (int64_t i = 0; i < host.size(); ++i)
      wrong += back.data()[i] != round_to(dtype, host.data()[i]) ? 1 : 0;
    CHECK(wrong == 0);
  }
}

TEST_CASE("a prepared call runs as often as it is asked to") {
  SKIP_WITHOUT_GPU();
  for (const Dtype dtype : {Dtype::f32, Dtype::f16, Dtype::bf16}) {
    Problem x(dtype);
    const PreparedAttention attention(kCopy, x.spec, dtype, x.stream);
    for (int i = 0; i < 3; ++i) {
      x.out.buffer().fill(0xFF);
      attention.enqueue(x.q.view(), x.k.view(), x.v.view(), x.out.view());
      const Tensor<double> out = x.out.to_host(), q = x.q.to_host();
      CHECK(std::equal(out.data(), out.data() + out.size(), q.data()));
    }
  }
}

TEST_CASE("tensors that do not fit are refused by name") {
  SKIP_WITHOUT_GPU();
  Problem x(Dtype::f16);
  const PreparedAttention attention(kCopy, x.spec, Dtype::f16, x.stream);
  const auto q = x.q.view(), k = x.k.view(), v = x.v.view(), out = x.out.view();

  CHECK_THROWS_AS(attention.enqueue(k, k, v, out), InvalidArgument);
  auto wrong = q;
  wrong.dtype = Dtype::bf16;
  CHECK_THROWS_WITH_AS(attention.enqueue(wrong, k, v, out), "q is bfloat16; it must be float16",
                       InvalidArgument);
  wrong = v;
  wrong.strides[2] = 128;
  CHECK_THROWS_WITH_AS(attention.enqueue(q, k, wrong, out),
                       "v has strides 8320, 4160, 128, 1; it must be contiguous", InvalidArgument);
  wrong = out;
  wrong.data = static_cast<char*>(out.data) + 2;
  CHECK_THROWS_AS(attention.enqueue(q, k, v, wrong), InvalidArgument);
  wrong.data = nullptr;
  CHECK_THROWS_AS(attention.enqueue(q, k, v, wrong), InvalidArgument);
}

TEST_CASE("unsupported problems and too little memory are refused before a launch") {
  SKIP_WITHOUT_GPU();
  Problem x(Dtype::f32);
  CHECK_THROWS_AS(PreparedAttention(kCopy, x.spec, Dtype::f64, x.stream), Unsupported);
  AttentionSpec spec = x.spec;
  spec.shape.head_dim = 0;
  CHECK_THROWS_AS(PreparedAttention(kCopy, spec, Dtype::f32, x.stream), InvalidArgument);
  spec = x.spec;
  spec.shape.kv_len = 1 << 20;  // asks for a pebibyte of workspace
  CHECK_THROWS_AS(PreparedAttention(kCopy, spec, Dtype::f32, x.stream), DeviceError);
  CHECK_THROWS_AS(DeviceBuffer(x.stream, -1), InvalidArgument);
  DeviceBuffer fine(x.stream, 1024);  // stream and device still work
  fine.fill(0);
  CHECK_NOTHROW(x.stream.synchronize());
}

TEST_CASE("a copy is timed as the bandwidth allows, and an idle call as next to nothing") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const DeviceInfo device = list_devices().at(stream.device());
  const int64_t bytes = int64_t{1} << 30;
  DeviceBuffer from(stream, bytes), to(stream, bytes);
  from.fill(1);
  const auto copy = [&] {
    static_cast<void>(
        cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream.handle()));
  };
  const double bus = 2 * device.memory_clock_hz * device.memory_bus_bits / 8;
  for (const auto method : {TimingMethod::events, TimingMethod::graph}) {
    const Timing timing = time_on_device(copy, stream, {.method = method, .samples = 12});
    CHECK(timing.seconds.size() >= 10);
    for (const double seconds : timing.seconds)
      CHECK(2.0 * static_cast<double>(bytes) / seconds < 1.05 * bus);
    CHECK(timing.clock_before_hz > 1e8);
    CHECK(timing.clock_before_hz < 1.1 * device.clock_hz);
  }
  const Timing idle = time_on_device([] {}, stream, {.samples = 20});
  for (const double seconds : idle.seconds) CHECK(seconds < 1e-4);
}

TEST_CASE("L2 is cold only where that was asked for") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  const int64_t bytes = list_devices().at(stream.device()).l2_bytes / 8;
  DeviceBuffer from(stream, bytes), to(stream, bytes);
  from.fill(1);
  const auto copy = [&] {
    static_cast<void>(
        cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice, stream.handle()));
  };
  const auto fastest = [&](CacheState cache) {
    const Timing timing = time_on_device(copy, stream, {.cache = cache, .samples = 30});
    return *std::min_element(timing.seconds.begin(), timing.seconds.end());
  };
  CHECK(fastest(CacheState::cold) > fastest(CacheState::warm));
  CHECK_THROWS_AS(time_on_device(copy, stream, {.cache = CacheState::cold, .method = TimingMethod::graph}),
                  InvalidArgument);
}

TEST_CASE("runs are copied to their places, and nothing else is written") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  std::mt19937_64 random(11);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  for (const int64_t unit : {1, 4, 16, 48}) {
    CAPTURE(unit);
    int64_t to = 0, from = 0;
    std::vector<Runs> places;  // from the beginning of each buffer
    for (int i = 0; i < 100; ++i) {
      const int64_t bytes = i % 17 == 0 ? 0 : unit * (1 + below(i % 9 == 0 ? 100000 / unit : 300)),
                    count = below(20);
      to += unit * below(3);
      from += unit * below(3);
      places.push_back({reinterpret_cast<void*>(to), bytes + unit * below(4),
                        reinterpret_cast<const void*>(from), bytes + unit * below(4), bytes, count});
      to += places.back().to_apart * count;
      from += places.back().from_apart * count;
    }
    std::vector<unsigned char> source(static_cast<size_t>(from) + 1), got(static_cast<size_t>(to) + 1),
        expected(got.size(), 0xA5);
    for (unsigned char& byte : source) byte = static_cast<unsigned char>(random());
    DeviceBuffer in(stream, from + 1), out(stream, to + 1);
    in.upload(source.data(), from + 1);
    for (Runs& runs : places) {
      const auto first_to = reinterpret_cast<intptr_t>(runs.to),
                 first_from = reinterpret_cast<intptr_t>(runs.from);
      for (int64_t i = 0; i < runs.count; ++i)
        std::copy_n(source.data() + first_from + i * runs.from_apart, runs.bytes,
                    expected.data() + first_to + i * runs.to_apart);
      runs.to = static_cast<char*>(out.data()) + first_to;
      runs.from = static_cast<const char*>(in.data()) + first_from;
    }
    for (const auto copied : {copy_runs, copy_runs_together}) {
      out.fill(0xA5);
      copied(places, stream.handle());
      out.download(got.data(), to + 1);
      CHECK(got == expected);
    }
  }
}

TEST_CASE(
    "ranks exchange: each gets what all others staged, once they have, and no half is overwritten early") {
  SKIP_WITHOUT_GPU();
  constexpr int kRanks = 3, kRounds = 40;
  constexpr int64_t kBytes = 1 << 20;
  struct Rank {
    Stream calls;
    StreamPoint there;
    DeviceBuffer given{calls, kBytes}, filled{calls, kRanks*kBytes}, staged{calls, 2 * kBytes + 4096};
    std::vector<unsigned char> got = std::vector<unsigned char>(kRanks * kBytes);
  };
  std::array<Rank, kRanks> ranks;
  std::vector<uint32_t*> flags;
  for (Rank& rank : ranks) {
    rank.staged.fill(0);
    rank.calls.synchronize();
    flags.push_back(reinterpret_cast<uint32_t*>(static_cast<char*>(rank.staged.data()) + 2 * kBytes));
  }
  std::deque<Peers> peers;
  for (int i = 0; i < kRanks; ++i) peers.emplace_back(ranks[i].calls.device(), i, flags);
  using Kind = ExchangeStep::Kind;
  constexpr int kOfFilled = 0, kOfGiven = 1, kOfStaged = 2;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kRanks; ++i) {
      Rank& rank = ranks[i];
      const auto place = [](int side, int index, int64_t offset) {
        return ExchangePlace{side, index, offset, kBytes / 4};
      };
      std::vector<ExchangeCopy> fetched;
      for (int other = 0; other < kRanks; ++other)
        fetched.push_back({place(kOfFilled, 0, other * kBytes), place(kOfStaged, other, 0), kBytes / 4, 4});
      const Exchange exchange{
          {{Kind::wait, 1, 0},
           {Kind::wait_for_mark, 1},
           {Kind::copy_together, 1, 0, {{place(kOfStaged, i, 0), place(kOfGiven, 0, 0), kBytes / 4, 4}}},
           {Kind::wait, 2, 1},
           {Kind::meet, 2},
           {Kind::mark, 2},
           {Kind::copy, 2, 0, fetched},
           {Kind::end, 2}}};
      ExchangeAddresses addresses;
      addresses[kOfFilled] = {reinterpret_cast<uintptr_t>(rank.filled.data())};
      addresses[kOfGiven] = {reinterpret_cast<uintptr_t>(rank.given.data())};
      for (const Rank& other : ranks)
        addresses[kOfStaged].push_back(reinterpret_cast<uintptr_t>(other.staged.data()) + round % 2 * kBytes);
      rank.given.fill(static_cast<unsigned char>(16 * round + i));
      rank.filled.fill(0xA5);
      rank.there.record(rank.calls.handle());
      peers[i]
          .start(exchange, addresses, rank.calls.handle(), round % 2 == 0 ? nullptr : &rank.there)
          .finish(rank.calls.handle());
    }
    if (round % 8 != 7) continue;  // several on their way
    for (Rank& rank : ranks) {
      rank.filled.download(rank.got.data(), kRanks * kBytes);
      bool all = true;
      for (int64_t at = 0; at < kRanks * kBytes; ++at)
        all &= rank.got[at] == static_cast<unsigned char>(16 * round + at / kBytes);
      CHECK(all);
    }
  }
  const Exchange wrong{{{Kind::wait, 3, 0}}};
  CHECK_THROWS_WITH_AS(peers[0].start(wrong, {}, ranks[0].calls.handle()), "an exchange names stream 3 of 2",
                       InvalidArgument);
}
