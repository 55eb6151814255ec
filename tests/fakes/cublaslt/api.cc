// SPDX-License-Identifier: Apache-2.0
// cuBLASLt without a GPU: products of float32 matrices by plain loops on the stream's thread.
//
// What is a violation (fake_cuda.h): matrices that do not fit each other, or whose leading
// dimension is less than a column; a choice of algorithm that may sum in an order of its own; an algorithm that is
// given pointers of less alignment, another product, or less workspace than it was chosen for; a workspace that is not
// aligned. What a product reads and writes is told to the fake CUDA runtime as any kernel's is, and so is its
// workspace, as written. An algorithm here wants all of the workspace that it may have, and the alignment that it was
// promised.
#include <cublasLt.h>
#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/fakes/cudart/fake_cuda.h"

namespace {

using lockstep::fake_cuda::host_address;

struct Desc {
  bool tf32 = false;
  bool transpose_a = false;
  bool transpose_b = false;
};
struct Layout {
  std::uint64_t rows = 0;
  std::uint64_t columns = 0;
  std::int64_t ld = 0;
  std::int32_t batch = 1;
  std::int64_t stride = 0;

  bool operator==(const Layout&) const = default;
  std::size_t elements() const {
    return static_cast<std::size_t>(batch - 1) * static_cast<std::size_t>(stride) +
           static_cast<std::size_t>(ld) * (columns - 1) + rows;
  }
};
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment[4] = {256, 256, 256, 256};
};
// What an algorithm remembers in cublasLtMatmulAlgo_t.
struct Choice {
  std::uint64_t product = 0;
  std::uint64_t workspace = 0;
  std::uint32_t alignment[4] = {};
};
static_assert(sizeof(Choice) <= sizeof(cublasLtMatmulAlgo_t));

void violation(const std::string& text) { lockstep::fake_cuda::report_violation("cuBLASLt: " + text); }

template <typename T>
cublasStatus_t make(T** made, T value) {
  *made = new T(value);
  return CUBLAS_STATUS_SUCCESS;
}
template <typename T>
cublasStatus_t destroy(T* object) {
  delete object;
  return CUBLAS_STATUS_SUCCESS;
}

Desc* desc_of(cublasLtMatmulDesc_t handle) { return reinterpret_cast<Desc*>(handle); }
Layout* layout_of(cublasLtMatrixLayout_t handle) { return reinterpret_cast<Layout*>(handle); }
Preference* preference_of(cublasLtMatmulPreference_t handle) { return reinterpret_cast<Preference*>(handle); }

template <typename T>
T value_of(const void* data) {
  T value{};
  std::memcpy(&value, data, sizeof value);
  return value;
}

std::uint64_t product_of(const Desc& desc, const Layout& a, const Layout& b, const Layout& d) {
  std::uint64_t hash = desc.tf32 ? 1 : 2;
  const auto mix = [&](std::uint64_t value) { hash = (hash ^ value) * 0x9e3779b97f4a7c15u + 1; };
  mix(desc.transpose_a ? 1 : 0);
  mix(desc.transpose_b ? 1 : 0);
  for (const Layout* layout : {&a, &b, &d}) {
    for (const std::uint64_t value :
         {layout->rows, layout->columns, static_cast<std::uint64_t>(layout->ld),
          static_cast<std::uint64_t>(layout->batch), static_cast<std::uint64_t>(layout->stride)}) {
      mix(value);
    }
  }
  return hash;
}

bool fit(const Desc& desc, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const std::uint64_t m = desc.transpose_a ? a.columns : a.rows, k = desc.transpose_a ? a.rows : a.columns;
  const std::uint64_t n = desc.transpose_b ? b.rows : b.columns, k_of_b = desc.transpose_b ? b.columns : b.rows;
  const bool all = m == d.rows && n == d.columns && k == k_of_b && c == d && a.batch == d.batch && b.batch == d.batch;
  const bool wide = a.ld >= static_cast<std::int64_t>(a.rows) && b.ld >= static_cast<std::int64_t>(b.rows) &&
                    d.ld >= static_cast<std::int64_t>(d.rows);
  if (all && wide && m * n * k * static_cast<std::uint64_t>(d.batch) != 0) return true;
  violation(fmt::format(
      "a product of {} x {} by {} x {} into {} x {}, leading dimensions {}, {} and {}, batches {}, {} and {}", m, k,
      k_of_b, n, d.rows, d.columns, a.ld, b.ld, d.ld, a.batch, b.batch, d.batch));
  return false;
}

float rounded(float value, bool tf32) {
  return tf32 ? std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) & 0xffffe000u) : value;
}

void multiply(const Desc& desc, const Layout& a, const Layout& b, const Layout& d, const float* a_data,
              const float* b_data, float* d_data, float alpha, float beta) {
  const std::uint64_t inner = desc.transpose_a ? a.rows : a.columns;
  const auto a_ld = static_cast<std::size_t>(a.ld), b_ld = static_cast<std::size_t>(b.ld),
             d_ld = static_cast<std::size_t>(d.ld);
  for (std::int32_t batch = 0; batch < d.batch; ++batch) {
    const float* const x = a_data + batch * a.stride;
    const float* const y = b_data + batch * b.stride;
    float* const out = d_data + batch * d.stride;
    for (std::size_t j = 0; j < d.columns; ++j) {
      for (std::size_t i = 0; i < d.rows; ++i) {
        double sum = 0;
        for (std::size_t p = 0; p < inner; ++p) {
          const float left = x[desc.transpose_a ? i * a_ld + p : p * a_ld + i];
          const float right = y[desc.transpose_b ? p * b_ld + j : j * b_ld + p];
          sum += static_cast<double>(rounded(left, desc.tf32)) * static_cast<double>(rounded(right, desc.tf32));
        }
        float& target = out[j * d_ld + i];
        const auto product = static_cast<double>(alpha) * sum;
        target =
            static_cast<float>(beta == 0 ? product : product + static_cast<double>(beta) * static_cast<double>(target));
      }
    }
  }
}

}  // namespace

extern "C" {

// LOCKSTEP_FAKE_CUBLASLT_VERSION: another one.
size_t cublasLtGetVersion() {
  const char* const value = std::getenv("LOCKSTEP_FAKE_CUBLASLT_VERSION");
  return value == nullptr ? CUBLAS_VERSION : std::strtoul(value, nullptr, 10);
}
const char* cublasLtGetStatusName(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS";
}
const char* cublasLtGetStatusString(cublasStatus_t) { return "a status of the fake"; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) { return make(reinterpret_cast<int**>(handle), 0); }
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) { return destroy(reinterpret_cast<int*>(handle)); }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* desc, cublasComputeType_t compute, cudaDataType_t scale) {
  if ((compute != CUBLAS_COMPUTE_32F && compute != CUBLAS_COMPUTE_32F_FAST_TF32) || scale != CUDA_R_32F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  return make(reinterpret_cast<Desc**>(desc), Desc{.tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc) { return destroy(desc_of(desc)); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void* data, size_t) {
  const bool transpose = value_of<std::int32_t>(data) == CUBLAS_OP_T;
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: desc_of(desc)->transpose_a = transpose; return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_DESC_TRANSB: desc_of(desc)->transpose_b = transpose; return CUBLAS_STATUS_SUCCESS;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t ld) {
  if (type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  return make(reinterpret_cast<Layout**>(layout), Layout{.rows = rows, .columns = columns, .ld = ld});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout_of(layout)); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* data, size_t) {
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      layout_of(layout)->batch = value_of<std::int32_t>(data);
      return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      layout_of(layout)->stride = value_of<std::int64_t>(data);
      return CUBLAS_STATUS_SUCCESS;
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make(reinterpret_cast<Preference**>(preference), Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return destroy(preference_of(preference));
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* data,
                                                    size_t) {
  Preference& preference = *preference_of(handle);
  const auto align = [&](int which) {
    preference.alignment[which] = value_of<std::uint32_t>(data);
    return CUBLAS_STATUS_SUCCESS;
  };
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
      preference.workspace = value_of<std::uint64_t>(data);
      return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
      preference.schemes = value_of<std::uint32_t>(data);
      return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return align(0);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return align(1);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return align(2);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return align(3);
    default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference_handle,
                                              int, cublasLtMatmulHeuristicResult_t results[], int* found) {
  *found = 0;
  if (!fit(*desc_of(desc), *layout_of(a), *layout_of(b), *layout_of(c), *layout_of(d)))
    return CUBLAS_STATUS_INVALID_VALUE;
  const Preference& preference = *preference_of(preference_handle);
  if ((preference.schemes & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0) {
    violation("the parts of a sum may be added in place, by whoever comes first");
  }
  Choice choice{.product = product_of(*desc_of(desc), *layout_of(a), *layout_of(b), *layout_of(d)),
                .workspace = preference.workspace};
  std::memcpy(choice.alignment, preference.alignment, sizeof choice.alignment);
  results[0] = {};
  std::memcpy(&results[0].algo, &choice, sizeof choice);
  results[0].workspaceSize = preference.workspace;
  results[0].state = CUBLAS_STATUS_SUCCESS;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc_handle, const void* alpha, const void* a,
                              cublasLtMatrixLayout_t a_handle, const void* b, cublasLtMatrixLayout_t b_handle,
                              const void* beta, const void* c, cublasLtMatrixLayout_t c_handle, void* d,
                              cublasLtMatrixLayout_t d_handle, const cublasLtMatmulAlgo_t* algo, void* workspace,
                              size_t workspace_bytes, cudaStream_t stream) {
  const Desc desc = *desc_of(desc_handle);
  const Layout a_layout = *layout_of(a_handle), b_layout = *layout_of(b_handle), d_layout = *layout_of(d_handle);
  if (!fit(desc, a_layout, b_layout, *layout_of(c_handle), d_layout)) return CUBLAS_STATUS_INVALID_VALUE;
  Choice choice;
  std::memcpy(static_cast<void*>(&choice), algo, sizeof choice);
  if (choice.product != product_of(desc, a_layout, b_layout, d_layout)) violation("an algorithm of another product");
  if (workspace_bytes < choice.workspace || reinterpret_cast<std::uintptr_t>(workspace) % 256 != 0) {
    violation(fmt::format("a workspace of {} bytes at {}, and the algorithm wants {}, at a multiple of 256",
                          workspace_bytes, workspace, choice.workspace));
  }
  const void* const pointers[] = {a, b, c, d};
  for (int i = 0; i < 4; ++i) {
    if (reinterpret_cast<std::uintptr_t>(pointers[i]) % choice.alignment[i] == 0) continue;
    violation(fmt::format("matrix {} is at {}, and the algorithm was chosen for a multiple of {}", "ABCD"[i],
                          pointers[i], choice.alignment[i]));
  }
  if (c != d) violation("C and D are two matrices");
  const float by = *static_cast<const float*>(alpha), keep = *static_cast<const float*>(beta);
  const lockstep::fake_cuda::Range out{d, d_layout.elements() * sizeof(float)};
  std::vector<lockstep::fake_cuda::Range> reads = {{a, a_layout.elements() * sizeof(float)},
                                                   {b, b_layout.elements() * sizeof(float)}};
  if (keep != 0) reads.push_back(out);
  const cudaError_t error = lockstep::fake_cuda::enqueue(
      stream, fmt::format("product of {} x {}", d_layout.rows, d_layout.columns),
      [=, a_at = static_cast<const float*>(host_address(a)), b_at = static_cast<const float*>(host_address(b)),
       d_at = static_cast<float*>(host_address(d)), work = host_address(workspace)] {
        // What an algorithm leaves there is nobody's.
        std::memset(work, 0xff, 256);
        multiply(desc, a_layout, b_layout, d_layout, a_at, b_at, d_at, by, keep);
      },
      reads, {out, {workspace, workspace_bytes}});
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // extern "C"
