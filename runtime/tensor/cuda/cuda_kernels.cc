// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor/cuda/cuda_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <new>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/printable.h"
#include "runtime/tensor/cuda/launcher.h"

namespace lockstep::cuda {
namespace {

bool allows_tf32(const Environment& environment) {
  const auto value = environment.get("LOCKSTEP_ALLOW_TF32");
  if (!value || *value == "0") return false;
  if (*value == "1") return true;
  throw InvalidArgument(fmt::format(
      "environment: LOCKSTEP_ALLOW_TF32='{}' is unknown; set it to '1', or to '0' (the default)", printable(*value)));
}

// A smaller one would be made again and again as the first calls come.
constexpr std::size_t kLeastScratch = std::size_t{1} << 20;

}  // namespace

CudaKernels::CudaKernels(DeviceId device)
    : runtime_(device_runtime(DeviceKind::cuda)),
      stream_(device),
      copy_stream_(device),
      launch_(make_launch(stream_)),
      finding_(std::static_pointer_cast<FindingRecord>(runtime_.allocate_pinned(sizeof(FindingRecord), device))) {
  new (finding_.get()) FindingRecord;
}

CudaKernels::~CudaKernels() = default;

std::optional<Finding> CudaKernels::take_finding() {
  // The host may have waited for less than what runs now, and a kernel writes only while nothing is there.
  const std::atomic_ref<std::int64_t> is_there(finding_->is_there);
  if (is_there.load(std::memory_order_acquire) == 0) return std::nullopt;
  const Finding finding = finding_->finding;
  is_there.store(0, std::memory_order_release);
  return finding;
}

void* CudaKernels::scratch_bytes(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    const std::size_t size = std::max({kLeastScratch, bytes, scratch_bytes_ * 2});
    scratch_.reset();
    scratch_bytes_ = 0;  // also where the device has no room for the new one
    scratch_ = runtime_.allocate(size, stream());
    scratch_bytes_ = size;
  }
  return scratch_.get();
}

void CudaKernels::gemm(const Gemm& gemm) { batched_gemm(gemm, {}); }

void CudaKernels::batched_gemm(const Gemm& gemm, const Batch& batch) {
  if (gemm.rows == 0 || gemm.columns == 0 || batch.count == 0) return;
  if (gemm.inner == 0) {
    for (std::int64_t i = 0; i < batch.count && !gemm.c.add; ++i) {
      for (std::int64_t row = 0; row < gemm.rows; ++row) {
        runtime_.zero(gemm.c.data + i * batch.c + row * gemm.ldc,
                      static_cast<std::size_t>(gemm.columns) * sizeof(float), stream());
      }
    }
    return;
  }
  if (matmul_ == nullptr && !multiplies_by_tiles_) choose_products();
  if (multiplies_by_tiles_) {
    multiply_by_tiles(gemm, batch);
  } else {
    matmul_->multiply(gemm, batch);
  }
}

// A cuBLASLt that was named is needed; without one there are kernels of our own.
void CudaKernels::choose_products() {
  const Environment environment = Environment::of_process();
  const std::string named = environment.get(kCublasLtVariable).value_or("");
  const bool tf32 = allows_tf32(environment);
  multiplies_by_tiles_ = named == "none";
  if (multiplies_by_tiles_) return;
  try {
    matmul_ = std::make_unique<Matmul>(runtime_, stream(), tf32);
  } catch (const BackendUnavailable& error) {
    if (!named.empty()) throw;
    multiplies_by_tiles_ = true;
    log_warn("{}; until this is corrected, matrix products on {} are several times slower", error.what(),
             stream().device.str());
  }
}

}  // namespace lockstep::cuda
