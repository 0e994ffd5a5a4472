// decode_bench: times a step of decode and each of its kernels.
//
//   decode_bench [batch=64] [q_heads=32] [kv_heads=8] [keys=32768] [head_dim=128] [bits=4] [page=64]
//   [alpha=1.5] [T=2.449]
//                [q_len=1] [steps=20]
//
// Keys and values ~ N(0, 1), queries ~ T N(0, 1), scale 1 / sqrt(head_dim), bfloat16. It rotates over as many
// caches as exceed L2 together. It prints medians in ms, the bytes that the step must read and their share
// of 3.05 TB/s, and what the screen let through.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "core/low_bit_page.h"
#include "core/random.h"
#include "gpu/cuda_check.h"
#include "gpu/decode/decode.h"

namespace {

using namespace splash;
using namespace splash::gpu;

__global__ void fill_normal(__nv_bfloat16* to, int64_t count, float factor, uint64_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const CounterRandom random(seed);
    const float u = static_cast<float>(random.uniform(2 * i)),
                v = static_cast<float>(random.uniform(2 * i + 1));
    to[i] = __float2bfloat16(factor * sqrtf(-2 * logf(u)) * cospif(2 * v));
  }
}

template <class T>
T* allocate(int64_t count) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T)), "allocate");
  return static_cast<T*>(memory);
}

template <class T>
T* uploaded(const std::vector<T>& values) {
  T* memory = allocate<T>(static_cast<int64_t>(values.size()));
  check_cuda(cudaMemcpy(memory, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  return memory;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

struct Event {
  cudaEvent_t event{};
  Event() { check_cuda(cudaEventCreate(&event), "create an event"); }
};

double ms_between(const Event& a, const Event& b) {
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, a.event, b.event), "read an event");
  return ms;
}

int run(std::map<std::string, double> o) {
  const auto whole = [&](const char* name) { return static_cast<int>(o.at(name)); };
  const int batch = whole("batch"), q_heads = whole("q_heads"), kv_heads = whole("kv_heads"),
            keys = whole("keys"), dim = whole("head_dim"), page = whole("page"), q_len = whole("q_len"),
            bits = whole("bits"), steps = whole("steps");
  const int width = (keys + page - 1) / page, pages = batch * width;
  const int64_t elements = int64_t{pages} * page * kv_heads * dim;
  const auto caches = static_cast<int>(std::clamp<int64_t>(
      (int64_t{300} << 20) / std::max<int64_t>(elements * (bits == 0 ? 16 : bits) / 8, 1), 1, 16));
  cudaStream_t stream{};
  check_cuda(cudaStreamCreate(&stream), "create a stream");
  std::vector<decode::Cache> all;
  std::vector<int32_t> table(static_cast<size_t>(pages)), lengths(static_cast<size_t>(batch), keys);
  for (int i = 0; i < pages; ++i)
    table[static_cast<size_t>(i)] = static_cast<int32_t>(int64_t{i} * 104729 % pages);
  if (pages % 104729 == 0) return std::fprintf(stderr, "choose another number of pages\n"), 1;
  const decode::PageTable pages_of{uploaded(table), uploaded(lengths), batch, width};
  for (int i = 0; i < caches; ++i) {
    decode::Cache cache{Dtype::bf16, pages, page, kv_heads, dim};
    auto *k = allocate<__nv_bfloat16>(elements), *v = allocate<__nv_bfloat16>(elements);
    fill_normal<<<4096, 256, 0, stream>>>(k, elements, 1, 10 + i);
    fill_normal<<<4096, 256, 0, stream>>>(v, elements, 1, 50 + i);
    cache.keys = {k, int64_t{page} * kv_heads * dim, int64_t{kv_heads} * dim, dim};
    cache.values = {v, int64_t{page} * kv_heads * dim, int64_t{kv_heads} * dim, dim};
    cache.bits = bits;
    cache.low_bit = allocate<uint8_t>(decode::low_bit_bytes(cache));
    decode::fill(cache, pages_of, nullptr, width, stream);
    all.push_back(cache);
  }
  const int64_t rows = int64_t{batch} * q_len * q_heads;
  auto *q = allocate<__nv_bfloat16>(rows * dim), *out = allocate<__nv_bfloat16>(rows * dim);
  fill_normal<<<256, 256, 0, stream>>>(q, rows * dim, static_cast<float>(o.at("T")), 3);
  const int64_t of_batch = int64_t{q_len} * q_heads * dim, of_query = int64_t{q_heads} * dim;
  const decode::StepInputs inputs{{q, of_batch, of_query, dim},
                                  {out, of_batch, of_query, dim},
                                  q_heads,
                                  q_len,
                                  uploaded(std::vector<float>{static_cast<float>(o.at("alpha"))}),
                                  uploaded(std::vector<float>{1 / std::sqrt(static_cast<float>(dim))})};
  const int64_t bytes = decode::workspace_bytes(all[0], pages_of, inputs);
  void* workspace = allocate<uint8_t>(bytes);
  const int units = batch * kv_heads * ((q_heads / kv_heads * q_len + 7) / 8);
  decode::StepOutputs outputs{allocate<float>(rows), allocate<float>(rows), allocate<int32_t>(rows),
                              allocate<int32_t>(int64_t{units} * 4)};
  const auto step = [&](int i, const decode::Launched& launched = {}) {
    decode::decode(all[static_cast<size_t>(i % caches)], pages_of, inputs, outputs, workspace, bytes, stream,
                   launched);
  };
  for (int i = 0; i < 3; ++i) step(i);
  check_cuda(cudaStreamSynchronize(stream), "run decode");

  // The step as a graph, as a server would run it.
  std::vector<cudaGraphExec_t> graphs(static_cast<size_t>(caches));
  for (int i = 0; i < caches; ++i) {
    cudaGraph_t graph{};
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin a capture");
    step(i);
    check_cuda(cudaStreamEndCapture(stream, &graph), "end a capture");
    check_cuda(cudaGraphInstantiate(&graphs[static_cast<size_t>(i)], graph, 0), "instantiate a graph");
  }
  const auto timed = [&](const auto& body) {
    std::vector<double> times;
    for (int i = 0; i < steps; ++i) {
      const Event a, b;
      cudaEventRecord(a.event, stream);
      body(i);
      cudaEventRecord(b.event, stream);
      check_cuda(cudaEventSynchronize(b.event), "run decode");
      times.push_back(ms_between(a, b));
    }
    return median(times);
  };
  const double launched = timed([&](int i) { step(i); });
  const double graphed =
      timed([&](int i) { cudaGraphLaunch(graphs[static_cast<size_t>(i % caches)], stream); });
  std::map<std::string, std::vector<double>> kernels;
  std::vector<std::string> order;
  for (int i = 0; i < steps; ++i) {
    std::vector<Event> events(16);
    std::vector<std::string> names;
    cudaEventRecord(events[0].event, stream);
    step(i, [&](const char* name) {
      names.emplace_back(name);
      cudaEventRecord(events[names.size()].event, stream);
    });
    check_cuda(cudaStreamSynchronize(stream), "run decode");
    for (size_t j = 0; j < names.size(); ++j)
      kernels[names[j]].push_back(ms_between(events[j], events[j + 1]));
    order = names;
  }
  std::vector<int32_t> counts(static_cast<size_t>(units) * 4), support(static_cast<size_t>(rows));
  check_cuda(cudaMemcpy(counts.data(), outputs.counts, counts.size() * 4, cudaMemcpyDeviceToHost),
             "download");
  check_cuda(cudaMemcpy(support.data(), outputs.support, support.size() * 4, cudaMemcpyDeviceToHost),
             "download");
  double sums[4] = {}, supports = 0;
  for (size_t i = 0; i < counts.size(); ++i) sums[i % 4] += counts[i];
  for (const int32_t count : support) supports += count;

  const double dense = 2.0 * 2 * batch * kv_heads * double(keys) * dim;
  const double screened =
      sums[0] * (bits == 0 ? 2.0 * dim : LowBitLayout{page, dim, bits}.bytes() / double(page));
  const double sample = units * (256.0 + 16 + page / 2.0) * 2 * dim;
  const double list = (sums[1] * 2 * (4 + 4.0 * std::min(8, q_heads / kv_heads * q_len)));
  const double read = screened + sample + list + sums[2] * 2 * dim + supports * 2 * dim;
  std::printf(
      "batch %d, %d/%d heads, %d keys, d %d, %d bits, pages of %d, %d queries, alpha %g, T %g; %d caches, "
      "workspace %.0f MB, copies %.0f of %.0f MB\n",
      batch, q_heads, kv_heads, keys, dim, bits, page, q_len, o.at("alpha"), o.at("T"), caches, bytes * 1e-6,
      decode::low_bit_bytes(all[0]) * 1e-6, elements * 4e-6);
  for (const std::string& name : order)
    std::printf("  %-16s %8.4f ms\n", name.c_str(), median(kernels[name]));
  std::printf("  step %.4f ms, as a graph %.4f ms\n", launched, graphed);
  std::printf(
      "  reads %.1f MB (screen %.1f, lists %.1f, rescored %.1f), %.4f ms at 3.05 TB/s: %.0f %%; dense K and "
      "V %.1f MB, %.4f ms\n",
      read * 1e-6, screened * 1e-6, list * 1e-6, sums[2] * 2 * dim * 1e-6, read / 3.05e9,
      100 * read / 3.05e9 / graphed, dense * 1e-6, dense / 3.05e9);
  std::printf(
      "  candidates %.2f %% of the keys screened, rescored %.2f %%, support %.1f keys a row, %.0f of %d "
      "units fell back\n",
      100 * sums[1] / std::max(sums[0], 1.0), 100 * sums[2] / std::max(sums[0], 1.0), supports / double(rows),
      sums[3], units);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, double> options{{"batch", 64},     {"q_heads", 32}, {"kv_heads", 8}, {"keys", 32768},
                                        {"head_dim", 128}, {"bits", 4},     {"page", 64},    {"alpha", 1.5},
                                        {"T", 2.449},      {"q_len", 1},    {"steps", 20}};
  for (int i = 1; i < argc; ++i) {
    const char* equals = std::strchr(argv[i], '=');
    const std::string name(argv[i], equals == nullptr ? 0 : static_cast<size_t>(equals - argv[i]));
    if (equals == nullptr || !options.contains(name)) {
      std::fprintf(stderr, "decode_bench takes name=value; names:");
      for (const auto& [known, value] : options) std::fprintf(stderr, " %s", known.c_str());
      std::fprintf(stderr, "\n");
      return 2;
    }
    options[name] = std::atof(equals + 1);
  }
  try {
    return run(options);
  } catch (const splash::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
