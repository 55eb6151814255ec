#include "runtime/rendezvous/meet.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <set>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/host.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/net/backoff.h"
#include "runtime/rendezvous/file_meeting.h"
#include "runtime/rendezvous/join.h"
#include "runtime/rendezvous/local_meeting.h"
#include "runtime/rendezvous/pmix.h"
#include "runtime/store/hash_store.h"
#include "runtime/store/tcp_store.h"
#include "runtime/store/tcp_store_server.h"

namespace lockstep::rendezvous {
namespace {

using Means = MeetingPlan::Means;

// Of a store that must be there already: its host was started before this process.
constexpr std::chrono::seconds kPresent{30};
// To ask a store that is there one thing.
constexpr std::chrono::seconds kProbe{3};
// A leaving host of the store says that it waits after this long; while an exception is under way it waits no longer.
constexpr std::chrono::seconds kQuietLeave{1};

constexpr std::string_view kLookAtRankZero = "look at rank 0's output";
constexpr std::string_view kTokenKey = "rendezvous/token";

// A store and what must live as long as it does.
struct Holder {
  std::unique_ptr<store::TcpStoreServer> server;
  std::unique_ptr<PmixSession> pmix;
  std::unique_ptr<LocalMeeting> local;
  std::unique_ptr<FileMeeting> file;
  std::unique_ptr<store::Store> client;
  std::chrono::nanoseconds leave_timeout{};

  Holder() = default;
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;
  ~Holder() {
    // Nobody should come any more: where this address is, the ranks may look for their next group's store already.
    file.reset();
    local.reset();
    if (server) server->stop_listening();
    client.reset();
    if (server) let_others_leave();
  }

  // The server's own side of the connections of dead processes is closed, so nobody waits for them.
  void let_others_leave() const {
    const Deadline deadline = Deadline::after(leave_timeout);
    if (server->wait_until_idle(deadline.sooner(kQuietLeave)) || std::uncaught_exceptions() > 0) return;
    log_info("rendezvous: the other ranks still use the store at {} of this process; waiting up to {} s for them",
             server->address().to_string(), std::chrono::duration<double>(leave_timeout).count());
    if (server->wait_until_idle(deadline)) return;
    log_warn("rendezvous: leaving with {} connections to the store at {} open; their ranks will get a StoreError",
             server->client_count(), server->address().to_string());
  }
};

// The stores where ranks of this process have been. The groups of a program may follow each other at one address,
// socket or file, and until rank 0 has left, the store of the earlier one answers there: a rank that came back to it
// would wait for a rank 0 that waits for this rank to go. By rank, since threads of one process may be several.
class Visits {
 public:
  bool has(int rank, const std::string& token) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return tokens_.contains({rank, token});
  }
  void add(int rank, const std::string& token) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    tokens_.insert({rank, token});
  }

 private:
  Mutex mutex_;
  std::set<std::pair<int, std::string>> tokens_ GUARDED_BY(mutex_);
};

Visits& visits() {
  static Visits all;
  return all;
}

constexpr std::string_view kVisited =
    "leads to the store of a group that this process has left: rank 0 has not left it yet";

// Where rank 0 says that its store is.
struct Offer {
  net::HostPort address;
  std::string token;
};

std::string attempt(const Identity& identity) { return fmt::format("{}/{}", identity.run_id, identity.restart_count); }

// "rank 2/4", for the beginnings of messages.
std::string whoami(const Identity& identity) { return fmt::format("rank {}/{}", identity.rank, identity.world_size); }

bool is_loopback(const net::HostPort& address) { return address.host.starts_with("127.") || address.host == "::1"; }

Meeting finish(std::unique_ptr<Holder> holder, const net::HostPort& address) {
  store::Store* const store = holder->client.get();
  return {.store = std::shared_ptr<store::Store>(std::shared_ptr<Holder>(std::move(holder)), store),
          .address = address.to_string()};
}

// The store knows its token before anybody is told of it.
std::unique_ptr<Holder> host_store(const net::HostPort& listen, const MeetingPlan& plan, const std::string& token,
                                   const Deadline& deadline) {
  auto holder = std::make_unique<Holder>();
  holder->leave_timeout = plan.leave_timeout;
  holder->server = std::make_unique<store::TcpStoreServer>(store::TcpStoreServerOptions{.listen = listen});
  const net::HostPort& bound = holder->server->address();
  if (!is_loopback(bound)) {
    log_info("rendezvous: the store at {} is not authenticated: whoever reaches it can join or stop this job",
             bound.to_string());
  }
  holder->client = std::make_unique<store::TcpStore>(bound, deadline);
  holder->client->set(kTokenKey, token);
  return holder;
}

std::unique_ptr<Holder> connect(const MeetingPlan& plan, const net::HostPort& address, const Identity& identity,
                                const Deadline& deadline, std::string_view remedy) {
  auto holder = std::make_unique<Holder>();
  try {
    holder->client = std::make_unique<store::TcpStore>(address, deadline);
  } catch (const Timeout& error) {
    throw Timeout(fmt::format("rendezvous: {} didn't reach the job's store at {} (from {}), {}: {}; {}",
                              whoami(identity), address.to_string(), plan.told_by, deadline.progress(), error.what(),
                              remedy));
  } catch (const StoreError& error) {
    throw StoreError(fmt::format("rendezvous: {} found no store of this job at {} (from {}): {}; {}", whoami(identity),
                                 address.to_string(), plan.told_by, error.what(), remedy));
  }
  return holder;
}

// For a rank 0 whose place is taken: by another rank 0, if the store there says so.
[[noreturn]] void report_taken(const net::HostPort& address, const MeetingPlan& plan, const Identity& identity) {
  std::string other;
  try {
    store::TcpStore probe(address, Deadline::after(kProbe));
    other = claimant_of(probe, identity, 0, Deadline::after(kProbe));
  } catch (const Error& error) {
    throw InvalidArgument(
        fmt::format("rendezvous: {} can't host the store at {} (from {}): another program listens there "
                    "({}); choose a free port, or end that program",
                    whoami(identity), address.to_string(), plan.told_by, error.what()));
  }
  throw Mismatch(
      fmt::format("rendezvous: two processes are rank 0 of {}: {} and {}; give each process its own RANK, and "
                  "let an earlier run end before the next one uses {}",
                  identity.world_size, other, self_member(identity).describe(), address.to_string()));
}

// The store that `offer` leads to, if it is the one of that token and this rank has not been there before; else
// nothing, and why.
std::unique_ptr<Holder> follow(const Offer& offer, const Identity& identity, const Deadline& deadline,
                               std::string& failure) {
  if (visits().has(identity.rank, offer.token)) {
    failure = kVisited;
    return nullptr;
  }
  try {
    auto holder = std::make_unique<Holder>();
    holder->client = std::make_unique<store::TcpStore>(offer.address, deadline);
    if (holder->client->get(kTokenKey, deadline) == offer.token) {
      visits().add(identity.rank, offer.token);
      return holder;
    }
    failure = "another run's store answers there";
  } catch (const Error& error) {
    failure = error.what();
  }
  return nullptr;
}

// `error`, with what the attempts before it met.
Timeout with_history(const Timeout& error, const std::string& failure) {
  if (failure.empty()) return error;
  return Timeout(fmt::format("{}; what had answered before {}", error.what(), failure));
}

// An address tells nothing before somebody answers, so who has answered is asked for its token.
Meeting come_to_address(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  std::string failure;
  for (net::Backoff backoff;;) {
    std::unique_ptr<Holder> holder;
    try {
      holder =
          connect(plan, plan.address, identity, deadline, "rank 0 must run on that host, and must not have failed");
    } catch (const Timeout& error) {
      throw with_history(error, failure);
    }
    try {
      const std::string token = holder->client->get(kTokenKey, deadline.sooner(kProbe));
      if (!visits().has(identity.rank, token)) {
        visits().add(identity.rank, token);
        return finish(std::move(holder), plan.address);
      }
      failure = kVisited;
    } catch (const Timeout&) {
      failure = "is a store that is no rank 0's of lockstep";
    } catch (const StoreError& error) {
      failure = error.what();  // it was on its way out
    }
    holder.reset();
    if (!backoff.pause(deadline)) {
      throw Timeout(fmt::format("rendezvous: {} has not met rank 0 at {} (from {}), {}: what answers there {}; {}",
                                whoami(identity), plan.address.to_string(), plan.told_by, deadline.progress(), failure,
                                kLookAtRankZero));
    }
  }
}

Meeting meet_at_address(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  if (identity.rank != 0) return come_to_address(plan, identity, deadline);
  try {
    auto holder = host_store(plan.address, plan, random_token(), deadline);
    const net::HostPort bound = holder->server->address();
    return finish(std::move(holder), bound);
  } catch (const SystemError& error) {
    if (error.error_number() != EADDRINUSE) throw;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(
        fmt::format("rendezvous: {} must host the store at {} (from {}) and can't: {}; start rank 0 on "
                    "that host, or give an address of this one",
                    whoami(identity), plan.address.to_string(), plan.told_by, error.what()));
  }
  report_taken(plan.address, plan, identity);
}

// What rank 0 answers on the local socket: "127.0.0.1:41233 TOKEN".
std::string encode(const Offer& offer) { return fmt::format("{} {}", offer.address.to_string(), offer.token); }

Offer ask_for_offer(const std::string& name, const Deadline& deadline) {
  const std::string answer = ask_local_meeting(name, deadline);
  const auto space = answer.find(' ');
  if (space == std::string::npos) {
    throw CorruptData(
        fmt::format("rendezvous: unix socket @{} answers '{}', not with an address and a token; run the same build of "
                    "lockstep on all ranks",
                    name, answer));
  }
  return {.address = net::parse_host_port(answer.substr(0, space)), .token = answer.substr(space + 1)};
}

Meeting come_to_local_socket(const std::string& name, const Identity& identity, const Deadline& deadline) {
  std::string failure;
  for (net::Backoff backoff;;) {
    Offer offer;
    try {
      offer = ask_for_offer(name, deadline);
    } catch (const Timeout& error) {
      throw with_history(error, failure);
    }
    if (auto holder = follow(offer, identity, deadline.sooner(kProbe), failure)) {
      return finish(std::move(holder), offer.address);
    }
    if (!backoff.pause(deadline)) {
      throw Timeout(fmt::format("rendezvous: {} has not met rank 0, {}: what unix socket @{} answers {}; {}",
                                whoami(identity), deadline.progress(), name, failure, kLookAtRankZero));
    }
  }
}

Meeting meet_over_local_socket(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  const std::string& name = plan.socket;
  if (identity.rank != 0) return come_to_local_socket(name, identity, deadline);
  try {
    const std::string token = random_token();
    auto holder = host_store({"127.0.0.1", 0}, plan, token, deadline);
    const net::HostPort bound = holder->server->address();
    holder->local = std::make_unique<LocalMeeting>(name, encode(Offer{.address = bound, .token = token}));
    return finish(std::move(holder), bound);
  } catch (const SystemError& error) {
    if (error.error_number() != EADDRINUSE) throw;
  }
  report_taken(ask_for_offer(name, deadline.sooner(kProbe)).address, plan, identity);
}

Meeting meet_over_pmix(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  // A key can be put once; a program that leaves its group and joins again needs another.
  static std::atomic<int> meetings{0};
  const std::string key = fmt::format("lockstep.store.{}", meetings.fetch_add(1));
  auto session = PmixSession::open();
  if (session->rank() != identity.rank) {
    throw Mismatch(
        fmt::format("rendezvous: {} (from {}) is rank {} to the PMIx server; start the program with mpirun itself",
                    whoami(identity), identity.source, session->rank()));
  }
  if (identity.rank != 0) {
    const net::HostPort address = net::parse_host_port(session->lookup(0, key, deadline));
    auto holder = connect(plan, address, identity, deadline.sooner(kPresent), kLookAtRankZero);
    holder->pmix = std::move(session);
    return finish(std::move(holder), address);
  }
  const auto addresses = net::local_addresses();  // loopback last
  const bool one_host = identity.local_world_size_known && identity.local_world_size == identity.world_size;
  const std::string host = one_host || addresses.empty() ? "127.0.0.1" : addresses.front();
  auto holder = host_store({host, 0}, plan, random_token(), deadline);
  const net::HostPort bound = holder->server->address();
  session->publish(key, bound.to_string());
  holder->pmix = std::move(session);
  return finish(std::move(holder), bound);
}

[[noreturn]] void refuse_other_host(const MeetingNote& note, const Identity& identity) {
  throw BackendUnavailable(
      fmt::format("rendezvous: {} is on host {} and rank 0 on host {}, and this build has no backend "
                  "that works across hosts; start all ranks on one",
                  whoami(identity), host_name(), note.host));
}

Meeting come_to_file(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  RefusedNote refused;
  for (net::Backoff backoff;;) {
    const MeetingNote note = await_note(plan.path, attempt(identity), refused, deadline);
    if (note.boot_id != boot_id()) refuse_other_host(note, identity);
    const Offer offer{.address = net::parse_host_port(note.store), .token = note.token};
    std::string failure;
    if (auto holder = follow(offer, identity, deadline.sooner(kProbe), failure)) {
      return finish(std::move(holder), offer.address);
    }
    if (failure == kVisited) refused = {note.token, failure};
    if (failure.starts_with("another run")) refused = {note.token, "leads to no store of that run"};
    if (!backoff.pause(deadline)) {
      throw Timeout(
          fmt::format("init_method file://{}: the store at {} that {} wrote there is not reached, {}: {}; look at "
                      "rank 0's output",
                      plan.path, note.store, note.writer(), deadline.progress(), failure));
    }
  }
}

Meeting meet_at_file(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  if (identity.rank != 0) return come_to_file(plan, identity, deadline);
  const std::string token = random_token();
  auto holder = host_store({"127.0.0.1", 0}, plan, token, deadline);
  const net::HostPort bound = holder->server->address();
  MeetingNote note = note_of_this_process(bound.to_string(), attempt(identity));
  note.token = token;
  holder->file = std::make_unique<FileMeeting>(plan.path, note);
  return finish(std::move(holder), bound);
}

}  // namespace

Meeting meet(const MeetingPlan& plan, const Identity& identity, const Deadline& deadline) {
  switch (plan.means) {
    case Means::alone: return {.store = std::make_shared<store::HashStore>(), .address = "in-process"};
    case Means::launcher_store:
    case Means::agent_store:
      return finish(
          connect(plan, plan.address, identity, deadline.sooner(kPresent), "its launcher hosts it and must still run"),
          plan.address);
    case Means::local_socket: return meet_over_local_socket(plan, identity, deadline);
    case Means::pmix: return meet_over_pmix(plan, identity, deadline);
    case Means::file: return meet_at_file(plan, identity, deadline);
    case Means::address: return meet_at_address(plan, identity, deadline);
  }
  throw InvalidArgument("rendezvous: no such means of meeting");
}

}  // namespace lockstep::rendezvous
