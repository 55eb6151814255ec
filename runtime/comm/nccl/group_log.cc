// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/group_log.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/comm/failure/messages.h"

namespace lockstep::nccl {
namespace {

// How long the ranks may take to say where they are.
constexpr std::chrono::milliseconds kAnswerPatience{700};

}  // namespace

GroupLog::GroupLog(GroupCore& core, std::function<void()> on_news)
    : core_(core),
      on_news_(std::move(on_news)),
      positions_(core.context.roster.size()),
      goodbyes_(core.context.roster.size()),
      log_(core.context.store, core.size) {}

void GroupLog::start() {
  log_.start([this](const std::string& entry) { on_entry(entry); });
}

void GroupLog::on_entry(const std::string& text) {
  const auto entry = read(text, core_.size);
  if (!entry) {
    return core_.propose(Cause::Kind::mismatch, -1,
                         fmt::format("{} got '{}' from another rank, which is none of its words; run one version of "
                                     "lockstep on every host",
                                     core_.own_name(), text));
  }
  if (entry->kind == EntryKind::question) return answer(*entry);
  if (entry->kind == EntryKind::failed) {
    const auto cause = decode_cause(entry->text);
    if (!cause) return;
    {
      MutexLock lock(mutex_);
      told_by_another_ = true;
    }
    return core_.failure.adopt(*cause);
  }
  take(*entry);
  on_news_();
}

void GroupLog::take(const Entry& entry) {
  const auto rank = static_cast<std::size_t>(entry.rank());
  MutexLock lock(mutex_);
  switch (entry.kind) {
    case EntryKind::called: {
      auto& all = called_[static_cast<std::uint64_t>(entry.at(1))];
      all.resize(goodbyes_.size());
      all[rank] = record_of(std::span(entry.numbers).subspan(2));
      return;
    }
    case EntryKind::answer:
      positions_[rank] = {static_cast<std::uint64_t>(entry.at(1)), static_cast<std::uint64_t>(entry.at(2)),
                          record_of(std::span(entry.numbers).subspan(3))};
      return;
    case EntryKind::left: {
      Goodbye goodbye{static_cast<std::uint64_t>(entry.at(1)), {}};
      for (std::size_t i = 2; i + 2 < entry.numbers.size(); i += 3) {
        if (entry.at(i) == core_.rank) goodbye.messages = {entry.at(i + 1), entry.at(i + 2)};
      }
      goodbyes_[rank] = goodbye;
      return;
    }
    case EntryKind::aborted: somebody_aborted_ = true; return;
    case EntryKind::question:
    case EntryKind::failed: return;
  }
}

void GroupLog::say_called(const PendingCall& collective) {
  Entry entry{EntryKind::called, {core_.rank, static_cast<std::int64_t>(collective.sequence)}};
  append(entry.numbers, *collective.record());
  post(entry);
}

bool GroupLog::all_have_called(const PendingCall& collective) {
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

void GroupLog::say_goodbye() {
  Entry entry{EntryKind::left, {core_.rank, static_cast<std::int64_t>(core_.calls.last())}};
  for (const auto& [peer, counts] : core_.calls.messages()) {
    entry.numbers.insert(entry.numbers.end(), {peer, counts.sent, counts.received});
  }
  post(entry);
}

void GroupLog::say_aborted() { post({EntryKind::aborted, {core_.rank}}); }

void GroupLog::say_failed() {
  {
    MutexLock lock(mutex_);
    if (told_by_another_) return;
  }
  post({EntryKind::failed, {}, encode(core_.failure.known())});
}

bool GroupLog::has_left(int rank) const {
  MutexLock lock(mutex_);
  return goodbyes_[static_cast<std::size_t>(rank)].has_value();
}

bool GroupLog::all_have_left() const {
  MutexLock lock(mutex_);
  return std::all_of(goodbyes_.begin(), goodbyes_.end(), [](const auto& goodbye) { return goodbye.has_value(); });
}

bool GroupLog::somebody_aborted() const {
  MutexLock lock(mutex_);
  return somebody_aborted_;
}

std::optional<Cause> GroupLog::left_before(const PendingCall& first) const {
  MutexLock lock(mutex_);
  for (int r = 0; r < core_.size; ++r) {
    const auto& goodbye = goodbyes_[static_cast<std::size_t>(r)];
    if (!goodbye || !first.is_after(r, *goodbye)) continue;
    const auto text = first.awaited_peer() < 0 ? comm::left_early_text : comm::left_unanswered_text;
    return core_.cause_of(Cause::Kind::left, r, text(core_.who(r), goodbye->last, core_.own_name(), first.describe()));
  }
  return std::nullopt;
}

void GroupLog::answer(const Entry& question) {
  {
    MutexLock lock(mutex_);
    if (answered_) return;  // ranks that time out together ask together, and all read the answers
    answered_ = true;
  }
  Entry entry{EntryKind::answer, {core_.rank, static_cast<std::int64_t>(core_.calls.last()), question.at(1)}};
  if (const auto record = core_.calls.flight_record().find(static_cast<std::uint64_t>(question.at(1)))) {
    append(entry.numbers, *record);
  }
  post(entry);
}

bool GroupLog::all_have_answered() const {
  MutexLock lock(mutex_);
  for (std::size_t r = 0; r < goodbyes_.size(); ++r) {
    if (static_cast<int>(r) != core_.rank && !positions_[r] && !goodbyes_[r]) return false;
  }
  return true;
}

Cause GroupLog::diagnose_timeout(const PendingCall& call, const Deadline& deadline) {
  if (const int peer = call.awaited_peer(); peer >= 0) {
    return core_.cause_of(Cause::Kind::timeout, peer,
                          comm::timeout_text(call.describe(), core_.own_name(), deadline,
                                             core_.who(peer) + " has not called its part, or waits for something that "
                                                               "comes before it"));
  }
  post({EntryKind::question, {core_.rank, static_cast<std::int64_t>(call.sequence)}});
  core_.wait_until(comm::ActiveTimeout(kAnswerPatience),
                   [&] { return core_.failure.happened() || all_have_answered(); });
  return judge(call, deadline);
}

Cause GroupLog::judge(const PendingCall& collective, const Deadline& deadline) const {
  std::string absent;
  std::vector<int> absent_ranks;
  const auto add = [&](int rank, const std::string& how) {
    absent += fmt::format("{}{}, which {}", absent.empty() ? "" : ", ", core_.who(rank), how);
    absent_ranks.push_back(rank);
  };
  const std::uint64_t sequence = collective.sequence;
  const auto own = core_.calls.flight_record().find(sequence);
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
    } else if (own && position->record && position->asked == sequence &&
               !comm::same_operation(*own, *position->record)) {
      return core_.cause_of(Cause::Kind::mismatch, -1,
                            comm::describe_mismatch(sequence, core_.own_name(), *own, core_.who(r), *position->record));
    }
  }
  const char* const here = collective.has_reached(PendingCall::State::launching)
                               ? "all have arrived, and the devices are not through with it"
                               : "all have called it, and this rank has not launched it: it waits behind what the "
                                 "program started before it, in any group of the device";
  const std::string why = absent.empty() ? here : "not arrived: " + absent;
  return core_.cause_of(Cause::Kind::timeout, absent_ranks.size() == 1 ? absent_ranks.front() : -1,
                        comm::timeout_text(collective.describe(), core_.own_name(), deadline, why));
}

}  // namespace lockstep::nccl
