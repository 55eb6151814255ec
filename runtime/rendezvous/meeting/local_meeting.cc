// SPDX-License-Identifier: Apache-2.0
#include "runtime/rendezvous/meeting/local_meeting.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <exception>

#include "lockstep/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/base/logging.h"
#include "runtime/base/quiet_thread.h"
#include "runtime/net/backoff.h"
#include "runtime/net/stream.h"
#include "runtime/net/unix_socket.h"

namespace lockstep::rendezvous {
namespace {

constexpr std::uint32_t kMaxAnswerBytes = 4096;
// Time limit of one exchange of a few bytes, once connected; a peer that stalls must not keep the others waiting.
constexpr std::chrono::seconds kExchange{2};

// Pause before the next try to accept, where the system had no descriptor or memory for it.
constexpr std::chrono::milliseconds kNoRoomPause{100};

bool has_no_room(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS || error_number == ENOMEM;
}

// Empty if `fd`'s peer runs as this user, else who it is.
std::string stranger(int fd) {
  const net::PeerCredentials peer = net::peer_credentials(fd);
  if (peer.uid == ::geteuid()) return "";
  return fmt::format("pid {} of user id {}, this process runs as {}", peer.pid, peer.uid, ::geteuid());
}

}  // namespace

std::string local_meeting_name(unsigned uid, std::string_view family, std::string_view job, int attempt) {
  std::string name = fmt::format("lockstep/{}/{}/{}/{}", uid, family, job, attempt);
  if (name.size() > net::kMaxUnixNameBytes) {
    name = fmt::format("lockstep/{}/{:016x}/{}", uid, hash64(fmt::format("{}/{}", family, job)), attempt);
  }
  return name;
}

LocalMeeting::LocalMeeting(const std::string& name, std::string answer)
    : name_(name), answer_(std::move(answer)), listener_(net::unix_listen_abstract(name)) {
  thread_ = start_quiet_thread([this] { serve(); });
}

LocalMeeting::~LocalMeeting() {
  // Joined before the listener is closed: the thread polls its number, which another descriptor could get.
  stop_.notify();
  thread_.join();
}

bool LocalMeeting::stopped_within(std::chrono::milliseconds pause) const {
  pollfd entry{.fd = stop_.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, static_cast<int>(pause.count())) > 0;
}

void LocalMeeting::serve() {
  bool warned = false;
  for (;;) {
    std::array<pollfd, 2> entries = {pollfd{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                                     pollfd{.fd = stop_.fd(), .events = POLLIN, .revents = 0}};
    if (::poll(entries.data(), entries.size(), -1) < 0) {
      if (errno == EINTR) continue;
      log_error(
          "rendezvous: rank 0 can't wait at unix socket @{} any more (poll: {}); ranks that come later won't find this "
          "job: if they hang, start the job again",
          name_, errno_text(errno));
      return;
    }
    if (entries[1].revents != 0) return;
    try {
      answer_one();
    } catch (const SystemError& error) {
      if (!has_no_room(error.error_number())) {
        log_debug("rendezvous: unix socket @{}: {}", name_, error.what());
        continue;
      }
      // A connection that waits stays in the queue, and would be reported again at once.
      if (!warned) {
        log_warn(
            "rendezvous: rank 0 can't answer at unix socket @{}: {}; the other ranks wait until there is room: raise "
            "the limit of open files (ulimit -n)",
            name_, error.what());
      }
      warned = true;
      if (stopped_within(kNoRoomPause)) return;
    } catch (const std::exception& error) {
      log_debug("rendezvous: unix socket @{}: {}", name_, error.what());  // that rank tries again or reports it
    }
  }
}

void LocalMeeting::answer_one() {
  const Deadline deadline = Deadline::after(kExchange);
  const UniqueFd peer = net::unix_accept(listener_, deadline);
  if (const std::string who = stranger(peer.get()); !who.empty()) {
    log_warn(
        "rendezvous: rank 0's unix socket @{} turned away {}; if that is a rank of this job, start all ranks as one "
        "user",
        name_, who);
    return;
  }
  const auto bytes = static_cast<std::uint32_t>(answer_.size());
  net::send_all(peer.get(), std::as_bytes(std::span(&bytes, 1)), deadline);
  net::send_all(peer.get(), answer_, deadline);
}

std::string ask_local_meeting(const std::string& name, const Deadline& deadline) {
  for (net::Backoff backoff;;) {
    try {
      const UniqueFd peer = net::unix_connect_abstract(name, deadline);
      if (const std::string who = stranger(peer.get()); !who.empty()) {
        throw Mismatch(
            fmt::format("rendezvous: unix socket @{} of this job is held by {}; ask that user to end the process, or "
                        "pass init_method tcp://127.0.0.1:PORT on all ranks",
                        name, who));
      }
      std::uint32_t bytes = 0;
      net::recv_exact(peer.get(), std::as_writable_bytes(std::span(&bytes, 1)), deadline);
      if (bytes > kMaxAnswerBytes) {
        throw CorruptData(
            fmt::format("rendezvous: rank 0's unix socket @{} announces an answer of {} bytes, and at most {} are "
                        "possible; run the same build of lockstep on all ranks",
                        name, bytes, kMaxAnswerBytes));
      }
      std::string answer(bytes, '\0');
      net::recv_exact(peer.get(), std::as_writable_bytes(std::span(answer)), deadline);
      return answer;
    } catch (const net::ConnectionClosed& error) {
      // Rank 0 went between accepting and answering; another may come, or the deadline will tell.
      if (!backoff.pause(deadline)) {
        throw Timeout(
            fmt::format("rendezvous: rank 0 closed the connection of this rank: {}, {}; look at rank 0's output",
                        error.what(), deadline.progress()));
      }
    } catch (const Timeout& error) {
      throw Timeout(
          fmt::format("rendezvous: rank 0 has not come: {}; look at rank 0's output, or set LOCKSTEP_TIMEOUT (seconds) "
                      "if rank 0 starts later",
                      error.what()));
    }
  }
}

}  // namespace lockstep::rendezvous
