// SPDX-License-Identifier: Apache-2.0
// A small training job with snapshots, to be stopped, killed and started again:
//
//   e2e_training FOLDER WEIGHTS STEPS [BACKEND]
//
// Rank 0 says "at N" after every 10th step and "evaluating N" before it evaluates; the weights of a run that has come
// to its end are in the file WEIGHTS. With LOCKSTEP_TEST_FAIL_AT=N the last rank ends with 9 before step N+1, each
// time. With LOCKSTEP_TEST_KILLED_STARTS=N each rank of the first N starts is killed by SIGKILL as soon as it has
// finished a step; with LOCKSTEP_TEST_KILLED_FURTHER=1 a step more than in the start before. With
// LOCKSTEP_TEST_MICRO_BATCHES=V steps are cut into V fixed micro-batches, with LOCKSTEP_TEST_SHARD=1 the optimizer is
// in shares of the ranks. With LOCKSTEP_TEST_SLOW_DATA=MS reading a batch takes the last rank so much longer, with
// LOCKSTEP_TEST_SLOW_FORWARD=MS its forward. With LOCKSTEP_TEST_NAN_AT=N its batch of step N has a NaN, and with
// LOCKSTEP_TEST_APART_AT=N it writes to a parameter before step N in a way that nobody counts. In the first start it is
// killed before step N+1 with LOCKSTEP_TEST_KILL_AT=N, asks to stop with LOCKSTEP_TEST_STOP_AT=N, and leaves out its
// optimizer's step with LOCKSTEP_TEST_SKIP_AT=N. It computes on the group's device. It logs the number of the start as
// "start" in each step, its rank as "rank", and rank 0 alone "val/loss" when it has evaluated.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <limits>
#include <span>
#include <string>
#include <thread>

#include "lockstep/base/environment.h"
#include "lockstep/base/random.h"
#include "lockstep/comm/init/init_process_group.h"
#include "lockstep/comm/stop.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/tensor/batch.h"
#include "lockstep/metrics/metrics.h"
#include "lockstep/nn/nn.h"
#include "lockstep/optim/optimizer.h"
#include "lockstep/trace/span.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "lockstep/train/snapshots.h"
#include "lockstep/train/weights.h"

namespace lockstep::e2e {
namespace {

constexpr std::int64_t kSamples = 480;
constexpr std::int64_t kBatch = 12;

data::TensorDataset dataset() {
  const Tensor x = Tensor::empty({kSamples, 16});
  const Tensor y = Tensor::empty({kSamples, 4});
  Generator generator(1);
  for (float& value : x.values<float>()) value = generator.normal();
  for (float& value : y.values<float>()) value = generator.normal();
  return data::TensorDataset(x, y);
}

// The fault: time that a slow disk or processor would take.
void take_longer(std::int64_t ms) {
  if (ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(ms));
}

// Of the last rank; of others `none`.
std::int64_t fault(const std::shared_ptr<ProcessGroup>& group, const char* name, std::int64_t none = 0) {
  return group->rank() == group->size() - 1 ? Environment::of_process().get_int(name).value_or(none) : none;
}

struct SlowDataset {
  std::int64_t size() const { return inner.size(); }
  data::Batch batch(std::span<const std::int64_t> ids) const {
    take_longer(ms);
    return inner.batch(ids);
  }

  data::TensorDataset inner;
  std::int64_t ms;
};

// A layer that is slow in its forward.
class SlowLayer : public nn::Module {
 public:
  explicit SlowLayer(std::int64_t ms) : ms_(ms) {}
  Tensor forward(const Tensor& x) override {
    take_longer(ms_);
    return x;
  }

 private:
  std::int64_t ms_;
};

void say(const std::shared_ptr<ProcessGroup>& group, const std::string& text) {
  if (group->rank() != 0) return;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

int run(const std::string& folder, const std::string& weights, std::int64_t steps, const std::string& backend) {
  InitOptions init;
  if (!backend.empty()) init.backend = backend;
  auto group = init_process_group(init);
  nn::Sequential model{nn::Linear(16, 64), nn::Tanh(), nn::Dropout(0.2f), nn::Linear(64, 4)};
  if (const auto ms = fault(group, "LOCKSTEP_TEST_SLOW_FORWARD"); ms > 0) model.append(SlowLayer(ms));
  model.initialize(3);
  model.to(group->device());
  const auto shards = static_cast<int>(Environment::of_process().get_int("LOCKSTEP_TEST_MICRO_BATCHES").value_or(0));
  const bool is_sharded = Environment::of_process().get_int("LOCKSTEP_TEST_SHARD").value_or(0) != 0;
  DistributedDataParallel ddp(model, group,
                              {.reproducible = {.micro_batches = shards, .global_batch = kBatch},
                               .shard = is_sharded ? Shard::optimizer : Shard::none});
  optim::AdamW optimizer(ddp.parameters(), {.lr = 0.001});
  data::DataLoader<data::Batch> loader{
      SlowDataset{dataset(), fault(group, "LOCKSTEP_TEST_SLOW_DATA")},
      data::GlobalBatchSampler(kSamples, *group, {.global_batch = kBatch, .micro_batches = shards}),
      {.workers = 1}};
  data::DataLoader<data::Batch> held_out{
      dataset(), data::GlobalBatchSampler(kSamples, *group, {.global_batch = 12, .shuffle = false})};
  Snapshots snapshots(folder, ddp, {.every = 25});
  snapshots.add("optimizer", optimizer);
  snapshots.add("data", loader);
  snapshots.restore();
  const std::int64_t fail_at = Environment::of_process().get_int("LOCKSTEP_TEST_FAIL_AT").value_or(-1);
  const std::int64_t nan_at = fault(group, "LOCKSTEP_TEST_NAN_AT", -1);
  const std::int64_t apart_at = fault(group, "LOCKSTEP_TEST_APART_AT", -1);
  const Environment environment = Environment::of_process();
  const std::int64_t start = environment.get_int("LOCKSTEP_RESTART_COUNT").value_or(0);
  const auto is_due = [&](const char* name) { return start == 0 && fault(group, name, -1) == ddp.steps(); };
  const bool is_killed_start = start < environment.get_int("LOCKSTEP_TEST_KILLED_STARTS").value_or(0);
  const std::int64_t killed_after = environment.get_int("LOCKSTEP_TEST_KILLED_FURTHER").value_or(0) * start + 1;
  for (std::int64_t epoch = loader.epoch(); ddp.steps() < steps && !ddp.should_stop(); ++epoch) {
    loader.set_epoch(epoch);
    for (const data::Batch& read : loader) {
      if (ddp.steps() == fail_at && group->rank() == group->size() - 1) _exit(9);
      if (start == 0 && environment.get_int("LOCKSTEP_TEST_KILL_AT") == ddp.steps()) {
        // All devices have ended these steps, and nobody has begun another: the survivors can save them.
        static_cast<void>(ddp.parameters()[0].to(DeviceId{}));
        static_cast<void>(ddp.last_weight());  // the host has seen the end of the step's collectives
        group->barrier().wait();
        if (group->rank() == group->size() - 1) ::kill(getpid(), SIGKILL);
        group->barrier().wait();
      }
      if (is_due("LOCKSTEP_TEST_STOP_AT")) request_stop(*group, "the last rank asks");
      const bool skips = is_due("LOCKSTEP_TEST_SKIP_AT");
      if (ddp.steps() == nan_at) read.x.data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
      const data::Batch batch = read.to(group->device());
      if (ddp.steps() == apart_at) ddp.parameters()[3].data<float>()[0] += 1;
      const trace::Span span("training loop");
      ddp.backward(batch, [&](const data::Batch& rows) { return mse_loss(ddp(rows.x, rows.ids), rows.y); });
      log_scalar("start", static_cast<double>(start), *group);
      log_scalar("rank", group->rank(), *group);
      if (is_killed_start && ddp.steps() >= killed_after) ::kill(getpid(), SIGKILL);
      if (!skips) optimizer.step();
      optimizer.zero_grad();
      snapshots.step();
      if (ddp.steps() % 10 == 0) say(group, "at " + std::to_string(ddp.steps()));
      if (ddp.should_stop() || ddp.steps() == steps) break;
    }
    if (ddp.should_stop()) break;
    say(group, "evaluating " + std::to_string(ddp.steps()));
    Metrics metrics(*group);
    const NoGrad no_grad;
    model.eval();
    for (const data::Batch& read : held_out) {
      if (should_stop(*group, StopView::this_rank)) break;
      const auto [x, y, ids] = read.to(group->device());
      metrics.add("loss", static_cast<double>(mse_loss(model(x), y).item()), 1);
    }
    const double loss = metrics.result("loss");
    if (group->rank() == 0) log_scalar("val/loss", loss, *group);
    model.train();
  }
  if (!ddp.should_stop()) {
    snapshots.save("the last step");
    save_weights(weights, ddp.module(), *group);
  }
  // Launchers other than ours end what is left once one rank has ended with another code than 0.
  group->barrier().wait();
  return ddp.exit_code();
}

}  // namespace
}  // namespace lockstep::e2e

int main(int count, char** arguments) {
  if (count < 4) {
    std::fprintf(stderr, "e2e_training FOLDER WEIGHTS STEPS [BACKEND]\n");
    return 2;
  }
  std::fprintf(stderr, "pid %d\n", static_cast<int>(getpid()));
  return lockstep::e2e::run(arguments[1], arguments[2], std::atoll(arguments[3]), count > 4 ? arguments[4] : "");
}
