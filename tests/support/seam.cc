// SPDX-License-Identifier: Apache-2.0
#include "tests/support/seam.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

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
      {"hosts", &Seam::hosts},
      {"surrounds", &Seam::surrounds},
      {"steps_down", &Seam::steps_down},
      {"fixed", &Seam::fixed},
      {"norms", &Seam::norms},
      {"rules", &Seam::rules},
      {"audits", &Seam::audits},
  };
  return all;
}

int parts_of(const Seam& seam) { return seam.accumulates ? 2 : 1; }
double rate_of(const Seam& seam, int step) {
  const double rate = seam.adam ? 0.01 : 0.1;
  return seam.schedules ? rate * (step + 1) / seam.steps : rate;
}

int micro_batches_of(const Seam& seam) { return 4 + static_cast<int>(seam.seed / 5 % 5); }
int rule_of(const Seam& seam) { return static_cast<int>(seam.seed % 5); }

std::int64_t weight_of(const Seam& seam, int step, int part, std::int64_t row) {
  return seam.set_weight ? 1 + row * (1 + part) + step % 3 : 1;
}

bool late_is_pushed(const Seam& seam) { return seam.seed % 4 < 2; }

std::vector<std::int64_t> cuts_of(const Seam& seam, int step, int part, int ranks) {
  Generator random(seam.seed * 7 + static_cast<std::uint64_t>(100 * step + 10 * part + ranks));
  std::vector<std::int64_t> cuts{0, kSeamRows};
  for (int rank = 1; rank < ranks; ++rank) {
    cuts.push_back(seam.uneven ? static_cast<std::int64_t>(random.below(kSeamRows + 1)) : kSeamRows * rank / ranks);
  }
  std::sort(cuts.begin(), cuts.end());
  return cuts;
}

std::vector<int> hosts_of(const Seam& seam, int ranks) {
  return seam.hosts && ranks > 1 ? std::vector{1, ranks - 1} : std::vector<int>();
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

// The options of the program's DistributedDataParallel, as source.
std::string options_of(const Seam& seam) {
  constexpr const char* kRules[] = {"first", "sum", "mean", "min", "max"};
  std::string options;
  if (seam.fixed) options += fmt::format(".reproducible = {{{}, {}}}, ", micro_batches_of(seam), kSeamRows);
  if (seam.rules) options += fmt::format(".buffer_rules = {{{{\"seen\", BufferRule::{}}}}}, ", kRules[rule_of(seam)]);
  if (seam.shards) options += ".shard = Shard::optimizer";
  return options.empty() ? "" : fmt::format(", {{{}}}", options);
}

// The program as a user would write it, in LibTorch's words or in our own.
std::string source_of(const Seam& seam, bool torchs) {
  std::string text = seam.norms ? "Net net;  // with a batch norm" : "Net net;";
  const auto line = [&](bool is_in, std::string_view what) {
    if (is_in) text += fmt::format("\n{}", what);
  };
  const char* const arrow = torchs ? "->" : ".";
  line(seam.frozen, fmt::format("for (auto& p : net.first{}parameters()) p.set_requires_grad(false);", arrow));
  line(seam.thaws, fmt::format("for (auto& p : net.late{}parameters()) p.set_requires_grad(false);", arrow));
  line(true, fmt::format("DistributedDataParallel ddp(net, group{});  // {} ranks{}", options_of(seam), seam.ranks,
                         seam.hosts ? ", the first on a host of its own" : ""));
  const std::string base = fmt::format("{}{}",
                                       seam.fused ? "Fused"
                                       : torchs   ? "torch::optim::"
                                                  : "optim::",
                                       seam.adam ? "AdamW" : "SGD");
  line(true, torchs && seam.shards ? fmt::format("ShardedOptimizer<{}> optimizer(ddp, parameters, options);", base)
                                   : fmt::format("{} optimizer(parameters, options);", base));
  line(seam.scales, "GradScaler scaler({.init_scale = 1000});");
  line(seam.resumes_at > 0,
       fmt::format("Snapshots snapshots(folder, ddp);  // all ends after step {}, and resumes on {} ranks",
                   seam.resumes_at, seam.resumes_with));
  line(seam.audits, fmt::format("DataLoader loader(Rows(), *group, {{.global_batch = {}, .shuffle = false, "
                                ".micro_batches = {}, .audit_every = 2}});\nddp.watch(loader);",
                                kSeamRows, micro_batches_of(seam)));
  line(seam.steps_down, "StepLR scheduler(optimizer, 2, 0.5);");
  const std::string autocast =
      fmt::format("const Autocast scope(at::kCPU, at::kBFloat16{});", seam.fixed ? ", {.cache_enabled = false}" : "");
  line(seam.autocasts && seam.surrounds, autocast);
  line(true, fmt::format("for (int step = ddp.steps(); step < {}; ++step) {{", seam.steps));
  line(seam.thaws, fmt::format("  if (step == {}) thaw(net.late), ddp.emplace(net, group);", kSeamChange));
  line(seam.thaws || seam.joins_late,
       fmt::format("  if (step == {}) {};", kSeamChange,
                   !torchs                ? "optimizers.push_back(net.late.parameters())"
                   : late_is_pushed(seam) ? "optimizer.param_groups().push_back(net.late)"
                                          : "optimizer.add_param_group(net.late)"));
  line(seam.schedules && !seam.steps_down, "  set_learning_rate(optimizer, step);");
  line(true, "  optimizer.zero_grad();");
  line(seam.accumulates, "  for (int part = 0; part < 2; ++part) {");
  line(seam.accumulates, "    const auto local = ddp.no_sync(part == 0);");
  line(seam.uneven, "    if (x.size(0) == 0) { ddp.step_without_data(); continue; }  // with the last micro-batch");
  line(seam.fixed, "  ddp.backward(rows, [&](int64_t begin, int64_t end) {  // x is the rows from begin to end");
  line(seam.autocasts && !seam.surrounds, "    " + autocast);
  line(seam.set_weight, "    ddp.set_weight(weights_of_rows.sum());");
  line(true, fmt::format("    const auto y = ddp(x{});", seam.channels_last ? " /* channels last */" : ""));
  line(seam.evaluates, "    { NoGrad guard; ddp(some); }");
  line(seam.fixed, seam.scales ? "    return scaler.scale(loss_of(y));\n  });" : "    return loss_of(y);\n  });");
  line(!seam.fixed, seam.scales ? "    scaler.scale(loss_of(y)).backward();" : "    ddp.backward(loss_of(y));");
  line(seam.accumulates, "  }");
  line(seam.clips && seam.scales, "  scaler.unscale_(optimizer);");
  line(seam.clips, "  clip_grad_norm(parameters, most);");
  line(true, seam.scales ? "  scaler.step(optimizer), scaler.update();" : "  optimizer.step();");
  line(seam.steps_down, "  scheduler.step();");
  line(seam.compares, "  ddp.check_replicas();");
  line(seam.evaluates, "  { NoGrad guard; ddp.eval(); ddp(some); ddp.train(); }");
  return text + "\n}\n";
}

}  // namespace

void expect_seams_to_hold(const SeamEngine& engine) {
  const Environment environment = Environment::of_process();
  const std::int64_t count = environment.get_int("LOCKSTEP_SEAMS").value_or(kSanitized ? 8 : 100);
  const std::int64_t first = environment.get_int("LOCKSTEP_SEAMS_SEED").value_or(1);
  const auto fault_of = [&](const Seam& seam) { return engine.fault_of(engine.without_what_it_refuses(seam)); };
  for (std::int64_t seed = first; seed < first + count; ++seed) {
    const Seam drawn = draw_seam(static_cast<std::uint64_t>(seed));
    const std::string fault = fault_of(drawn);
    if (fault.empty()) continue;
    const Seam small =
        engine.without_what_it_refuses(smallest(drawn, [&](const Seam& seam) { return !fault_of(seam).empty(); }));
    ADD_FAILURE() << describe(drawn) << ": " << fault << "\nfails as " << describe(small) << ": "
                  << engine.fault_of(small) << "\n"
                  << source_of(small, engine.is_torchs);
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
