// SPDX-License-Identifier: Apache-2.0
#include "tests/support/seam.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "lockstep/base/environment.h"
#include "lockstep/base/random.h"
#include "tests/support/sanitized.h"

namespace lockstep::testing {

const std::vector<std::pair<std::string, bool Seam::*>>& seam_features() {
  static const std::vector<std::pair<std::string, bool Seam::*>> all = {
      {"adam", &Seam::adam},
      {"accumulates", &Seam::accumulates},
      {"uneven", &Seam::uneven},
      {"clips", &Seam::clips},
      {"schedules", &Seam::schedules},
      {"tied", &Seam::tied},
      {"unused", &Seam::unused},
      {"frozen", &Seam::frozen},
      {"thaws", &Seam::thaws},
      {"joins_late", &Seam::joins_late},
      {"evaluates", &Seam::evaluates},
      {"shards", &Seam::shards},
      {"compares", &Seam::compares},
      {"fused", &Seam::fused},
      {"autocasts", &Seam::autocasts},
      {"scales", &Seam::scales},
      {"channels_last", &Seam::channels_last},
      {"set_weight", &Seam::set_weight},
  };
  return all;
}

Seam draw_seam(std::uint64_t seed) {
  Generator random(seed);
  const auto below = [&](int limit) { return static_cast<int>(random.below(static_cast<std::uint64_t>(limit))); };
  Seam seam{.seed = seed, .ranks = 1 + below(4)};
  for (const auto& [name, feature] : seam_features()) seam.*feature = below(5) < 2;
  if (below(2) == 0) {
    seam.resumes_at = 1 + below(seam.steps - 1);
    seam.resumes_with = 1 + below(4);
  }
  return seam;
}

namespace {

// Leaves out one thing after the other, as long as the program fails.
Seam smallest(Seam seam, const std::function<bool(const Seam&)>& fails) {
  const auto try_with = [&](const auto& change) {
    Seam smaller = seam;
    change(smaller);
    if (describe(smaller) != describe(seam) && fails(smaller)) seam = smaller;
  };
  try_with([](Seam& it) { it.resumes_at = it.resumes_with = 0; });
  for (const auto& named : seam_features()) {
    try_with([&](Seam& it) { it.*named.second = false; });
  }
  while (seam.ranks > 1) {
    const int before = seam.ranks;
    try_with([](Seam& it) { --it.ranks; });
    if (seam.ranks == before) break;
  }
  while (seam.steps > 1 && seam.steps > seam.resumes_at + 1) {
    const int before = seam.steps;
    try_with([](Seam& it) { --it.steps; });
    if (seam.steps == before) break;
  }
  return seam;
}

}  // namespace

void expect_seams_to_hold(const SeamEngine& engine) {
  const Environment environment = Environment::of_process();
  const std::int64_t count = environment.get_int("LOCKSTEP_SEAMS").value_or(kSanitized ? 8 : 100);
  const std::int64_t first = environment.get_int("LOCKSTEP_SEAMS_SEED").value_or(1);
  const auto fails = [&](const Seam& seam) { return !engine.fault_of(engine.without_what_it_refuses(seam)).empty(); };
  for (std::int64_t seed = first; seed < first + count; ++seed) {
    const Seam drawn = draw_seam(static_cast<std::uint64_t>(seed));
    if (!fails(drawn)) continue;
    const Seam small = engine.without_what_it_refuses(smallest(drawn, fails));
    ADD_FAILURE() << describe(drawn) << "\nfails as " << describe(small) << ": " << engine.fault_of(small) << "\n"
                  << engine.source_of(small);
  }
}

std::string describe(const Seam& seam) {
  std::string text = fmt::format("Seam{{.seed = {}, .ranks = {}, .steps = {}", seam.seed, seam.ranks, seam.steps);
  if (seam.resumes_at > 0) {
    text += fmt::format(", .resumes_at = {}, .resumes_with = {}", seam.resumes_at, seam.resumes_with);
  }
  for (const auto& [name, feature] : seam_features()) {
    if (seam.*feature) text += fmt::format(", .{} = true", name);
  }
  return text + "}";
}

}  // namespace lockstep::testing
