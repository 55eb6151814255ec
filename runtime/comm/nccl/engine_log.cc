// What the ranks tell each other in their log, and what a rank finds out from it when a collective does not end.
#include <fmt/format.h>

#include "runtime/comm/failure/messages.h"
#include "runtime/comm/nccl/engine.h"

namespace lockstep::nccl {
namespace {

// How long the ranks may take to say where they are.
constexpr std::chrono::milliseconds kAnswerPatience{700};

}  // namespace

void Engine::on_entry(const std::string& text) {
  const auto entry = read(text, size_);
  if (!entry) {
    return propose(Cause::Kind::mismatch, -1,
                   fmt::format("{} got '{}' from another rank, which is none of its words; run one version of lockstep "
                               "on every host",
                               own_name(), text));
  }
  switch (entry->kind) {
    case EntryKind::question: return answer(*entry);
    case EntryKind::failed: {
      const auto cause = decode_cause(entry->text);
      if (!cause) return;
      {
        MutexLock lock(mutex_);
        told_by_another_ = true;
      }
      return failure_.adopt(*cause);
    }
    default: break;
  }
  MutexLock lock(mutex_);
  const auto rank = static_cast<std::size_t>(entry->numbers.empty() ? 0 : entry->rank());
  switch (entry->kind) {
    case EntryKind::called: {
      auto& all = arrivals_[static_cast<std::uint64_t>(entry->at(1))];
      all.resize(static_cast<std::size_t>(size_));
      all[rank] = record_of(std::span(entry->numbers).subspan(2));
      break;
    }
    case EntryKind::answer: {
      Position position{static_cast<std::uint64_t>(entry->at(1)), static_cast<std::uint64_t>(entry->at(2)), {}};
      position.record = record_of(std::span(entry->numbers).subspan(3));
      positions_[rank] = position;
      break;
    }
    case EntryKind::left: {
      Goodbye goodbye{static_cast<std::uint64_t>(entry->at(1)), {}};
      for (std::size_t i = 2; i + 2 < entry->numbers.size(); i += 3) {
        if (entry->at(i) == rank_) goodbye.messages = {entry->at(i + 1), entry->at(i + 2)};
      }
      left_after_[rank] = goodbye;
      break;
    }
    case EntryKind::aborted: somebody_aborted_ = true; break;
    default: break;
  }
  notify();
}

// The reader's thread answers, whatever the others of this process are in.
void Engine::answer(const Entry& question) {
  {
    MutexLock lock(mutex_);
    if (answered_) return;  // ranks that time out together ask together, and all read the answers
    answered_ = true;
  }
  Entry entry{EntryKind::answer, {rank_, static_cast<std::int64_t>(last()), question.at(1)}};
  if (const auto record = flight_record_.find(static_cast<std::uint64_t>(question.at(1)))) {
    append(entry.numbers, *record);
  }
  control_.post(write(entry));
}

bool Engine::all_have_answered() const {
  for (int r = 0; r < size_; ++r) {
    const auto index = static_cast<std::size_t>(r);
    if (r != rank_ && !positions_[index] && !left_after_[index]) return false;
  }
  return true;
}

Cause Engine::what_holds_up(const Item& item, const Deadline& deadline) {
  if (item.awaited_peer() >= 0) {
    return cause_of(Cause::Kind::timeout, item.awaited_peer(),
                    comm::timeout_text(item.describe(), own_name(), deadline,
                                       who(item.awaited_peer()) +
                                           " has not called its part, or waits for something that comes before it"));
  }
  const auto sequence = static_cast<std::int64_t>(item.sequence);
  control_.post(write({EntryKind::question, {rank_, sequence}}));
  std::vector<std::optional<Position>> positions;
  std::vector<std::optional<Goodbye>> left;
  {
    MutexLock lock(mutex_);
    comm::Patience patience(kAnswerPatience);
    while (!failure_.happened() && !all_have_answered() && !patience.over()) {
      changed_.wait_until(mutex_, patience.next());
    }
    positions = positions_;
    left = left_after_;
  }
  std::string absent;
  std::vector<int> absent_ranks;
  const auto add = [&](int rank, const std::string& how) {
    absent += fmt::format("{}{}, which {}", absent.empty() ? "" : ", ", who(rank), how);
    absent_ranks.push_back(rank);
  };
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const auto& position = positions[static_cast<std::size_t>(r)];
    if (left[static_cast<std::size_t>(r)]) {
      add(r, "left");
    } else if (!position) {
      add(r, "does not answer");
    } else if (position->last < item.sequence) {
      add(r, position->last == 0 ? "started nothing last" : fmt::format("started collective {} last", position->last));
    } else if (const auto own = flight_record_.find(item.sequence); own && position->record &&
                                                                    position->asked == item.sequence &&
                                                                    !comm::same_operation(*own, *position->record)) {
      return cause_of(Cause::Kind::mismatch, -1,
                      comm::describe_mismatch(item.sequence, own_name(), *own, who(r), *position->record));
    }
  }
  const std::string why =
      absent.empty() ? "all have arrived, and the devices are not through with it" : "not arrived: " + absent;
  return cause_of(Cause::Kind::timeout, absent_ranks.size() == 1 ? absent_ranks.front() : -1,
                  comm::timeout_text(item.describe(), own_name(), deadline, why));
}

void Engine::time_out(const Item& item, const Deadline& deadline) {
  failure_.propose(what_holds_up(item, deadline));
  throw_failure();
}

}  // namespace lockstep::nccl
