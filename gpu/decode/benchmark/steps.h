#pragma once
// Steps of decode to be timed: paged caches in device memory, so many in turn that L2 holds nothing of the
// next one. What a step remembers for the next one must not be its own: so there are two steps, of q_len
// tokens each, one behind the other, and they take turns. Compiles without nvcc.
//
//   const Stream stream;
//   Steps steps({.shape = shape, .bits = 4}, stream);
//   steps.poison();
//   steps.enqueue(0);
//   const StepResults results = steps.results();
//   time_on_device([&] { steps.enqueue_round(); }, stream, options);  // steps.steps_of_round() steps

#include <string>
#include <utility>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "gpu/decode/decode.h"
#include "gpu/engine/tensor.h"

namespace splash::gpu::decode {

// The caches hold three times the bytes that L2 does, as far as a step must read them.
constexpr int64_t kTimesL2 = 3;
constexpr int64_t kMostCaches = 64;
constexpr int64_t rotated_caches(int64_t bytes_of_step, int64_t l2_bytes) {
  const int64_t caches = (kTimesL2 * l2_bytes + bytes_of_step - 1) / bytes_of_step;
  return caches < 1 ? 1 : caches > kMostCaches ? kMostCaches : caches;
}

struct StepProblem {
  AttentionShape shape{};  // kv_len: keys of the longest sequence, with the step's own
  Dtype dtype = Dtype::bf16;
  int page_size = 64;
  int bits = 4;                   // of the low-bit copy; 0: none
  double alpha = 1.5, scale = 1;  // z = (alpha - 1) scale <q, k>
  double query_variance = 6;      // Gaussian: q ~ N(0, query_variance), k, v ~ N(0, 1)
  uint64_t seed = 1;
  bool fp8 = false;  // keys and values are float8; then dtype is the queries', and bits is 0
};

// Throws InvalidArgument or Unsupported if decode does not take such a step.
void check_problem(const StepProblem& problem);

// Queries, keys and values in place of Gaussian ones. Every sequence has these keys, in pages of its own.
struct GivenTensors {
  Tensor<float> q, q_before;     // [batch, q_heads, q_len, head_dim]: of the step, and of the one before it
  Tensor<float> k, v;            // [1, kv_heads, kv_len, head_dim], or one head that stands for all
  std::vector<int32_t> lengths;  // [batch]: keys of each sequence, at most kv_len
};

struct StepResults {
  Tensor<double> out;               // [batch, q_heads, q_len, head_dim]
  std::vector<float> tau, maximum;  // [batch, q_heads, q_len]; StepOutputs
  std::vector<int32_t> support;     // the same
  std::vector<int32_t> counts;      // [units, 4]
};

class Steps {
 public:
  // Pages of a sequence lie apart from one another, tokens before heads. Throws what check_problem throws,
  // InvalidArgument if given tensors do not fit the shape, and OutOfDeviceMemory.
  Steps(const StepProblem& problem, const Stream& stream, const GivenTensors* given = nullptr);

  int64_t steps_of_round() const { return 2 * caches(); }
  int64_t caches() const { return static_cast<int64_t>(caches_.size()); }
  int64_t copy_bytes() const { return caches_[0].low_bit.bytes(); }  // of one cache
  int64_t workspace_bytes() const { return workspace_.bytes(); }
  const std::vector<int32_t>& lengths() const { return host_lengths_; }

  void poison();  // sets every byte of outputs and workspace, not what steps remember
  void enqueue(int64_t cache, const Launched& launched = {}) const;
  void enqueue_before(int64_t cache) const;  // the step before it, over q_len keys less
  void settle() const;  // so many steps that the next one knows of the first cache what those of rounds do
  void enqueue_round() const;  // that over each cache in turn, then the step over each

  // These wait for the device.
  StepResults results() const;  // of what was enqueued last
  Tensor<double> queries() const { return q_.to_host(); }
  // Keys and values of a head in the first cache, as the device has them: [1, 1, length, head_dim] each.
  std::pair<Tensor<double>, Tensor<double>> head(int64_t sequence, int64_t kv_head) const;
  // Each kernel of a step in order, with its median seconds between events; each follows the step before it.
  std::vector<std::pair<std::string, double>> kernel_seconds(int64_t samples) const;

 private:
  struct OneCache {
    DeviceBuffer keys, values;  // [pages, page_size, kv_heads, head_dim]
    DeviceBuffer low_bit;
    DeviceBuffer broad, recent;  // of StepInputs: what steps over this cache remember
    Cache cache{};
  };
  OneCache make_cache(uint64_t number, const GivenTensors* given) const;
  void enqueue(int64_t cache, bool is_before, const Launched& launched) const;

  StepProblem problem_;
  const Stream* stream_;
  std::vector<int32_t> host_pages_, host_lengths_;
  std::vector<float> host_scales_;  // of float8 keys and values
  DeviceBuffer pages_, lengths_, lengths_before_, alpha_, scale_, fp8_scales_, tau_, maximum_, support_,
      counts_, workspace_;
  DeviceTensor q_, q_before_, out_;
  PageTable table_{};
  StepInputs inputs_{};
  StepOutputs outputs_{};
  std::vector<OneCache> caches_;
};

}  // namespace splash::gpu::decode
