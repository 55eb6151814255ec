// SPDX-License-Identifier: Apache-2.0
// Matrix products by cuBLASLt in one stream: with memory of its own to work in, and the same choice of algorithm for
// the same product each time, so that bits are the same from run to run on one kind of GPU.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>

#include "lockstep/device/device_runtime.h"
#include "runtime/tensor/cuda/cublaslt.h"
#include "runtime/tensor/kernels.h"

namespace lockstep::cuda {

// Products of one shape; elements from each matrix to the next one.
struct Batch {
  std::int64_t count = 1;
  std::int64_t a = 0;
  std::int64_t b = 0;
  std::int64_t c = 0;
};

class Matmul {
 public:
  // `tf32`: products may be of floats that are rounded to 10 bits (LOCKSTEP_ALLOW_TF32). Throws BackendUnavailable if
  // there is no cuBLASLt, DeviceError if it does not start.
  Matmul(DeviceRuntime& runtime, StreamView stream, bool tf32);
  ~Matmul();
  Matmul(const Matmul&) = delete;
  Matmul& operator=(const Matmul&) = delete;

  // No extent is 0. Throws DeviceError with the product's extents.
  void multiply(const Gemm& gemm, const Batch& batch);

 private:
  // The numbers that the choice of an algorithm depends on.
  using Key = std::array<std::int64_t, 16>;
  struct Plan;
  static Key key_of(const Gemm& gemm, const Batch& batch);
  std::unique_ptr<Plan> make_plan(const Gemm& gemm, const Batch& batch, const Key& key) const;
  void check(cublasStatus_t status, const char* what, const Gemm& gemm, const Batch& batch) const;

  const CublasLt& library_;
  StreamView stream_;
  bool tf32_;
  std::shared_ptr<void> workspace_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

}  // namespace lockstep::cuda
