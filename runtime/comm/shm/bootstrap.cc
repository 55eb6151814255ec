// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/bootstrap.h"

#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <list>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/cpu.h"
#include "runtime/base/logging.h"
#include "runtime/base/process_token.h"
#include "runtime/base/random_bytes.h"
#include "runtime/comm/shm/control.h"
#include "runtime/comm/shm/liveness.h"
#include "runtime/net/stream.h"
#include "runtime/net/unix_socket.h"
#include "runtime/rendezvous/consensus.h"

namespace lockstep::shm {
namespace {

constexpr std::string_view kEndpoint = "shm/endpoint";
constexpr std::string_view kNoEndpoint = "none";
constexpr std::string_view kOk = "ok";
// The outcome of a rank that fails only because rank 0 did.
constexpr std::string_view kFollows = "rank 0 has failed";
constexpr std::byte kWithDescriptor{1};
constexpr std::byte kWithout{0};
// Rank 0 listens before it publishes the name, so a rank that can reach it at all does so at once.
constexpr std::chrono::seconds kConnectLimit{5};
// Connections that may be about to introduce themselves; of more the oldest makes room.
constexpr std::size_t kMostSilent = 64;

rendezvous::Consensus consensus_of(const GroupContext& context) {
  return {*context.store,
          context.roster,
          context.identity.rank,
          {.name = "shm/joined",
           .what = "backend 'shm': the ranks set up shared memory",
           .remedy = "see whether they still run"}};
}

// Why shared memory can't be used, as the ranks' own reasons; empty if it can.
std::string verdict_on(const rendezvous::Roster& roster, std::span<const std::string> outcomes) {
  std::string reasons;
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    if (outcomes[r] == kOk || outcomes[r] == kFollows) continue;
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", roster[r].describe(), outcomes[r]);
  }
  return reasons;
}

void check_user(int fd) {
  const auto peer = net::peer_credentials(fd);
  if (peer.uid == ::geteuid()) return;
  throw BackendUnavailable(
      fmt::format("the process at the other end of the unix socket, {}, runs as user {}, and this rank runs as user "
                  "{}; start all ranks as one user",
                  peer.pid, peer.uid, ::geteuid()));
}

void describe_self(RankInfo& info) {
  info.process = process_token();
  info.cores = static_cast<std::uint64_t>(allowed_cores());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) throw SystemError("sched_getaffinity", errno);
  for (std::size_t cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) info.core_set[cpu / 64 % info.core_set.size()] |= std::uint64_t{1} << (cpu % 64);
  }
}

// Takes rank's place in the block.
// The token first: process_is_gone() reads it before it tests the lock. Both before this rank says its outcome: once
// all have agreed, every rank tests every lock, and a rank without its lock would count as dead.
void attach_rank(const Mapping& mapping, int ranks, int rank) {
  const ControlBlock control(mapping.data(), ranks);
  describe_self(control.info(rank));
  hold_life_lock(mapping.fd(), rank);
}

// The files that a rank brings: its bell, and what it has beside.
std::vector<int> own_files(const Beside& beside) {
  std::vector<int> files = {comm::ProgressEngine::of_process().bell_file()};
  if (beside.file >= 0) files.push_back(beside.file);
  return files;
}

// A rank that has connected says which one it is, and brings `wanted` files. -1 for any other connection: rank 0
// proceeds without it, since a rank that could not introduce itself tells the others so through the store.
int introduced_rank(int fd, int ranks, std::size_t wanted, std::vector<UniqueFd>& files, bool& warned) {
  std::string why;
  try {
    check_user(fd);
    std::array<std::byte, sizeof(std::int32_t)> bytes;
    net::recv_with_fds(fd, bytes, files, Deadline::after({}));  // what a rank says comes in one piece
    std::int32_t rank = 0;
    std::memcpy(&rank, bytes.data(), sizeof(rank));
    if (rank > 0 && rank < ranks && files.size() == wanted) return rank;
    why = fmt::format("it says that it is rank {} of {}, and sent {} descriptors instead of {}", rank, ranks,
                      files.size(), wanted);
  } catch (const Timeout&) {
    why = "it did not say which rank it is";
  } catch (const Error& error) {
    why = error.what();
  }
  // Any process of the host may come, as often as it likes: one line tells of it.
  if (std::exchange(warned, true)) return -1;
  log_warn(
      "backend 'shm': rank 0 refused a connection that does not seem to come from a rank of this job: {}; if a rank is "
      "missing, look at that rank's output",
      why);
  return -1;
}

// Rank 0's lines to the others and their files, by rank.
using Files = std::vector<std::vector<UniqueFd>>;
struct Arrived {
  std::vector<UniqueFd> sockets;
  Files files;
};

Arrived accept_all(const UniqueFd& listener, const GroupContext& context, int control_fd, std::size_t files_of_each,
                   const Deadline& deadline) {
  const int ranks = static_cast<int>(context.roster.size());
  bool warned = false;
  Arrived arrived{std::vector<UniqueFd>(context.roster.size()), Files(context.roster.size())};
  auto& sockets = arrived.sockets;
  const rendezvous::Consensus consensus = consensus_of(context);
  const auto awaited = [&] {
    for (int r = 1; r < ranks; ++r) {
      // A rank that said its outcome and has no line has failed: waiting for it would take the whole deadline.
      if (!sockets[static_cast<std::size_t>(r)] && !consensus.has_contributed(r)) return true;
    }
    return false;
  };
  // Any process of the host may connect and say nothing: the ranks are not to wait behind it.
  struct Silent {
    UniqueFd socket;
    Deadline limit;
  };
  std::list<Silent> silent;
  while (!deadline.expired() && awaited()) {
    std::vector<pollfd> entries{{listener.get(), POLLIN, 0}};
    for (const Silent& one : silent) entries.push_back({one.socket.get(), POLLIN, 0});
    const int limit_ms = deadline.sooner(comm::ProgressEngine::kSlice).poll_timeout_ms();
    if (::poll(entries.data(), entries.size(), limit_ms) < 0 && errno != EINTR) {
      throw SystemError(
          "backend 'shm': rank 0 can't poll the sockets of the other ranks (raise 'ulimit -n', or use backend 'tcp')",
          errno);
    }
    std::size_t entry = 0;
    for (auto next = silent.begin(); next != silent.end();) {
      const auto one = next++;
      if (entries[++entry].revents == 0 && !one->limit.expired()) continue;
      std::vector<UniqueFd> files;
      const int rank = introduced_rank(one->socket.get(), ranks, files_of_each, files, warned);
      if (rank >= 0) {
        arrived.files[static_cast<std::size_t>(rank)] = std::move(files);
        net::send_with_fds(one->socket.get(), std::span(&kWithDescriptor, 1), std::span(&control_fd, 1), deadline);
        sockets[static_cast<std::size_t>(rank)] = std::move(one->socket);
      }
      silent.erase(one);
    }
    if (entries[0].revents == 0) continue;
    if (silent.size() == kMostSilent) silent.pop_front();
    silent.push_back({net::unix_accept(listener, deadline), Deadline::after(kConnectLimit)});
  }
  return arrived;
}

// `files` gets those of the others.
SharedSetup host(const GroupContext& context, const Beside& beside, Files& files, std::size_t bytes,
                 const Deadline& deadline) {
  const int ranks = static_cast<int>(context.roster.size());
  auto mapping = Mapping::of(create_memory("lockstep-control", bytes), bytes);
  const std::vector<int> own = own_files(beside);  // what it throws is a reason against it, before all agree
  // Formatted before the name is published: whoever connects gets a block that it can use at once.
  ControlBlock::format(mapping->data(), ranks);
  attach_rank(*mapping, ranks, 0);
  if (ranks == 1) return {mapping, DescriptorChannels(std::vector<UniqueFd>(1)), {}, {}};
  const std::string name = "lockstep-" + random_hex(16);
  const UniqueFd listener = net::unix_listen_abstract(name);
  // Listening comes before the name: a rank that reads it connects at once, and finds somebody.
  context.store->set(kEndpoint, name);
  Arrived arrived = accept_all(listener, context, mapping->fd(), own.size(), deadline);
  files = std::move(arrived.files);
  return {mapping, DescriptorChannels(std::move(arrived.sockets)), {}, {}};
}

SharedSetup join(const GroupContext& context, const Beside& beside, const std::string& endpoint, std::size_t bytes,
                 const Deadline& deadline) {
  const int ranks = static_cast<int>(context.roster.size());
  const std::int32_t rank = context.identity.rank;
  std::vector<UniqueFd> sockets;
  try {
    sockets.push_back(net::unix_connect_abstract(endpoint, deadline.sooner(kConnectLimit)));
  } catch (const Error& error) {
    throw BackendUnavailable(
        fmt::format("this rank could not reach {}: {}; ranks share memory only inside one network namespace: run the "
                    "ranks of this host in one container, or give their containers one network",
                    context.roster[0].describe(), error.what()));
  }
  check_user(sockets[0].get());
  net::send_with_fds(sockets[0].get(), std::as_bytes(std::span(&rank, 1)), own_files(beside), deadline);
  DescriptorChannels channels(std::move(sockets));
  UniqueFd fd = channels.receive(deadline);
  if (!fd) throw BackendUnavailable("got no descriptor from rank 0");
  auto mapping = Mapping::of(std::move(fd), bytes);
  attach_rank(*mapping, ranks, rank);
  return {mapping, std::move(channels), {}, {}};
}

// For a rank whose deadline has passed: the others need not wait for theirs.
void give_up(const GroupContext& context, const rendezvous::Consensus::Judge& judge, const std::string& why) {
  try {
    if (context.identity.rank == 0) context.store->set(kEndpoint, kNoEndpoint);
    consensus_of(context).contribute(why, judge, Deadline::after({}));
  } catch (const Error& error) {
    log_warn(
        "backend 'shm': rank {} gives up, and could not tell the other ranks through the store: {}; the other ranks "
        "would wait until their timeouts: end them now if they still run",
        context.identity.rank, error.what());
  }
}

// Gives every rank the files of all. `files` are rank 0's: those of the others.
// A descriptor comes without a name: all ranks go through ranks and files in one order, which tells the files apart.
void exchange_files(const GroupContext& context, const Beside& beside, SharedSetup& setup, Files files,
                    const Deadline& deadline) {
  comm::ProgressEngine& progress = comm::ProgressEngine::of_process();
  const std::vector<int> own = own_files(beside);
  if (context.identity.rank == 0) {
    for (const int file : own) files[0].push_back(duplicate(file));
  }
  for (std::size_t r = 0; r < context.roster.size(); ++r) {
    std::vector<UniqueFd> received;
    for (std::size_t i = 0; i < own.size(); ++i) {
      if (context.identity.rank == 0) {
        setup.channels.send_to_all(files[r][i].get(), deadline);
        received.push_back(std::move(files[r][i]));
      } else {
        received.push_back(setup.channels.receive(deadline, context.check));
      }
    }
    const bool is_own = static_cast<int>(r) == context.identity.rank;
    setup.bells.push_back(is_own ? progress.own_bell() : progress.map_bell(received[0]));
    if (received.size() > 1) setup.files.push_back(std::move(received[1]));
  }
}

std::string endpoint_of_rank_0(const GroupContext& context, const Deadline& deadline) {
  try {
    return context.store->get(kEndpoint, deadline);
  } catch (const Timeout&) {
    throw Timeout(
        fmt::format("backend 'shm': {} has not started to set up shared memory, {}; see whether that rank still runs",
                    context.roster[0].describe(), deadline.progress()));
  }
}

}  // namespace

void DescriptorChannels::send_to_all(int fd, const Deadline& deadline) {
  std::exception_ptr first;
  for (const UniqueFd& socket : sockets_) {
    if (!socket) continue;
    try {
      if (fd >= 0) {
        net::send_with_fds(socket.get(), std::span(&kWithDescriptor, 1), std::span(&fd, 1), deadline);
      } else {
        net::send_all(socket.get(), std::span(&kWithout, 1), deadline);
      }
    } catch (const Error&) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

UniqueFd DescriptorChannels::receive(const Deadline& deadline, const std::function<void()>& check) {
  while (!deadline.expired() && !net::wait_readable(sockets_[0].get(), deadline.sooner(comm::ProgressEngine::kSlice))) {
    if (check) check();
  }
  std::byte word{};
  std::vector<UniqueFd> fds;
  net::recv_with_fds(sockets_[0].get(), std::span(&word, 1), fds, deadline);
  if (word == kWithout || fds.empty()) return {};
  return std::move(fds.front());
}

std::byte* memory_beside(const SharedSetup& setup, std::size_t ranks) {
  return setup.control->data() + ControlBlock::bytes_for(static_cast<int>(ranks));
}

// Why this order. Each rank sets up its part, then all agree, then files are exchanged. Before the agreement a failure
// is a reason against this backend: each rank says it in the store, and all throw the same. After it the others take
// the group for made, and a failure fails that group through the control block. A rank 0 that fails publishes that
// there is no endpoint, or the others would wait for one until their deadlines.
SharedSetup set_up(const GroupContext& context, const Deadline& deadline, const Beside& beside) {
  const int rank = context.identity.rank;
  const std::size_t bytes = ControlBlock::bytes_for(static_cast<int>(context.roster.size())) + beside.bytes;
  SharedSetup setup;
  Files files(context.roster.size());
  std::string outcome(kOk);
  const auto judge = [&](std::span<const std::string> outcomes) { return verdict_on(context.roster, outcomes); };
  try {
    if (rank == 0) {
      setup = host(context, beside, files, bytes, deadline);
    } else {
      const std::string endpoint = endpoint_of_rank_0(context, deadline);
      if (endpoint == kNoEndpoint) {
        outcome = kFollows;
      } else {
        setup = join(context, beside, endpoint, bytes, deadline);
      }
    }
  } catch (const Timeout& error) {
    give_up(context, judge, error.what());
    throw;
  } catch (const Error& error) {
    outcome = error.what();
    if (rank == 0) context.store->set(kEndpoint, kNoEndpoint);
  }
  const std::string reasons = consensus_of(context).decide(outcome, judge, deadline);
  if (!reasons.empty()) throw BackendUnavailable(fmt::format("backend 'shm' can't be used: {}", reasons));
  try {
    exchange_files(context, beside, setup, std::move(files), deadline);
  } catch (const Error& error) {
    // The others take the group for made: they hear of this failure where they would hear of any. A peer that died is
    // its cause rather than the socket that closed.
    Session session(setup.control, {}, context.roster, rank, context.on_throw);
    session.check();
    session.check_peers_alive("setting up shared memory");
    const bool late = dynamic_cast<const Timeout*>(&error) != nullptr;
    session.fail(late ? Cause::Kind::timeout : Cause::Kind::failed, late ? -1 : rank,
                 fmt::format("backend 'shm': {} can't join the group: {}", session.who(rank), error.what()));
  }
  return setup;
}

}  // namespace lockstep::shm
