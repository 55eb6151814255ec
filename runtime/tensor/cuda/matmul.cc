// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's matrices are column-major, in which a row-major matrix is its transpose: C = A B is computed as
// C^T = B^T A^T, with the operands swapped and nothing moved.
// https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api
#include "runtime/tensor/cuda/matmul.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "runtime/cuda/current_device.h"

namespace lockstep::cuda {
namespace {

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;

// The largest power of two, up to 256, that divides the address of each matrix of the batch.
std::int64_t alignment_of(const float* data, std::int64_t stride) {
  const std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(data) | static_cast<std::uintptr_t>(stride * 4) | 256u;
  return static_cast<std::int64_t>(bits & (~bits + 1));
}

}  // namespace

// Its handles go with it. They are made one after the other, and each may be missing.
struct Matmul::Plan {
  explicit Plan(const CublasLt& functions) : library(functions) {}
  ~Plan() {
    for (cublasLtMatrixLayout_t layout : {a, b, c}) {
      if (layout != nullptr) library.layout_destroy(layout);
    }
    if (preference != nullptr) library.preference_destroy(preference);
    if (desc != nullptr) library.desc_destroy(desc);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  const CublasLt& library;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  // cuBLASLt's: a is our B.
  cublasLtMatrixLayout_t a = nullptr;
  cublasLtMatrixLayout_t b = nullptr;
  cublasLtMatrixLayout_t c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
};

Matmul::Matmul(DeviceRuntime& runtime, StreamView stream, bool tf32)
    : library_(cublaslt()), stream_(stream), tf32_(tf32), workspace_(runtime.allocate(kWorkspaceBytes, stream)) {
  const CurrentDevice current(stream.device);
  if (const cublasStatus_t status = library_.create(&handle_); status != CUBLAS_STATUS_SUCCESS) {
    throw DeviceError(
        fmt::format("cublasLtCreate on {} failed: {}; {} has no room on the GPU, or wants a newer driver: free memory "
                    "of the GPU, or update the driver",
                    stream_.device.str(), library_.describe(status), library_.library.path()));
  }
}

Matmul::~Matmul() {
  plans_.clear();
  if (handle_ != nullptr) library_.destroy(handle_);
}

void Matmul::check(cublasStatus_t status, const char* what, const Gemm& gemm, const Batch& batch) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(
      fmt::format("{} on {} failed: {}, for {} products of a ({}{} x {}) and b ({}{} x {}), with strides of {} in a, "
                  "{} in b and {} in c; report this line, or set LOCKSTEP_CUBLASLT_LIB to another version than {}",
                  what, stream_.device.str(), library_.describe(status), batch.count,
                  gemm.a.transposed ? "transposed " : "", gemm.rows, gemm.inner, gemm.b.transposed ? "transposed " : "",
                  gemm.inner, gemm.columns, gemm.a.stride, gemm.b.stride, gemm.ldc, library_.library.path()));
}

Matmul::Key Matmul::key_of(const Gemm& gemm, const Batch& batch) {
  return {gemm.rows,
          gemm.columns,
          gemm.inner,
          gemm.a.stride,
          gemm.b.stride,
          gemm.ldc,
          gemm.a.transposed ? 1 : 0,
          gemm.b.transposed ? 1 : 0,
          gemm.c.add ? 1 : 0,
          batch.count,
          batch.a,
          batch.b,
          batch.c,
          alignment_of(gemm.a.data, batch.a),
          alignment_of(gemm.b.data, batch.b),
          alignment_of(gemm.c.data, batch.c)};
}

std::unique_ptr<Matmul::Plan> Matmul::make_plan(const Gemm& gemm, const Batch& batch, const Key& key) const {
  auto plan = std::make_unique<Plan>(library_);
  const auto done = [&](cublasStatus_t status, const char* what) { check(status, what, gemm, batch); };
  done(library_.desc_create(&plan->desc, tf32_ ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
       "cublasLtMatmulDescCreate");
  const auto set_desc = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    done(library_.desc_set(plan->desc, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  };
  set_desc(CUBLASLT_MATMUL_DESC_TRANSA, gemm.b.transposed);
  set_desc(CUBLASLT_MATMUL_DESC_TRANSB, gemm.a.transposed);

  // `fast` runs along a row as we store it.
  const auto layout = [&](cublasLtMatrixLayout_t& made, std::int64_t fast, std::int64_t slow, std::int64_t stride,
                          std::int64_t step) {
    done(library_.layout_create(&made, CUDA_R_32F, static_cast<std::uint64_t>(fast), static_cast<std::uint64_t>(slow),
                                stride),
         "cublasLtMatrixLayoutCreate");
    const auto count = static_cast<std::int32_t>(batch.count);
    done(library_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
         "cublasLtMatrixLayoutSetAttribute");
    done(library_.layout_set(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step, sizeof step),
         "cublasLtMatrixLayoutSetAttribute");
  };
  layout(plan->a, gemm.b.transposed ? gemm.inner : gemm.columns, gemm.b.transposed ? gemm.columns : gemm.inner,
         gemm.b.stride, batch.b);
  layout(plan->b, gemm.a.transposed ? gemm.rows : gemm.inner, gemm.a.transposed ? gemm.inner : gemm.rows, gemm.a.stride,
         batch.a);
  layout(plan->c, gemm.columns, gemm.rows, gemm.ldc, batch.c);

  done(library_.preference_create(&plan->preference), "cublasLtMatmulPreferenceCreate");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    done(library_.preference_set(plan->preference, attribute, &value, sizeof value),
         "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceBytes});
  // Parts of a sum over `inner` are added in a step of their own, in one order; not in place, by whoever comes first.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  const auto align = [&](cublasLtMatmulPreferenceAttributes_t attribute, std::int64_t bytes) {
    prefer(attribute, static_cast<std::uint32_t>(bytes));
  };
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key[14]);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key[13]);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key[15]);
  align(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key[15]);

  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  done(
      library_.heuristic(handle_, plan->desc, plan->a, plan->b, plan->c, plan->c, plan->preference, 1, &result, &found),
      "cublasLtMatmulAlgoGetHeuristic");
  done(found == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : result.state, "cublasLtMatmulAlgoGetHeuristic");
  plan->algorithm = result.algo;
  return plan;
}

void Matmul::multiply(const Gemm& gemm, const Batch& batch) {
  const CurrentDevice current(stream_.device);
  const Key key = key_of(gemm, batch);
  std::unique_ptr<Plan>& plan = plans_[key];
  if (plan == nullptr) plan = make_plan(gemm, batch, key);
  const float beta = gemm.c.add ? 1.0f : 0.0f;
  check(library_.matmul(handle_, plan->desc, &gemm.alpha, gemm.b.data, plan->a, gemm.a.data, plan->b, &beta,
                        gemm.c.data, plan->c, gemm.c.data, plan->c, &plan->algorithm, workspace_.get(), kWorkspaceBytes,
                        static_cast<cudaStream_t>(stream_.handle)),
        "cublasLtMatmul", gemm, batch);
}

}  // namespace lockstep::cuda
