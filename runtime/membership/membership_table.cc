// SPDX-License-Identifier: Apache-2.0
#include "runtime/membership/membership_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/environment.h"
#include "runtime/base/printable.h"
#include "runtime/base/text.h"
#include "runtime/membership/forwarding.h"

namespace lockstep::membership {
namespace {

constexpr std::size_t kLongestScope = 1024;
constexpr std::size_t kLongestCause = 8192;
// Groups of one scope that have had their first word.
constexpr std::size_t kMostDecided = 65536;

std::optional<int> parse_count(std::string_view text, int least) {
  const auto number = parse_int(text);
  if (!number || *number < least || *number > kMaxWorldSize) return std::nullopt;
  return static_cast<int>(*number);
}

// The options of a REGISTER.
struct Asked {
  bool is_watched = true;
  std::chrono::milliseconds hang{0};
  std::chrono::milliseconds silence{0};
};

// Why they are refused, or nothing.
std::optional<std::string> take_options(std::string_view options, Asked& asked) {
  while (!options.empty()) {
    const std::string_view word = options.substr(0, options.find(' '));
    options.remove_prefix(std::min(options.size(), word.size() + 1));
    const std::string_view name = word.substr(0, word.find('='));
    if (word.empty()) continue;
    if (word == "liveness=off") {
      asked.is_watched = false;
    } else if (name == "hang-timeout" || name == "silence") {
      const auto number = parse_int(word.substr(std::min(name.size() + 1, word.size())));
      if (!number || *number < kLeastHang.count()) {
        return fmt::format("option '{}' is not a number of milliseconds from {} on", printable(word, 32),
                           kLeastHang.count());
      }
      (name == "silence" ? asked.silence : asked.hang) = std::chrono::milliseconds(*number);
    } else {
      return fmt::format("option '{}' is unknown; there are 'liveness=off', 'hang-timeout=MS' and 'silence=MS'",
                         printable(word, 32));
    }
  }
  return std::nullopt;
}

}  // namespace

MembershipTable::MembershipTable(const MembershipOptions& options, const MemberProbe& probe)
    : options_(options), probe_(probe), clock_(2 * options.look_interval) {
  if (probe_.process) return;
  probe_.process = [self = ProcessInfo::of_this_process()](const ProcessInfo& other) { return state_of(other, self); };
}

std::string MembershipTable::describe(const Member& member) {
  switch (member.state) {
    case State::present: return member.info.describe() + ", which is here";
    case State::left: return member.info.describe() + ", which has left";
    case State::lost: return member.info.describe() + ", which is lost";
    case State::silent: return member.info.describe() + ", which stopped answering";
    case State::failed: return member.info.describe() + ", which reported a failure";
  }
  return member.info.describe();
}

MembershipTable::Member* MembershipTable::find(ConnectionId id, Scope** scope) {
  const auto seat = by_connection_.find(id);
  if (seat == by_connection_.end()) return nullptr;
  Scope& its_scope = scopes_.find(seat->second.scope)->second;
  if (scope != nullptr) *scope = &its_scope;
  return &its_scope.members.at(seat->second.rank);
}

// Drops the scopes that nobody is connected in.
void MembershipTable::forget(std::string_view prefix) {
  std::erase_if(scopes_, [&](const auto& scope) {
    const bool is_over = scope.second.connected == 0 && scope.first.starts_with(prefix);
    if (is_over) size_ -= scope.second.members.size();
    return is_over;
  });
}

bool MembershipTable::make_room() {
  forget("");
  return size_ < options_.max_members;
}

std::optional<std::string> MembershipTable::register_member(ConnectionId id, std::string_view scope_name,
                                                            std::string_view rank, std::string_view world_size,
                                                            std::string_view process, std::string_view options) {
  const auto world = parse_count(world_size, 1);
  const auto number = parse_count(rank, 0);
  if (scope_name.empty() || scope_name.size() > kLongestScope) {
    return fmt::format("a scope of {} bytes; 1 to {} are wanted", scope_name.size(), kLongestScope);
  }
  if (!world)
    return fmt::format("world size '{}' is not a number from 1 to {}", printable(world_size, 32), kMaxWorldSize);
  if (!number || *number >= *world) {
    return fmt::format("rank '{}' is not a rank of a world of {}", printable(rank, 32), *world);
  }
  const auto info = decode_process_info(process);
  if (!info)
    return fmt::format("the {} bytes that describe rank {}'s process have no host, pid or boot id", process.size(),
                       *number);
  Asked asked;
  if (auto problem = take_options(options, asked)) return problem;
  Member member{.info = {.rank = *number, .world_size = *world, .process = *info},
                .connection = id,
                .watched = asked.is_watched && carrier_of(id) == 0,
                .heard_at = clock_.elapsed(),
                .moved_at = clock_.elapsed(),
                .hang = asked.hang,
                .silence = std::max<std::chrono::nanoseconds>(options_.silence, asked.silence)};
  if (const Member* const before = find(id)) {
    return fmt::format("this connection is that of {} already", before->info.describe());
  }
  if (size_ >= options_.max_members && !make_room()) {
    return fmt::format("the store knows {} members, the limit is {}", size_, options_.max_members);
  }
  const auto scope_entry = scopes_.try_emplace(std::string(scope_name)).first;
  Scope& scope = scope_entry->second;
  if (scope.members.empty()) {
    scope.name = scope_entry->first;
    scope.world_size = *world;
  }
  if (scope.world_size != *world) {
    return fmt::format("{} says that the world has {} ranks, the members before it said {}", member.info.describe(),
                       *world, scope.world_size);
  }
  // The last check is the entry itself. A rank's seat stays taken after its end: a second process of that number is
  // refused, and not taken for the first.
  const auto [seat, is_new] = scope.members.try_emplace(*number, member);
  if (!is_new) {
    return fmt::format("two processes are rank {}: {}; and {}; give each process its own RANK", *number,
                       describe(seat->second), member.info.describe());
  }
  if (member.hang.count() > 0) scope.hang = scope.hang.count() > 0 ? std::min(scope.hang, member.hang) : member.hang;
  ++size_;
  ++scope.connected;
  if (static_cast<int>(scope.members.size()) == scope.world_size)
    news_.push_back({.scope = scope.name, .world_size = scope.world_size});
  by_connection_.emplace(id, MemberKey{scope_entry->first, *number});
  if (carrier_of(id) != 0) carried_[carrier_of(id)].insert(id);
  // Earlier events are pushed after the member is entered and before any later event can be: it hears of each once, in
  // the order of their numbers.
  for (const Event& event : scope.events) pushes_.push_back({id, event.kind, event.fields});
  return std::nullopt;
}

namespace {

std::string no_member() { return "this connection is not a member's: REGISTER comes first, and nothing after GOODBYE"; }

}  // namespace

void MembershipTable::hear(Member& member) {
  member.heard_at = clock_.elapsed();
  member.nudged = false;
}

std::optional<std::string> MembershipTable::heartbeat(ConnectionId id, std::int64_t last_sequence,
                                                      std::string_view flags) {
  Member* const member = find(id);
  if (member == nullptr) return no_member();
  hear(*member);
  // Only the words of this heartbeat count: one that names no debugger ends the exemption.
  member->traced = false;
  const std::int64_t before = member->position.sequence;
  member->position = position_of(last_sequence, flags, member->traced);
  if (before != last_sequence) {
    member->moved_at = clock_.elapsed();
    member->behind_since.reset();
  }
  return std::nullopt;
}

std::optional<std::string> MembershipTable::goodbye(ConnectionId id, std::int64_t last_sequence) {
  Scope* scope = nullptr;
  Member* const member = find(id, &scope);
  if (member == nullptr) return no_member();
  member->position.sequence = last_sequence;
  // A goodbye takes back nothing: members were told of a loss or a failure already. Rank 0's goodbye waits for the next
  // check_members(): where all leave together there is nobody left to tell.
  if (member->state == State::present) {
    member->state = State::left;
    if (member->info.rank == 0) scope->leaving = {Kind::left, {"0", std::to_string(last_sequence)}};
  }
  forget_connection(*scope, *member);
  drop_if_over(*scope);
  return std::nullopt;
}

std::optional<std::string> MembershipTable::report(ConnectionId id, std::string_view bytes) {
  Scope* scope = nullptr;
  Member* const member = find(id, &scope);
  if (member == nullptr) return no_member();
  hear(*member);
  Cause cause =
      decode_cause(bytes.substr(0, kLongestCause))
          .value_or(cause_of(*member, Cause::Kind::failed,
                             fmt::format("{} failed: {}", member->info.describe(), printable(bytes, kLongestCause))));
  if (cause.rank < -1 || cause.rank >= scope->world_size) {
    return fmt::format("a report about rank {} of a world of {}", cause.rank, scope->world_size);
  }
  cause.reporter = member->info.rank;
  if (cause.rank == member->info.rank) {
    cause.host = member->info.process.host;
    cause.pid = member->info.process.pid;
  }
  if (member->state == State::present && cause.ends_group) {
    fail(*scope, *member, State::failed, Kind::failed, cause);
  } else {
    // For the host: a member that is silent or has failed may still say why.
    news_.push_back({scope->name, scope->world_size, cause, member->position});
  }
  return std::nullopt;
}

std::optional<std::string> MembershipTable::message(ConnectionId id, std::string_view text) {
  Scope* scope = nullptr;
  Member* const member = find(id, &scope);
  if (member == nullptr) return no_member();
  hear(*member);
  news_.push_back({.scope = scope->name, .world_size = scope->world_size, .message = std::string(text)});
  return std::nullopt;
}

std::optional<std::string> MembershipTable::say(ConnectionId id, std::string_view group, std::string_view ranks,
                                                std::string_view word) {
  Scope* scope = nullptr;
  Member* const member = find(id, &scope);
  if (member == nullptr) return no_member();
  hear(*member);
  if (group.ends_with(kFirstWord)) {
    if (scope->decided.size() >= kMostDecided) return "too many groups of this job have failed";
    if (!scope->decided.emplace(group).second) return std::nullopt;
  }
  const Event event{Kind::word, {std::string(group), std::string(word)}};
  if (ranks.empty()) tell(*scope, event);
  while (!ranks.empty()) {
    const auto rank = parse_int(take_word(ranks));
    if (!rank || *rank < 0 || *rank >= scope->world_size) return "a word for somebody who is not a rank of this job";
    const auto to = scope->members.find(static_cast<int>(*rank));
    if (to != scope->members.end()) tell(to->second, event);
  }
  return std::nullopt;
}

std::optional<std::string> MembershipTable::give_up(ConnectionId id, std::string_view bytes) {
  Scope* scope = nullptr;
  Member* const member = find(id, &scope);
  if (member == nullptr) return no_member();
  const auto cause = decode_cause(bytes.substr(0, kLongestCause));
  if (!cause) return fmt::format("{} bytes that are not a cause", bytes.size());
  if (member->state == State::present) {
    fail(*scope, *member, State::silent, Kind::silent, cause_of(*member, Cause::Kind::silent, cause->text));
  }
  return std::nullopt;
}

void MembershipTable::ended(ConnectionId id) {
  const Member* const member = find(id);
  // Copied, since end() may drop the scope, and the member with it.
  const auto process = member == nullptr ? std::nullopt : std::optional(member->info.process);
  // The carrier's own loss is told first: the losses of the members that it carries follow from it.
  end(id);
  if (process) lose_carried(id, *process, "has ended, or the network to it broke");
  // Behind a goodbye of the carrier each is lost by itself.
  const auto carried = carried_.find(id);
  if (carried == carried_.end()) return;
  for (const ConnectionId other : std::set<ConnectionId>(carried->second)) end(other);
}

void MembershipTable::lose_carried(ConnectionId carrier, const ProcessInfo& process, std::string_view how) {
  const auto carried = carried_.find(carrier);
  if (carried == carried_.end()) return;
  // In the order of their ranks, whoever came first.
  std::vector<std::pair<int, ConnectionId>> ranks;
  for (const ConnectionId id : carried->second) ranks.emplace_back(find(id)->info.rank, id);
  std::sort(ranks.begin(), ranks.end());
  for (const auto& [rank, id] : ranks) {
    Scope* scope = nullptr;
    Member* const member = find(id, &scope);
    if (member->state != State::present) continue;
    fail(*scope, *member, State::lost, Kind::lost,
         cause_of(
             *member, Cause::Kind::lost,
             fmt::format("{} is lost with its host {}: the launcher there (pid {}) {}; its last heartbeat reported {}",
                         member->info.describe(), process.host, process.pid, how, member->position.describe())));
  }
}

void MembershipTable::end(ConnectionId id) {
  Scope* scope = nullptr;
  Member* const member = find(id, &scope);
  if (member == nullptr) return;
  // The connection first: fail() tells all that are connected, and this one would get the news of its own end.
  forget_connection(*scope, *member);
  if (member->state == State::present) {
    const bool is_elsewhere = probe_.process(member->info.process) == ProcessState::unknown;
    fail(*scope, *member, State::lost, Kind::lost,
         cause_of(*member, Cause::Kind::lost,
                  fmt::format("{} is lost: its connection ended without a goodbye; its process ended, or {}: look at "
                              "its output and exit code; its last heartbeat reported {}",
                              member->info.describe(), is_elsewhere ? "the network to its host broke" : "has closed it",
                              member->position.describe())));
  }
  drop_if_over(*scope);
}

// Once every rank has come and all have gone, nobody asks for it any more.
void MembershipTable::drop_if_over(const Scope& scope) {
  if (scope.connected > 0 || static_cast<int>(scope.members.size()) < scope.world_size) return;
  size_ -= scope.members.size();
  scopes_.erase(scopes_.find(scope.name));
}

void MembershipTable::forget_connection(Scope& scope, Member& member) {
  if (member.state == State::silent) --silent_;
  by_connection_.erase(member.connection);
  if (const auto carried = carried_.find(carrier_of(member.connection)); carried != carried_.end()) {
    carried->second.erase(member.connection);
    if (carried->second.empty()) carried_.erase(carried);
  }
  member.connection = 0;
  --scope.connected;
}

Cause MembershipTable::cause_of(const Member& member, Cause::Kind kind, std::string text) {
  return {.kind = kind,
          .rank = member.info.rank,
          .host = member.info.process.host,
          .pid = member.info.process.pid,
          .step = member.position.step,
          .sequence = member.position.sequence,
          .text = std::move(text)};
}

void MembershipTable::fail(Scope& scope, Member& member, State state, Kind kind, const Cause& cause) {
  // The state first, and for every failure, also one that is not told: it keeps end() from telling of the same member
  // again.
  member.state = state;
  if (state == State::silent) ++silent_;
  news_.push_back({scope.name, scope.world_size, cause, member.position});
  // All know of the failure already: an accusation by a witness says nothing new.
  if (scope.failures > 0 && cause.is_accusation()) return;
  const Event event{kind, {std::to_string(member.info.rank), std::to_string(++scope.failures), encode(cause)}};
  if (scope.failures > kMostFailures) {
    // A launcher that stood still comes back only if it learns that it was given up, however many were before.
    tell(member, event);
    return;
  }
  tell(scope, event);
  scope.events.push_back(event);
}

void MembershipTable::tell(const Scope& scope, const Event& event) {
  for (const auto& [rank, member] : scope.members) tell(member, event);
}

void MembershipTable::tell(const Member& member, const Event& event) {
  if (member.connection != 0) pushes_.push_back({member.connection, event.kind, event.fields});
}

std::string MembershipTable::silent_text(const Member& member, std::chrono::nanoseconds silent_for,
                                         ProcessState state) const {
  std::string why;
  switch (state) {
    case ProcessState::stopped:
      why = fmt::format("its process is stopped (SIGSTOP or Ctrl-Z): 'kill -CONT {}' resumes it",
                        member.info.process.pid);
      break;
    case ProcessState::gone:
      why = probe_.host_answers && !probe_.host_answers(member.connection)
                ? "its process has ended, and the network to its host is cut"
                : "its process has ended, and a child of it holds the connection open";
      break;
    case ProcessState::running:
      why = "its process is there but does not run: its cgroup is frozen, or this host is overloaded or swaps";
      break;
    case ProcessState::unknown:
    case ProcessState::traced:
      if (!probe_.host_answers) {
        why = "its process is stopped, its host is down or overloaded, or the network between is cut";
      } else if (probe_.host_answers(member.connection)) {
        why = "its host still answers, so the process is stopped, overloaded or hangs";
      } else {
        why = "its host doesn't answer either: it is down, or the network between is cut";
      }
      break;
  }
  return fmt::format(
      "{} stopped answering: nothing came from it for {:.1f} s of {:.1f} s allowed; {}; its last heartbeat reported "
      "{}; LOCKSTEP_LIVENESS=10 allows it 10 s, off waits for such a rank",
      member.info.describe(), std::chrono::duration<double>(silent_for).count(),
      std::chrono::duration<double>(member.silence).count(), why, member.position.describe());
}

// Within a scope: rank 0's goodbye, then silence, then hangs. A stopped rank is also behind the others; told as silent
// first, it gets the kernel's view into its cause, and after a failure nobody counts as hanging. Nothing is erased
// here: fail() changes states and queues pushes, so the loops stay valid.
void MembershipTable::check_members() {
  for (auto& [name, scope] : scopes_) {
    if (scope.connected == 0) continue;
    if (scope.leaving) {
      tell(scope, *scope.leaving);
      scope.events.push_back(*std::exchange(scope.leaving, std::nullopt));
    }
    for (auto& [rank, member] : scope.members) {
      if (member.state == State::present && member.connection != 0 && member.watched && !member.traced) {
        look_for_silence(scope, member);
      }
    }
    look_for_hang(scope);
  }
}

void MembershipTable::look_for_silence(Scope& scope, Member& member) {
  const auto silent_for = clock_.elapsed() - member.heard_at;
  // At half of the limit: its acknowledgement can be back when the limit passes and host_answers is asked.
  if (silent_for > member.silence / 2 && !std::exchange(member.nudged, true)) {
    pushes_.push_back({member.connection, Kind::nudge, {}});
  }
  if (silent_for <= member.silence && !member.held) return;
  // The kernel is asked only now: a look into /proc for each member at each check would cost too much.
  const ProcessState state = probe_.process(member.info.process);
  if (state == ProcessState::traced) {
    member.held = true;
  } else if (std::exchange(member.held, false)) {  // the debugger let go: from now on it has its time
    hear(member);
  } else {
    fail(scope, member, State::silent, Kind::silent,
         cause_of(member, Cause::Kind::silent, silent_text(member, silent_for, state)));
    lose_carried(member.connection, member.info.process, "does not answer");
  }
}

void MembershipTable::look_for_hang(Scope& scope) {
  if (scope.hang.count() == 0 || scope.failures > 0) return;  // after a failure the others may well stand still
  const Member* front = nullptr;
  for (const auto& [rank, member] : scope.members) {
    if (member.state != State::present) continue;
    if (front == nullptr || member.position.sequence > front->position.sequence) front = &member;
  }
  Member* hanging = nullptr;
  for (auto& [rank, member] : scope.members) {
    if (member.state != State::present) continue;
    if (member.position.sequence == front->position.sequence || member.traced || member.held) {
      member.behind_since.reset();
      continue;
    }
    if (!member.behind_since) member.behind_since = clock_.elapsed();
    if (clock_.elapsed() - *member.behind_since <= scope.hang) continue;
    const auto place = [](const Member& it) { return std::pair(it.position.sequence, it.moved_at); };
    if (hanging == nullptr || place(member) < place(*hanging)) hanging = &member;
  }
  if (hanging == nullptr) return;
  if (probe_.process(hanging->info.process) == ProcessState::traced) {
    hanging->behind_since.reset();
    return;
  }
  fail(scope, *hanging, State::silent, Kind::silent,
       cause_of(*hanging, Cause::Kind::silent, hang_text(*hanging, *front, scope.hang)));
}

std::string MembershipTable::hang_text(const Member& member, const Member& front,
                                       std::chrono::milliseconds allowed) const {
  const auto seconds = [](std::chrono::nanoseconds time) { return std::chrono::duration<double>(time).count(); };
  return fmt::format(
      "{} hangs: the last that it started is {}, and nothing since for {:.1f} s of {} s allowed by "
      "LOCKSTEP_HANG_TIMEOUT, while {} has started {}{}; `lockstep inspect`, 'gdb -p {}' or py-spy shows what it does",
      member.info.describe(), member.position.describe(), seconds(clock_.elapsed() - *member.behind_since),
      seconds(allowed), front.info.describe(), front.position.describe(),
      probe_.process(member.info.process) == ProcessState::stopped ? "; its process is stopped (SIGSTOP or Ctrl-Z)"
                                                                   : "",
      member.info.process.pid);
}

std::vector<std::pair<MembershipTable::ConnectionId, int>> MembershipTable::given_up() const {
  std::vector<std::pair<ConnectionId, int>> members;
  if (silent_ == 0) return members;
  for (const auto& [name, scope] : scopes_) {
    for (const auto& [rank, member] : scope.members) {
      // One that is lost and connected has been lost with its carrier.
      const bool is_given_up = member.state == State::silent || member.state == State::lost;
      if (is_given_up && member.connection != 0) members.emplace_back(member.connection, rank);
    }
  }
  return members;
}

std::vector<MemberView> MembershipTable::members() const {
  std::vector<MemberView> views;
  views.reserve(size_);
  for (const auto& [name, scope] : scopes_) {
    for (const auto& [rank, member] : scope.members) {
      views.push_back({.scope = name,
                       .info = member.info,
                       .state = member.state,
                       .position = member.position,
                       .unchanged_for = clock_.elapsed() - member.moved_at});
    }
  }
  return views;
}

std::vector<MembershipTable::Push> MembershipTable::take_pushes() { return std::exchange(pushes_, {}); }

std::vector<MemberNews> MembershipTable::take_news() { return std::exchange(news_, {}); }

}  // namespace lockstep::membership
