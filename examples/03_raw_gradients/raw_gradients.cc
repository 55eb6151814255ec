// SPDX-License-Identifier: Apache-2.0
// Data-parallel training without an engine: plain float arrays, gradients by hand, under the Reducer.
//
// A network of one hidden layer learns a function of two numbers. The ranks split each batch unevenly, on purpose: the
// result is that of one process on the whole batch, which every rank trains beside it to compare.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <lockstep/comm/init/init_process_group.h>
#include <lockstep/ddp/broadcast_parameters.h>
#include <lockstep/ddp/reducer.h>
#include <lockstep/ddp/replica_check.h>
#include "network.h"
#include "on_gpu.h"

namespace ls = lockstep;

int train_on_cpu(const std::shared_ptr<ls::ProcessGroup>& group, unsigned steps, ls::Shard shard) {
  const int rank = group->rank(), ranks = group->size();
  const int begin = first_row(rank, ranks), end = first_row(rank + 1, ranks);
  Model model = initial_model();
  std::vector<ls::BufferView> views;
  std::vector<ls::NamedBuffer> named;
  for (auto& parameter : model) views.emplace_back(std::span(parameter));
  for (std::size_t p = 0; p < model.size(); ++p) named.push_back({kSpecs[p].name, views[p]});
  ls::broadcast_parameters(*group, views);  // rank 0's everywhere
  Model alone = model;

  ls::Reducer reducer(kSpecs, group, {.shard = shard});
  const Gradients shared{[&](int p) { return reducer.gradient<float>(p); }, [&](int p) { reducer.mark_ready(p); }};
  float loss = 0;  // of this rank's rows, since the last line
  for (unsigned step = 0; step < steps; ++step) {
    reducer.begin_step({.weight = end - begin});  // the sum over rows is rows times their mean
    loss += forward_backward(model, step, begin, end, shared);
    reducer.finish_step();  // gradients are now the mean over the whole batch, or with shards this rank's shard of it
    if (shard == ls::Shard::optimizer) {
      reducer.update_shards([&](const ls::ParameterShard& it) {  // an optimizer's state would be as large as the shard
        float* place = reducer.gradient<float>(it.parameter);
        for (auto i = it.begin; i < it.end; ++i) place[i] = model[it.parameter][i] - kRate * place[i];
      });
      for (int p = 0; p < static_cast<int>(model.size()); ++p) {  // all ranks' updated weights
        std::copy_n(reducer.gradient<float>(p), model[p].size(), model[p].begin());
      }
    }
    for (int p = 0; p < static_cast<int>(model.size()) && shard == ls::Shard::none; ++p) {
      const float* gradient = reducer.gradient<float>(p);
      for (std::size_t i = 0; i < model[p].size(); ++i) model[p][i] -= kRate * gradient[i];
    }
    train_alone(alone, step);
    if ((step + 1) % kEvery == 0) {
      group->all_reduce(std::span(&loss, 1), {.weight = kEvery * (end - begin)}).wait();  // the mean over all rows
      if (rank == 0) std::printf("step %4u  loss %.5f\n", step + 1, static_cast<double>(loss));
      loss = 0;
    }
  }
  ls::check_replicas(*group, named);  // throws, naming rank and parameter, if they are not equal to the last bit
  return compare(model, alone, rank, ranks);
}

int main(int argc, char** argv) {
  std::string device;
  unsigned long steps = kSteps;
  ls::Shard shard = ls::Shard::none;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i], value = i + 1 < argc ? argv[i + 1] : "";
    if (flag == "--shard") {
      shard = ls::Shard::optimizer;
      --i;
      continue;
    }
    if (flag == "--device") device = value;
    if (flag == "--steps") steps = std::strtoul(value.c_str(), nullptr, 10);
    if (value.empty() || (flag != "--device" && flag != "--steps") || steps < 1 || steps > kSteps) {
      std::fprintf(stderr, "usage: 03_raw_gradients [--device cpu|cuda|cuda:N] [--steps 1..%d] [--shard]\n", kSteps);
      return 2;
    }
  }
  const auto group = ls::init_process_group({.device = device});
  const bool on_cpu = group->device().kind == ls::DeviceKind::cpu;
  return (on_cpu ? train_on_cpu : train_on_gpu)(group, static_cast<unsigned>(steps), shard);
}
