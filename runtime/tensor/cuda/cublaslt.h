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
#include "runtime/cuda/foreign_library.h"

namespace lockstep::cuda {

struct CublasLt {
  ForeignLibrary library;

  decltype(&cublasLtGetVersion) version = library.need("cublasLtGetVersion");
  decltype(&cublasLtGetStatusName) status_name = library.need("cublasLtGetStatusName");
  decltype(&cublasLtGetStatusString) status_text = library.need("cublasLtGetStatusString");
  decltype(&cublasLtCreate) create = library.need("cublasLtCreate");
  decltype(&cublasLtDestroy) destroy = library.need("cublasLtDestroy");
  decltype(&cublasLtMatmulDescCreate) desc_create = library.need("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = library.need("cublasLtMatmulDescDestroy");
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = library.need("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatrixLayoutCreate) layout_create = library.need("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = library.need("cublasLtMatrixLayoutDestroy");
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = library.need("cublasLtMatrixLayoutSetAttribute");
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = library.need("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = library.need("cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = library.need("cublasLtMatmulPreferenceSetAttribute");
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = library.need("cublasLtMatmulAlgoGetHeuristic");
  decltype(&cublasLtMatmul) matmul = library.need("cublasLtMatmul");

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
