// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/bootstrap.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <latch>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/job/cause.h"
#include "runtime/base/host.h"
#include "runtime/comm/progress.h"
#include "runtime/comm/shm/liveness.h"
#include "runtime/comm/shm/process_group_shm.h"
#include "runtime/net/stream.h"
#include "runtime/net/unix_socket.h"
#include "runtime/rendezvous/consensus.h"
#include "runtime/store/hash_store.h"
#include "tests/support/error_of.h"

namespace lockstep::shm::bootstrap_test {
namespace {

using lockstep::testing::error_of;
using lockstep::testing::expect_failure;
using namespace std::chrono_literals;

// A line between rank 0 and another.
std::pair<UniqueFd, UniqueFd> make_line() {
  std::array<int, 2> ends{};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()), 0);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

// Of rank 0; what its timeout would end takes too long.
GroupContext context_of_two() {
  GroupContext context;
  context.store = std::make_shared<store::HashStore>();
  context.timeout = 1h;
  for (int r = 0; r < 2; ++r) context.roster.push_back({r, r, getpid(), "here", boot_id()});
  return context;
}

DescriptorChannels at_the_end_of(UniqueFd socket) {
  std::vector<UniqueFd> sockets;
  sockets.push_back(std::move(socket));
  return DescriptorChannels(std::move(sockets));
}

TEST(DescriptorChannels, ALineThatFailsKeepsNoOtherFromItsDescriptor) {
  auto [near_1, far_1] = make_line();
  auto [near_2, far_2] = make_line();
  far_1 = {};  // its rank has gone
  std::vector<UniqueFd> sockets(1);
  sockets.push_back(std::move(near_1));
  sockets.push_back(std::move(near_2));
  const UniqueFd file(open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_THROW(DescriptorChannels(std::move(sockets)).send_to_all(file.get(), Deadline::after(60s)),
               net::ConnectionClosed);
  EXPECT_TRUE(at_the_end_of(std::move(far_2)).receive(Deadline::after(60s)));
}

TEST(DescriptorChannels, TheDeadlineEndsAWaitAndSoDoesALookAround) {
  auto [near, far] = make_line();
  DescriptorChannels waiting = at_the_end_of(std::move(far));
  EXPECT_THROW(waiting.receive(Deadline::after(60ms)), Timeout);
  int looks = 0;
  const auto look = [&looks] {
    if (++looks == 2) throw PeerLost("the group was aborted");
  };
  EXPECT_THROW(waiting.receive(Deadline::after(60s), look), PeerLost);
  EXPECT_EQ(looks, 2);
}

// Rank 0 comes to an allocate of one byte, but hands nothing out: it aborts.
void agree_and_abort(const GroupContext& context, std::latch& over) {
  SharedSetup setup = set_up(context, Deadline::after(60s));
  const auto engine = std::make_shared<ShmEngine>(setup.control, setup.bells, context.roster, 0);
  CollectiveArgs args;
  args.record.kind = OpKind::allocate;
  args.record.dtype = BufferView{}.dtype;
  args.record.count = 1;
  args.rank = 0;
  args.size = 2;
  for (int agreement = 0; agreement < 2; ++agreement) engine->start(args, 60s)->wait(Deadline::after(60s));
  engine->session().abort({.kind = Cause::Kind::aborted, .rank = 0, .reporter = 0, .text = "the disk is full"});
  over.wait();  // with its lines open
  engine->close();
}

TEST(DescriptorChannels, AnAbortEndsAnAllocateThatWaitsForTheDescriptor) {
  const GroupContext context = context_of_two();
  std::latch over(1);
  std::thread rank_0([&] { agree_and_abort(context, over); });
  GroupContext own = context;
  own.identity.rank = 1;
  const auto group = backend().create(own, Deadline::after(60s));
  EXPECT_EQ(error_of<PeerLost>([&] { group->allocate(1); }), "the disk is full");
  over.count_down();
  rank_0.join();
}

// Rank 1 as far as the agreement; its life lock and its line are gone before the bells go round.
void agree_and_die(const GroupContext& context) {
  const Deadline deadline = Deadline::after(60s);
  {
    UniqueFd socket = net::unix_connect_abstract(context.store->get("shm/endpoint", deadline), deadline);
    const std::int32_t rank = 1;
    const int bell = comm::ProgressEngine::of_process().bell_file();
    net::send_with_fds(socket.get(), std::as_bytes(std::span(&rank, 1)), std::span(&bell, 1), deadline);
    DescriptorChannels channels = at_the_end_of(std::move(socket));
    const auto control = Mapping::of(channels.receive(deadline), ControlBlock::bytes_for(2));
    hold_life_lock(control->fd(), rank);
  }
  rendezvous::Consensus(*context.store, context.roster, 1, {.name = "shm/joined", .what = "", .remedy = ""})
      .contribute(
          "ok", [](const auto&) { return std::string(); }, deadline);
}

// Any process of this user may connect and say nothing. Waited for one behind the other, these would take minutes.
TEST(Meet, RanksDoNotWaitBehindWhoSaysNothing) {
  const GroupContext context = context_of_two();
  std::vector<UniqueFd> strangers;
  std::thread rank_1([&] {
    const std::string name = context.store->get("shm/endpoint", Deadline::after(40s));
    for (int i = 0; i < 100; ++i) strangers.push_back(net::unix_connect_abstract(name, Deadline::after(40s)));
    GroupContext own = context;
    own.identity.rank = 1;
    set_up(own, Deadline::after(40s));
  });
  EXPECT_EQ(set_up(context, Deadline::after(40s)).bells.size(), 2u);
  rank_1.join();
}

TEST(Meet, ARankThatDiesWhileBellsGoRoundIsNamedByTheOthers) {
  const GroupContext context = context_of_two();
  std::thread rank_1([&] { agree_and_die(context); });
  expect_failure<PeerLost>([&] { set_up(context, Deadline::after(60s)); }, {.rank = 1, .reporter = 0});
  rank_1.join();
}

}  // namespace
}  // namespace lockstep::shm::bootstrap_test
