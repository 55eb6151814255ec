// SPDX-License-Identifier: Apache-2.0
// bench_store MEASURE ...: one measurement of lockstep's store, as numbers on one line. benchmarks/run_store calls it
// in turns with benchmarks/peers/torch_store.py, which takes the same arguments.
//
//   ops OPERATION CLIENTS COUNT   operations per second, p50 µs, p99 µs; OPERATION is set, get or add
//   wake TRIALS                   p50 µs, p99 µs from a set until the get that waits for it returns
//   join CLIENTS                  ms: all connected, first barrier, second barrier
//   connections COUNT [secret]    s to connect, s through a barrier, MB that the server grew by
#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/store/measures.h"
#include "lockstep/base/error.h"

namespace lockstep::bench {
namespace {

// One descriptor for each connection.
void raise_descriptor_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) throw SystemError("getrlimit RLIMIT_NOFILE", errno);
  limit.rlim_cur = limit.rlim_max;
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) throw SystemError("setrlimit RLIMIT_NOFILE", errno);
}

std::string measure(const std::vector<std::string>& words) {
  const auto is = [&](const char* name, std::size_t most, std::size_t fewest) {
    return !words.empty() && words[0] == name && words.size() - 1 <= most && words.size() - 1 >= fewest;
  };
  const auto count = [&](std::size_t i) {
    const int value = std::stoi(words[i]);
    if (value < 1) throw std::invalid_argument("at least 1");
    return value;
  };
  if (is("ops", 3, 3) && (words[1] == "set" || words[1] == "get" || words[1] == "add")) {
    const auto r = measure_ops(words[1], count(2), count(3));
    return fmt::format("{:.0f} {:.1f} {:.1f}", r.per_second, r.p50_us, r.p99_us);
  }
  if (is("wake", 1, 1)) {
    const auto r = measure_wake(count(1));
    return fmt::format("{:.1f} {:.1f}", r.p50_us, r.p99_us);
  }
  if (is("join", 1, 1)) {
    const auto r = measure_join(count(1));
    return fmt::format("{:.1f} {:.1f} {:.1f}", r.connected, r.first, r.second);
  }
  if (is("connections", 2, 1) && (words.size() == 2 || words[2] == "secret")) {
    const auto r = measure_connections(count(1), words.size() == 3);
    return fmt::format("{:.2f} {:.2f} {:.1f}", r.connect_s, r.barrier_s, r.server_mb);
  }
  throw std::invalid_argument("see the head of benchmarks/store/main.cc");
}

}  // namespace
}  // namespace lockstep::bench

int main(int count, char** arguments) {
  try {
    lockstep::bench::raise_descriptor_limit();
    std::puts(lockstep::bench::measure({arguments + 1, arguments + count}).c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_store: %s\n", error.what());
    return 1;
  }
}
