// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <cstdlib>

#include "lockstep/base/error.h"
#include "runtime/tensor/cuda/cublaslt.h"
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

}  // namespace
}  // namespace lockstep::cuda::matmul_test
