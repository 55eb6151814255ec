// SPDX-License-Identifier: Apache-2.0
// The server's table of members: who has registered, left, failed, is lost or silent (proto/PROTOCOL.md, 0x90 to 0x97).
//
// Members register with a scope, the name of one meeting of one job, and send heartbeats. An event of one of them is
// pushed to all members of its scope, once each; a member that registers later gets the events that were pushed before:
//   lost    its connection ended without a goodbye                       at once
//   silent  nothing came from it for MembershipOptions::silence, or it   at the next check_members()
//           hangs: see below
//   failed  it reported that its group failed, and why                   at once
//   left    rank 0 said goodbye; of the others nobody need know          at the next check_members()
// Failures of a scope are numbered from 1. Number 1 is the first cause; the others mostly follow from it, so that only
// the first kMostFailures are told to all; of a later one the member itself is told.
//
// The end of a member is told as a Cause (job/cause.h); so is its report, of itself or of another member. A member
// that has accused another has failed with it: its own end is a consequence, and is not told.
//
// Silence counts only over time in which the observer itself ran (base/observed_clock.h). A member that is traced, by
// its own last heartbeat or by what the kernel says of a process of this host, and one with "liveness=off" is never
// silent.
//
// A member hangs that has started fewer collectives than another one and starts none for the scope's hang timeout, the
// least that its members ask for with "hang-timeout=MS"; without such a word nobody hangs. If several do, it is the one
// that is furthest behind, the longest. One that is traced doesn't hang.
//
// A member may come over the connection of another one, its carrier (forwarding.h): the launcher of its host. Its
// silence is judged there and comes with give_up(). Where the carrier is lost or silent, so are all that it carries, in
// the same moment: the carrier's own loss is told first, and theirs name its process.
//
// The groups within a scope have words of their own (scopes.h), which are passed on and not kept; where the group's
// name ends in kFirstWord, its first one alone.
//
// Pure: no sockets, and the time is passed in. One thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lockstep/job/cause.h"
#include "runtime/base/observed_clock.h"
#include "runtime/membership/member_info.h"

namespace lockstep::membership {

struct MembershipOptions {
  // A member that sent nothing for so long has stopped answering; longer where it asks for that ("silence=MS").
  std::chrono::nanoseconds silence = std::chrono::seconds(2);
  // How often the owner calls check_members(), at least while there are members. No pause counts as more than twice
  // that.
  std::chrono::nanoseconds look_interval = std::chrono::milliseconds(100);
  // Members of all scopes together, also those that have left or were lost; scopes without a connected member make
  // room.
  std::size_t max_members = std::size_t{1} << 17;
};

// Failures of one scope that are told; the rest is counted.
inline constexpr std::int64_t kMostFailures = 16;

// The end of the names of groups in which only the first word is passed on.
inline constexpr std::string_view kFirstWord = "/first";

// The least hang timeout: four heartbeats, between which nobody is seen to move.
inline constexpr std::chrono::milliseconds kLeastHang{2000};

enum class MemberState {
  present,
  left,    // with a goodbye
  lost,    // its connection ended without one
  silent,  // given up: it stopped answering
  failed,  // it reported a failure of its own
};

// An event of a scope, for the host of the store.
struct MemberNews {
  std::string scope = {};
  int world_size = 0;               // of the scope
  std::optional<Cause> cause = {};  // what befell a member, or what it reported; else every rank has registered
  MemberPosition position = {};     // of that member, by its last heartbeat
  // A message of a member to this host; the event then holds nothing else. Nothing reads it here.
  std::optional<std::string> message = {};
};

// A member as the table knows it.
struct MemberView {
  std::string scope = {};
  MemberInfo info = {};
  MemberState state = MemberState::present;
  MemberPosition position = {};                 // by its last heartbeat
  std::chrono::nanoseconds unchanged_for = {};  // observed time since its sequence moved, or since it registered
};

// Questions to the kernel about a silent member.
struct MemberProbe {
  // Its process. The default looks into /proc of this host.
  std::function<ProcessState(const ProcessInfo&)> process = {};
  // Whether its host has acknowledged what was sent on this connection. The default can't tell: nothing is said of it.
  std::function<bool(std::uint64_t connection)> host_answers = {};
};

class MembershipTable {
 public:
  using ConnectionId = std::uint64_t;
  using Time = ObservedClock::Time;

  // nudge: a frame sent to a member that has been silent for half of the limit. TCP's acknowledgement tells whether its
  // host is alive.
  enum class Kind { lost, silent, left, failed, nudge, word };
  // An event to send to one member.
  struct Push {
    ConnectionId to = 0;
    Kind kind = Kind::lost;
    // [rank, failure number, cause]; of `left` [rank, last sequence]; of `nudge` none; of `word` [group, word].
    std::vector<std::string> fields;
  };
  explicit MembershipTable(const MembershipOptions& options = {}, const MemberProbe& probe = {});

  // Registers a member. Returns why it is refused, or nothing. `scope`, and the texts, are as REGISTER has them.
  std::optional<std::string> register_member(ConnectionId id, std::string_view scope, std::string_view rank,
                                             std::string_view world_size, std::string_view process,
                                             std::string_view options);
  // The next five apply to a registered member. They return a reason if the connection does not belong to one. `flags`
  // of a heartbeat: words (member_info.h).
  std::optional<std::string> heartbeat(ConnectionId id, std::int64_t last_sequence, std::string_view flags);
  std::optional<std::string> goodbye(ConnectionId id, std::int64_t last_sequence);
  // `cause` is encoded, or else the member's words about itself. Its reporter is the member, whatever it says.
  std::optional<std::string> report(ConnectionId id, std::string_view cause);
  // For the store's host alone.
  std::optional<std::string> message(ConnectionId id, std::string_view text);
  // Passes a word of this member on to the ranks of `group`, itself among them: "0 2 5"; empty: to all.
  std::optional<std::string> say(ConnectionId id, std::string_view group, std::string_view ranks,
                                 std::string_view word);
  // The carrier of this member has found it silent, for `cause`.
  std::optional<std::string> give_up(ConnectionId id, std::string_view cause);
  // The connection has ended. Any id: most connections are not members'.
  void ended(ConnectionId id);

  // The observer runs now. Before the others, as often as time matters.
  void observe(Time now) { clock_.observe(now); }
  // Finds the silent, and tells that rank 0 has left.
  void check_members();

  // Pushes since the last call, in order.
  std::vector<Push> take_pushes();
  bool has_pushes() const { return !pushes_.empty(); }
  // Since the last call, in order; of all scopes, also what is no longer told to members.
  std::vector<MemberNews> take_news();
  bool is_member(ConnectionId id) const { return by_connection_.contains(id); }
  // Members that are connected and have not said goodbye. While there are none, nothing need look around.
  std::size_t present() const { return by_connection_.size(); }
  // Connected members that are silent, or that a silent one carries, with their ranks: given up, whatever comes from
  // them.
  std::vector<std::pair<ConnectionId, int>> given_up() const;
  // Members of any state that are remembered.
  std::size_t size() const { return size_; }
  // All of them, by scope and rank. A scope that every rank has come to and left is forgotten.
  std::vector<MemberView> members() const;
  // Nobody of these scopes is connected, nor will be: forgets those whose names begin with `prefix`.
  void forget(std::string_view prefix);

 private:
  using State = MemberState;
  struct Member {
    MemberInfo info;
    State state = State::present;
    ConnectionId connection = 0;  // 0: ended
    bool watched = true;          // for silence
    bool nudged = false;          // since it was heard
    bool traced = false;          // by its own word
    bool held = false;            // silent, and traced by the kernel's word
    std::chrono::nanoseconds heard_at{0};
    MemberPosition position = {};          // by its last heartbeat
    std::chrono::nanoseconds moved_at{0};  // when its sequence changed
    // When another one was first seen to have started more; reset as it starts one.
    std::optional<std::chrono::nanoseconds> behind_since = {};
    std::chrono::milliseconds hang{0};   // the timeout that it asks for; 0: none
    std::chrono::nanoseconds silence{};  // that it may keep
  };
  struct Event {
    Kind kind;
    std::vector<std::string> fields;
  };
  struct Scope {
    std::string name;
    int world_size = 0;
    std::map<int, Member> members;
    std::int64_t failures = 0;
    std::size_t connected = 0;
    std::chrono::milliseconds hang{0};  // the least that a member asked for; 0: none did
    std::vector<Event> events;          // told, for who comes later
    std::optional<Event> leaving;       // of rank 0, not told yet
    std::set<std::string> decided;      // groups of which only the first word counts, and which have had it
  };
  struct MemberKey {
    std::string scope;
    int rank = 0;
  };

  static std::string describe(const Member& member);
  Member* find(ConnectionId id, Scope** scope = nullptr);
  bool make_room();
  void forget_connection(Scope& scope, Member& member);
  void end(ConnectionId id);
  // All that come over this connection are lost with the process at its other end. `how`: "has ended".
  void lose_carried(ConnectionId carrier, const ProcessInfo& process, std::string_view how);
  void drop_if_over(const Scope& scope);
  // `cause` is of `kind`; the member it is about, or that reports it, has `state` from now on.
  void fail(Scope& scope, Member& member, State state, Kind kind, const Cause& cause);
  // A cause that the server itself states about a member.
  static Cause cause_of(const Member& member, Cause::Kind kind, std::string text);
  void tell(const Scope& scope, const Event& event);
  void tell(const Member& member, const Event& event);
  void hear(Member& member);
  void look_for_silence(Scope& scope, Member& member);
  void look_for_hang(Scope& scope);
  std::string hang_text(const Member& member, const Member& front, std::chrono::milliseconds allowed) const;
  std::string silent_text(const Member& member, std::chrono::nanoseconds silent_for, ProcessState state) const;

  MembershipOptions options_;
  MemberProbe probe_;
  ObservedClock clock_;
  std::map<std::string, Scope, std::less<>> scopes_;
  std::unordered_map<ConnectionId, MemberKey> by_connection_;
  std::map<ConnectionId, std::set<ConnectionId>> carried_;  // by carrier; those that are connected
  std::size_t size_ = 0;
  std::size_t silent_ = 0;  // connected members in this state
  std::vector<Push> pushes_;
  std::vector<MemberNews> news_;
};

}  // namespace lockstep::membership
