#include "gpu/decode/benchmark/steps.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include <cuda_fp8.h>

#include "core/error.h"
#include "core/random.h"
#include "core/round.h"
#include "gpu/cuda_check.h"
#include "gpu/decode/benchmark/gaussian.h"
#include "gpu/device.h"
#include "gpu/engine/device_vector.h"

namespace splash::gpu::decode {
namespace {

constexpr uint64_t kQueries = 1, kKeys = 2, kValues = 3, kQueriesBefore = 4;  // streams of the seed

// What float8 keys and values are multiplied by: of Gaussian ones all up to six deviations are told.
constexpr float kLargestFp8 = 448, kGaussianMost = 6;
float fp8_scale_of(const Tensor<float>* given) {
  float most = given == nullptr ? kGaussianMost : 0;
  for (int64_t i = 0; given != nullptr && i < given->size(); ++i)
    most = std::max(most, std::abs(given->data()[i]));
  return most > 0 ? most / kLargestFp8 : 1;
}

// Every page once, neighbours far from one another.
std::vector<int32_t> scattered(int64_t pages) {
  int64_t step = std::max<int64_t>(1, pages * 5 / 8);
  while (std::gcd(step, pages) != 1) ++step;
  std::vector<int32_t> order(static_cast<size_t>(pages));
  for (int64_t i = 0; i < pages; ++i) order[static_cast<size_t>(i)] = static_cast<int32_t>(i * step % pages);
  return order;
}

// [batch, heads, length, dim], contiguous. A batch or a head that stands for all has stride 0.
RowTensor rows_of(const DeviceTensorView& tensor) {
  const auto stride = [&](int dimension) {
    return tensor.extents[dimension] == 1 ? 0 : tensor.strides[dimension];
  };
  return {tensor.data, stride(0), tensor.strides[2], stride(1)};
}

struct DestroyEvent {
  void operator()(cudaEvent_t event) const { cudaEventDestroy(event); }
};
using Event = std::unique_ptr<CUevent_st, DestroyEvent>;

Event recorded(const Stream& stream) {
  cudaEvent_t event = nullptr;
  check_cuda(cudaEventCreate(&event), "create an event");
  Event owner(event);
  check_cuda(cudaEventRecord(event, stream.handle()), "record an event");
  return owner;
}

void check_given(const GivenTensors& given, const AttentionShape& s) {
  const auto has = [](const Tensor<float>& x, int64_t batch, int64_t heads, int64_t length, int64_t dim) {
    return x.batch() == batch && x.heads() == heads && x.length() == length && x.dim() == dim;
  };
  const int64_t heads = given.k.heads() == 1 ? 1 : s.kv_heads;
  if (has(given.q, s.batch, s.q_heads, s.q_len, s.head_dim) &&
      has(given.q_before, s.batch, s.q_heads, s.q_len, s.head_dim) &&
      has(given.k, 1, heads, s.kv_len, s.head_dim) && has(given.v, 1, heads, s.kv_len, s.head_dim) &&
      static_cast<int64_t>(given.lengths.size()) == s.batch)
    return;
  throw InvalidArgument("the given tensors do not fit a step of " + to_string(s));
}

}  // namespace

Steps::Steps(const StepProblem& problem, const Stream& stream, const GivenTensors* given)
    : problem_(problem), stream_(&stream) {
  check_problem(problem);
  const AttentionShape& s = problem.shape;
  if (given != nullptr) check_given(*given, s);
  const int64_t width = ceil_div(s.kv_len, problem.page_size);
  host_pages_ = scattered(s.batch * width);
  host_lengths_ = given != nullptr
                      ? given->lengths
                      : std::vector<int32_t>(static_cast<size_t>(s.batch), static_cast<int32_t>(s.kv_len));
  pages_ = uploaded(stream, host_pages_);
  lengths_ = uploaded(stream, host_lengths_);
  std::vector<int32_t> before = host_lengths_;
  for (int32_t& length : before) length = std::max(length - static_cast<int32_t>(s.q_len), 0);
  lengths_before_ = uploaded(stream, before);
  alpha_ = uploaded(stream, std::vector<float>{static_cast<float>(problem.alpha)});
  scale_ = uploaded(stream, std::vector<float>{static_cast<float>(problem.scale)});
  table_ = {static_cast<const int32_t*>(pages_.data()), static_cast<const int32_t*>(lengths_.data()),
            static_cast<int>(s.batch), static_cast<int>(width)};

  const auto queries = [&](const Tensor<float> GivenTensors::*of_given, uint64_t seed) {
    if (given != nullptr) return DeviceTensor::from(stream, problem.dtype, given->*of_given);
    DeviceTensor q(stream, problem.dtype, query_extents(s));
    fill_gaussian(q.view().data, problem.dtype, q.view().size(), std::sqrt(problem.query_variance),
                  CounterRandom(problem.seed).bits(seed), stream.handle());
    return q;
  };
  q_ = queries(&GivenTensors::q, kQueries);
  q_before_ = queries(&GivenTensors::q_before, kQueriesBefore);
  out_ = DeviceTensor(stream, problem.dtype, query_extents(s));
  inputs_ = {.q = rows_of(q_.view()),
             .out = rows_of(out_.view()),
             .q_heads = static_cast<int>(s.q_heads),
             .q_len = static_cast<int>(s.q_len),
             .alpha = static_cast<const float*>(alpha_.data()),
             .scale = static_cast<const float*>(scale_.data())};

  host_scales_ = {fp8_scale_of(given == nullptr ? nullptr : &given->k),
                  fp8_scale_of(given == nullptr ? nullptr : &given->v)};
  fp8_scales_ = uploaded(stream, host_scales_);
  caches_.push_back(make_cache(0, given));
  const int64_t bytes_of_step = problem.bits == 0 ? caches_[0].keys.bytes() : caches_[0].low_bit.bytes();
  const int64_t caches = rotated_caches(bytes_of_step, list_devices().at(stream.device()).l2_bytes);
  for (int64_t i = 1; i < caches; ++i) caches_.push_back(make_cache(static_cast<uint64_t>(i), given));

  const int64_t rows = s.rows(), units = s.batch * s.kv_heads * ceil_div(s.group() * s.q_len, kRows);
  tau_ = DeviceBuffer(stream, rows * int64_t{sizeof(float)});
  maximum_ = DeviceBuffer(stream, rows * int64_t{sizeof(float)});
  support_ = DeviceBuffer(stream, rows * int64_t{sizeof(int32_t)});
  counts_ = DeviceBuffer(stream, units * 4 * int64_t{sizeof(int32_t)});
  outputs_ = {static_cast<float*>(tau_.data()), static_cast<float*>(maximum_.data()),
              static_cast<int32_t*>(support_.data()), static_cast<int32_t*>(counts_.data())};
  workspace_ = DeviceBuffer(stream, decode::workspace_bytes(caches_[0].cache, table_, inputs_));
}

Steps::OneCache Steps::make_cache(uint64_t number, const GivenTensors* given) const {
  const AttentionShape& s = problem_.shape;
  const auto pages = static_cast<int64_t>(host_pages_.size());
  const int64_t of_token = s.kv_heads * s.head_dim, of_page = problem_.page_size * of_token,
                count = pages * of_page, bytes = count * (problem_.fp8 ? 1 : bytes_of(problem_.dtype));
  OneCache one{
      .keys = DeviceBuffer(*stream_, bytes),
      .values = DeviceBuffer(*stream_, bytes),
      .low_bit = {},
      .broad = DeviceBuffer(*stream_, s.batch * s.kv_heads * int64_t{sizeof(uint32_t)}),
      .recent = DeviceBuffer(*stream_, s.batch * s.kv_heads * kRecentWords * int64_t{sizeof(int32_t)})};
  one.broad.fill(0);
  one.recent.fill(0);
  const auto* scales = static_cast<const float*>(fp8_scales_.data());
  one.cache = {.dtype = problem_.dtype,
               .pages = static_cast<int>(pages),
               .page_size = problem_.page_size,
               .kv_heads = static_cast<int>(s.kv_heads),
               .head_dim = static_cast<int>(s.head_dim),
               .keys = {one.keys.data(), of_page, of_token, s.head_dim},
               .values = {one.values.data(), of_page, of_token, s.head_dim},
               .bits = problem_.bits,
               .fp8 = problem_.fp8,
               .key_scale = scales,
               .value_scale = scales + 1};
  one.low_bit = DeviceBuffer(*stream_, low_bit_bytes(one.cache));
  one.cache.low_bit = static_cast<uint8_t*>(one.low_bit.data());
  if (given == nullptr) {
    const CounterRandom random = CounterRandom(problem_.seed).stream(number);
    for (const auto& [pool, name, scale] :
         {std::tuple{&one.keys, kKeys, host_scales_[0]}, std::tuple{&one.values, kValues, host_scales_[1]}}) {
      if (problem_.fp8) {
        fill_gaussian_fp8(pool->data(), count, 1 / double{scale}, random.bits(name), stream_->handle());
      } else {
        fill_gaussian(pool->data(), problem_.dtype, count, 1, random.bits(name), stream_->handle());
      }
    }
  } else {
    const auto k = DeviceTensor::from(*stream_, problem_.dtype, given->k),
               v = DeviceTensor::from(*stream_, problem_.dtype, given->v);
    const DeviceBuffer none = uploaded(*stream_, std::vector<int32_t>(static_cast<size_t>(s.batch), 0));
    const PageTable empty{table_.pages, static_cast<const int32_t*>(none.data()), table_.batch, table_.width};
    append(one.cache, empty, rows_of(k.view()), rows_of(v.view()), static_cast<int>(s.kv_len),
           stream_->handle());
  }
  decode::fill(one.cache, table_, nullptr, table_.width, stream_->handle());
  return one;
}

void Steps::poison() {
  for (DeviceBuffer* buffer : {&out_.buffer(), &tau_, &maximum_, &support_, &counts_, &workspace_})
    buffer->fill(0xFF);
}

void Steps::enqueue(int64_t cache, bool is_before, const Launched& launched) const {
  const OneCache& one = caches_.at(static_cast<size_t>(cache));
  StepInputs inputs = inputs_;
  inputs.broad = static_cast<uint32_t*>(one.broad.data());
  inputs.recent = static_cast<int32_t*>(one.recent.data());
  PageTable table = table_;
  if (is_before) {
    inputs.q = rows_of(q_before_.view());
    table.lengths = static_cast<const int32_t*>(lengths_before_.data());
  }
  decode::decode(one.cache, table, inputs, outputs_, workspace_.data(), workspace_.bytes(), stream_->handle(),
                 launched);
}

void Steps::enqueue(int64_t cache, const Launched& launched) const {
  enqueue(cache, false, launched);
}

void Steps::enqueue_before(int64_t cache) const {
  enqueue(cache, true, {});
}

void Steps::settle() const {
  for (int i = 0; i < 4; ++i) {
    enqueue(0);
    enqueue_before(0);
  }
}

void Steps::enqueue_round() const {
  for (int64_t i = 0; i < caches(); ++i) enqueue_before(i);
  for (int64_t i = 0; i < caches(); ++i) enqueue(i);
}

StepResults Steps::results() const {
  return {out_.to_host(), downloaded<float>(tau_), downloaded<float>(maximum_), downloaded<int32_t>(support_),
          downloaded<int32_t>(counts_)};
}

std::pair<Tensor<double>, Tensor<double>> Steps::head(int64_t sequence, int64_t kv_head) const {
  const OneCache& one = caches_[0];
  const int64_t length = host_lengths_.at(static_cast<size_t>(sequence)), page_size = problem_.page_size,
                dim = problem_.shape.head_dim, bytes = problem_.fp8 ? 1 : bytes_of(problem_.dtype);
  const auto gathered = [&](const PagedTensor& pool, float scale) {
    DeviceTensor head(*stream_, problem_.dtype, {1, 1, length, dim});  // of float8 its first half
    for (int64_t first = 0; first < length; first += page_size) {
      const int64_t page = host_pages_[static_cast<size_t>(sequence * table_.width + first / page_size)];
      check_cuda(
          cudaMemcpy2DAsync(static_cast<char*>(head.view().data) + first * dim * bytes,
                            static_cast<size_t>(dim * bytes),
                            static_cast<const char*>(pool.data) +
                                (page * pool.page_stride + kv_head * pool.head_stride) * bytes,
                            static_cast<size_t>(pool.token_stride * bytes), static_cast<size_t>(dim * bytes),
                            static_cast<size_t>(std::min(page_size, length - first)),
                            cudaMemcpyDeviceToDevice, stream_->handle()),
          "copy a page");
    }
    if (!problem_.fp8) return head.to_host();
    const auto stored = downloaded<__nv_fp8_e4m3>(head.buffer());
    Tensor<double> numbers(1, 1, length, dim);
    for (int64_t i = 0; i < numbers.size(); ++i)
      numbers.data()[i] = double{static_cast<float>(stored[static_cast<size_t>(i)])} * double{scale};
    return numbers;
  };
  return {gathered(one.cache.keys, host_scales_[0]), gathered(one.cache.values, host_scales_[1])};
}

std::vector<std::pair<std::string, double>> Steps::kernel_seconds(int64_t samples) const {
  std::vector<std::string> names;
  std::vector<std::vector<float>> milliseconds;
  for (int64_t sample = 0; sample < samples; ++sample) {
    enqueue_before(sample % caches());
    std::vector<Event> events;
    events.push_back(recorded(*stream_));
    names.clear();
    enqueue(sample % caches(), [&](const char* name) {
      names.emplace_back(name);
      events.push_back(recorded(*stream_));
    });
    stream_->synchronize();
    milliseconds.resize(names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      float between = 0;
      check_cuda(cudaEventElapsedTime(&between, events[i].get(), events[i + 1].get()), "read the events");
      milliseconds[i].push_back(between);
    }
  }
  std::vector<std::pair<std::string, double>> result;
  for (size_t i = 0; i < names.size(); ++i) {
    std::ranges::sort(milliseconds[i]);
    result.emplace_back(names[i], 1e-3 * static_cast<double>(milliseconds[i][milliseconds[i].size() / 2]));
  }
  return result;
}

}  // namespace splash::gpu::decode
