#include "runtime/comm/shm/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "runtime/comm/failure/messages.h"

namespace lockstep::shm {
namespace {

std::string list_of(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

// Asks for the cache lines that the peers have read last time, all at once instead of one store after the other.
void own_lines([[maybe_unused]] std::byte* begin, [[maybe_unused]] std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += 64) asm volatile("prefetchw %0" : : "m"(begin[i]));
#endif
}

}  // namespace

std::string Collective::describe() const { return comm::describe(task_.record, sequence_); }

Missing Collective::missing(const Session& session) const {
  Missing absent;
  Missing busy;
  const auto add = [&session](Missing& to, int rank) {
    to.ranks.push_back(rank);
    to.text += (to.text.empty() ? "" : ", ") + session.who(rank);
  };
  for (int r = 0; r < session.size(); ++r) {
    if (session.control().announcement(r, sequence_).sequence.load(std::memory_order_acquire) < sequence_) {
      add(absent, r);
    } else if (session.words(r).finished.load(std::memory_order_acquire) < sequence_) {
      add(busy, r);
    }
  }
  if (!absent.ranks.empty()) return {absent.ranks, "not arrived: " + absent.text};
  return {busy.ranks, "all have arrived; not through: " + busy.text};
}

std::size_t Collective::source_bytes() const {
  return task_.count() * task_.element_bytes() * comm::source_parts(task_.record.kind, task_.size);
}

void Collective::publish(const Floor& floor) {
  const Control& control = floor.session.control();
  Announcement& announcement = control.announcement(task_.rank, sequence_);
  Place source;
  if (fits_inline()) {
    std::byte* payload = control.payload(task_.rank, sequence_);
    if (comm::is_source(task_.record, task_.rank)) own_lines(payload, source_bytes());
    stage(task_, {0, task_.count()}, payload, task_.count() * task_.element_bytes());
  } else if (comm::is_source(task_.record, task_.rank)) {
    source = floor.arenas.find(task_.input);
  }
  // Without a note the second cache line is left alone: to write it costs as much as the first.
  static_assert(std::is_trivially_copyable_v<OpRecord>);
  std::memcpy(&announcement.record, &task_.record,
              offsetof(OpRecord, words) + (1 + task_.record.note.fields()) * sizeof(std::int64_t));
  announcement.source = source;
}

template <typename WordOf>
Blocker Collective::late(const Floor& floor, WordOf word_of, std::uint64_t wanted) const {
  const Session& session = floor.session;
  for (int r = 0; r < task_.size; ++r) {
    const std::atomic<std::uint64_t>& word = word_of(r);
    std::uint64_t value = word.load(std::memory_order_acquire);
    if (value >= wanted) continue;
    if (!session.has_left(r)) return {&word, value};
    value = word.load(std::memory_order_acquire);  // what it did before it left
    if (value >= wanted) continue;
    floor.session.fail(
        Cause::Kind::left, r,
        comm::left_early_text(session.who(r), session.left_after(r), session.who(task_.rank), describe()),
        static_cast<std::int64_t>(sequence_));
  }
  return {};
}

Blocker Collective::behind(const Floor& floor, Session::Word word, std::uint64_t wanted) const {
  return late(
      floor, [&](int r) -> const auto& { return floor.session.words(r).*word; }, wanted);
}

Blocker Collective::not_arrived(const Floor& floor) const {
  return late(
      floor, [&](int r) -> const auto& { return floor.session.control().announcement(r, sequence_).sequence; },
      sequence_);
}

void Collective::refuse_weights(const Floor& floor) const {
  std::vector<std::string> weights;
  for (int r = 0; r < task_.size; ++r) {
    weights.push_back(fmt::format("{} of {}", floor.session.control().announcement(r, sequence_).record.words[0],
                                  floor.session.who(r)));
  }
  floor.session.fail(Cause::Kind::mismatch, -1, comm::describe_too_heavy(task_.record, sequence_, list_of(weights)),
                     static_cast<std::int64_t>(sequence_));
}

void Collective::compare_records(const Floor& floor) {
  const Control& control = floor.session.control();
  const OpRecord& own = task_.record;
  comm::Tally tally(own.note);
  for (int r = 0; r < task_.size; ++r) {
    const OpRecord& theirs = control.announcement(r, sequence_).record;
    if (!comm::same_operation(own, theirs)) {
      floor.session.fail(
          Cause::Kind::mismatch, -1,
          comm::describe_mismatch(sequence_, floor.session.who(task_.rank), own, floor.session.who(r), theirs),
          static_cast<std::int64_t>(sequence_));
    }
    tally.add(theirs.words);
  }
  if (tally.is_too_heavy()) refuse_weights(floor);
  words_ = tally.words();
  if (own.weighted) {
    task_.reduction.divisor = words_[0];
  } else if (own.op == ReduceOp::avg) {
    task_.reduction.divisor = task_.size;
  }
}

void Collective::choose_route(const Floor& floor) {
  if (fits_inline()) return;
  route_ = Route::direct;
  for (int r = 0; r < task_.size; ++r) {
    if (comm::is_source(task_.record, r) && floor.session.control().announcement(r, sequence_).source.arena < 0) {
      route_ = Route::window;
    }
  }
  if (route_ == Route::direct) return;

  const std::size_t parts = comm::source_parts(task_.record.kind, task_.size);
  part_stride_ = kWindowBytes / parts / 64 * 64;
  chunk_elements_ = part_stride_ / task_.element_bytes();
  chunks_ = (task_.count() + chunk_elements_ - 1) / chunk_elements_;
  first_tick_ = floor.tick + 1;
  floor.tick += chunks_;
}

Blocker Collective::step(const Floor& floor) {
  if (!arrived_) {
    const Blocker absent = not_arrived(floor);
    if (!absent.done()) return absent;
    compare_records(floor);
    choose_route(floor);
    arrived_ = true;
  }
  switch (route_) {
    case Route::inlined: run_inline(floor); break;
    case Route::direct: run_direct(floor); break;
    case Route::window: return run_window(floor);
  }
  return {};
}

Blocker Collective::unfinished_reader(const Session& session) const {
  if (route_ != Route::direct) return {};
  for (int r = 0; r < task_.size; ++r) {
    const auto& finished = session.words(r).finished;
    const std::uint64_t value = finished.load(std::memory_order_acquire);
    if (value < sequence_) return {&finished, value};
  }
  return {};
}

void Collective::run_inline(const Floor& floor) {
  for (int r = 0; r < task_.size; ++r) {
    floor.sources[static_cast<std::size_t>(r)] = floor.session.control().payload(r, sequence_);
  }
  pull(task_, {0, task_.count()}, {floor.sources, task_.count() * task_.element_bytes()}, floor.scratch);
}

// Reductions are shared out: each rank reduces a part of everybody's memory and writes the result to whoever gets it.
void Collective::run_direct(const Floor& floor) {
  const Chunk all{0, task_.count()};
  const auto memory_of = [&](int r) -> std::byte* {
    if (!comm::is_source(task_.record, r)) return nullptr;
    return floor.arenas.address(r, floor.session.control().announcement(r, sequence_).source);
  };
  for (int r = 0; r < task_.size; ++r) floor.sources[static_cast<std::size_t>(r)] = memory_of(r);
  if (!comm::is_reduction_in_place(task_.record.kind)) {
    return pull(task_, all, {floor.sources, task_.count() * task_.element_bytes()}, floor.scratch);
  }
  if (task_.record.kind == OpKind::reduce) {
    std::byte* of_root = memory_of(task_.record.root);
    return reduce_into(task_, share_of(task_, all, task_.rank), floor.sources, std::span(&of_root, 1), floor.scratch);
  }
  for (int i = 0; i < task_.size; ++i) {
    floor.destinations[static_cast<std::size_t>(i)] = memory_of((task_.rank + i) % task_.size);  // its own first
  }
  reduce_into(task_, share_of(task_, all, task_.rank), floor.sources, floor.destinations, floor.scratch);
}

// With two ranks each reads all of the other's window; with more they share the reduction out, chunk by chunk.
bool Collective::in_two_phases() const { return comm::is_reduction_in_place(task_.record.kind) && task_.size > 2; }

Chunk Collective::window_chunk(std::uint64_t index) const {
  const std::size_t offset = index * chunk_elements_;
  return {offset, std::min(chunk_elements_, task_.count() - offset)};
}

void Collective::find_windows(const Floor& floor, std::uint64_t tick) const {
  for (int r = 0; r < task_.size; ++r) {
    floor.sources[static_cast<std::size_t>(r)] = floor.session.control().window(r, tick);
  }
}

Blocker Collective::stage_chunk(const Floor& floor) {
  const std::uint64_t tick = first_tick_ + staged_;
  // The half that this tick fills has been read for the tick before the last.
  const Blocker blocker = tick <= 2 ? Blocker{} : behind(floor, &RankWords::drained, tick - 2);
  if (!blocker.done()) return blocker;
  stage(task_, window_chunk(staged_), floor.session.control().window(task_.rank, tick), part_stride_);
  floor.session.post(&RankWords::staged, tick);
  ++staged_;
  return {};
}

Blocker Collective::reduce_chunk(const Floor& floor) {
  const std::uint64_t tick = first_tick_ + reduced_;
  const Blocker blocker = behind(floor, &RankWords::staged, tick);
  if (!blocker.done()) return blocker;
  find_windows(floor, tick);
  // The result takes the place of this rank's own source, which nobody else reads.
  std::byte* own = floor.session.control().window(task_.rank, tick);
  const Chunk share = share_of(task_, {0, window_chunk(reduced_).length}, task_.rank);
  reduce_into(task_, share, floor.sources, std::span(&own, 1), floor.scratch);
  floor.session.post(&RankWords::reduced, tick);
  ++reduced_;
  return {};
}

Blocker Collective::drain_chunk(const Floor& floor) {
  const std::uint64_t tick = first_tick_ + drained_;
  const Blocker blocker = behind(floor, in_two_phases() ? &RankWords::reduced : &RankWords::staged, tick);
  if (!blocker.done()) return blocker;
  find_windows(floor, tick);
  const Chunk chunk = window_chunk(drained_);
  if (!in_two_phases()) {
    pull(task_, chunk, {floor.sources, part_stride_}, floor.scratch);
  } else if (task_.record.kind == OpKind::all_reduce || task_.rank == task_.record.root) {
    collect_shares(task_, chunk, floor.sources);
  }
  floor.session.post(&RankWords::drained, tick);
  ++drained_;
  return {};
}

Blocker Collective::run_window(const Floor& floor) {
  Blocker blocker;
  while (drained_ < chunks_) {
    const std::uint64_t before = staged_ + reduced_ + drained_;
    if (staged_ < chunks_) blocker = stage_chunk(floor);
    if (in_two_phases() && reduced_ < staged_) blocker = reduce_chunk(floor);
    if (drained_ < (in_two_phases() ? reduced_ : staged_)) blocker = drain_chunk(floor);
    if (staged_ + reduced_ + drained_ == before) return blocker;
  }
  return {};
}

}  // namespace lockstep::shm
