// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's functions: a table filled from the library with the first matrix product (runtime/cuda/foreign_library.h).
// LOCKSTEP_CUBLASLT_LIB names the file. Without it: libcublasLt.so of the major version that this was built with,
// beside the CUDA toolkit.
#pragma once

#include <cublasLt.h>

#include <span>
#include <string>
#include <vector>

#include "lockstep/base/environment.h"

namespace lockstep::cuda {

struct CublasLt {
  std::string path;

  decltype(&cublasLtGetVersion) version = nullptr;
  decltype(&cublasLtGetStatusName) status_name = nullptr;
  decltype(&cublasLtGetStatusString) status_text = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;

  std::string describe(cublasStatus_t status) const;
};

// The file to take, or "none": products are then by kernels of our own.
inline constexpr const char* kCublasLtVariable = "LOCKSTEP_CUBLASLT_LIB";
// Where to look, in this order.
std::vector<std::string> cublaslt_candidates(const Environment& environment);
// Throws BackendUnavailable, also for one of another major version than this was built with.
CublasLt load_cublaslt(std::span<const std::string> candidates);
// This process's, loaded at the first call; what failed is tried again at the next. Any thread.
const CublasLt& cublaslt();

}  // namespace lockstep::cuda
