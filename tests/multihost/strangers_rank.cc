// SPDX-License-Identifier: Apache-2.0
// strangers_rank FOLDER: a rank whose sums are checked: of the job, until there is a file FOLDER/later, and then of a
// group within it.
//
// The last rank stops at "start" and at "group", before it first connects to another rank of each of the two, and at
// "quiet", between them. It says "holds at PLACE", and goes on when somebody has opened the pipe FOLDER/PLACE to write.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/init/init_process_group.h"
#include "runtime/base/unique_fd.h"

namespace lockstep::testing {
namespace {

constexpr std::uint16_t kStorePort = 29400;

std::filesystem::path folder;
std::string hold_at_connect;  // empty: nowhere. Only the main thread connects to ranks

void say(const std::string& what) {
  std::printf("%s\n", what.c_str());
  std::fflush(stdout);
}

void hold(const std::string& place) {
  say("holds at " + place);
  const auto path = folder / place;
  if (!UniqueFd(::open(path.c_str(), O_RDONLY | O_CLOEXEC))) throw SystemError("open " + path.string(), errno);
}

// Where a rank listens: not the store, nor its launcher on loopback.
bool is_of_a_rank(int socket, const sockaddr* address) {
  int type = 0;
  socklen_t size = sizeof(type);
  if (::getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &size) != 0) throw SystemError("getsockopt", errno);
  if (address->sa_family != AF_INET || type != SOCK_STREAM) return false;
  const auto* const place = reinterpret_cast<const sockaddr_in*>(address);
  return ntohs(place->sin_port) != kStorePort && ntohl(place->sin_addr.s_addr) != INADDR_LOOPBACK;
}

void check_sum(ProcessGroup& group, std::size_t floats, int step) {
  std::vector<float> x(floats);
  for (std::size_t i = 0; i < floats; ++i)
    x[i] = static_cast<float>(group.rank() + step % 100 + static_cast<int>(i % 17));
  group.all_reduce(BufferView(std::span(x))).wait();
  const int ranks = group.size();
  for (std::size_t i = 0; i < floats; ++i) {
    const int wanted = ranks * (ranks - 1) / 2 + ranks * (step % 100 + static_cast<int>(i % 17));
    if (x[i] != static_cast<float>(wanted)) throw Error("a wrong sum at step " + std::to_string(step));
  }
}

void check_sums(ProcessGroup& group, int step) {
  check_sum(group, 256, step);
  check_sum(group, 1 << 18, step);
}

void run() {
  const bool is_last = std::stoi(std::getenv("RANK")) == std::stoi(std::getenv("WORLD_SIZE")) - 1;
  if (is_last) hold_at_connect = "start";
  const auto group = init_process_group();
  int step = 0;
  for (float later = 0; later == 0;) {
    check_sums(*group, ++step);
    if (step == 1) say("running");
    later = is_last && std::filesystem::exists(folder / "later") ? 1 : 0;
    group->all_reduce(BufferView(std::span(&later, 1))).wait();
  }
  if (is_last) hold("quiet");
  if (is_last) hold_at_connect = "group";
  const auto within = group->split(0);
  check_sums(*within, ++step);
  group->barrier().wait();
  say("all sums are right, backend " + std::string(within->backend()));
}

}  // namespace
}  // namespace lockstep::testing

// In place of the C library's, for this program.
extern "C" int connect(int socket, const sockaddr* address, socklen_t size) {
  using namespace lockstep::testing;
  if (!hold_at_connect.empty() && is_of_a_rank(socket, address)) hold(std::exchange(hold_at_connect, {}));
  return static_cast<int>(::syscall(SYS_connect, socket, address, size));
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  lockstep::testing::folder = argv[1];
  try {
    lockstep::testing::run();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    return 1;
  }
}
