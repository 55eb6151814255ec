// SPDX-License-Identifier: Apache-2.0
// From a rank's death to the message: how long until every other rank has the error that names it.
//
//   bench_liveness [--ranks N] [--repeats N] [--stops N]
//
// Each repetition starts the ranks anew, as processes over loopback with rank 0 hosting the store, waits until all are
// in a barrier that one of them does not come to, hurts that one, and takes the time until each of the others has
// caught PeerLost. The clock is the machine's own, the same for all processes. A row is over all repetitions, of the
// last rank to know.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/init/init_process_group.h"
#include "runtime/net/tcp_socket.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  int ranks = 4;
  int repeats = 100;  // of deaths
  int stops = 20;     // of silences, which take seconds each
};

std::int64_t now_ns() { return Clock::now().time_since_epoch().count(); }

void write_all(int fd, std::int64_t value) {
  while (::write(fd, &value, sizeof value) < 0) {
    if (errno != EINTR) throw SystemError("write to a pipe", errno);
  }
}

std::int64_t read_one(int fd, const std::string& who) {
  std::int64_t value = 0;
  ssize_t count = 0;
  while ((count = ::read(fd, &value, sizeof value)) < 0 && errno == EINTR) {
  }
  if (count != sizeof value) throw Error(fmt::format("{} ended before it said anything", who));
  return value;
}

// A rank: says that it is there, and then when it knew.
int live(int rank, const Options& options, const std::string& url, int victim, int tell) {
  std::shared_ptr<ProcessGroup> group;  // the time is that of the error, not that of leaving
  try {
    group = init_process_group({.init_method = url + std::to_string(rank), .timeout = std::chrono::seconds(60)});
    group->barrier().wait();
    write_all(tell, now_ns());
    if (rank == victim) {
      for (;;) ::pause();
    }
    group->barrier().wait();
    std::fprintf(stderr, "rank %d of %d: the barrier is past without rank %d\n", rank, options.ranks, victim);
  } catch (const PeerLost& error) {
    write_all(tell, now_ns());
    const std::string who = fmt::format("rank {}", victim);
    if (std::string_view(error.what()).find(who) != std::string_view::npos) {
      ::_exit(0);  // a rank 0 that ends in order would wait for the one that is stopped
    }
    std::fprintf(stderr, "rank %d: this does not name rank %d: %s\n", rank, victim, error.what());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  }
  return 1;
}

struct Rank {
  pid_t pid = -1;
  int heard = -1;  // end of its pipe
};

// Seconds until the last of the others knew.
double measure(const Options& options, int victim, int signal) {
  const auto address = net::local_address(net::tcp_listen({"127.0.0.1", 0}).get());
  const std::string url = fmt::format("tcp://{}?world_size={}&rank=", address.to_string(), options.ranks);
  const pid_t parent = ::getpid();
  std::vector<Rank> ranks;
  for (int rank = 0; rank < options.ranks; ++rank) {
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw SystemError("pipe", errno);
    const pid_t pid = ::fork();
    if (pid < 0) throw SystemError("fork", errno);
    if (pid == 0) {
      // With the measurement they end too, the stopped one included.
      if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent) ::_exit(1);
      ::_exit(live(rank, options, url, victim, pipe[1]));
    }
    ::close(pipe[1]);
    ranks.push_back({pid, pipe[0]});
  }
  for (int rank = 0; rank < options.ranks; ++rank) {
    read_one(ranks[static_cast<std::size_t>(rank)].heard, fmt::format("rank {}", rank));
  }
  ::usleep(20'000);  // so that all are in the barrier, and have slept there as one that waits for long does
  const std::int64_t begin = now_ns();
  if (::kill(ranks[static_cast<std::size_t>(victim)].pid, signal) != 0) throw SystemError("kill", errno);
  std::int64_t last = begin;
  for (int rank = 0; rank < options.ranks; ++rank) {
    if (rank == victim) continue;
    last = std::max(last, read_one(ranks[static_cast<std::size_t>(rank)].heard, fmt::format("rank {}", rank)));
  }
  bool good = true;
  for (int rank = 0; rank < options.ranks; ++rank) {
    const Rank& one = ranks[static_cast<std::size_t>(rank)];
    if (rank == victim) ::kill(one.pid, SIGKILL);
    int status = 0;
    if (::waitpid(one.pid, &status, 0) != one.pid) throw SystemError("waitpid", errno);
    good = good && (rank == victim || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    ::close(one.heard);
  }
  if (!good) throw Error("a rank did not end as it should");
  return static_cast<double>(last - begin) * 1e-9;
}

void row(const Options& options, std::string_view name, int victim, int signal, int repeats) {
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(measure(options, victim, signal));
  std::sort(times.begin(), times.end());
  fmt::print("{:<52} {:>5} {:>12.2f} {:>12.2f}\n", name, repeats, times[times.size() / 2] * 1e3, times.back() * 1e3);
  std::fflush(stdout);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    int* const field = name == "--ranks"     ? &options.ranks
                       : name == "--repeats" ? &options.repeats
                       : name == "--stops"   ? &options.stops
                                             : nullptr;
    const auto value = i + 1 < argc ? parse_int(argv[i + 1]) : std::nullopt;
    if (field == nullptr || !value || *value < (field == &options.ranks ? 2 : 1) || *value > 10'000) {
      throw InvalidArgument(
          fmt::format("bench_liveness: '{}' is no option with a number; usage: bench_liveness [--ranks N] [--repeats "
                      "N] [--stops N]",
                      name));
    }
    *field = static_cast<int>(*value);
  }
  return options;
}

int run(int argc, char** argv) {
  const Options options = parse(argc, argv);
  ::setenv("LOCKSTEP_LOG_LEVEL", "error", 1);
  fmt::print("{} ranks\n{:<52} {:>5} {:>12} {:>12}\n", options.ranks, "until the last rank knows", "times", "median ms",
             "longest ms");
  row(options, "kill -9 of a rank", 1, SIGKILL, options.repeats);
  row(options, "kill -9 of rank 0, which hosts the store", 0, SIGKILL, options.repeats);
  row(options, "SIGSTOP of a rank", 1, SIGSTOP, options.stops);
  row(options, "SIGSTOP of rank 0, which hosts the store", 0, SIGSTOP, options.stops);
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  try {
    return lockstep::run(argc, argv);
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
