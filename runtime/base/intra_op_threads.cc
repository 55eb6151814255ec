// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/intra_op_threads.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <climits>

#include "lockstep/base/error.h"
#include "runtime/base/cpu.h"

namespace lockstep {
namespace {

std::atomic<int> chosen{0};  // 0: nothing was set

}  // namespace

std::optional<int> threads_by_variable(const Environment& environment) {
  const auto text = environment.get("OMP_NUM_THREADS");
  const auto wanted = text ? parse_int(text->substr(0, text->find(','))) : std::nullopt;
  if (!wanted || *wanted < 1) return std::nullopt;
  return static_cast<int>(std::min<std::int64_t>(*wanted, INT_MAX));
}

void set_intra_op_threads(int threads) {
  if (threads < 1) {
    throw InvalidArgument(fmt::format("set_intra_op_threads: got {} threads; give at least 1", threads));
  }
  chosen.store(threads, std::memory_order_relaxed);
}

int intra_op_threads() {
  const int set = chosen.load(std::memory_order_relaxed);
  if (set > 0) return set;
  static const int fallback = threads_by_variable(Environment::of_process()).value_or(allowed_cores());
  return fallback;
}

}  // namespace lockstep
