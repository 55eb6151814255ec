#include "runtime/base/intra_op_threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <climits>

#include "runtime/base/cpu.h"
#include "runtime/base/environment.h"
#include "runtime/base/error.h"

namespace lockstep {
namespace {

std::atomic<int> chosen{0};  // 0: nothing was set

int default_threads() {
  // "4,2" is OpenMP's form for nested regions: the first number is the outer one's.
  const auto text = Environment::of_process().get("OMP_NUM_THREADS");
  const auto wanted = text ? parse_int(text->substr(0, text->find(','))) : std::nullopt;
  if (wanted && *wanted >= 1) return static_cast<int>(std::min<std::int64_t>(*wanted, INT_MAX));
  return allowed_cores();
}

}  // namespace

void set_intra_op_threads(int threads) {
  if (threads < 1) {
    throw InvalidArgument(fmt::format("set_intra_op_threads: got {} threads; give at least 1", threads));
  }
  chosen.store(threads, std::memory_order_relaxed);
}

int intra_op_threads() {
  const int set = chosen.load(std::memory_order_relaxed);
  if (set > 0) return set;
  static const int fallback = default_threads();
  return fallback;
}

}  // namespace lockstep
