#include "launcher/verdict.h"

namespace lockstep::launcher {

Verdict::Step Verdict::ended(int rank, const Ending& ending) {
  --running_;
  if (first_failure_) {
    if (*first_failure_ != rank) ++others_;
    return Step::go_on;
  }
  if (!ending.ok() && !ending.is_consequence()) {
    if (witness_) ++others_;
    return name(rank);
  }
  const bool first_witness = ending.is_consequence() && !witness_;
  if (first_witness) {
    witness_ = rank;
  } else if (witness_) {
    ++others_;
  }
  if (witness_ && running_ == 0) return name(*witness_);
  return first_witness ? Step::await_cause : Step::go_on;
}

Verdict::Step Verdict::accused(int rank) {
  if (first_failure_) return Step::go_on;
  if (witness_) ++others_;
  return name(rank);
}

Verdict::Step Verdict::overdue() { return witness_ && !first_failure_ ? name(*witness_) : Step::go_on; }

Verdict::Step Verdict::name(int rank) {
  first_failure_ = rank;
  return Step::end_others;
}

}  // namespace lockstep::launcher
