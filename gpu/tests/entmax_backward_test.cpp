// Backward of the flagship against the double oracle, on supports made on the host. SPLASH_TEST_SEED=random
// draws new inputs. entmax_backward_simt_test.cpp runs the same kernels without a GPU.

#include <memory>

#include <cuda_runtime_api.h>

#include "gpu/cuda_check.h"
#include "gpu/tests/entmax_backward_case.h"
#include "gpu/tests/skip_without_gpu.h"

using namespace splash;
using namespace splash::gpu;
using namespace splash::gpu::testing;

namespace {

void check_against_oracle(const Stream& stream, Case& c) {
  const std::string name = to_string(c.spec.shape);
  CAPTURE(name);
  CAPTURE(to_string(c.dtype));
  CAPTURE(c.spec.mask.causal);
  CAPTURE(c.spec.normalizer.alpha.front());
  take_support_of_forward(c);
  DeviceBackward backward(stream, c);
  backward.enqueue(DeviceSupport(stream, c.support, test_seed()));
  check_close(backward.to_host(),
              cpu_ref::attention_backward<double>(c.spec, c.inputs.q, c.inputs.k, c.inputs.v, c.d_out),
              gradients_of_support(c).row_dalpha, c.dtype);
}

constexpr Dtype kDtypes[] = {Dtype::f32, Dtype::f16, Dtype::bf16};

}  // namespace

TEST_CASE("entmax backward: shapes, masks, dtypes, head_dims and alphas agree with the double oracle") {
  SKIP_WITHOUT_GPU();
  constexpr int64_t kShapes[][5] = {{1, 1, 1, 1, 1},    {1, 2, 2, 33, 65},  {2, 4, 2, 129, 129},
                                    {1, 2, 2, 7, 200},  {1, 1, 1, 200, 7},  {1, 2, 1, 256, 256},
                                    {3, 8, 2, 65, 130}, {1, 1, 1, 130, 513}};
  constexpr int64_t kHeadDims[] = {64, 8, 128, 40, 256, 96, 136};
  constexpr double kAlphas[] = {1.5, 2, 1.25, 1.75, 1.5};
  const Stream stream;
  size_t turn = 0;
  for (const Dtype dtype : kDtypes) {
    for (const auto& [batch, q_heads, kv_heads, q_len, kv_len] : kShapes) {
      for (const bool causal : {false, true}) {
        const int64_t head_dim = kHeadDims[turn % std::size(kHeadDims)];
        AttentionSpec spec = entmax_spec({batch, q_heads, kv_heads, q_len, kv_len, head_dim},
                                         kAlphas[turn % std::size(kAlphas)], causal);
        if (turn % 3 == 2) spec.normalizer.alpha = alphas_a_head(q_heads);
        if (turn % 4 == 3) spec.scale = 0.3;
        Case c = make_case(spec, dtype);
        check_against_oracle(stream, c);
        ++turn;
      }
    }
  }
}

TEST_CASE("entmax backward: every padded head_dim of every dtype, dense rows and a sink") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : kDtypes) {
    for (const int64_t head_dim : {24, 64, 72, 128, 200, 256}) {
      for (const double alpha : {1.5, 1.25}) {
        // Queries near zero: every key is in every support, and most rows are long.
        Case ties = make_case(entmax_spec({1, 2, 1, 70, 300, head_dim}, alpha), dtype,
                              {.kind = WorkloadKind::gaussian, .query_variance = 1e-4});
        check_against_oracle(stream, ties);
        CHECK(ties.support.columns.size() == 70 * 2 * 300);
        Case sink =
            make_case(entmax_spec({1, 2, 1, 300, 130, head_dim}, alpha), dtype, {.kind = WorkloadKind::sink});
        check_against_oracle(stream, sink);
      }
    }
  }
}

TEST_CASE("entmax backward: exact ties") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const bool causal : {false, true}) {
    Case c = make_case(entmax_spec({1, 2, 1, 70, 130, 64}, 1.5, causal), Dtype::bf16,
                       {.kind = WorkloadKind::ties});
    check_against_oracle(stream, c);
  }
}

TEST_CASE("entmax backward: keys that all queries attend to, over many tiles") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int64_t head_dim : {64, 128, 256}) {
    CAPTURE(head_dim);
    Case c = make_case(entmax_spec({1, 4, 2, 12000, 1000, head_dim}, 1.5), Dtype::bf16);
    draw_support(c, 0, 4, {5, 700, 999});
    DeviceBackward backward(stream, c);
    backward.enqueue(DeviceSupport(stream, c.support, 1));
    check_close(backward.to_host(), c);
  }
}

TEST_CASE("entmax backward: so many keys with many entries that none is divided") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : kDtypes) {
    Case c = make_case(entmax_spec({1, 6, 2, 500, 700, 64}, 1.5), dtype);
    draw_support(c, 700, 700, {});  // two thirds of the keys in each row
    DeviceBackward backward(stream, c);
    backward.enqueue(DeviceSupport(stream, c.support, 1));
    check_close(backward.to_host(), c);
  }
}

TEST_CASE("entmax backward: many keys, most of them without an entry") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  Case c = make_case(entmax_spec({1, 2, 2, 700, 300001, 8}, 1.75), Dtype::f32);
  draw_support(c, 0, 60, {});
  DeviceBackward backward(stream, c);
  backward.enqueue(DeviceSupport(stream, c.support, 1));
  check_close(backward.to_host(), c);
}

TEST_CASE("entmax backward: rows from empty to longer than a block's step") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const Dtype dtype : kDtypes) {
    Case c = make_case(entmax_spec({1, 2, 1, 150, 2500, 64}, 1.5), dtype);
    draw_support(c, 0, 900, {});
    DeviceBackward backward(stream, c);
    backward.enqueue(DeviceSupport(stream, c.support, 1));
    check_close(backward.to_host(), c);
  }
}

TEST_CASE("entmax backward: without any entry all gradients are zero") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  Case c = make_case(entmax_spec({2, 2, 1, 50, 70, 64}, 1.5), Dtype::f16);
  draw_support(c, 0, 0, {});
  DeviceBackward backward(stream, c);
  backward.enqueue(DeviceSupport(stream, c.support, 1));
  const auto bytes = backward.bytes();
  CHECK(std::all_of(bytes.begin(), bytes.end(), [](char byte) { return byte == 0; }));
}

TEST_CASE("entmax backward: rows that are not stored add nothing") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  Case c = make_case(entmax_spec({1, 2, 1, 90, 400, 64}, 1.5), Dtype::f32);
  draw_support(c, 1, 300, {});
  const auto is_stored = [](int64_t row) { return row % 3 != 1; };
  DeviceBackward backward(stream, c);
  backward.enqueue(DeviceSupport(stream, SupportPool(c.support, 1, is_stored)));
  c.support = c.support.only(is_stored);
  check_close(backward.to_host(), c);
}

TEST_CASE("entmax backward: NaN stays in its rows and in the keys that they attend to") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const double alpha : {1.5, 2.0, 1.25}) {
    Case c = make_case(entmax_spec({1, 1, 1, 60, 400, 64}, alpha), Dtype::bf16);
    draw_support(c, 1, 250, {});
    DeviceBackward backward(stream, c);
    backward.enqueue(DeviceSupport(stream, c.support, 1));
    const Gradients clean = backward.to_host();
    constexpr int64_t kSpoilt = 17;
    std::vector<bool> touched(400);
    for (int64_t i = c.support.first[kSpoilt]; i < c.support.first[kSpoilt + 1]; ++i) {
      c.support.excess[i] = std::numeric_limits<float>::quiet_NaN();
      touched[c.support.columns[i]] = true;
    }
    backward.enqueue(DeviceSupport(stream, c.support, 1));
    const Gradients spoilt = backward.to_host();
    for (int64_t d = 0; d < 64; ++d) {
      for (int64_t i = 0; i < 60; ++i) {
        const double x = spoilt.dq.row(0, 0, i)[d];
        REQUIRE((i == kSpoilt ? std::isnan(x) : x == clean.dq.row(0, 0, i)[d]));
      }
      for (int64_t j = 0; j < 400; ++j) {
        const double k = spoilt.dk.row(0, 0, j)[d], v = spoilt.dv.row(0, 0, j)[d];
        REQUIRE((touched[j] ? std::isnan(k) && std::isnan(v)
                            : k == clean.dk.row(0, 0, j)[d] && v == clean.dv.row(0, 0, j)[d]));
      }
    }
  }
}

TEST_CASE("entmax backward: the same bits in 1000 runs, wherever the rows lie in the pool") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  for (const int64_t head_dim : {64, 128}) {
    Case c = make_case(entmax_spec({1, 4, 2, 400, 500, head_dim}, 1.5), Dtype::f32);
    draw_support(c, 0, 200, {3});
    DeviceBackward backward(stream, c);
    std::vector<char> first;
    int differing = 0;
    std::unique_ptr<DeviceSupport> support;
    for (int run = 0; run < 500; ++run) {
      if (run % 50 == 0) support = std::make_unique<DeviceSupport>(stream, c.support, run);
      backward.enqueue(*support);
      const auto bytes = backward.bytes();
      if (run == 0) first = bytes;
      differing += bytes != first ? 1 : 0;
    }
    CHECK(differing == 0);
  }
}

TEST_CASE("entmax backward: can be captured into a graph, and dL/dalpha left out") {
  SKIP_WITHOUT_GPU();
  const Stream stream;
  Case c = make_case(entmax_spec({1, 2, 1, 100, 300, 64}, 1.5), Dtype::bf16);
  draw_support(c, 0, 150, {});
  const DeviceSupport support(stream, c.support, 1);
  DeviceBackward backward(stream, c);
  backward.enqueue(support, false);  // allocates the workspace
  const auto expected = backward.bytes();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  check_cuda(cudaStreamBeginCapture(stream.handle(), cudaStreamCaptureModeGlobal), "begin a capture");
  backward.enqueue(support, false);
  check_cuda(cudaStreamEndCapture(stream.handle(), &graph), "end a capture");
  check_cuda(cudaGraphInstantiate(&executable, graph, 0), "instantiate a graph");
  check_cuda(cudaGraphLaunch(executable, stream.handle()), "launch a graph");
  CHECK(backward.bytes() == expected);
  check_cuda(cudaGraphExecDestroy(executable), "destroy a graph");
  check_cuda(cudaGraphDestroy(graph), "destroy a graph");
}

TEST_CASE("entmax backward: refuses what it cannot take") {
  SKIP_WITHOUT_GPU();
  CHECK_THROWS_AS(entmax::backward_workspace_bytes(entmax_spec({1, 1, 1, 8, 8, 12}, 1.5), Dtype::bf16, 64),
                  InvalidArgument);
  CHECK_THROWS_AS(entmax::backward_workspace_bytes(entmax_spec({1, 1, 1, 8, 8, 264}, 1.5), Dtype::bf16, 64),
                  InvalidArgument);
  CHECK_THROWS_AS(
      entmax::backward_workspace_bytes(entmax_spec({1, 1, 1, 8, 8, 64}, 1.5), Dtype::bf16, int64_t{1} << 31),
      InvalidArgument);
  CHECK_THROWS_AS(entmax::enqueue_backward(entmax_spec({1, 1, 1, 8, 8, 64}, 1.5), Dtype::f64, {}),
                  InvalidArgument);
}
