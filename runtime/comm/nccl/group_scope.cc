// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/group_scope.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/environment.h"
#include "runtime/base/printable.h"
#include "runtime/comm/failure/messages.h"

namespace lockstep::nccl {
namespace {

using Kind = GroupWord::Kind;

// How long the ranks may take to say where they are.
constexpr std::chrono::milliseconds kAnswerPatience{700};

}  // namespace

GroupScope::GroupScope(GroupCore& core, std::function<void()> on_news)
    : core_(core),
      on_news_(std::move(on_news)),
      channel_(scope_of(core.context, "")),
      positions_(core.context.roster.size()),
      goodbyes_(core.context.roster.size()) {}

void GroupScope::start() {
  core_.failure.start();
  channel_.subscribe([this](std::string_view text) { on_word(text); });
}

void GroupScope::stop() {
  channel_.unsubscribe();
  core_.failure.stop();
}

void GroupScope::say(GroupWord word) {
  word.rank = core_.rank;
  channel_.say(encode(word));
}

void GroupScope::on_word(std::string_view text) {
  const auto word = decode_word(text, core_.size);
  if (!word) {
    const std::string problem = fmt::format(
        "{} got '{}' from another rank, which is not a message of this version; run one version of lockstep on every "
        "host",
        core_.own_name(), printable(text));
    return core_.failure.propose_async(core_.cause_of(Cause::Kind::mismatch, -1, problem));
  }
  if (word->kind == Kind::question) return answer(*word);
  take(*word);
  on_news_();
}

void GroupScope::take(const GroupWord& word) {
  const auto rank = static_cast<std::size_t>(word.rank);
  MutexLock lock(mutex_);
  switch (word.kind) {
    case Kind::called: {
      auto& all = called_[static_cast<std::uint64_t>(word.sequence)];
      all.resize(goodbyes_.size());
      all[rank] = word.record;
      return;
    }
    case Kind::answer: positions_[rank] = word; return;
    case Kind::left: {
      Goodbye goodbye{static_cast<std::uint64_t>(word.last), {}};
      for (std::size_t i = 0; i + 2 < word.messages.size(); i += 3) {
        const auto count = [&](std::size_t at) { return parse_int(word.messages[at]).value_or(0); };
        if (count(i) == core_.rank) goodbye.messages = {count(i + 1), count(i + 2)};
      }
      goodbyes_[rank] = goodbye;
      return;
    }
    case Kind::aborted: somebody_aborted_ = true; return;
    case Kind::question: return;
  }
}

void GroupScope::say_called(const PendingCall& collective) {
  say({.kind = Kind::called,
       .sequence = static_cast<std::int64_t>(collective.sequence),
       .has_record = true,
       .record = *collective.record()});
}

bool GroupScope::all_have_called(const PendingCall& collective) {
  const comm::OpRecord& own = *collective.record();
  std::vector<std::optional<comm::OpRecord>> records;
  {
    MutexLock lock(mutex_);
    const auto found = called_.find(collective.sequence);
    const auto has_called = [](const auto& record) { return record.has_value(); };
    if (found == called_.end() || !std::all_of(found->second.begin(), found->second.end(), has_called)) return false;
    records = std::move(found->second);
    called_.erase(found);
  }
  comm::ScalarReduction scalars(own.note);
  std::string all;
  for (int r = 0; r < core_.size; ++r) {
    const comm::OpRecord& theirs = *records[static_cast<std::size_t>(r)];
    if (!comm::same_operation(own, theirs)) {
      throw_error(
          core_.cause_of(Cause::Kind::mismatch, -1,
                         comm::describe_mismatch(collective.sequence, core_.own_name(), own, core_.who(r), theirs)));
    }
    scalars.add(theirs.words);
    all += fmt::format("{}{} of {}", r == 0 ? "" : ", ", theirs.words[0], core_.who(r));
  }
  if (scalars.is_too_heavy()) {
    throw_error(core_.cause_of(Cause::Kind::mismatch, -1, comm::describe_too_heavy(own, collective.sequence, all)));
  }
  return true;
}

void GroupScope::say_goodbye() {
  GroupWord word{.kind = Kind::left, .last = static_cast<std::int64_t>(core_.calls.last())};
  for (const auto& [peer, counts] : core_.calls.messages()) {
    for (const std::int64_t number : {std::int64_t{peer}, counts.sent, counts.received}) {
      word.messages.push_back(std::to_string(number));
    }
  }
  say(std::move(word));
}

void GroupScope::say_aborted() { say({.kind = Kind::aborted}); }

bool GroupScope::has_left(int rank) const {
  MutexLock lock(mutex_);
  return goodbyes_[static_cast<std::size_t>(rank)].has_value();
}

bool GroupScope::all_have_left() const {
  MutexLock lock(mutex_);
  return std::all_of(goodbyes_.begin(), goodbyes_.end(), [](const auto& goodbye) { return goodbye.has_value(); });
}

bool GroupScope::somebody_aborted() const {
  MutexLock lock(mutex_);
  return somebody_aborted_;
}

std::optional<Cause> GroupScope::left_before(const PendingCall& first) const {
  MutexLock lock(mutex_);
  for (int r = 0; r < core_.size; ++r) {
    const auto& goodbye = goodbyes_[static_cast<std::size_t>(r)];
    if (!goodbye || !first.is_after(r, *goodbye)) continue;
    const auto text = first.awaited_peer() < 0 ? comm::left_early_text : comm::left_unanswered_text;
    return core_.cause_of(Cause::Kind::left, r, text(core_.who(r), goodbye->last, core_.own_name(), first.describe()));
  }
  return std::nullopt;
}

void GroupScope::answer(const GroupWord& question) {
  {
    MutexLock lock(mutex_);
    if (answered_) return;  // ranks that time out together ask together, and all read the answers
    answered_ = true;
  }
  const auto record = core_.calls.flight_record().find(static_cast<std::uint64_t>(question.sequence));
  say({.kind = Kind::answer,
       .last = static_cast<std::int64_t>(core_.calls.last()),
       .sequence = question.sequence,
       .has_record = record.has_value(),
       .record = record.value_or(comm::OpRecord{})});
}

bool GroupScope::all_have_answered() const {
  MutexLock lock(mutex_);
  for (std::size_t r = 0; r < goodbyes_.size(); ++r) {
    if (static_cast<int>(r) != core_.rank && !positions_[r] && !goodbyes_[r]) return false;
  }
  return true;
}

Cause GroupScope::diagnose_timeout(const PendingCall& call, const Deadline& deadline) {
  if (const int peer = call.awaited_peer(); peer >= 0) {
    return core_.cause_of(Cause::Kind::timeout, peer,
                          comm::timeout_text(call.describe(), core_.own_name(), deadline,
                                             core_.who(peer) + " has not called its part, or waits for something that "
                                                               "comes before it"));
  }
  say({.kind = Kind::question, .sequence = static_cast<std::int64_t>(call.sequence)});
  core_.wait_until(comm::ActiveTimeout(kAnswerPatience),
                   [&] { return core_.failure.happened() || all_have_answered(); });
  return judge(call, deadline);
}

Cause GroupScope::judge(const PendingCall& collective, const Deadline& deadline) const {
  std::string absent;
  std::vector<int> absent_ranks;
  const auto add = [&](int rank, const std::string& how) {
    absent += fmt::format("{}{}, which {}", absent.empty() ? "" : ", ", core_.who(rank), how);
    absent_ranks.push_back(rank);
  };
  const auto sequence = static_cast<std::int64_t>(collective.sequence);
  const auto own = core_.calls.flight_record().find(collective.sequence);
  MutexLock lock(mutex_);
  for (int r = 0; r < core_.size; ++r) {
    if (r == core_.rank) continue;
    const auto& position = positions_[static_cast<std::size_t>(r)];
    if (goodbyes_[static_cast<std::size_t>(r)]) {
      add(r, "left");
    } else if (!position) {
      add(r, "does not answer");
    } else if (position->last < sequence) {
      add(r, position->last == 0 ? "started nothing last" : fmt::format("started collective {} last", position->last));
    } else if (own && position->has_record && position->sequence == sequence &&
               !comm::same_operation(*own, position->record)) {
      return core_.cause_of(
          Cause::Kind::mismatch, -1,
          comm::describe_mismatch(collective.sequence, core_.own_name(), *own, core_.who(r), position->record));
    }
  }
  const char* const here = collective.has_reached(PendingCall::State::launching)
                               ? "all have arrived, and the devices have not finished it"
                               : "all have called it, and this rank has not launched it: it waits for what the program "
                                 "started before it, in any group of the device";
  const std::string why = absent.empty() ? here : "not arrived: " + absent;
  return core_.cause_of(Cause::Kind::timeout, absent_ranks.size() == 1 ? absent_ranks.front() : -1,
                        comm::timeout_text(collective.describe(), core_.own_name(), deadline, why));
}

}  // namespace lockstep::nccl
