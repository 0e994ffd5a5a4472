#include "gpu/ceilings/load.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <fmt/format.h>

#include "gpu/cuda_check.h"

namespace splash::gpu {
namespace {

using SharedBuffer = std::shared_ptr<DeviceBuffer>;

SharedBuffer random_bits(const Stream& stream, int64_t bytes) {
  auto buffer = std::make_shared<DeviceBuffer>(stream, bytes);
  launch_fill_random(buffer->data(), bytes, stream.handle());
  return buffer;
}

template <class Element>
std::vector<unsigned char> gaussian_elements(int64_t bytes) {
  std::mt19937 generator(17);
  std::normal_distribution<float> normal;
  std::vector<unsigned char> raw(static_cast<size_t>(bytes));
  for (size_t at = 0; at < raw.size(); at += sizeof(Element)) {
    const auto element = static_cast<Element>(normal(generator));
    std::memcpy(&raw[at], &element, sizeof element);
  }
  return raw;
}

// Gaussian numbers, because zeros draw less power and the clock would stay higher than in any real product.
SharedBuffer gaussian(const Stream& stream, MatrixType type, int64_t bytes) {
  const std::vector<unsigned char> raw = type == MatrixType::tf32   ? gaussian_elements<float>(bytes)
                                         : type == MatrixType::f16  ? gaussian_elements<__half>(bytes)
                                         : type == MatrixType::bf16 ? gaussian_elements<__nv_bfloat16>(bytes)
                                                                    : gaussian_elements<__nv_fp8_e4m3>(bytes);
  auto buffer = std::make_shared<DeviceBuffer>(stream, bytes);
  buffer->upload(raw.data(), bytes);
  return buffer;
}

int64_t whole_blocks(int64_t bytes) {
  return std::max(bytes / kMemoryBlockBytes, int64_t{1}) * kMemoryBlockBytes;
}

// Eight times L2, or less where the device has little memory.
int64_t dram_bytes(const DeviceInfo& device) {
  return whole_blocks(std::min(8 * device.l2_bytes, device.memory_bytes / 8));
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.0f} MB", 1e-6 * static_cast<double>(bytes));
}

MatrixType matrix_type(const std::string& dtype) {
  if (dtype == "tf32") return MatrixType::tf32;
  if (dtype == "float16") return MatrixType::f16;
  if (dtype == "bfloat16") return MatrixType::bf16;
  if (dtype == "float8_e4m3") return MatrixType::e4m3;
  throw InvalidArgument(fmt::format(
      "there are no tensor products of '{}'; allowed: tf32, float16, bfloat16, float8_e4m3", dtype));
}

int elements_in_32_bytes(MatrixType type) {
  return type == MatrixType::tf32 ? 8 : type == MatrixType::e4m3 ? 32 : 16;
}

}  // namespace

Load copy_load(const LoadContext& context) {
  const int64_t bytes = dram_bytes(context.device);
  const SharedBuffer in = random_bits(context.stream, bytes), out = random_bits(context.stream, bytes);
  return {.name = "dram copy",
          .dtype = "",
          .units = "bytes/s",
          .method = fmt::format(
              "{} copied by a kernel, bytes read and written; {} loads of 16 bytes a thread in flight",
              megabytes(bytes), kMemoryInFlight),
          .work = 2.0 * static_cast<double>(bytes),
          .enqueue =
              [=, stream = context.stream.handle()] { launch_copy(in->data(), out->data(), bytes, stream); },
          .keeps_span = false};
}

Load copy_call_load(const LoadContext& context) {
  const int64_t bytes = dram_bytes(context.device);
  const SharedBuffer in = random_bits(context.stream, bytes), out = random_bits(context.stream, bytes);
  return {.name = "dram copy",
          .dtype = "",
          .units = "bytes/s",
          .method = fmt::format("{} copied by cudaMemcpyAsync, bytes read and written", megabytes(bytes)),
          .work = 2.0 * static_cast<double>(bytes),
          .enqueue =
              [=, stream = context.stream.handle()] {
                check_cuda(cudaMemcpyAsync(out->data(), in->data(), static_cast<size_t>(bytes),
                                           cudaMemcpyDeviceToDevice, stream),
                           "copy on the device");
              },
          .keeps_span = false};
}

Load read_load(const LoadContext& context) {
  const int64_t bytes = 2 * dram_bytes(context.device);
  const SharedBuffer in = random_bits(context.stream, bytes);
  return {.name = "dram read",
          .dtype = "",
          .units = "bytes/s",
          .method = fmt::format("{} read by a kernel; {} loads of 16 bytes a thread in flight",
                                megabytes(bytes), kMemoryInFlight),
          .work = static_cast<double>(bytes),
          .enqueue = [=, stream = context.stream.handle(),
                      span = context.span] { launch_read(in->data(), bytes, span, stream); },
          .keeps_span = false};
}

Load l2_load(const LoadContext& context) {
  constexpr int kPasses = 512;
  const int64_t bytes = whole_blocks(context.device.l2_bytes / 3);
  const int blocks =
      static_cast<int>(std::min<int64_t>(2 * context.device.multiprocessors, bytes / kL2SliceBytes));
  const SharedBuffer in = random_bits(context.stream, bytes);
  return {
      .name = "l2 read",
      .dtype = "",
      .units = "bytes/s",
      .method = fmt::format("{}, a third of L2, read again and again past L1 (ld.global.cg), no line by two "
                            "multiprocessors at a time",
                            megabytes(bytes)),
      .work = static_cast<double>(kL2SliceBytes) * blocks * kPasses,
      .enqueue = [=, stream = context.stream.handle(), span = context.span] {
        launch_l2_read(in->data(), bytes, blocks, kPasses, span, stream);
      }};
}

Load shared_load(const LoadContext& context) {
  constexpr int kPasses = 4096, kBlocksEach = 2;
  const int blocks = kBlocksEach * context.device.multiprocessors;
  const SharedBuffer in = random_bits(context.stream, kMemoryBlockBytes);
  return {
      .name = "shared read",
      .dtype = "",
      .units = "bytes/s",
      .method = fmt::format("every multiprocessor, {} threads reading 16 bytes each without bank conflicts",
                            kBlocksEach * kMemoryThreads),
      .work = static_cast<double>(kMemoryBlockBytes) * blocks * kPasses,
      .enqueue = [=, stream = context.stream.handle(), span = context.span] {
        launch_shared_read(in->data(), blocks, kPasses, span, stream);
      }};
}

Load fma_load(const LoadContext& context) {
  constexpr int kSteps = 2000;
  const int blocks = 4 * context.device.multiprocessors;
  return {.name = "fma",
          .dtype = "float32",
          .units = "FLOP/s",
          .method = fmt::format(
              "fused multiply-adds in registers, two FLOP each; {} independent chains a thread", kFmaChains),
          .work = 2.0 * kFmaUnroll * kFmaChains * kSteps * kFmaThreads * blocks,
          .enqueue = [=, stream = context.stream.handle(), span = context.span] {
            launch_fma(blocks, kSteps, span, stream);
          }};
}

Load exponentials_load(const LoadContext& context) {
  constexpr int kSteps = 500;
  const int blocks = 4 * context.device.multiprocessors;
  return {.name = "exponentials",
          .dtype = "",
          .units = "1/s",
          .method = fmt::format("2^-x (ex2.approx) of registers; {} independent chains a thread", kExpChains),
          .work = 1.0 * kExpUnroll * kExpChains * kSteps * kExpThreads * blocks,
          .enqueue = [=, stream = context.stream.handle(), span = context.span] {
            launch_exponentials(blocks, kSteps, span, stream);
          }};
}

Load tensor_load(const LoadContext& context, const std::string& dtype) {
  const MatrixType type = matrix_type(dtype);
  const int k = elements_in_32_bytes(type);
  Load load{.name = "tensor", .dtype = dtype, .units = "FLOP/s", .method = ""};
  if (context.device.compute_major == 9) {
    constexpr int kSteps = 2000;
    const int blocks = context.device.multiprocessors;
    const SharedBuffer random = gaussian(context.stream, type, kWgmmaShared);
    load.method = fmt::format(
        "wgmma m64n{}k{}, Gaussian operands resident in shared memory, two warpgroups on every "
        "multiprocessor, sustained",
        kWgmmaN, k);
    load.work = 2.0 * 64 * kWgmmaN * 4 * k * 2 * blocks * kSteps;
    load.enqueue = [=, stream = context.stream.handle(), span = context.span] {
      launch_wgmma(type, random->data(), blocks, kSteps, span, stream);
    };
  } else if (type == MatrixType::e4m3) {
    load.method = "not measured: fp8 products are built for compute capability 9.0 alone";
  } else {
    constexpr int kSteps = 4000, kBlocksEach = 2;
    const int blocks = kBlocksEach * context.device.multiprocessors;
    const SharedBuffer random = gaussian(context.stream, type, kMmaBytes);
    load.method = fmt::format(
        "mma.sync m16n8k{}, Gaussian operands resident in registers, {} warps on every "
        "multiprocessor, sustained",
        k, kBlocksEach * kMmaThreads / 32);
    constexpr int kWarps = kMmaThreads / 32;
    load.work = 2.0 * 16 * 8 * k * kMmaTiles * kMmaTiles * kWarps * blocks * kSteps;
    load.enqueue = [=, stream = context.stream.handle(), span = context.span] {
      launch_mma(type, random->data(), blocks, kSteps, span, stream);
    };
  }
  return load;
}

Load empty_load(const LoadContext& context) {
  return {
      .name = "launch",
      .dtype = "",
      .units = "s",
      .method = "an empty kernel between two events on a filled queue: what a lone launch costs the device",
      .enqueue = [stream = context.stream.handle()] { launch_empty(stream); },
      .keeps_span = false};
}

}  // namespace splash::gpu
