#pragma once
// A test that needs a GPU begins with SKIP_WITHOUT_GPU(). If there is none, its program ends with "GPU tests
// skipped: N (no CUDA device: …)", which ctest reports as skipped. Keep CPU-only tests in another program,
// because ctest shows one verdict per program.

#include <cstdio>
#include <string>

#include <doctest/doctest.h>

#include "gpu/device.h"

namespace splash::gpu::testing {

inline int& skipped_tests() {
  static int count = 0;
  return count;
}

inline bool skip_this_test() {
  static const bool missing = list_devices().empty();
  if (missing) ++skipped_tests();
  return missing;
}

// Reports only on a run without failures, because its message must not turn a failure into a skip.
struct SkipReporter : doctest::IReporter {
  explicit SkipReporter(const doctest::ContextOptions& /*options*/) {}
  void report_query(const doctest::QueryData& /*query*/) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& stats) override {
    if (skipped_tests() == 0 || stats.numTestCasesFailed > 0) return;
    std::printf("GPU tests skipped: %d (no CUDA device: %s)\n", skipped_tests(),
                device_unavailable_reason().c_str());
    skipped_tests() = 0;  // reported once, though every source file that includes this registers a reporter
  }
  void test_case_start(const doctest::TestCaseData& /*test*/) override {}
  void test_case_reenter(const doctest::TestCaseData& /*test*/) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& /*stats*/) override {}
  void test_case_exception(const doctest::TestCaseException& /*exception*/) override {}
  void subcase_start(const doctest::SubcaseSignature& /*subcase*/) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& /*data*/) override {}
  void log_message(const doctest::MessageData& /*message*/) override {}
  void test_case_skipped(const doctest::TestCaseData& /*test*/) override {}
};

REGISTER_LISTENER("skip_without_gpu", 1, SkipReporter);

}  // namespace splash::gpu::testing

#define SKIP_WITHOUT_GPU() \
  if (::splash::gpu::testing::skip_this_test()) return
