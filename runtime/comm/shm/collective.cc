// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shm/collective.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "runtime/base/text.h"
#include "runtime/comm/failure/messages.h"

namespace lockstep::shm {
namespace {

// Little data takes small slots, so that no two collectives in a row meet in one place.
constexpr std::size_t kSmallestSlot = 4096;
// Slots of a window, at least. A reduction keeps every rank busy with a range of its own; what is only passed on is
// read while the next slot is filled, which begins the sooner the smaller they are.
constexpr std::size_t kSlotsToReduce = 4;
constexpr std::size_t kSlotsToPassOn = 16;
std::byte* at(const CollectiveArgs& args, void* data, std::size_t element) {
  return static_cast<std::byte*>(data) + element * args.element_bytes();
}
const std::byte* at(const CollectiveArgs& args, const void* data, std::size_t element) {
  return static_cast<const std::byte*>(data) + element * args.element_bytes();
}

}  // namespace

std::string ShmCollective::describe() const { return comm::describe(args_.record, sequence_); }

comm::Stragglers ShmCollective::missing(const Session& session) const {
  comm::Stragglers absent{.text = "not arrived: "};
  comm::Stragglers busy{.text = "all have arrived; not finished: "};
  // In the windows nobody is through before the slowest: whom all wait for has moved least.
  const auto moved = [&](int r) {
    const RankWords& words = session.words(r);
    return words.staged.load(std::memory_order_acquire) + words.reduced.load(std::memory_order_acquire) +
           words.drained.load(std::memory_order_acquire);
  };
  std::uint64_t least = ~std::uint64_t{0};
  for (int r = 0; r < session.size() && route_ == Route::window; ++r) least = std::min(least, moved(r));
  for (int r = 0; r < session.size(); ++r) {
    if (session.control().announcement(r, sequence_).sequence.load(std::memory_order_acquire) < sequence_) {
      absent.add(r, session.who(r));
    } else if (session.words(r).finished.load(std::memory_order_acquire) < sequence_ && moved(r) <= least) {
      busy.add(r, session.who(r));
    }
  }
  return absent.ranks.empty() ? busy : absent;
}

std::size_t ShmCollective::source_bytes() const {
  return args_.count() * args_.element_bytes() * comm::source_parts(args_.record.kind, args_.size);
}

void ShmCollective::publish(const CollectiveContext& context, bool is_next) {
  const ControlBlock& control = context.session.control();
  Announcement& announcement = control.announcement(args_.rank, sequence_);
  prefetch_for_write(reinterpret_cast<std::byte*>(&announcement), 64);  // while the payload is copied
  ArenaOffset source;
  if (fits_inline()) {
    std::byte* payload = control.payload(args_.rank, sequence_);
    const auto copy = [&](std::byte* to, const std::byte* from, std::size_t bytes) {
      context.writer.copy(to, from, bytes);
    };
    stage(args_, {0, args_.count()}, payload, args_.count() * args_.element_bytes(), copy);
  } else if (comm::is_source(args_.record, args_.rank)) {
    source = context.arenas.find(args_.input);
    // One source outside of arenas is enough for the window, so its first chunk can be there when the others hear of
    // it.
    if (source.arena < 0 && is_next) {
      plan_window(context);
      stage_chunk(context);
    }
  }
  // Without a note the second cache line is left alone: to write it costs as much as the first.
  static_assert(std::is_trivially_copyable_v<OpRecord>);
  std::memcpy(&announcement.record, &args_.record,
              offsetof(OpRecord, words) + (1 + args_.record.note.fields()) * sizeof(std::int64_t));
  announcement.source = source;
}

template <typename WordOf>
WaitWord ShmCollective::late(const CollectiveContext& context, WordOf word_of, std::uint64_t wanted) const {
  const Session& session = context.session;
  for (int r = 0; r < args_.size; ++r) {
    const std::atomic<std::uint64_t>& word = word_of(r);
    std::uint64_t value = word.load(std::memory_order_acquire);
    if (value >= wanted) continue;
    if (!session.has_left(r)) return {&word, value};
    // Once more, behind left_after: a rank sets its words before it leaves, so the first look may be older than its
    // part.
    value = word.load(std::memory_order_acquire);  // what it did before it left
    if (value >= wanted) continue;
    context.session.fail(
        Cause::Kind::left, r,
        comm::left_early_text(session.who(r), session.left_after(r), session.who(args_.rank), describe()),
        static_cast<std::int64_t>(sequence_));
  }
  return {};
}

WaitWord ShmCollective::behind(const CollectiveContext& context, Session::Word word, std::uint64_t wanted) const {
  return late(
      context, [&](int r) -> const auto& { return context.session.words(r).*word; }, wanted);
}

WaitWord ShmCollective::not_arrived(const CollectiveContext& context) const {
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
  context.session.fail(Cause::Kind::mismatch, -1, comm::describe_too_heavy(args_.record, sequence_, weights),
                       static_cast<std::int64_t>(sequence_));
}

void ShmCollective::compare_records(const CollectiveContext& context) {
  const ControlBlock& control = context.session.control();
  const OpRecord& own = args_.record;
  comm::ScalarReduction scalars(own.note);
  for (int r = 0; r < args_.size; ++r) {
    const OpRecord& theirs = control.announcement(r, sequence_).record;
    if (!comm::same_operation(own, theirs)) {
      context.session.fail(
          Cause::Kind::mismatch, -1,
          comm::describe_mismatch(sequence_, context.session.who(args_.rank), own, context.session.who(r), theirs),
          static_cast<std::int64_t>(sequence_));
    }
    scalars.add(theirs.words);
  }
  if (scalars.is_too_heavy()) refuse_weights(context);
  words_ = scalars.words();
  if (own.weighted) {
    args_.reduction.divisor = words_[0];
  } else if (own.op == ReduceOp::avg) {
    args_.reduction.divisor = args_.size;
  }
}

void ShmCollective::choose_route(const CollectiveContext& context) {
  if (fits_inline()) return;
  route_ = Route::direct;
  for (int r = 0; r < args_.size; ++r) {
    if (comm::is_source(args_.record, r) && context.session.control().announcement(r, sequence_).source.arena < 0) {
      route_ = Route::window;
    }
  }
  if (route_ == Route::window && chunks_ == 0) plan_window(context);
}

// Every rank plans the same.
void ShmCollective::plan_window(const CollectiveContext& context) {
  const std::size_t parts = comm::source_parts(args_.record.kind, args_.size);
  const std::size_t all = parts * ((args_.count() * args_.element_bytes() + 63) / 64 * 64);
  const bool shared_out = comm::is_reduction_in_place(args_.record.kind);
  const std::size_t most = context.session.control().window_bytes() / (shared_out ? kSlotsToReduce : kSlotsToPassOn);
  slot_bytes_ = std::bit_ceil(std::clamp(all, kSmallestSlot, most));
  part_stride_ = slot_bytes_ / parts / 64 * 64;
  chunk_elements_ = part_stride_ / args_.element_bytes();
  chunks_ = (args_.count() + chunk_elements_ - 1) / chunk_elements_;
  first_position_ = (context.position + slot_bytes_ - 1) / slot_bytes_ * slot_bytes_;
  context.position = position_of(chunks_);
}

WaitWord ShmCollective::step(const CollectiveContext& context) {
  if (!arrived_) {
    const WaitWord absent = not_arrived(context);
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

WaitWord ShmCollective::unfinished_reader(const Session& session) const {
  if (route_ != Route::direct) return {};
  for (int r = 0; r < args_.size; ++r) {
    const auto& finished = session.words(r).finished;
    const std::uint64_t value = finished.load(std::memory_order_acquire);
    if (value < sequence_) return {&finished, value};
  }
  return {};
}

void ShmCollective::run_inline(const CollectiveContext& context) {
  for (int r = 0; r < args_.size; ++r) {
    context.sources[static_cast<std::size_t>(r)] = context.session.control().payload(r, sequence_);
  }
  pull(args_, {0, args_.count()}, {context.sources, args_.count() * args_.element_bytes()}, context.scratch);
}

// Reductions are shared out: each rank reduces a part of everybody's memory and writes the result to whoever gets it.
void ShmCollective::run_direct(const CollectiveContext& context) {
  const Chunk all{0, args_.count()};
  const auto memory_of = [&](int r) -> std::byte* {
    if (!comm::is_source(args_.record, r)) return nullptr;
    return context.arenas.address(r, context.session.control().announcement(r, sequence_).source);
  };
  for (int r = 0; r < args_.size; ++r) context.sources[static_cast<std::size_t>(r)] = memory_of(r);
  if (!comm::is_reduction_in_place(args_.record.kind)) {
    return pull(args_, all, {context.sources, args_.count() * args_.element_bytes()}, context.scratch);
  }
  if (args_.record.kind == OpKind::reduce) {
    std::byte* of_root = memory_of(args_.record.root);
    return reduce_into(args_, range_of(args_, all, args_.rank), context.sources, std::span(&of_root, 1),
                       context.scratch);
  }
  for (int i = 0; i < args_.size; ++i) {
    context.destinations[static_cast<std::size_t>(i)] = memory_of((args_.rank + i) % args_.size);  // its own first
  }
  reduce_into(args_, range_of(args_, all, args_.rank), context.sources, context.destinations, context.scratch);
}

// The ranks share out the reduction, chunk by chunk. Two ranks with a single chunk read all of each other's instead:
// one wait less.
bool ShmCollective::in_two_phases() const {
  return comm::is_reduction_in_place(args_.record.kind) && (args_.size > 2 || chunks_ > 1);
}

Chunk ShmCollective::window_chunk(std::uint64_t index) const {
  const std::size_t offset = index * chunk_elements_;
  return {offset, std::min(chunk_elements_, args_.count() - offset)};
}

void ShmCollective::find_windows(const CollectiveContext& context, std::uint64_t index, const std::byte* own) const {
  for (int r = 0; r < args_.size; ++r) {
    context.sources[static_cast<std::size_t>(r)] = context.session.control().window(r, position_of(index));
  }
  context.sources[static_cast<std::size_t>(args_.rank)] = own;
}

const std::byte* ShmCollective::own_source(const Chunk& chunk) const {
  if (!comm::is_source(args_.record, args_.rank)) return nullptr;
  const std::size_t part = comm::part_read(args_.record.kind, args_.rank);
  return at(args_, args_.input.data, part * args_.count() + chunk.offset);
}

bool ShmCollective::is_result_here() const {
  return args_.record.kind == OpKind::all_reduce || args_.rank == args_.record.root;
}

void ShmCollective::fill_window(const CollectiveContext& context, const Chunk& chunk, std::byte* to) const {
  if (!comm::is_source(args_.record, args_.rank)) return;
  const std::size_t element = args_.element_bytes();
  const auto copy = [&](std::size_t part, std::size_t begin, std::size_t end) {
    context.writer.copy(to + part * part_stride_ + begin * element,
                        at(args_, args_.input.data, part * args_.count() + chunk.offset + begin),
                        (end - begin) * element);
  };
  const std::size_t parts = comm::source_parts(args_.record.kind, args_.size);
  for (std::size_t part = 0; part < parts; ++part) {
    if (parts > 1 && part == static_cast<std::size_t>(args_.rank)) continue;
    const Chunk own = in_two_phases() ? range_of(args_, {0, chunk.length}, args_.rank) : Chunk{};
    copy(part, 0, own.offset);
    copy(part, own.offset + own.length, chunk.length);
  }
}

WaitWord ShmCollective::stage_chunk(const CollectiveContext& context) {
  const std::uint64_t position = position_of(staged_);
  const std::uint64_t end = position_of(staged_ + 1);
  const std::size_t window = context.session.control().window_bytes();
  // All ranks must have read the former content of this place.
  const WaitWord wait_word = end <= window ? WaitWord{} : behind(context, &RankWords::drained, end - window);
  if (!wait_word.done()) return wait_word;
  fill_window(context, window_chunk(staged_), context.session.control().window(args_.rank, position));
  context.session.post(&RankWords::staged, end);
  ++staged_;
  return {};
}

WaitWord ShmCollective::reduce_chunk(const CollectiveContext& context) {
  const WaitWord wait_word = behind(context, &RankWords::staged, position_of(reduced_ + 1));
  if (!wait_word.done()) return wait_word;
  const Chunk chunk = window_chunk(reduced_);
  const std::size_t element = args_.element_bytes();
  find_windows(context, reduced_, at(args_, args_.input.data, chunk.offset));
  std::byte* const window = context.session.control().window(args_.rank, position_of(reduced_));
  // In a reduce to another rank only the window's content changes.
  std::byte* const result = is_result_here() ? at(args_, args_.output.data, chunk.offset) : window;
  const Chunk range = range_of(args_, {0, chunk.length}, args_.rank);
  reduce_into(args_, range, context.sources, std::span(&result, 1), context.scratch);
  if (args_.record.kind == OpKind::all_reduce) {
    context.writer.copy(window + range.offset * element, result + range.offset * element, range.length * element);
  }
  context.session.post(&RankWords::reduced, position_of(reduced_ + 1));
  ++reduced_;
  return {};
}

WaitWord ShmCollective::drain_chunk(const CollectiveContext& context) {
  const auto word = in_two_phases() ? &RankWords::reduced : &RankWords::staged;
  const WaitWord wait_word = behind(context, word, position_of(drained_ + 1));
  if (!wait_word.done()) return wait_word;
  const Chunk chunk = window_chunk(drained_);
  if (!in_two_phases()) {
    find_windows(context, drained_, nullptr);
    pull(args_, chunk, {context.sources, part_stride_, own_source(chunk)}, context.scratch);
  } else if (is_result_here()) {
    find_windows(context, drained_, at(args_, args_.output.data, chunk.offset));
    collect_shares(args_, chunk, context.sources);
  }
  context.session.post(&RankWords::drained, position_of(drained_ + 1));
  ++drained_;
  return {};
}

WaitWord ShmCollective::run_window(const CollectiveContext& context) {
  WaitWord wait_word;
  while (drained_ < chunks_) {
    const std::uint64_t before = staged_ + reduced_ + drained_;
    if (staged_ < chunks_) wait_word = stage_chunk(context);
    if (in_two_phases() && reduced_ < staged_) wait_word = reduce_chunk(context);
    if (drained_ < (in_two_phases() ? reduced_ : staged_)) wait_word = drain_chunk(context);
    if (staged_ + reduced_ + drained_ == before) return wait_word;
  }
  return {};
}

}  // namespace lockstep::shm
