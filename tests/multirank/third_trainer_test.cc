// SPDX-License-Identifier: Apache-2.0
// A third engine on the Trainer, beside our own and LibTorch's: a number w that learns the mean of its rows, without a
// tensor. All that training on several ranks asks of an engine is here.
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "lockstep/ddp/broadcast_parameters.h"
#include "runtime/ddp/trainer.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing::third_trainer_test {
namespace {

using Group = std::shared_ptr<ProcessGroup>;

// The loss of a row x is (w - x)^2 / 2.
class MeanOfRows {
 public:
  MeanOfRows(const Group& group, float w) : w_(w), trainer_(group, {{"w", DType::f32, {1}}}, {}) {
    trainer_.make_reducer();
    const BufferView value = view();
    broadcast_parameters(*group, {&value, 1});
    trainer_.adopt({.values = {[this] { return writes_; },
                               [this] {
                                 return DivergenceCheck::Replica::State{.buffers = {{"w", view()}}};
                               }},
                    .live_gradient = [this] { return is_cleared_ ? std::nullopt : std::optional<std::string>("w"); }});
  }

  void backward(const std::vector<float>& rows, bool fails = false) {
    trainer_.begin_forward(std::ssize(rows));
    float gradient = 0, loss = 0;  // of the sum over the rows
    for (const float x : rows) {
      gradient += w_ - x;
      loss += (w_ - x) * (w_ - x) / 2;
    }
    if (!rows.empty()) trainer_.record_loss(static_cast<double>(loss) / static_cast<double>(rows.size()));
    try {
      if (fails) throw std::runtime_error("w is out of paper");
      trainer_.begin();
      Reducer& reducer = *trainer_.reducer();
      float& slice = *reducer.gradient<float>(0);
      slice = reducer.overwrites() ? gradient : slice + gradient;
      reducer.mark_ready(0);
      trainer_.finish();
    } catch (...) {
      trainer_.keep_failure("backward");
      trainer_.give_up();
      throw;
    }
    is_cleared_ = false;
    trainer_.close();
  }

  // Towards the mean, and as far as it goes: w is the mean of the global batch then.
  void update() {
    write(w_ - *trainer_.reducer()->gradient<float>(0));
    is_cleared_ = true;
  }
  void write(float w) {
    w_ = w;
    ++writes_;
  }
  float w() const { return w_; }
  Trainer& trainer() { return trainer_; }

 private:
  BufferView view() { return {&w_, 1, DType::f32}; }

  float w_;
  std::uint64_t writes_ = 0;
  bool is_cleared_ = true;
  Trainer trainer_;
};

// Rank 0 has none. The mean is 15.
std::vector<float> rows_of(int rank) {
  const std::vector<std::vector<float>> rows{{}, {11}, {12, 22}};
  return rows[static_cast<std::size_t>(rank)];
}

TEST(ThirdTrainer, LearnsTheMeanOfUnevenShardsAndTellsTheLossOfAllRanks) {
  run_ranks(3, [](const Group& group) {
    MeanOfRows model(group, static_cast<float>(group->rank()));  // and rank 0's everywhere
    for (int step = 0; step < 3; ++step) {
      model.backward(rows_of(group->rank()));
      EXPECT_EQ(model.trainer().last_batch().step, step);
      EXPECT_EQ(model.trainer().last_weight(), 3);
      EXPECT_NEAR(model.trainer().last_batch().loss.value(), (step == 0 ? 749 : 74) / 6.0, 1e-4);
      model.update();
      EXPECT_NEAR(model.w(), 15, 1e-4);
    }
    EXPECT_EQ(model.trainer().steps(), 3);
  });
}

TEST(ThirdTrainer, TellsTheOthersOfAFailure) {
  run_ranks(2, [](const Group& group) {
    const auto train = [&] { MeanOfRows(group, 5).backward({1}, group->rank() == 1); };
    const std::string text = "failed in the backward of step 0: w is out of paper";
    if (group->rank() == 0) return expect_text(error_of<PeerLost>(train), {text});
    EXPECT_EQ(error_of<std::runtime_error>(train), "w is out of paper");
  });
}

}  // namespace
}  // namespace lockstep::testing::third_trainer_test
