#include "runtime/comm/shm/collective.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::shm {
namespace {

std::string list_of(const std::vector<std::string>& names) { return fmt::format("{}", fmt::join(names, ", ")); }

bool same_operation(const OpRecord& a, const OpRecord& b) {
  return a.kind == b.kind && a.dtype == b.dtype && a.op == b.op && a.weighted == b.weighted && a.root == b.root &&
         a.count == b.count;
}

}  // namespace

std::string_view name_of(OpKind kind) {
  switch (kind) {
    case OpKind::barrier: return "barrier";
    case OpKind::all_reduce: return "all_reduce";
    case OpKind::broadcast: return "broadcast";
    case OpKind::reduce: return "reduce";
    case OpKind::all_gather: return "all_gather";
    case OpKind::reduce_scatter: return "reduce_scatter";
    case OpKind::gather: return "gather";
    case OpKind::scatter: return "scatter";
    case OpKind::all_to_all: return "all_to_all";
    case OpKind::allocate: return "allocate";
  }
  return "?";
}

namespace {

std::string details(const OpRecord& record) {
  switch (record.kind) {
    case OpKind::barrier: return {};
    case OpKind::allocate: return fmt::format(" ({} bytes)", record.count);
    case OpKind::all_reduce:
      return fmt::format(" ({}{}, {} x {})", record.weighted ? "weighted " : "", lockstep::name_of(record.op),
                         record.count, lockstep::name_of(record.dtype));
    case OpKind::reduce:
      return fmt::format(" ({} to rank {}, {} x {})", lockstep::name_of(record.op), record.root, record.count,
                         lockstep::name_of(record.dtype));
    case OpKind::reduce_scatter:
      return fmt::format(" ({}, {} x {} each)", lockstep::name_of(record.op), record.count,
                         lockstep::name_of(record.dtype));
    case OpKind::broadcast:
    case OpKind::scatter:
    case OpKind::gather:
      return fmt::format(" ({} rank {}, {} x {})", record.kind == OpKind::gather ? "to" : "from", record.root,
                         record.count, lockstep::name_of(record.dtype));
    case OpKind::all_gather:
    case OpKind::all_to_all: return fmt::format(" ({} x {} each)", record.count, lockstep::name_of(record.dtype));
  }
  return {};
}

}  // namespace

std::string describe(const OpRecord& record) { return fmt::format("{}{}", name_of(record.kind), details(record)); }

std::string Collective::describe() const {
  return fmt::format("{} {}{}", name_of(task_.record.kind), sequence_, details(task_.record));
}

std::string Collective::missing(const Session& session) const {
  std::vector<std::string> absent;
  std::vector<std::string> busy;
  for (int r = 0; r < session.size(); ++r) {
    if (session.words(r).published.load(std::memory_order_acquire) < sequence_) {
      absent.push_back(session.who(r));
    } else if (session.words(r).finished.load(std::memory_order_acquire) < sequence_) {
      busy.push_back(session.who(r));
    }
  }
  if (!absent.empty()) return fmt::format("not arrived: {}", list_of(absent));
  return fmt::format("all have arrived; not through: {}", list_of(busy));
}

bool Collective::fits_inline() const {
  return task_.count() * task_.element_bytes() * source_parts(task_.record.kind, task_.size) <= kInlineBytes;
}

void Collective::publish(const Floor& floor) {
  if (fits_inline()) {
    const Chunk all{0, task_.count()};
    stage(task_, all, floor.session.control().payload(task_.rank, sequence_), task_.count() * task_.element_bytes());
  } else if (is_source(task_.record, task_.rank)) {
    task_.record.source = floor.arenas.find(task_.input);
  }
  floor.session.control().record(task_.rank, sequence_) = task_.record;
}

int Collective::behind(const Floor& floor, std::atomic<std::uint64_t> RankWords::*word, std::uint64_t wanted) const {
  const Session& session = floor.session;
  for (int r = 0; r < task_.size; ++r) {
    if ((session.words(r).*word).load(std::memory_order_acquire) >= wanted) continue;
    if (session.has_left(r) && (session.words(r).*word).load(std::memory_order_acquire) < wanted) {
      floor.session.fail(Cause::peer_lost,
                         fmt::format("{}; {} is in {}, which needs every rank: all ranks must take part "
                                     "in the same collectives",
                                     session.left_text(r), session.who(task_.rank), describe()));
    }
    return r;
  }
  return Awaited::kDone;
}

void Collective::compare_records(const Floor& floor) {
  const Control& control = floor.session.control();
  const OpRecord& own = task_.record;
  std::int64_t weights = 0;
  for (int r = 0; r < task_.size; ++r) {
    const OpRecord& theirs = control.record(r, sequence_);
    if (!same_operation(own, theirs)) {
      floor.session.fail(Cause::mismatch,
                         fmt::format("collective {}: {} called {}, but {} called {}; every rank must call the same "
                                     "operations in the same order with equal sizes and types",
                                     sequence_, floor.session.who(task_.rank), shm::describe(own), floor.session.who(r),
                                     shm::describe(theirs)));
    }
    weights += theirs.weight;
  }
  total_weight_ = weights;
  if (own.weighted) {
    task_.reduction.divisor = weights;
  } else if (own.op == ReduceOp::avg) {
    task_.reduction.divisor = task_.size;
  }
}

void Collective::choose_route(const Floor& floor) {
  if (fits_inline()) return;
  sources_.resize(static_cast<std::size_t>(task_.size));
  route_ = Route::direct;
  for (int r = 0; r < task_.size; ++r) {
    if (!is_source(task_.record, r)) continue;
    const Place& place = floor.session.control().record(r, sequence_).source;
    if (place.arena < 0) {
      route_ = Route::window;
      break;
    }
    sources_[static_cast<std::size_t>(r)] = floor.arenas.address(r, place);
  }
  if (route_ == Route::direct) return;

  const std::size_t parts = source_parts(task_.record.kind, task_.size);
  part_stride_ = kWindowBytes / parts / 64 * 64;
  chunk_elements_ = part_stride_ / task_.element_bytes();
  chunks_ = (task_.count() + chunk_elements_ - 1) / chunk_elements_;
  first_tick_ = floor.tick + 1;
  floor.tick += chunks_;
}

int Collective::step(const Floor& floor) {
  if (!arrived_) {
    const int late = behind(floor, &RankWords::published, sequence_);
    if (late != Awaited::kDone) return late;
    compare_records(floor);
    choose_route(floor);
    arrived_ = true;
  }
  switch (route_) {
    case Route::inlined: run_inline(floor); break;
    case Route::direct: run_direct(floor); break;
    case Route::window: return run_window(floor);
  }
  return Awaited::kDone;
}

int Collective::unfinished_reader(const Session& session) const {
  if (route_ != Route::direct) return Awaited::kDone;
  for (int r = 0; r < task_.size; ++r) {
    if (session.words(r).finished.load(std::memory_order_acquire) < sequence_) return r;
  }
  return Awaited::kDone;
}

void Collective::run_inline(const Floor& floor) {
  sources_.resize(static_cast<std::size_t>(task_.size));
  for (int r = 0; r < task_.size; ++r) {
    sources_[static_cast<std::size_t>(r)] = floor.session.control().payload(r, sequence_);
  }
  pull(task_, {0, task_.count()}, {sources_, task_.count() * task_.element_bytes()}, scratch_);
}

// Reductions are shared out: each rank reduces a part of everybody's memory and writes the result to whoever gets it.
void Collective::run_direct(const Floor& floor) {
  const Chunk all{0, task_.count()};
  if (!is_reduction_in_place(task_.record.kind)) {
    return pull(task_, all, {sources_, task_.count() * task_.element_bytes()}, scratch_);
  }
  std::vector<std::byte*> destinations;
  const auto memory_of = [&](int r) {
    return floor.arenas.address(r, floor.session.control().record(r, sequence_).source);
  };
  if (task_.record.kind == OpKind::reduce) {
    destinations.push_back(memory_of(task_.record.root));
  } else {
    for (int i = 0; i < task_.size; ++i) destinations.push_back(memory_of((task_.rank + i) % task_.size));
  }
  reduce_into(task_, share_of(task_, all, task_.rank), sources_, destinations, scratch_);
}

// With two ranks each reads all of the other's window; with more they share the reduction out, chunk by chunk.
bool Collective::in_two_phases() const { return is_reduction_in_place(task_.record.kind) && task_.size > 2; }

Chunk Collective::window_chunk(std::uint64_t index) const {
  const std::size_t offset = index * chunk_elements_;
  return {offset, std::min(chunk_elements_, task_.count() - offset)};
}

int Collective::run_window(const Floor& floor) {
  Session& session = floor.session;
  const Control& control = session.control();
  int blocker = Awaited::kDone;
  while (drained_ < chunks_) {
    bool moved = false;
    if (staged_ < chunks_) {
      const std::uint64_t tick = first_tick_ + staged_;
      // The half that this tick fills has been read for the tick before the last.
      blocker = tick <= 2 ? Awaited::kDone : behind(floor, &RankWords::drained, tick - 2);
      if (blocker == Awaited::kDone) {
        stage(task_, window_chunk(staged_), control.window(task_.rank, tick), part_stride_);
        session.own().staged.store(tick, std::memory_order_release);
        ++staged_;
        moved = true;
      }
    }
    if (in_two_phases() && reduced_ < staged_) {
      const std::uint64_t tick = first_tick_ + reduced_;
      blocker = behind(floor, &RankWords::staged, tick);
      if (blocker == Awaited::kDone) {
        for (int r = 0; r < task_.size; ++r) sources_[static_cast<std::size_t>(r)] = control.window(r, tick);
        std::byte* own = control.window(task_.rank, tick);
        const Chunk staged{0, window_chunk(reduced_).length};
        reduce_into(task_, share_of(task_, staged, task_.rank), sources_, std::span(&own, 1), scratch_);
        session.own().reduced.store(tick, std::memory_order_release);
        ++reduced_;
        moved = true;
      }
    }
    const std::uint64_t ready = in_two_phases() ? reduced_ : staged_;
    if (drained_ < ready) {
      const std::uint64_t tick = first_tick_ + drained_;
      const Chunk chunk = window_chunk(drained_);
      blocker = behind(floor, in_two_phases() ? &RankWords::reduced : &RankWords::staged, tick);
      if (blocker == Awaited::kDone) {
        for (int r = 0; r < task_.size; ++r) sources_[static_cast<std::size_t>(r)] = control.window(r, tick);
        if (!in_two_phases()) {
          pull(task_, chunk, {sources_, part_stride_}, scratch_);
        } else if (task_.record.kind == OpKind::all_reduce || task_.rank == task_.record.root) {
          const std::size_t element = task_.element_bytes();
          auto* output = static_cast<std::byte*>(task_.output.data) + chunk.offset * element;
          for (int r = 0; r < task_.size; ++r) {
            const Chunk share = share_of(task_, {0, chunk.length}, r);
            const std::byte* from = sources_[static_cast<std::size_t>(r)] + share.offset * element;
            std::copy_n(from, share.length * element, output + share.offset * element);
          }
        }
        session.own().drained.store(tick, std::memory_order_release);
        ++drained_;
        moved = true;
      }
    }
    if (!moved) return blocker;
    session.announce();
  }
  return Awaited::kDone;
}

}  // namespace lockstep::shm
