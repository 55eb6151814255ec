// SPDX-License-Identifier: Apache-2.0
// The port at which a rank listens, and who has connected there: each proves that it is a rank of the job (greeting.h),
// or is turned away and named in the log.
//
// Nobody waits for a caller, and strangers take little of this rank's time, however many they are and whatever they
// send: kMostCallers prove themselves at once, for whom the one that has been silent for longest makes room; of
// strangers about kMostStrangers are turned away between two ticks, and the others stay in the kernel's queue; the log
// names kNamedStrangers a minute and counts the rest.
//
// Threads: one.
#pragma once

#include <cstddef>
#include <functional>
#include <list>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "runtime/base/log_limit.h"
#include "runtime/base/unique_fd.h"
#include "runtime/comm/tcp/greeting.h"

namespace lockstep::tcp {

class HandshakeAcceptor {
 public:
  static constexpr std::size_t kMostCallers = 64;
  static constexpr int kMostStrangers = 32;
  static constexpr std::size_t kNamedStrangers = 3;

  // Listens at a free port of `address`. `has_another(rank)`: this rank has another connection with that one, or is
  // about to, so that one gives up what it has begun here. `own` outlives it.
  HandshakeAcceptor(const OwnEnd& own, const std::string& address, std::function<bool(int rank)> has_another);
  ~HandshakeAcceptor();
  HandshakeAcceptor(const HandshakeAcceptor&) = delete;
  HandshakeAcceptor& operator=(const HandshakeAcceptor&) = delete;

  // The ticket, drawn by chance, and the address that another rank needs to connect here.
  std::string place() const;
  // A descriptor that the epoll watches under this number is readable. False if it is not one of these.
  bool serve(int fd);
  // Call it every 100 ms while is_busy().
  void tick();
  bool is_busy() const { return !callers_.empty() || is_paused_ || log_limit_.left_out() > 0; }

  // The ranks that have proved themselves and wait for an answer.
  std::vector<int> proven() const;
  // Proves this rank to `rank`, one of these, and gives the connection away; none if it has just ended.
  UniqueFd accept(int rank);
  // Ends the connection of one of these: `why`, for the log; empty: it knows.
  void refuse(int rank, const std::string& why);
  // Every rank is there: turns away who else is, and whom the kernel has in its queue, as many as there are places for.
  void turn_away_all();
  // "; 3 that proved nothing were turned away, the last was ...", or nothing.
  std::string strangers() const;

 private:
  struct Caller {
    UniqueFd socket;
    std::string peer;  // its address
    Deadline limit;
    std::string received = {};  // of the part that it sends
    int rank = -1;              // by its own word; -1 before its hello is here
    store::ChallengeResponse challenge = {};
    bool is_proven = false;
    bool has_given_up = false;
  };
  using Place = std::list<Caller>::iterator;

  void accept_callers();
  // False if nobody is there.
  bool accept_one();
  // True if there is room for one more.
  bool make_room();
  // Empty, or why the caller is turned away.
  std::string hear(Caller& caller);
  std::string challenge(Caller& caller);
  std::string judge(Caller& caller) const;
  Place find_proven(int rank);
  void drop(Place caller);
  void turn_away(Place caller, const std::string& why);
  // In the log, as long as it has not been said too often.
  void say(const std::string& what);
  // Once the time of those that were named is over at `now`.
  void say_how_many_more(LogLimit::Time now);
  void pause(bool is_paused);
  std::string who() const { return own_.describe(own_.rank); }

  const OwnEnd& own_;
  const std::function<bool(int rank)> has_another_;
  const UniqueFd listener_;
  const std::string ticket_;
  std::list<Caller> callers_;
  bool is_paused_ = false;  // the listener is not watched, until the next tick
  int turned_away_ = 0;     // in all
  int since_tick_ = 0;
  std::string last_stranger_;
  LogLimit log_limit_;
};

}  // namespace lockstep::tcp
