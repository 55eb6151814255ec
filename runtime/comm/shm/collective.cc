// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "runtime/base/text.h"
#include "runtime/comm/failure/messages.h"

namespace lockstep::shm {
namespace {

// Asks for the cache lines that the peers have read last time, all at once instead of one store after the other.
void own_lines([[maybe_unused]] std::byte* begin, [[maybe_unused]] std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += 64) asm volatile("prefetchw %0" : : "m"(begin[i]));
#endif
}

}  // namespace

std::string ShmCollective::describe() const { return comm::describe(task_.record, sequence_); }

comm::Stragglers ShmCollective::missing(const Session& session) const {
  comm::Stragglers absent{.text = "not arrived: "};
  comm::Stragglers busy{.text = "all have arrived; not through: "};
  for (int r = 0; r < session.size(); ++r) {
    if (session.control().announcement(r, sequence_).sequence.load(std::memory_order_acquire) < sequence_) {
      absent.add(r, session.who(r));
    } else if (session.words(r).finished.load(std::memory_order_acquire) < sequence_) {
      busy.add(r, session.who(r));
    }
  }
  return absent.ranks.empty() ? busy : absent;
}

std::size_t ShmCollective::source_bytes() const {
  return task_.count() * task_.element_bytes() * comm::source_parts(task_.record.kind, task_.size);
}

void ShmCollective::publish(const CollectiveContext& context) {
  const ControlBlock& control = context.session.control();
  Announcement& announcement = control.announcement(task_.rank, sequence_);
  Place source;
  if (fits_inline()) {
    std::byte* payload = control.payload(task_.rank, sequence_);
    if (comm::is_source(task_.record, task_.rank)) own_lines(payload, source_bytes());
    stage(task_, {0, task_.count()}, payload, task_.count() * task_.element_bytes());
  } else if (comm::is_source(task_.record, task_.rank)) {
    source = context.arenas.find(task_.input);
  }
  // Without a note the second cache line is left alone: to write it costs as much as the first.
  static_assert(std::is_trivially_copyable_v<OpRecord>);
  std::memcpy(&announcement.record, &task_.record,
              offsetof(OpRecord, words) + (1 + task_.record.note.fields()) * sizeof(std::int64_t));
  announcement.source = source;
}

template <typename WordOf>
Blocker ShmCollective::late(const CollectiveContext& context, WordOf word_of, std::uint64_t wanted) const {
  const Session& session = context.session;
  for (int r = 0; r < task_.size; ++r) {
    const std::atomic<std::uint64_t>& word = word_of(r);
    std::uint64_t value = word.load(std::memory_order_acquire);
    if (value >= wanted) continue;
    if (!session.has_left(r)) return {&word, value};
    value = word.load(std::memory_order_acquire);  // what it did before it left
    if (value >= wanted) continue;
    context.session.fail(
        Cause::Kind::left, r,
        comm::left_early_text(session.who(r), session.left_after(r), session.who(task_.rank), describe()),
        static_cast<std::int64_t>(sequence_));
  }
  return {};
}

Blocker ShmCollective::behind(const CollectiveContext& context, Session::Word word, std::uint64_t wanted) const {
  return late(
      context, [&](int r) -> const auto& { return context.session.words(r).*word; }, wanted);
}

Blocker ShmCollective::not_arrived(const CollectiveContext& context) const {
  return late(
      context, [&](int r) -> const auto& { return context.session.control().announcement(r, sequence_).sequence; },
      sequence_);
}

void ShmCollective::refuse_weights(const CollectiveContext& context) const {
  const rendezvous::Roster& roster = context.session.roster();
  const std::string weights = joined(roster, [&](const rendezvous::Member& member) {
    const int rank = static_cast<int>(&member - roster.data());
    const Announcement& theirs = context.session.control().announcement(rank, sequence_);
    return fmt::format("{} of {}", theirs.record.words[0], member.describe());
  });
  context.session.fail(Cause::Kind::mismatch, -1, comm::describe_too_heavy(task_.record, sequence_, weights),
                       static_cast<std::int64_t>(sequence_));
}

void ShmCollective::compare_records(const CollectiveContext& context) {
  const ControlBlock& control = context.session.control();
  const OpRecord& own = task_.record;
  comm::Tally tally(own.note);
  for (int r = 0; r < task_.size; ++r) {
    const OpRecord& theirs = control.announcement(r, sequence_).record;
    if (!comm::same_operation(own, theirs)) {
      context.session.fail(
          Cause::Kind::mismatch, -1,
          comm::describe_mismatch(sequence_, context.session.who(task_.rank), own, context.session.who(r), theirs),
          static_cast<std::int64_t>(sequence_));
    }
    tally.add(theirs.words);
  }
  if (tally.is_too_heavy()) refuse_weights(context);
  words_ = tally.words();
  if (own.weighted) {
    task_.reduction.divisor = words_[0];
  } else if (own.op == ReduceOp::avg) {
    task_.reduction.divisor = task_.size;
  }
}

void ShmCollective::choose_route(const CollectiveContext& context) {
  if (fits_inline()) return;
  route_ = Route::direct;
  for (int r = 0; r < task_.size; ++r) {
    if (comm::is_source(task_.record, r) && context.session.control().announcement(r, sequence_).source.arena < 0) {
      route_ = Route::window;
    }
  }
  if (route_ == Route::direct) return;

  const std::size_t parts = comm::source_parts(task_.record.kind, task_.size);
  part_stride_ = kWindowBytes / parts / 64 * 64;
  chunk_elements_ = part_stride_ / task_.element_bytes();
  chunks_ = (task_.count() + chunk_elements_ - 1) / chunk_elements_;
  first_tick_ = context.tick + 1;
  context.tick += chunks_;
}

Blocker ShmCollective::step(const CollectiveContext& context) {
  if (!arrived_) {
    const Blocker absent = not_arrived(context);
    if (!absent.done()) return absent;
    compare_records(context);
    choose_route(context);
    arrived_ = true;
  }
  switch (route_) {
    case Route::inlined: run_inline(context); break;
    case Route::direct: run_direct(context); break;
    case Route::window: return run_window(context);
  }
  return {};
}

Blocker ShmCollective::unfinished_reader(const Session& session) const {
  if (route_ != Route::direct) return {};
  for (int r = 0; r < task_.size; ++r) {
    const auto& finished = session.words(r).finished;
    const std::uint64_t value = finished.load(std::memory_order_acquire);
    if (value < sequence_) return {&finished, value};
  }
  return {};
}

void ShmCollective::run_inline(const CollectiveContext& context) {
  for (int r = 0; r < task_.size; ++r) {
    context.sources[static_cast<std::size_t>(r)] = context.session.control().payload(r, sequence_);
  }
  pull(task_, {0, task_.count()}, {context.sources, task_.count() * task_.element_bytes()}, context.scratch);
}

// Reductions are shared out: each rank reduces a part of everybody's memory and writes the result to whoever gets it.
void ShmCollective::run_direct(const CollectiveContext& context) {
  const Chunk all{0, task_.count()};
  const auto memory_of = [&](int r) -> std::byte* {
    if (!comm::is_source(task_.record, r)) return nullptr;
    return context.arenas.address(r, context.session.control().announcement(r, sequence_).source);
  };
  for (int r = 0; r < task_.size; ++r) context.sources[static_cast<std::size_t>(r)] = memory_of(r);
  if (!comm::is_reduction_in_place(task_.record.kind)) {
    return pull(task_, all, {context.sources, task_.count() * task_.element_bytes()}, context.scratch);
  }
  if (task_.record.kind == OpKind::reduce) {
    std::byte* of_root = memory_of(task_.record.root);
    return reduce_into(task_, share_of(task_, all, task_.rank), context.sources, std::span(&of_root, 1),
                       context.scratch);
  }
  for (int i = 0; i < task_.size; ++i) {
    context.destinations[static_cast<std::size_t>(i)] = memory_of((task_.rank + i) % task_.size);  // its own first
  }
  reduce_into(task_, share_of(task_, all, task_.rank), context.sources, context.destinations, context.scratch);
}

// With two ranks each reads all of the other's window; with more they share the reduction out, chunk by chunk.
bool ShmCollective::in_two_phases() const { return comm::is_reduction_in_place(task_.record.kind) && task_.size > 2; }

Chunk ShmCollective::window_chunk(std::uint64_t index) const {
  const std::size_t offset = index * chunk_elements_;
  return {offset, std::min(chunk_elements_, task_.count() - offset)};
}

void ShmCollective::find_windows(const CollectiveContext& context, std::uint64_t tick) const {
  for (int r = 0; r < task_.size; ++r) {
    context.sources[static_cast<std::size_t>(r)] = context.session.control().window(r, tick);
  }
}

Blocker ShmCollective::stage_chunk(const CollectiveContext& context) {
  const std::uint64_t tick = first_tick_ + staged_;
  // The half that this tick fills has been read for the tick before the last.
  const Blocker blocker = tick <= 2 ? Blocker{} : behind(context, &RankWords::drained, tick - 2);
  if (!blocker.done()) return blocker;
  stage(task_, window_chunk(staged_), context.session.control().window(task_.rank, tick), part_stride_);
  context.session.post(&RankWords::staged, tick);
  ++staged_;
  return {};
}

Blocker ShmCollective::reduce_chunk(const CollectiveContext& context) {
  const std::uint64_t tick = first_tick_ + reduced_;
  const Blocker blocker = behind(context, &RankWords::staged, tick);
  if (!blocker.done()) return blocker;
  find_windows(context, tick);
  // The result takes the place of this rank's own source, which nobody else reads.
  std::byte* own = context.session.control().window(task_.rank, tick);
  const Chunk share = share_of(task_, {0, window_chunk(reduced_).length}, task_.rank);
  reduce_into(task_, share, context.sources, std::span(&own, 1), context.scratch);
  context.session.post(&RankWords::reduced, tick);
  ++reduced_;
  return {};
}

Blocker ShmCollective::drain_chunk(const CollectiveContext& context) {
  const std::uint64_t tick = first_tick_ + drained_;
  const Blocker blocker = behind(context, in_two_phases() ? &RankWords::reduced : &RankWords::staged, tick);
  if (!blocker.done()) return blocker;
  find_windows(context, tick);
  const Chunk chunk = window_chunk(drained_);
  if (!in_two_phases()) {
    pull(task_, chunk, {context.sources, part_stride_}, context.scratch);
  } else if (task_.record.kind == OpKind::all_reduce || task_.rank == task_.record.root) {
    collect_shares(task_, chunk, context.sources);
  }
  context.session.post(&RankWords::drained, tick);
  ++drained_;
  return {};
}

Blocker ShmCollective::run_window(const CollectiveContext& context) {
  Blocker blocker;
  while (drained_ < chunks_) {
    const std::uint64_t before = staged_ + reduced_ + drained_;
    if (staged_ < chunks_) blocker = stage_chunk(context);
    if (in_two_phases() && reduced_ < staged_) blocker = reduce_chunk(context);
    if (drained_ < (in_two_phases() ? reduced_ : staged_)) blocker = drain_chunk(context);
    if (staged_ + reduced_ + drained_ == before) return blocker;
  }
  return {};
}

}  // namespace lockstep::shm
