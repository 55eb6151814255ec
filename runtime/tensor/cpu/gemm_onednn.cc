// SPDX-License-Identifier: Apache-2.0
// Every oneDNN call of lockstep. dnnl_sgemm is row-major and the same in oneDNN 2.x and 3.x.
// https://oneapi-src.github.io/oneDNN/v2.6/group_dnnl_api_blas.html
#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.h>

#include <cerrno>
#include <cstring>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/intra_op_threads.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/base/signal_stack.h"
#include "runtime/tensor/cpu/cpu_kernels.h"

// oneDNN's threads are OpenMP's; the number is a setting of the calling thread. Declared by hand, because clang has no
// omp.h without a package of its own.
extern "C" void omp_set_num_threads(int threads);

namespace lockstep::cpu {
namespace {

// Multiplications below which waking another thread costs more than it saves.
constexpr std::int64_t kThreadedWork = 1 << 20;

}  // namespace

void gemm(const Gemm& g) {
  if (g.rows == 0 || g.columns == 0) return;
  if (g.inner == 0) {
    for (std::int64_t row = 0; row < g.rows && !g.c.add; ++row) {
      std::memset(g.c.data + row * g.ldc, 0, static_cast<std::size_t>(g.columns) * sizeof(float));
    }
    return;
  }
  const std::int64_t work = g.rows * g.columns * g.inner;
  const int threads = work < kThreadedWork ? 1 : intra_op_threads();
  // Its kernels use the stack pointer as they like, so no handler may run on top of it (signal_stack.h): not here, and
  // not on the threads that OpenMP is about to start, which inherit what is blocked.
  thread_local int started = 0;
  std::optional<SignalsBlocked> blocked;
  if (threads > started) {
    give_signal_stack();
    blocked.emplace();
    started = threads;
  }
  omp_set_num_threads(threads);
  const dnnl_status_t status =
      dnnl_sgemm(g.a.transposed ? 'T' : 'N', g.b.transposed ? 'T' : 'N', g.rows, g.columns, g.inner, g.alpha, g.a.data,
                 g.a.stride, g.b.data, g.b.stride, g.c.add ? 1.0f : 0.0f, g.c.data, g.ldc);
  if (status == dnnl_out_of_memory) {
    throw SystemError(fmt::format("can't multiply matrices of {} x {} x {} with oneDNN's sgemm (take smaller batches, "
                                  "or free memory of this host)",
                                  g.rows, g.columns, g.inner),
                      ENOMEM);
  }
  if (status != dnnl_success) {
    throw Error(
        fmt::format("oneDNN's sgemm failed with status {} for a product of {} x {} x {} (leading dimensions {}, {}, "
                    "{}); report this line",
                    static_cast<int>(status), g.rows, g.columns, g.inner, g.a.stride, g.b.stride, g.ldc));
  }
}

}  // namespace lockstep::cpu
