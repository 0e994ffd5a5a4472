// Steps of decode in a build without CUDA: the constructor throws NotBuilt.

#include "gpu/decode/benchmark/steps.h"
#include "gpu/no_device.h"

namespace splash::gpu::decode {

Steps::Steps(const StepProblem& /*problem*/, const Stream& stream, const GivenTensors* /*given*/)
    : stream_(&stream) {
  no_device();
}
void Steps::poison() {
  no_device();
}
void Steps::enqueue(int64_t /*cache*/, const Launched& /*launched*/) const {
  no_device();
}
void Steps::enqueue_before(int64_t /*cache*/) const {
  no_device();
}
void Steps::settle() const {
  no_device();
}
void Steps::enqueue_round() const {
  no_device();
}
StepResults Steps::results() const {
  no_device();
}
std::pair<Tensor<double>, Tensor<double>> Steps::head(int64_t /*sequence*/, int64_t /*kv_head*/) const {
  no_device();
}
std::vector<std::pair<std::string, double>> Steps::kernel_seconds(int64_t /*samples*/) const {
  no_device();
}

}  // namespace splash::gpu::decode
