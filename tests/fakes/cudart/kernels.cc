// SPDX-License-Identifier: Apache-2.0
// The kernels of runtime/cuda/kernels.h as loops on the stream's thread.
#include "runtime/cuda/kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <vector>

#include "runtime/device/convert.h"
#include "runtime/device/divide.h"
#include "runtime/device/not_finite.h"
#include "runtime/device/sum_rows.h"
#include "tests/fakes/cudart/fake_cuda.h"

namespace lockstep::cuda {
namespace {

// As CUDA may at the first launch of a kernel on a device that nobody has loaded before.
void load(bool for_good) {
  static std::mutex mutex;
  static std::set<int> loaded;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) return;
  {
    const std::lock_guard lock(mutex);
    if (loaded.count(device) != 0) return;
    if (for_good) loaded.insert(device);
  }
  fake_cuda::wait_for_device();
}

}  // namespace

cudaError_t load_kernels() {
  load(true);
  return cudaSuccess;
}

cudaError_t launch_divide(void* data, std::int64_t count, DType dtype, double factor, const std::int64_t* divisor,
                          OverZero over_zero, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  load(false);
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
  std::vector<fake_cuda::Range> reads{{data, bytes}};
  if (divisor != nullptr) reads.push_back({divisor, sizeof *divisor});
  const auto* const by =
      static_cast<const std::int64_t*>(divisor == nullptr ? nullptr : fake_cuda::host_address(divisor));
  return fake_cuda::enqueue(stream, fmt::format("divide {} x {}", count, name_of(dtype)),
                            [data = fake_cuda::host_address(data), count, dtype, factor, by, over_zero] {
                              divide_on_host(data, count, dtype, by == nullptr ? 1 : *by, over_zero, factor);
                            },
                            reads, {{data, bytes}});
}

cudaError_t launch_first_not_finite(const void* data, std::int64_t count, DType dtype, std::int64_t* first,
                                    cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  load(false);
  const std::size_t bytes = static_cast<std::size_t>(count) * size_of(dtype);
  return fake_cuda::enqueue(stream, fmt::format("first_not_finite {} x {}", count, name_of(dtype)),
                            [data = static_cast<const void*>(fake_cuda::host_address(data)), count, dtype,
                             first = static_cast<std::int64_t*>(fake_cuda::host_address(first))] {
                              *first = std::min(*first, first_not_finite_on_host(data, count, dtype));
                            },
                            {{data, bytes}, {first, sizeof *first}}, {{first, sizeof *first}});
}

cudaError_t launch_convert(const void* from, DType from_dtype, void* to, DType to_dtype, std::int64_t count,
                           cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  load(false);
  const ConstBufferView source(fake_cuda::host_address(from), count, from_dtype);
  const BufferView result(fake_cuda::host_address(to), count, to_dtype);
  return fake_cuda::enqueue(stream, fmt::format("convert {} x {}", count, name_of(from_dtype)),
                            [source, result] { convert_on_host(source, result); }, {{from, source.bytes()}},
                            {{to, result.bytes()}});
}

cudaError_t launch_sum_rows(const void* rows, std::ptrdiff_t stride, std::span<const std::uint8_t> merges, void* to,
                            std::int64_t count, DType dtype, cudaStream_t stream) {
  if (count == 0) return cudaSuccess;
  load(false);
  const BufferView result(fake_cuda::host_address(to), count, dtype);
  std::vector<fake_cuda::Range> reads;
  for (std::size_t r = 0; r < merges.size(); ++r) {
    if (merges[r] == kSkippedRow) continue;
    reads.push_back({static_cast<const std::byte*>(rows) + static_cast<std::ptrdiff_t>(r) * stride, result.bytes()});
  }
  return fake_cuda::enqueue(stream, fmt::format("sum_rows {} of {} x {}", merges.size(), count, name_of(dtype)),
                            [rows = fake_cuda::host_address(rows), stride, result,
                             merges = std::vector<std::uint8_t>(merges.begin(), merges.end())] {
                              sum_rows_on_host(rows, stride, merges, result);
                            },
                            reads, {{to, result.bytes()}});
}

cudaError_t launch_put(std::int64_t* to, std::int64_t value, cudaStream_t stream) {
  load(false);
  return fake_cuda::enqueue(stream, fmt::format("put {}", value),
                            [to = static_cast<std::int64_t*>(fake_cuda::host_address(to)), value] { *to = value; }, {},
                            {{to, sizeof *to}});
}

}  // namespace lockstep::cuda
