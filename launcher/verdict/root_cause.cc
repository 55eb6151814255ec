// SPDX-License-Identifier: Apache-2.0
#include "launcher/verdict/root_cause.h"

#include <fmt/format.h>

#include "runtime/job/exit_code.h"

namespace lockstep::launcher {
namespace {

// One rank may say where it failed, "failed in the forward of step 0: TEXT", while of another only TEXT was printed.
bool is_alike(const std::string& one, const std::string& other) {
  return one == other || one.ends_with(": " + other) || other.ends_with(": " + one);
}

}  // namespace

RootCause::Step RootCause::ended(int rank, const ExitStatus& ending) {
  --running_;
  Rank& it = at(rank);
  it.ending = ending;
  if (first_failure_) {
    if (rank != *first_failure_) ++others_;
    return Step::go_on;
  }
  // A rank that was silent and runs again hears that the others have given it up: its end follows from its own silence.
  if (ending.is_consequence() && !is_silent(rank)) it.is_witness = true;
  if (!ending.ok()) {
    has_begun_ = true;
    implicate(rank);
    if (it.is_witness && !first_witness_) first_witness_ = rank;
  }
  return judge();
}

void RootCause::all_have_met() {
  if (has_begun_) return;
  for (Rank& rank : ranks_) rank = {.ending = rank.ending};
  implications_ = 0;
  disagreement_.reset();
}

std::chrono::milliseconds RootCause::patience(std::chrono::milliseconds grace) const {
  const auto candidates = roots();
  if (!candidates.empty() && is_silent(candidates.front())) return kSilentLimit;
  return std::max(grace, kRootLimit);
}

RootCause::Step RootCause::heard(const Cause& cause) {
  if (first_failure_ && cause.reporter == cause.rank && is_rank(cause.rank) && cause.rank != *first_failure_) {
    at(cause.rank).word = cause;  // what the first failure still says may come from the launcher's own signal
  }
  if (first_failure_ || (!is_rank(cause.rank) && !is_rank(cause.reporter))) return Step::go_on;
  if (is_rank(cause.reporter) && cause.reporter != cause.rank) {
    Rank& witness = at(cause.reporter);
    if (has_failed_before(witness, cause)) return judge();
    witness.is_witness = true;
    if (is_rank(cause.rank) && witness.accuses < 0) witness.accuses = cause.rank;
    if (!is_rank(cause.rank) && cause.kind == Cause::Kind::lost && cause.sequence < 0) witness.lost_some = true;
  }
  if (!is_rank(cause.rank)) {
    if (cause.kind == Cause::Kind::mismatch && !disagreement_) disagreement_ = cause;
    return judge();
  }
  Rank& it = at(cause.rank);
  implicate(cause.rank);
  if (is_rank(cause.reporter) && cause.reporter != cause.rank) {
    if (!it.accusation) it.accusation = cause;
  } else if (!it.word || (cause.reporter == cause.rank && it.word->reporter != cause.rank)) {
    it.word = cause;
  }
  // A silent rank does not end by itself, and a rank that ended before it joined will never join. A rank that ended
  // with 0 and without a goodbye is harmless unless others fail.
  if (cause.reporter < 0 && (cause.kind == Cause::Kind::silent || cause.kind == Cause::Kind::left)) has_begun_ = true;
  return judge();
}

// A rank's accusation after its own failure, or its silence, is a consequence, since the others end their group. After
// a failure that the group survives, this holds only until the rank has made further progress.
bool RootCause::has_failed_before(const Rank& witness, const Cause& accusation) {
  if (!witness.word) return false;
  if (witness.word->reporter < 0) return witness.word->kind == Cause::Kind::silent;
  return witness.word->ends_group || accusation.sequence <= witness.word->sequence + kCollectivesToTell;
}

void RootCause::implicate(int rank) {
  if (at(rank).implicated == 0) at(rank).implicated = ++implications_;
}

std::vector<int> RootCause::roots() const {
  std::vector<int> result;
  for (int r = 0; is_rank(r); ++r) {
    if (at(r).implicated > 0 && !at(r).is_witness) result.push_back(r);
  }
  std::sort(result.begin(), result.end(), [this](int a, int b) { return at(a).implicated < at(b).implicated; });
  return result;
}

bool RootCause::is_silent(int rank) const { return at(rank).word && at(rank).word->kind == Cause::Kind::silent; }

// A rank that stays silent shows no ending; while other ranks run, they may still report what they know.
bool RootCause::has_shown_itself(int rank) const { return at(rank).ending || (is_silent(rank) && running_ == 1); }

RootCause::Step RootCause::judge() {
  if (!has_begun_ || first_failure_) return Step::go_on;
  const auto candidates = roots();
  if (!candidates.empty() && has_shown_itself(candidates.front())) return name(candidates.front());
  if (running_ == 0) return overdue();
  if (awaits_) return Step::go_on;
  awaits_ = true;
  return Step::await_root;
}

RootCause::Step RootCause::overdue() {
  if (first_failure_ || !has_begun_) return Step::go_on;
  if (const auto candidates = roots(); !candidates.empty()) return name(candidates.front());
  find_circle();
  if (!circle_.empty()) return name(circle_.front());
  // The witness missed a rank that had left, or the only one that runs. Of a difference or of several late ranks of a
  // subgroup this does not follow: such a rank may have no part in it.
  const bool lost_some = first_witness_ && at(*first_witness_).lost_some;
  for (const bool has_left : {true, false}) {
    for (int r = 0; lost_some && is_rank(r); ++r) {
      if (has_left ? at(r).ending && at(r).ending->ok() : !at(r).ending && running_ == 1) return name(r);
    }
  }
  if (first_witness_) return name(*first_witness_);
  // The rank accused another and then fell silent.
  for (int r = 0; is_rank(r); ++r) {
    if (at(r).implicated == 1) return name(r);
  }
  return Step::go_on;
}

// Every rank accuses another: following the accusations leads into a circle.
void RootCause::find_circle() {
  for (int start = 0; is_rank(start) && circle_.empty(); ++start) {
    int r = start;
    for (std::size_t i = 0; i < ranks_.size() && r >= 0; ++i) r = at(r).accuses;
    for (; r >= 0 && std::find(circle_.begin(), circle_.end(), r) == circle_.end(); r = at(r).accuses) {
      circle_.push_back(r);
    }
  }
  std::sort(circle_.begin(), circle_.end());
}

RootCause::Step RootCause::name(int rank) {
  first_failure_ = rank;
  ending_ = at(rank).ending;
  for (int r = 0; is_rank(r); ++r) {
    if (r == rank) continue;
    const Rank& other = at(r);
    if (!other.ending) continue;
    if (other.is_witness || !other.ending->ok()) ++others_;
    if (!other.is_witness && !other.ending->ok()) other_roots_.push_back(r);
  }
  return Step::end_others;
}

const Cause* RootCause::cause() const {
  if (!first_failure_) return nullptr;
  const Rank& it = at(*first_failure_);
  if (it.word && it.word->reporter == it.word->rank) return &*it.word;
  if (it.word && it.word->kind == Cause::Kind::silent) return &*it.word;
  if (it.accusation) return &*it.accusation;
  return it.word ? &*it.word : nullptr;
}

std::string own_words(const Cause& cause) {
  std::string text = cause.text;
  const std::string name = fmt::format("rank {} (host {}, pid {}) ", cause.rank, cause.host, cause.pid);
  if (const auto at = text.find(name); at != text.npos) text.erase(at, name.size());
  return text;
}

std::vector<int> RootCause::same_error() const {
  std::vector<int> result;
  const Cause* const error = own_error();
  // The other ranks report that only this rank differs, so they did not fail by themselves.
  const auto is_different = [](const std::optional<Cause>& it) { return it && it->kind == Cause::Kind::mismatch; };
  if (error != nullptr && is_different(*error) && is_different(at(*first_failure_).accusation)) return {error->rank};
  for (int r = 0; error != nullptr && is_rank(r); ++r) {
    const auto& word = at(r).word;
    if (word && word->reporter == r && is_alike(own_words(*word), own_words(*error))) result.push_back(r);
  }
  return result;
}

const Cause* RootCause::disagreement() const {
  if (!first_failure_ || !disagreement_ || !circle_.empty() || !ending_ || ending_->by_signal) return nullptr;
  // A rank that had not yet left the collective in which the difference was found may lose one that had, and threw.
  const Rank& first = at(*first_failure_);
  return first.is_witness && (first.accuses < 0 || at(first.accuses).is_witness) ? &*disagreement_ : nullptr;
}

const Cause* RootCause::absent_host() const {
  const Cause* const difference = disagreement();
  return difference != nullptr && difference->error_number == kHostAbsent ? difference : nullptr;
}

int RootCause::exit_code() const {
  if (absent_host() != nullptr) return kExitPeerLost;
  if (!ending_) return kExitPeerLost;
  return ending_->ok() ? 1 : ending_->exit_code();
}

}  // namespace lockstep::launcher
