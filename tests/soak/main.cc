// SPDX-License-Identifier: Apache-2.0
// soak_store --seconds N [--seed N] [--any-memory]: a store server under random abuse in real time.
//
// A process with two servers, one with a secret and one without; three processes that abuse them (abuse.h); and here
// eight good clients at each (good_clients.h), none of which may ever fail, while the servers' memory stays flat. The
// exit code is 0 if all that held.
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/membership/membership_server.h"
#include "runtime/net/open_files.h"
#include "runtime/store/server/tcp_store_server.h"
#include "tests/soak/abuse.h"
#include "tests/soak/good_clients.h"

namespace lockstep::soak {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kAbusers = 3;
constexpr std::size_t kMega = std::size_t{1} << 20;
// What each server may hold: keys, and for its clients. What both hold at most, with what the allocator keeps, is the
// bound of their process.
constexpr std::size_t kStored = 24 * kMega;
constexpr std::size_t kHeld = 48 * kMega;
constexpr std::size_t kMemoryBound = 2 * 2 * (kStored + kHeld);
// Lines in the log: so many bad clients must not fill a disk (tcp_store_server.cc: 20 and one in 10 s).
constexpr std::size_t kLinesIn10Seconds = 2 * 22;

struct Options {
  std::uint64_t seconds = 1800;
  std::uint64_t seed = 1;
  bool any_memory = false;
};

Options parse(int count, char** arguments) {
  Options options;
  for (int i = 1; i < count; ++i) {
    const std::string_view name = arguments[i];
    const std::int64_t value = i + 1 < count ? parse_int(arguments[i + 1]).value_or(0) : 0;
    if (name == "--any-memory") {
      options.any_memory = true;
    } else if ((name == "--seconds" || name == "--seed") && value >= 1) {
      (name == "--seed" ? options.seed : options.seconds) = static_cast<std::uint64_t>(value);
      ++i;
    } else {
      throw InvalidArgument(fmt::format("'{}': usage: soak_store [--seconds N] [--seed N] [--any-memory]", name));
    }
  }
  return options;
}

// A child that ends with us, and whose end is seen.
class Child {
 public:
  explicit Child(const std::function<int()>& body) {
    std::fflush(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw SystemError("fork", errno);
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    int code = 1;
    try {
      code = body();
    } catch (const std::exception& error) {
      fmt::print(stderr, "soak_store: a child: {}\n", error.what());
    }
    std::fflush(nullptr);
    ::_exit(code);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  bool is_alive() const { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }
  // Asks it to end; true if it ended well.
  bool stop() const {
    ::kill(pid_, SIGTERM);
    int status = 0;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  pid_t pid_ = -1;
};

volatile std::sig_atomic_t stop_asked = 0;

void stop_on_sigterm() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_asked = 1; };
  if (::sigaction(SIGTERM, &action, nullptr) != 0) throw SystemError("sigaction", errno);
}

// The two servers. Their ports go out of `pipe`.
int serve(const store::Secret& secret, int pipe) {
  stop_on_sigterm();
  net::raise_open_files_limit();
  std::atomic<std::size_t> lines = 0;
  set_log_sink([&](LogLevel, std::string_view) { ++lines; });
  const auto start = Clock::now();
  {
    store::TcpStoreServerOptions options{.limits = {.max_message_bytes = 12 * kMega},
                                         .max_stored_bytes = kStored,
                                         .max_clients = 2000,
                                         .max_greeting_clients = 256,
                                         .greeting_timeout = seconds(2),
                                         .refusal_delay = milliseconds(100),
                                         .max_client_bytes = 24 * kMega,
                                         .max_held_bytes = kHeld};
    options.extension = std::make_shared<membership::MembershipServer>();
    const store::TcpStoreServer open(options);
    options.secret = secret;
    options.run_id = "soak";
    options.extension = std::make_shared<membership::MembershipServer>();
    const store::TcpStoreServer guarded(options);
    const std::array<std::uint16_t, 2> ports = {guarded.address().port, open.address().port};
    if (::write(pipe, ports.data(), sizeof(ports)) != sizeof(ports)) throw SystemError("write of the ports", errno);
    while (stop_asked == 0) ::poll(nullptr, 0, 1000);
  }
  set_log_sink({});
  const auto tens = static_cast<std::size_t>((Clock::now() - start) / seconds(10)) + 1;
  fmt::print("soak_store: the servers wrote {} lines to the log in {} times 10 s\n", lines.load(), tens);
  if (lines > tens * kLinesIn10Seconds) throw Error("the log was flooded");
  return 0;
}

int abuse(const Targets& targets, std::uint64_t seed) {
  stop_on_sigterm();
  set_log_sink([](LogLevel, std::string_view) {});
  if (::nice(5) == -1 && errno == EPERM) throw SystemError("nice", errno);
  Abuser abuser(targets, seed);
  while (stop_asked == 0) abuser.act();
  fmt::print("soak_store: abuser {}: {}\n", seed, abuser.summary());
  if (const std::string failure = abuser.failure(); !failure.empty()) throw Error(failure);
  return 0;
}

std::size_t resident_bytes(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/statm", pid));
  std::size_t total = 0;
  std::size_t resident = 0;
  if (!(file >> total >> resident)) throw Error(fmt::format("/proc/{}/statm can't be read", pid));
  return resident * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

double in_mega(std::size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kMega); }

std::size_t median(std::vector<std::size_t> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// Flat: never over the bound, and in the last third no more than in the second, but for what chance does.
std::string judge_memory(const std::vector<std::size_t>& samples) {
  const auto third = static_cast<std::ptrdiff_t>(samples.size() / 3);
  if (third == 0) return {};
  const std::size_t peak = *std::max_element(samples.begin(), samples.end());
  const std::size_t second = median({samples.begin() + third, samples.begin() + 2 * third});
  const std::size_t last = median({samples.begin() + 2 * third, samples.end()});
  fmt::print("soak_store: server memory: second third {:.1f} MB, last third {:.1f} MB, peak {:.1f} MB of {:.0f} MB\n",
             in_mega(second), in_mega(last), in_mega(peak), in_mega(kMemoryBound));
  if (peak > kMemoryBound) return "the servers' memory was over its bound";
  if (last > second + second / 4 + 16 * kMega) return "the servers' memory grows";
  return {};
}

std::string run(const Options& options) {
  const store::Secret secret = store::Secret::random();
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) throw SystemError("pipe", errno);
  // All processes before the first thread.
  const Child server([&] { return serve(secret, pipe[1]); });
  ::close(pipe[1]);
  std::array<std::uint16_t, 2> ports{};
  if (::read(pipe[0], ports.data(), sizeof(ports)) != sizeof(ports)) throw Error("the servers did not start");
  const Targets targets{
      .guarded = {.address = {"127.0.0.1", ports[0]}, .secret = secret, .run_id = "soak", .role = "x"},
      .open = {.address = {"127.0.0.1", ports[1]}, .role = "x"}};
  std::vector<std::unique_ptr<Child>> abusers;
  for (std::uint64_t i = 0; i < kAbusers; ++i) {
    abusers.push_back(std::make_unique<Child>([&] { return abuse(targets, options.seed * 1000 + i); }));
  }
  GoodClients guarded(targets.guarded);
  GoodClients open(targets.open);
  std::vector<std::size_t> memory;
  std::string failure;
  std::int64_t rounds = 0;
  for (const auto end = Clock::now() + seconds(options.seconds); Clock::now() < end && failure.empty();) {
    ::poll(nullptr, 0, 500);
    if (!server.is_alive()) return "the servers' process has ended";
    memory.push_back(resident_bytes(server.pid()));
    failure = guarded.failure();
    if (failure.empty()) failure = open.failure();
    rounds = std::min(guarded.rounds(), open.rounds());
  }
  for (const auto& abuser : abusers) {
    if (!abuser->stop() && failure.empty()) failure = "an abuser has failed";
  }
  fmt::print("soak_store: seed {}: {} s, {} and {} rounds of {} good clients\n", options.seed, options.seconds,
             guarded.rounds(), open.rounds(), GoodClients::kClients);
  if (failure.empty() && rounds == 0) failure = "the good clients have not finished a round";
  const std::string memory_failure = judge_memory(memory);
  if (failure.empty() && !options.any_memory) failure = memory_failure;
  return failure.empty() && !server.stop() ? "the servers' process has failed" : failure;
}

}  // namespace
}  // namespace lockstep::soak

int main(int argc, char** argv) {
  try {
    const std::string failure = lockstep::soak::run(lockstep::soak::parse(argc, argv));
    if (failure.empty()) return 0;
    fmt::print(stderr, "soak_store: FAILED: {}\n", failure);
  } catch (const std::exception& error) {
    fmt::print(stderr, "soak_store: {}\n", error.what());
  }
  return 1;
}
