// SPDX-License-Identifier: Apache-2.0
// Programs that combine features as users do, drawn by a seed. A test trains each one on several ranks and compares the
// weights with those of one process; it prints a program that fails as source, without what it does not need to fail.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace lockstep::testing {

struct Seam {
  std::uint64_t seed = 1;  // decides weights, rows, and which rank has which rows
  int ranks = 2;
  int steps = 8;
  int resumes_at = 0;    // the step after which all ranks end and start again; 0: they don't
  int resumes_with = 0;  // ranks of the second start
  bool adam = false;     // else SGD with momentum
  bool accumulates = false;
  bool uneven = false;  // ranks have different numbers of rows, some none
  bool clips = false;
  bool schedules = false;
  bool tied = false;
  bool unused = false;      // a layer that no loss depends on
  bool frozen = false;      // a layer that never trains
  bool thaws = false;       // a frozen layer joins the optimizer in step 3
  bool joins_late = false;  // a layer that has gradients all the time joins the optimizer in step 3
  bool evaluates = false;   // between forward and backward, and after each step
  bool shards = false;
  bool compares = false;  // replicas after every step
  bool hosts = false;     // the first rank has a host of its own, and the others share one
  // LibTorch's alone.
  bool fused = false;
  bool autocasts = false;
  bool scales = false;
  bool channels_last = false;
  bool set_weight = false;  // rows have weights, whose sum is given
  bool surrounds = false;   // the scope of autocast is around the loop, evaluations and all
  bool steps_down = false;  // torch's own StepLR
  // Fixed micro-batches, on 2 ranks or more, and what only they give the same bits as one rank.
  bool fixed = false;
  bool norms = false;   // a batch norm
  bool rules = false;   // a buffer with a rule
  bool audits = false;  // rows come from a loader that has audits; else the program deals them itself
};

inline constexpr int kSeamChange = 3;         // the step before which a layer thaws or joins the optimizer
inline constexpr std::int64_t kSeamRows = 7;  // of a micro-batch
int parts_of(const Seam& seam);               // micro-batches of a step
double rate_of(const Seam& seam, int step);
int micro_batches_of(const Seam& seam);  // fixed micro-batches; some may be empty
int rule_of(const Seam& seam);           // the position in BufferRule
std::int64_t weight_of(const Seam& seam, int step, int part, std::int64_t row);  // 1 unless weights are given
bool late_is_pushed(const Seam& seam);  // a late group comes by param_groups(), not by add_param_group()
// Rank r has rows [cuts[r], cuts[r + 1]) of a micro-batch.
std::vector<std::int64_t> cuts_of(const Seam& seam, int step, int part, int ranks);
// Ranks of each host, for RankThreadsOptions; empty: all are on one.
std::vector<int> hosts_of(const Seam& seam, int ranks);

// The features that a program may use, in the order in which a seed draws them.
const std::vector<std::pair<std::string, bool Seam::*>>& seam_features();

// Runs programs with one of the two engines.
struct SeamEngine {
  std::function<Seam(Seam)> without_what_it_refuses;
  std::function<std::string(const Seam&)> fault_of;  // what is wrong after training; empty: nothing
  bool is_torchs = false;                            // its programs are printed as LibTorch's
};

// Tries 100 programs, or LOCKSTEP_SEAMS, from seed 1 or LOCKSTEP_SEAMS_SEED on. One that fails is a failure of the
// test, with its source after all has been left out that it does not need to fail.
void expect_seams_to_hold(const SeamEngine& engine);

Seam draw_seam(std::uint64_t seed);
// Returns the program as an initializer, such as Seam{.seed = 7, .ranks = 3, .clips = true}.
std::string describe(const Seam& seam);

}  // namespace lockstep::testing
