#include "runtime/comm/shm/bootstrap.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>

#include "runtime/base/error.h"
#include "runtime/net/stream.h"

namespace lockstep::shm {
namespace {

using namespace std::chrono_literals;

// A line between rank 0 and another.
std::pair<UniqueFd, UniqueFd> make_line() {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

Couriers at_the_end_of(UniqueFd line) {
  std::vector<UniqueFd> lines;
  lines.push_back(std::move(line));
  return Couriers(std::move(lines));
}

TEST(Couriers, ALineThatFailsKeepsNoOtherFromItsDescriptor) {
  auto [near_1, far_1] = make_line();
  auto [near_2, far_2] = make_line();
  far_1 = {};  // its rank has gone
  std::vector<UniqueFd> lines(1);
  lines.push_back(std::move(near_1));
  lines.push_back(std::move(near_2));
  const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THROW(Couriers(std::move(lines)).hand_out(file.get(), Deadline::after(60s)), net::ConnectionClosed);
  EXPECT_TRUE(at_the_end_of(std::move(far_2)).receive(Deadline::after(60s)));
}

TEST(Couriers, WhoWaitsLooksAround) {
  auto [near, far] = make_line();
  int looks = 0;
  Couriers waiting = at_the_end_of(std::move(far));
  EXPECT_THROW(waiting.receive(Deadline::after(60s),
                               [&looks] {
                                 if (++looks == 2) throw PeerLost("the group was aborted");
                               }),
               PeerLost);
  EXPECT_EQ(looks, 2);
}

TEST(Couriers, TheDeadlineEndsAWait) {
  auto [near, far] = make_line();
  EXPECT_THROW(at_the_end_of(std::move(far)).receive(Deadline::after(60ms)), Timeout);
}

}  // namespace
}  // namespace lockstep::shm
