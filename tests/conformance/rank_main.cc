// SPDX-License-Identifier: Apache-2.0
// A rank as a process of its own, with the backend in CONFORMANCE_BACKEND ("auto" if unset). argv[1] says what it does;
// what it finds goes to stdout, one line per fact; of the error that ends it, its type and text, and before that
// "cause kind=lost rank=1 pid=4711 sequence=41 step=-1".
//   suite          all of check_everything()
//   loop HOW       all-reduces in user memory and in an arena, until an error comes; says "looping" after the first.
//                  HOW is "quiet", or what rank 1 does at step 100: "kill" (SIGKILL), "exit" (leaves the process, not
//                  the group), "exit7", "quick7" (the same through exit(7) and quick_exit(7)), "stop" (SIGSTOP), "hang"
//                  (for ever), "abort" (of the group; then every rank ends well)
//   large MEMORY   all-reduces of 16 MiB in an "arena" or in memory of the "user"'s own, until an error comes; says
//   "under
//                  way" once the first is
//   ask RANK       that rank sends a message to rank 2, which has stopped itself (SIGSTOP) and stays so; says "asking".
//                  The others wait in a barrier, until an error comes
//   again          as loop abort, and then asks for another group: "refused: ..."
//   split HOW      all-reduces in a group within the job's, "all" of its ranks or its even and its odd ones ("halves"):
//                  "subgroup over BACKEND"
//   global         returns from main with a group that only a static object holds
//   groups         three groups, one after the other
//   leave HOW      rank 0 lets its group go and says "left"; the others wait for a signal. HOW is "idle", or "busy":
//                  with a collective on the device to which the others do not come
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/job/cause.h"
#include "runtime/base/process_state.h"
#include "tests/conformance/suite.h"
#include "tests/support/wait_until.h"

namespace lockstep::testing {
namespace {

void print_error(const char* type, const Error& error) {
  if (const Cause* const cause = error.cause()) {
    std::printf("cause kind=%s rank=%d pid=%d sequence=%lld step=%lld\n", std::string(name_of(cause->kind)).c_str(),
                cause->rank, cause->pid, static_cast<long long>(cause->sequence), static_cast<long long>(cause->step));
  }
  std::printf("%s: %s\n", type, error.what());
}

void hurt(const std::string& how) {
  std::printf("at step 100\n");
  std::fflush(stdout);
  if (how == "kill") std::raise(SIGKILL);
  if (how == "stop") std::raise(SIGSTOP);
  while (how == "hang") ::pause();
  if (how == "exit") std::_Exit(0);
  if (how == "exit7") std::exit(7);
  if (how == "quick7") std::quick_exit(7);
}

void groups(const InitOptions& options) {
  for (int round = 1; round <= 3; ++round) {
    auto group = init_process_group(options);
    if (round == 1) std::printf("backend %s\n", std::string(group->backend()).c_str());
    float sum = static_cast<float>(group->rank() + round);
    group->all_reduce(BufferView(std::span(&sum, 1))).wait();
    const int ranks = group->size();
    if (sum != static_cast<float>(ranks * (ranks - 1) / 2 + ranks * round)) throw Error("a wrong sum in a later group");
  }
  std::printf("3 groups done\n");
}

void split(ProcessGroup& group, const std::string& how) {
  const auto half = group.split(how == "all" ? 0 : group.rank() % 2);
  std::vector<float> ranks(10000, static_cast<float>(group.rank()));
  half->all_reduce(BufferView(std::span(ranks))).wait();
  float wanted = 0;
  for (const auto& member : half->roster()) wanted += static_cast<float>(member.rank);
  if (ranks.back() != wanted) throw Error("a wrong sum in a subgroup");
  group.barrier().wait();
  std::printf("subgroup over %s\n", std::string(half->backend()).c_str());
}

// Ends the process when `x`, which all ranks fill with 1, is reduced in part. Reads by way of the kernel: the
// collective writes there, and a thread sanitizer would see two threads meet.
void kill_midway(std::span<const float> x, float reduced) {
  const int memory = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  const auto peek = [memory](const float& at) {
    float value = 0;
    const auto place = static_cast<off_t>(reinterpret_cast<std::uintptr_t>(&at));
    if (::pread(memory, &value, sizeof(value), place) != sizeof(value)) throw SystemError("/proc/self/mem", errno);
    return value;
  };
  while (peek(x.front()) != reduced || peek(x.back()) != 1) std::this_thread::yield();
  std::printf("the first is reduced, the last is not\n");
  std::fflush(stdout);
  std::raise(SIGKILL);
}

void loop_until_midway(ProcessGroup& group) {
  std::vector<float> x(16 << 20);
  std::thread killer;
  if (group.rank() == 1) {
    killer = std::thread([&] { kill_midway(x, static_cast<float>(group.size())); });
  }
  for (;;) {
    std::fill(x.begin(), x.end(), 1.0f);
    group.all_reduce(BufferView(std::span(x))).wait();
  }
}

void loop(ProcessGroup& group, const std::string& how) {
  if (how == "midway") return loop_until_midway(group);
  Arena arena = group.allocate(1 << 20);
  const BufferView shared(arena.data, 1 << 18, DType::f32, group.device());
  std::vector<float> own(10000);
  for (int step = 0;; ++step) {
    if (step == 100 && group.rank() == 1 && how == "abort") group.abort("rank 1 is out of disk");
    if (step == 100 && group.rank() == 1) hurt(how);
    group.all_reduce(shared).wait();
    group.all_reduce(BufferView(std::span(own))).wait();
    if (step > 0) continue;
    std::printf("looping\n");
    std::fflush(stdout);
  }
}

void large(ProcessGroup& group, const std::string& memory) {
  constexpr std::size_t kFloats = 4 << 20;
  const Arena arena = group.allocate(memory == "arena" ? kFloats * sizeof(float) : 0);
  std::vector<float> own(memory == "arena" ? 0 : kFloats);
  const BufferView data(memory == "arena" ? static_cast<void*>(arena.data) : own.data(), kFloats, DType::f32);
  group.barrier().wait();
  for (int step = 0;; ++step) {
    const Work work = group.all_reduce(data);
    if (step == 0) {
      std::printf("under way\n");
      std::fflush(stdout);
    }
    work.wait();
  }
}

void leave(std::shared_ptr<ProcessGroup> group, const std::string& how) {
  const Arena arena = group->allocate(1 << 20);
  while (group->rank() != 0) ::pause();
  if (how == "busy")
    group->all_reduce(BufferView(arena.data, 1 << 18, DType::f32, group->device())).wait_on(group->stream());
  std::printf("leaving\n");
  std::fflush(stdout);
  group.reset();
  std::printf("left\n");
}

void ask(ProcessGroup& group, const std::string& how) {
  group.barrier().wait();
  const int pid = group.roster()[2].pid;
  if (group.rank() == 2) std::raise(SIGSTOP);
  if (group.rank() != std::stoi(how)) return group.barrier().wait();
  if (!wait_until([pid] { return process_state(pid) == ProcessState::stopped; })) throw Error("rank 2 runs");
  float x = 0;
  const Work sent = group.send(BufferView(std::span(&x, 1)), 2);
  std::printf("asking\n");
  std::fflush(stdout);
  sent.wait();
}

int run(const std::string& what, const std::string& how) {
  const char* const backend = std::getenv("CONFORMANCE_BACKEND");
  const InitOptions options{.backend = backend == nullptr ? "auto" : backend};
  if (what == "groups") {
    groups(options);
    return 0;
  }
  auto group = init_process_group(options);
  std::printf("backend %s\n", std::string(group->backend()).c_str());
  if (what == "again") {
    try {
      loop(*group, "abort");
    } catch (const PeerLost&) {
      group.reset();
    }
    try {
      group = init_process_group(options);
      std::printf("another group\n");
    } catch (const BackendUnavailable& error) {
      std::printf("refused: %s\n", error.what());
    }
    return 0;
  }
  if (what == "global") {
    static std::shared_ptr<ProcessGroup> global;  // destroyed behind what the group's backend does at exit
    global = std::move(group);
    global->barrier().wait();
    std::printf("returning\n");
    return 0;
  }
  if (what == "split") {
    split(*group, how);
    return 0;
  }
  if (what == "leave") {
    leave(std::move(group), how);
    return 0;
  }
  if (what == "suite") {
    check_everything(*group);
    std::printf("suite passed\n");
    return 0;
  }
  try {
    if (what == "ask") {
      ask(*group, how);
    } else {
      what == "large" ? large(*group, how) : loop(*group, how);
    }
  } catch (const PeerLost& error) {
    print_error("PeerLost", error);
  } catch (const Timeout& error) {
    print_error("Timeout", error);
  }
  std::fflush(stdout);
  return how == "abort" ? 0 : 3;
}

}  // namespace
}  // namespace lockstep::testing

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  try {
    return lockstep::testing::run(argv[1], argc > 2 ? argv[2] : "quiet");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    return 1;
  }
}
