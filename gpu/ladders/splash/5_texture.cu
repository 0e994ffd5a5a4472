// Rung 5: K and V as textures. CUDA 12 removed the document's texture<> references, so texture objects over
// linear memory take their place, 16 bytes per fetch. Since Maxwell, textures share L1 with ordinary loads
// and add the texture unit's latency. Expected: no gain over rung 4, rather a loss.

#include <map>
#include <mutex>
#include <tuple>

#include "gpu/ladders/splash/fused.cuh"

namespace splash::gpu {
namespace {

using sparse::Keep;

struct TextureLoads {
  static constexpr int width = 4;
  cudaTextureObject_t data;
  __device__ __forceinline__ float4 operator()(int64_t i) const {
    return tex1Dfetch<float4>(data, static_cast<int>(i / 4));
  }
};

// A texture object describes an address and a length and owns neither. It is therefore cached and reused by
// all later calls with the same address and length. A launch cannot create an object per call, because it
// cannot wait until the object may be destroyed.
cudaTextureObject_t texture_of(const void* data, int64_t floats) {
  static std::mutex mutex;
  static std::map<std::tuple<int, const void*, int64_t>, cudaTextureObject_t> known;
  int device = 0;
  check_cuda(cudaGetDevice(&device), "ask for the current device");
  const std::lock_guard lock(mutex);
  cudaTextureObject_t& texture = known[{device, data, floats}];
  if (texture != 0) return texture;
  cudaResourceDesc resource{};
  resource.resType = cudaResourceTypeLinear;
  resource.res.linear.devPtr = const_cast<void*>(data);
  resource.res.linear.desc = cudaCreateChannelDesc<float4>();
  resource.res.linear.sizeInBytes = static_cast<size_t>(floats) * sizeof(float);
  const cudaTextureDesc description{};
  check_cuda(cudaCreateTextureObject(&texture, &resource, &description, nullptr), "create a texture object");
  return texture;
}

constexpr int64_t kMaxTexels = int64_t{1} << 27;  // the most that a linear texture may have

int64_t key_floats(const AttentionShape& shape) {
  return shape.batch * shape.kv_heads * shape.kv_len * shape.head_dim;
}

Plan plan(const AttentionSpec& spec, Dtype dtype, const DeviceInfo& device) {
  if (key_floats(spec.shape) / 4 > kMaxTexels) {
    throw Unsupported(
        "splash/5-texture takes K and V of at most 2^29 elements, a texture's limit; "
        "splash/4-read-only takes more");
  }
  return sparse::plan_fused<Keep::top_k, TextureLoads>(spec, dtype, device);
}

void launch(const AttentionSpec& spec, Dtype, const Plan& plan, const Arguments& arguments) {
  const int64_t floats = key_floats(spec.shape);
  sparse::launch_fused<Keep::top_k>(spec, plan, arguments, TextureLoads{texture_of(arguments.k, floats)},
                                    TextureLoads{texture_of(arguments.v, floats)});
}

const Variant kVariant{
    .ladder = "splash",
    .rung = 5,
    .name = "texture",
    .idea = "K and V through texture objects",
    .finding =
        "1.17x to 1.24x over plain loads, 0.99x of rung 4: the texture unit adds nothing to 16-byte loads.",
    .predicted = {.over = "2-fused", .low = 1.5, .high = 2, .claim = "S0.5"},
    .limits = sparse::fp32_limits(NormalizerKind::entmax, {32, 64}),
    .tolerance = {.f32 = 1e-10},
    .plan = plan,
    .launch = launch,
    .trace = sparse::trace_fused};
const VariantRegistration kRegistration(kVariant);

}  // namespace
}  // namespace splash::gpu
