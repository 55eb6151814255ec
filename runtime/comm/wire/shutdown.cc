// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/wire/shutdown.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>

#include "lockstep/base/environment.h"
#include "runtime/base/logging.h"
#include "runtime/base/text.h"
#include "runtime/comm/failure/active_timeout.h"
#include "runtime/comm/failure/messages.h"
#include "runtime/comm/roster_cause.h"

namespace lockstep::wire {
namespace {

static_assert(comm::Failure::kMostBytes <= kInlineBytes, "a cause must fit into a frame");

}  // namespace

Shutdown::Shutdown(Wire& wire, const GroupContext& context, std::function<void()> on_failure, const Limits& limits)
    : wire_(wire),
      roster_(context.roster),
      rank_(context.identity.rank),
      limits_(limits),
      left_after_(roster_.size()),
      answered_(roster_.size()),
      seen_(roster_.size()),
      said_(roster_.size()),
      failure_(scope_of(context, "/failure/first"), comm::job_rank(roster_, rank_), std::move(on_failure),
               context.on_throw),
      channel_(scope_of(context, "")) {
  seen_[static_cast<std::size_t>(rank_)] = true;
}

void Shutdown::start() {
  channel_.subscribe([this](std::string_view word) { on_word(word); });
  failure_.start();
}

void Shutdown::stop() {
  failure_.stop();
  channel_.unsubscribe();
}

// If `word` is "3 41", rank 3 says that it has left the group after collective 41. If `word` is only "3", rank 3 has
// sent a message to itself.
void Shutdown::on_word(std::string_view word) {
  const auto rank = parse_int(take_word(word));
  const auto last = parse_int(word);
  if (!rank || *rank < 0 || static_cast<std::size_t>(*rank) >= roster_.size()) return;
  MutexLock lock(mutex_);
  if (last) said_[static_cast<std::size_t>(*rank)] = static_cast<std::uint64_t>(*last);
  if (*rank == rank_) ++returned_;
  changed_.notify_all();
}

// The messages that a rank sends to itself come back in order. If an earlier message has not come back, await_word()
// does not wait, because a rank that is cut off from the network loses all peers and must not wait once for each peer.
void Shutdown::await_word(std::uint64_t number) {
  comm::ActiveTimeout patience(comm::Failure::kPatience);
  while (channel_.is_answered() && !patience.over()) {
    MutexLock lock(mutex_);
    if (returned_ + 1 != number) return;
    changed_.wait_until(mutex_, patience.next());
  }
}

Cause Shutdown::cause_of(Cause::Kind kind, int rank, std::string text, std::uint64_t sequence) const {
  return comm::cause_about(roster_, kind, rank, rank_, std::move(text), static_cast<std::int64_t>(sequence));
}

bool Shutdown::on_frame(int peer, const Frame& frame) {
  const auto index = static_cast<std::size_t>(peer);
  switch (frame.kind) {
    case FrameKind::failed:
      failure_.adopt(*decode_cause(text_of(frame.payload)));  // read_frame() has checked the payload
      return true;
    case FrameKind::goodbye: {
      MutexLock lock(mutex_);
      left_after_[index] = frame.number;
      to_acknowledge_.push_back(peer);
      return true;
    }
    case FrameKind::seen: {
      MutexLock lock(mutex_);
      answered_[index] = seen_[index] = true;
      return true;
    }
    default: return false;
  }
}

bool Shutdown::is_loss(int peer) {
  const auto index = static_cast<std::size_t>(peer);
  {
    // The lock is released before await_word(), because await_word() may wait for seconds.
    MutexLock lock(mutex_);
    // After the end of the connection this peer can't acknowledge a goodbye, so say_goodbye() must not wait for
    // this peer.
    seen_[index] = true;
    if (left_after_[index] || leaving_) return false;
  }
  if (failure_.happened()) return false;
  // The peer may have left while this rank was suspended, or the wire may have reported the end of the connection
  // before the peer's goodbye. When a message of this rank to itself has come back over the job's membership, any
  // earlier goodbye of the peer over the membership has also arrived.
  channel_.say_to(comm::job_rank(roster_, rank_), std::to_string(rank_));
  await_word(++words_);
  MutexLock lock(mutex_);
  if (!left_after_[index]) left_after_[index] = said_[index];
  return !left_after_[index];
}

void Shutdown::note_left(int rank, std::uint64_t last) {
  MutexLock lock(mutex_);
  left_after_[static_cast<std::size_t>(rank)] = last;
}

std::optional<std::uint64_t> Shutdown::left_after(int rank) const {
  MutexLock lock(mutex_);
  return left_after_[static_cast<std::size_t>(rank)];
}

bool Shutdown::leaving() const {
  MutexLock lock(mutex_);
  return leaving_;
}

bool Shutdown::all_have_acknowledged() const {
  MutexLock lock(mutex_);
  return std::all_of(seen_.begin(), seen_.end(), [](bool seen) { return seen; });
}

bool Shutdown::have_answered(const std::vector<int>& peers) const {
  MutexLock lock(mutex_);
  return std::ranges::all_of(peers, [&](int r) REQUIRES(mutex_) { return answered_[static_cast<std::size_t>(r)]; });
}

std::vector<int> Shutdown::connected_peers() const {
  std::vector<int> peers;
  for (int r = 0; r < static_cast<int>(roster_.size()); ++r) {
    if (r != rank_ && wire_.is_connected(r)) peers.push_back(r);
  }
  return peers;
}

void Shutdown::acknowledge() {
  std::vector<int> peers;
  {
    MutexLock lock(mutex_);
    peers.swap(to_acknowledge_);
  }
  Frame seen;
  seen.kind = FrameKind::seen;
  for (const int peer : peers) wire_.send_frame(peer, write_frame(seen));
}

// Set leaving_ before sending the first goodbye: a peer that is also leaving may close its connection as soon as the
//   peer has read the goodbye. While leaving_ is true, this rank does not report a closed connection as a lost peer.
//
// If some peer has not acknowledged the goodbye in time, the leaving rank also says goodbye over the job's membership
// (membership/scopes.h). Before a peer takes a closed connection for the death of a rank, the peer checks whether the
// rank has said goodbye over the membership. A rank also checks for a goodbye over the membership if nobody answers at
// the port of another rank to which it has had no connection. A goodbye over the membership also reaches a rank whose
// relay left at the same time without passing on the goodbye. The membership passes the goodbye on before the leaving
// rank's connections end.
void Shutdown::say_goodbye(std::uint64_t last, const std::vector<int>& relays) {
  Frame goodbye;
  goodbye.kind = FrameKind::goodbye;
  goodbye.number = last;
  std::vector<int> others = connected_peers();
  {
    MutexLock lock(mutex_);
    leaving_ = true;
    // A peer that has left may already have exited, and expects no more frames.
    std::erase_if(others, [&](int r) REQUIRES(mutex_) {
      return seen_[static_cast<std::size_t>(r)] || left_after_[static_cast<std::size_t>(r)];
    });
    seen_.assign(seen_.size(), true);
    for (const int r : others) seen_[static_cast<std::size_t>(r)] = false;
  }
  for (const int peer : others) wire_.send_frame(peer, write_frame(goodbye));
  comm::ActiveTimeout patience(limits_.goodbye);
  for (;;) {
    // Acknowledge in each round, because two ranks that leave at once each wait for the other rank's acknowledgement.
    acknowledge();
    if (failure_.happened()) return;
    if (all_have_acknowledged()) {
      if (have_answered(relays)) return;
      break;
    }
    if (patience.over()) break;
    wire_.wait(patience.next());
  }
  channel_.say(fmt::format("{} {}", rank_, last));
  await_word(++words_);
}

void Shutdown::wait_for_a_cause(const std::string& how, std::uint64_t last) {
  comm::ActiveTimeout patience(limits_.aftermath);
  try {
    while (!failure_.happened() && !patience.over()) wire_.wait(patience.next());
  } catch (const std::exception& error) {
    log_debug("{} can't wait any more: {}", wire_.name(), error.what());  // no peer can send a cause any more
  }
  std::string text = fmt::format("{} lost a connection: {}: {}", who(rank_), wire_.name(), how);
  {
    MutexLock lock(mutex_);
    for (std::size_t r = 0; r < left_after_.size(); ++r) {
      if (left_after_[r]) text += "; " + comm::left_text(roster_[r].describe(), *left_after_[r]);
    }
  }
  failure_.propose(cause_of(Cause::Kind::lost, -1, text, last));
}

void Shutdown::release_buffers() {
  MutexLock lock(mutex_);
  buffers_released_ = true;
  changed_.notify_all();
}

void Shutdown::tell_of_failure() {
  const std::string cause = encode(failure_.known(), comm::Failure::kMostBytes);
  Frame failed;
  failed.kind = FrameKind::failed;
  failed.payload = bytes_of(cause);
  const FrameBytes bytes = write_frame(failed);
  for (const int r : connected_peers()) {
    try {
      wire_.send_frame(r, bytes);
    } catch (const Broken& broken) {
      // Peer `r` learns of the failure when its connection to this rank ends.
      log_debug("{} can't be told of the failure: {}", who(r), broken.what());
    }
  }
}

// raise() waits for release_buffers(), because the caller may free its buffers as soon as raise() has thrown. The wait
// in raise() has a limit, because the program must get the cause even if the communication thread hangs in the library.
void Shutdown::raise() const {
  {
    MutexLock lock(mutex_);
    comm::ActiveTimeout patience(limits_.aftermath);
    while (!buffers_released_ && !patience.over()) changed_.wait_until(mutex_, patience.next());
  }
  failure_.raise();
}

}  // namespace lockstep::wire
