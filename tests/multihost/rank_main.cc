// SPDX-License-Identifier: Apache-2.0
// A rank on a host of its own: meets the others, joins, opens its link, passes barriers, and says what it hears then.
// It makes no group, so that what a test sees is membership's own, whichever backends the build has.
//   rank             until a SIGUSR1, after which it leaves, or until a failure, which is printed: exit code 3
//   knock HOST:PORT  prints "open" or "closed"
#include <fmt/format.h>
#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

#include "lockstep/base/environment.h"
#include "lockstep/base/error.h"
#include "runtime/base/mutex.h"
#include "runtime/comm/init/group_watch.h"
#include "runtime/net/tcp_socket.h"
#include "runtime/rendezvous/join.h"
#include "runtime/rendezvous/meeting/meet.h"

namespace lockstep {
namespace {

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int knock(const std::string& where) {
  try {
    net::tcp_connect_once(net::parse_host_port(where), Deadline::after(std::chrono::seconds(30)));
    say("open");
  } catch (const Error& error) {
    say(std::string("closed: ") + error.what());
  }
  return 0;
}

// The first failure wakes the main thread.
class Failure {
 public:
  void set(const std::string& text) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (!text_.empty()) return;
    text_ = text;
    kill(getpid(), SIGUSR2);
  }
  std::string text() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return text_;
  }

 private:
  Mutex mutex_;
  std::string text_ GUARDED_BY(mutex_);
};

int run_rank() {
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGUSR1);
  sigaddset(&awaited, SIGUSR2);
  pthread_sigmask(SIG_BLOCK, &awaited, nullptr);

  const Environment environment = Environment::of_process();
  const Deadline deadline = Deadline::after(std::chrono::seconds(environment.get_int("LOCKSTEP_TIMEOUT").value_or(40)));
  rendezvous::Identity identity = rendezvous::identify(environment);
  const auto plan = rendezvous::plan_meeting(identity, {}, environment);
  const rendezvous::Meeting meeting = rendezvous::meet(plan, identity, deadline);
  const auto self = rendezvous::self_member(identity);
  const rendezvous::Joined joined = rendezvous::join(*meeting.store, identity, self, deadline);
  say("store " + meeting.address);
  say("joined " + rendezvous::describe_hosts(joined.roster));

  Failure failure;
  membership::MemberLink link(
      *meeting.endpoint, joined.scope,
      {.rank = identity.rank, .world_size = identity.world_size, .process = membership::ProcessInfo::of_this_process()},
      {},
      {.on_event =
           [&](const membership::MemberEvent& event) {
             const Consequence what = consequence_of(event, StoreHost::rank_zero, identity.rank, false);
             if (what.kind == Consequence::Kind::fail) failure.set(what.cause.text);
           }},
      deadline);
  for (int i = 0; i < 3; ++i) {
    std::vector<std::string> all;
    for (int rank = 0; rank < identity.world_size; ++rank) all.push_back(fmt::format("barrier {}/{}", i, rank));
    meeting.store->set(all[static_cast<std::size_t>(identity.rank)], "");
    meeting.store->wait(all, deadline);
  }
  say("barriers passed");
  int signal = 0;
  sigwait(&awaited, &signal);
  if (signal == SIGUSR1) {
    link.goodbye(0);
    say("left");
    return 0;
  }
  throw PeerLost(failure.text());
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "rank") return lockstep::run_rank();
    if (what == "knock" && argc > 2) return lockstep::knock(argv[2]);
  } catch (const lockstep::PeerLost& error) {
    lockstep::say(std::string("failed: ") + error.what());
    return 3;
  } catch (const lockstep::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "rank, or knock HOST:PORT\n");
  return 2;
}
