// SPDX-License-Identifier: Apache-2.0
#include "launcher/observe/step_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <span>

namespace lockstep::launcher {
namespace {

using trace::SpanKind;
using trace::TracedSpan;
using trace::TracedStep;

// A piece of the program's time during which no inner span is open.
struct Piece {
  SpanKind kind = SpanKind::program;
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

std::optional<Phase> phase_of(SpanKind kind) {
  switch (kind) {
    case SpanKind::data: return Phase::data;
    case SpanKind::forward: return Phase::forward;
    case SpanKind::backward: return Phase::backward;
    case SpanKind::optimizer: return Phase::optimizer;
    case SpanKind::snapshot: return Phase::snapshot;
    case SpanKind::evaluation: return Phase::evaluation;
    case SpanKind::collective: return Phase::waited;
    case SpanKind::program: break;
  }
  return std::nullopt;
}

// Returns the training thread: the one with most of the library's spans.
int training_thread(const std::vector<TracedSpan>& spans) {
  std::map<int, std::size_t> counts;
  for (const TracedSpan& span : spans) {
    if (span.kind != SpanKind::program) ++counts[span.thread];
  }
  const auto most = std::ranges::max_element(counts, [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == counts.end() ? 0 : most->first;
}

// Returns the pieces of the library's spans on that thread, by time. Spans of one thread nest.
std::vector<Piece> pieces_of(const std::vector<TracedSpan>& all) {
  const int thread = training_thread(all);
  std::vector<TracedSpan> spans;
  for (const TracedSpan& span : all) {
    if (span.kind != SpanKind::program && span.thread == thread) spans.push_back(span);
  }
  std::stable_sort(spans.begin(), spans.end(), [](const TracedSpan& a, const TracedSpan& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<Piece> pieces;
  std::vector<const TracedSpan*> open;
  std::int64_t covered = 0;  // end of the time for which there are pieces
  const auto cover_to = [&](std::int64_t time) {
    if (!open.empty() && time > covered) pieces.push_back({open.back()->kind, covered, time});
    covered = std::max(covered, time);
  };
  const auto close_before = [&](std::int64_t time) {
    while (!open.empty() && open.back()->end <= time) {
      cover_to(open.back()->end);
      open.pop_back();
    }
  };
  for (const TracedSpan& span : spans) {
    close_before(span.begin);
    cover_to(span.begin);
    open.push_back(&span);
  }
  close_before(std::numeric_limits<std::int64_t>::max());
  return pieces;
}

bool has(const std::vector<Piece>& pieces, SpanKind kind) {
  return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& piece) { return piece.kind == kind; });
}

class RowMaker {
 public:
  explicit RowMaker(const trace::RankTrace& trace)
      : pieces_(pieces_of(trace.spans)),
        has_optimizer_(has(pieces_, SpanKind::optimizer)),
        has_backward_(has(pieces_, SpanKind::backward)) {}

  // Call it for the steps in order of time.
  StepRow row(const TracedStep& before, const TracedStep& step) {
    StepRow row{.number = step.number,
                .step = step.step,
                .begin = before.end,
                .end = step.end,
                .on_device = step.on_device,
                .weight = step.weight,
                .loss = step.loss};
    add_pieces(row);
    if (!has_backward_) {  // a Reducer that is used without lockstep's engine
      row[Phase::backward] += step.end - step.begin;
    }
    settle(row, step.hidden, step.waited);
    return row;
  }

 private:
  void add_pieces(StepRow& row) {
    while (next_ < pieces_.size() && pieces_[next_].end <= row.begin) ++next_;
    std::int64_t first = row.end;  // begin of the first piece after the update
    for (std::size_t i = next_; i < pieces_.size() && pieces_[i].begin < row.end; ++i) {
      const Piece& piece = pieces_[i];
      const std::int64_t begin = std::max(piece.begin, row.begin);
      const std::int64_t length = std::min(piece.end, row.end) - begin;
      if (const auto phase = phase_of(piece.kind); phase && length > 0) row[*phase] += length;
      if (piece.begin >= row.begin) first = std::min(first, piece.begin);
    }
    // LibTorch's optimizers have no span: theirs is the time before the first piece of a step. A Reducer that is used
    // without an engine has no spans at all but those of other collectives.
    if (!has_optimizer_ && has_backward_ && next_ < pieces_.size()) {
      // A backward may end a little after its step.
      const std::int64_t from = pieces_[next_].begin < row.begin ? std::min(pieces_[next_].end, row.end) : row.begin;
      row[Phase::optimizer] += std::max<std::int64_t>(first - from, 0);
    }
  }

  std::vector<Piece> pieces_;
  bool has_optimizer_;
  bool has_backward_;
  std::size_t next_ = 0;  // the first piece that ends after the row's beginning
};

// Returns a rank's value minus the median of the others', for each step.
template <typename Value>
std::int64_t median_excess(const std::vector<std::vector<const StepRow*>>& steps, std::size_t rank, Value value) {
  std::vector<std::int64_t> excess;
  for (const auto& rows : steps) {
    std::vector<std::int64_t> others;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (i != rank) others.push_back(value(*rows[i]));
    }
    excess.push_back(value(*rows[rank]) - median_of(std::move(others)));
  }
  return median_of(std::move(excess));
}

// Communication is left out, since it follows from these.
constexpr Phase kCauses[] = {Phase::data,     Phase::forward,    Phase::backward, Phase::optimizer,
                             Phase::snapshot, Phase::evaluation, Phase::other};

}  // namespace

std::string_view name_of(Phase phase) {
  switch (phase) {
    case Phase::data: return "data";
    case Phase::forward: return "forward";
    case Phase::backward: return "backward";
    case Phase::hidden: return "hidden communication";
    case Phase::waited: return "waited communication";
    case Phase::optimizer: return "optimizer";
    case Phase::snapshot: return "snapshot";
    case Phase::evaluation: return "evaluation";
    case Phase::other: return "other";
  }
  return "?";
}

std::int64_t StepRow::own() const {
  return length() - (*this)[Phase::waited] - (on_device ? 0 : (*this)[Phase::hidden]);
}

void settle(StepRow& row, std::int64_t hidden, std::int64_t waited) {
  const auto up_to = [](std::int64_t value, std::int64_t most) {
    return std::clamp<std::int64_t>(value, 0, std::max<std::int64_t>(most, 0));
  };
  if (!row.on_device) {
    row[Phase::hidden] = up_to(hidden, row[Phase::backward]);
    row[Phase::backward] -= row[Phase::hidden];
  }
  std::int64_t known = 0;
  for (const std::int64_t part : row.ns) known += part;
  row[Phase::other] = up_to(row.length() - known, row.length());
  // On a device both are the compute stream's time. A host that is ahead of its stream waits for it, in backward or in
  // the next phase that enqueues work.
  constexpr Phase kWaiting[] = {Phase::backward, Phase::other, Phase::optimizer, Phase::forward};
  for (const Phase phase : std::span(kWaiting).first(row.on_device ? 4 : 1)) {
    const std::int64_t here = up_to(waited, row[phase]);
    row[phase] -= here;
    row[Phase::waited] += here;
    waited -= here;
  }
  if (row.on_device) row[Phase::hidden] = up_to(hidden, row.own());
}

RankTable table_of(const trace::RankTrace& trace) {
  RankTable table{.rank = trace.identity.rank,
                  .host = trace.identity.host,
                  .wall_clock = trace.wall_clock,
                  .steps_before = trace.steps_before,
                  .held = trace.held};
  RowMaker maker(trace);
  for (std::size_t i = 1; i < trace.steps.size(); ++i)
    table.rows.push_back(maker.row(trace.steps[i - 1], trace.steps[i]));
  return table;
}

std::vector<std::vector<const StepRow*>> rows_by_step(const std::vector<RankTable>& tables) {
  std::map<std::int64_t, std::vector<const StepRow*>> steps;
  for (const RankTable& table : tables) {
    for (const StepRow& row : table.rows) steps[row.number].push_back(&row);
  }
  std::vector<std::vector<const StepRow*>> whole;
  for (auto& [number, rows] : steps) {
    if (rows.size() == tables.size()) whole.push_back(std::move(rows));
  }
  return whole;
}

std::int64_t median_of(std::vector<std::int64_t> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::optional<Straggler> find_straggler(const std::vector<RankTable>& tables, double least) {
  const auto steps = rows_by_step(tables);
  if (tables.size() < 2 || steps.size() < kStragglerSteps) return std::nullopt;
  std::vector<std::int64_t> lengths;
  for (const auto& rows : steps) lengths.push_back(rows.front()->length());
  const auto length = static_cast<double>(std::max<std::int64_t>(median_of(std::move(lengths)), 1));
  Straggler worst{.steps = steps.size()};
  std::size_t index = 0;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const auto excess = static_cast<double>(median_excess(steps, i, [](const StepRow& row) { return row.own(); }));
    if (excess / length <= worst.share) continue;
    worst.rank = tables[i].rank;
    worst.host = tables[i].host;
    worst.share = excess / length;
    index = i;
  }
  if (worst.share < least) return std::nullopt;
  // A rank can be slow in the median step without being slow in the median of any phase: then no phase is accused.
  worst.cause = Phase::other;
  std::int64_t most = 0;
  for (const Phase phase : kCauses) {
    const std::int64_t excess = median_excess(steps, index, [phase](const StepRow& row) { return row[phase]; });
    if (excess > most) worst.cause = phase;
    most = std::max(most, excess);
  }
  return worst;
}

std::string describe(const Straggler& straggler) {
  return fmt::format("rank {} (host {}) costs {:.0f} % of every step: {}", straggler.rank, straggler.host,
                     100 * straggler.share, name_of(straggler.cause));
}

}  // namespace lockstep::launcher
