// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cstdlib>

#include "lockstep/base/error.h"
#include "runtime/tensor/cuda/cublaslt.h"
#include "tests/fakes/cudart/fake_cuda.h"
#include "tests/support/error_of.h"
#include "tests/unit/tensor/cuda/both.h"

// How cuBLASLt is found and asked; its products are beside the CPU's in kernels_test.cc.
namespace lockstep::cuda::matmul_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

TEST(CublasLt, IsLookedForWhereNcclIs) {
  const std::string file = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  EXPECT_THAT(cublaslt_candidates(Environment()),
              ElementsAre(file, "/usr/local/cuda/lib64/" + file, "/usr/local/cuda/lib/" + file));
  EXPECT_THAT(cublaslt_candidates(Environment({{"LOCKSTEP_CUBLASLT_LIB", "/a/b.so"}, {"CUDA_HOME", "/c"}})),
              ElementsAre("/a/b.so"));
}

TEST(CublasLt, WhatIsNotItIsRefusedWithARemedy) {
  const auto refusal = [](std::string file) {
    return error_of<BackendUnavailable>([&] { load_cublaslt(std::vector{std::move(file)}); });
  };
  testing::expect_text(refusal("/nowhere/libcublasLt.so"),
                       {"matrix product on cuda: the library can't be loaded (/nowhere/libcublasLt.so: cannot open",
                        "set LOCKSTEP_CUBLASLT_LIB to the file"});
  testing::expect_text(refusal("libm.so.6"), {"has no function cublasLtGetVersion: the library is not cuBLASLt"});
  ::setenv("LOCKSTEP_FAKE_CUBLASLT_VERSION", "110901", 1);
  testing::expect_text(refusal(std::getenv("LOCKSTEP_CUBLASLT_LIB")),
                       {"is cuBLASLt 11, but this lockstep was built with " + std::to_string(CUBLAS_VER_MAJOR)});
  ::unsetenv("LOCKSTEP_FAKE_CUBLASLT_VERSION");
}

// A device's kernels read the variable with their first product.
float one_product(Kernels& k, float a, float b) {
  testing::Arrays arrays(k, 0);
  float* const c = arrays.out<float>(1);
  k.gemm({.rows = 1,
          .columns = 1,
          .inner = 1,
          .a = {arrays.in(std::vector<float>{a}), 1},
          .b = {arrays.in(std::vector<float>{b}), 1},
          .c = {c, false},
          .ldc = 1});
  float value = 0;
  std::memcpy(&value, arrays.results()[0].data(), sizeof value);
  return value;
}

TEST(Matmul, RoundsToTf32WhereThatIsAllowed) {
  const float precise = 1.0f + 0x1.0p-20f;
  EXPECT_EQ(one_product(testing::gpu_kernels(0), precise, 1.0f), precise);
  ::setenv("LOCKSTEP_ALLOW_TF32", "1", 1);
  EXPECT_EQ(one_product(testing::gpu_kernels(1), precise, 1.0f), 1.0f);
  ::setenv("LOCKSTEP_ALLOW_TF32", "yes", 1);
  EXPECT_THAT(error_of<InvalidArgument>([&] { one_product(testing::gpu_kernels(2), precise, 1.0f); }),
              HasSubstr("LOCKSTEP_ALLOW_TF32='yes' is unknown; set it to '1', or to '0' (the default)"));
  ::unsetenv("LOCKSTEP_ALLOW_TF32");
}

// The fake itself: a product of 2 x 3 by 3 x 4, column by column, with faults put in.
class FakeCublasLt : public ::testing::Test {
 protected:
  void SetUp() override {
    library_.create(&handle_);
    library_.desc_create(&desc_, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    library_.layout_create(&a_, CUDA_R_32F, 2, 3, 2);
    library_.layout_create(&b_, CUDA_R_32F, 3, 4, 3);
    library_.layout_create(&c_, CUDA_R_32F, 2, 4, 2);
    library_.preference_create(&preference_);
    const std::uint64_t bytes = 4096;
    library_.preference_set(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    set_schemes(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    memory_ = device_runtime(DeviceKind::cuda).allocate(1 << 16, stream_);
  }
  void TearDown() override {
    for (cublasLtMatrixLayout_t layout : {a_, b_, c_}) library_.layout_destroy(layout);
    library_.preference_destroy(preference_);
    library_.desc_destroy(desc_);
    library_.destroy(handle_);
  }
  void set_schemes(std::uint32_t schemes) {
    library_.preference_set(preference_, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes);
  }
  cublasLtMatmulAlgo_t choose() {
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    library_.heuristic(handle_, desc_, a_, b_, c_, c_, preference_, 1, &result, &found);
    return result.algo;
  }
  // Matrices are 1 KiB apart, A `shift` bytes further.
  void multiply(const cublasLtMatmulAlgo_t& algorithm, std::size_t shift = 0, std::size_t workspace_bytes = 4096) {
    auto* const at = static_cast<std::byte*>(memory_.get());
    const float one = 1, zero = 0;
    library_.matmul(handle_, desc_, &one, at + shift, a_, at + 1024, b_, &zero, at + 2048, c_, at + 2048, c_,
                    &algorithm, at + 4096, workspace_bytes, static_cast<cudaStream_t>(stream_.view().handle));
    stream_.synchronize(Deadline::after(std::chrono::seconds(60)));
  }

  const CublasLt library_ = load_cublaslt(std::vector<std::string>{std::getenv("LOCKSTEP_CUBLASLT_LIB")});
  const Stream stream_{testing::kGpu};
  std::shared_ptr<void> memory_;
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr;
  cublasLtMatrixLayout_t b_ = nullptr;
  cublasLtMatrixLayout_t c_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  fake_cuda::Violations violations_;
};

TEST_F(FakeCublasLt, FindsEachFault) {
  const auto expect_found = [&](const char* what) { EXPECT_THAT(violations_.take(), ElementsAre(HasSubstr(what))); };
  const cublasLtMatmulAlgo_t algorithm = choose();
  multiply(algorithm);
  EXPECT_THAT(violations_.take(), ElementsAre());
  multiply(algorithm, 4);
  expect_found("matrix A is at");
  multiply(algorithm, 0, 1024);
  expect_found("a workspace of 1024 bytes");
  set_schemes(CUBLASLT_REDUCTION_SCHEME_MASK);
  choose();
  expect_found("in place, by whoever comes first");
  const std::int32_t transposed = CUBLAS_OP_T;
  library_.desc_set(desc_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
  library_.layout_destroy(a_);
  library_.layout_create(&a_, CUDA_R_32F, 3, 2, 3);
  multiply(algorithm);
  expect_found("an algorithm of another product");
  library_.layout_destroy(b_);
  library_.layout_create(&b_, CUDA_R_32F, 4, 4, 4);
  choose();
  expect_found("a product of 2 x 3 by 4 x 4 into 2 x 4");
}

}  // namespace
}  // namespace lockstep::cuda::matmul_test
