// Ranks that differ, throw or leave: every other rank gets an error of its own, nobody hangs.
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/autograd/node.h"
#include "runtime/base/cause.h"
#include "runtime/base/error.h"
#include "runtime/data/data_loader.h"
#include "runtime/ddp/rank0.h"
#include "runtime/nn/nn.h"
#include "runtime/train/batch.h"
#include "runtime/train/distributed_data_parallel.h"
#include "runtime/train/weights.h"
#include "tests/support/rank_threads.h"

namespace lockstep::testing {
namespace {

// What each rank saw, by rank; "" for none.
class Seen {
 public:
  explicit Seen(int ranks) : texts_(static_cast<std::size_t>(ranks)) {}
  void note(int rank, const std::string& text) {
    const std::scoped_lock lock(mutex_);
    texts_[static_cast<std::size_t>(rank)] = text;
  }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

TEST(Faults, RanksWithDifferentModelsAllGetAMismatchThatNamesTheParameter) {
  Seen seen(3);
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    nn::Sequential model{nn::Linear(5, 4), nn::ReLU(), nn::Linear(4, group->rank() == 2 ? 3 : 2)};
    try {
      DistributedDataParallel ddp(model, group);
      ADD_FAILURE() << "rank " << group->rank() << " accepted";
    } catch (const Mismatch& error) {
      seen.note(group->rank(), error.what());
    }
  });
  for (const std::string& text : seen.texts()) {
    EXPECT_NE(text.find("2.weight"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
  }
}

TEST(Faults, RanksWithDifferentNamesGetAMismatch) {
  std::atomic<int> mismatches = 0;
  run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    struct Named : nn::Module {
      explicit Named(const char* name) : layer(register_module(name, nn::Linear(5, 2))) {}
      nn::Linear layer;
    } model(group->rank() == 0 ? "first" : "other");
    EXPECT_THROW(DistributedDataParallel(model, group), Mismatch);
    ++mismatches;
  });
  EXPECT_EQ(mismatches, 2);
}

// Rank 1's data are damaged: its error is its own, the others learn that it is gone.
TEST(Faults, ALoadersErrorOnOneRankEndsTheOthersWithPeerLost) {
  struct Damaged {
    bool damaged;
    std::int64_t size() const { return 64; }
    Batch batch(std::span<const std::int64_t> ids) const {
      if (damaged && ids[0] == 16) throw CorruptData("record 16 is cut");
      const auto rows = static_cast<std::int64_t>(ids.size());
      return {Tensor::ones({rows, 5}), Tensor::zeros({rows, 2}), {ids.begin(), ids.end()}};
    }
  };
  Seen seen(3);
  try {
    run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      nn::Linear model(5, 2);
      DistributedDataParallel ddp(model, group);
      data::DataLoader loader(Damaged{group->rank() == 1},
                              data::DistributedSampler(64, group->rank(), 3, {.shuffle = false}),
                              {.batch_size = 1, .workers = 2});
      try {
        for (const auto& [x, y, ids] : loader) ddp.backward(nn::mse_loss(ddp(x), y));
        ADD_FAILURE() << "rank " << group->rank() << " trained to the end";
      } catch (const PeerLost& error) {
        EXPECT_NE(group->rank(), 1);
        seen.note(group->rank(), error.what());
        throw;
      }
    });
    FAIL() << "nothing was thrown";
  } catch (const CorruptData& error) {
    EXPECT_NE(std::string(error.what()).find("rank 1: data: reading batch 5 of epoch 0 (samples 16)"),
              std::string::npos)
        << error.what();
  }
  EXPECT_NE(seen.texts()[0].find("rank 1"), std::string::npos) << seen.texts()[0];
  EXPECT_NE(seen.texts()[2].find("rank 1"), std::string::npos) << seen.texts()[2];
}

TEST(Faults, ARankThatReturnsEarlyEndsTheOthersWithPeerLost) {
  Seen seen(3);
  EXPECT_THROW(run_ranks(3,
                         [&](const std::shared_ptr<ProcessGroup>& group) {
                           nn::Linear model(5, 2);
                           DistributedDataParallel ddp(model, group);
                           for (int step = 0; step < 10; ++step) {
                             if (group->rank() == 2 && step == 4) return;
                             try {
                               ddp.backward(mean(ddp(Tensor::ones({2, 5}))));
                             } catch (const PeerLost& error) {
                               EXPECT_EQ(ddp.step(), 4);
                               seen.note(group->rank(), error.what());
                               throw;
                             }
                           }
                           ADD_FAILURE() << "rank " << group->rank() << " trained to the end";
                         }),
               PeerLost);
  EXPECT_NE(seen.texts()[0].find("rank 2"), std::string::npos) << seen.texts()[0];
  EXPECT_NE(seen.texts()[1].find("rank 2"), std::string::npos) << seen.texts()[1];
}

// A rank throws inside backward, with buckets of the step under way.
TEST(Faults, ARankThatThrowsInTheMiddleOfAStepEndsTheOthersWithPeerLost) {
  Seen seen(2);
  try {
    run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      nn::Linear model(5, 2);
      DistributedDataParallel ddp(model, group);
      for (int step = 0; step < 10; ++step) {
        const Tensor y = ddp(Tensor::ones({2, 5}));
        if (group->rank() == 1 && step == 3) throw InvalidArgument("the loss is no number");
        try {
          ddp.backward(mean(y));
        } catch (const PeerLost& error) {
          seen.note(group->rank(), error.what());
          throw;
        }
      }
    });
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()), "rank 1: the loss is no number");
  }
  EXPECT_NE(seen.texts()[0].find("rank 1"), std::string::npos) << seen.texts()[0];
}

// An operation whose backward throws.
Tensor thrower(const Tensor& x) {
  Tensor result = x.clone();
  autograd::record("thrower", result, {x},
                   [](const Tensor&, autograd::GradientSink&) { throw std::domain_error("no more luck"); });
  return result;
}

Tensor ones() { return Tensor::ones({2, 5}); }

std::string text_thrown_by(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "nothing";
}

// What rank 0 hears, in a step of two, when `fail` throws on rank 1, which catches it. Rank 1 hears the same then.
std::string heard_when(const std::function<void(DistributedDataParallel&)>& fail) {
  Seen seen(2);
  run_ranks(2,
            [&](const std::shared_ptr<ProcessGroup>& group) {
              nn::Sequential model{nn::Linear(5, 4), nn::Linear(4, 2)};
              DistributedDataParallel ddp(model, group, {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}});
              const auto step = [&] { ddp.backward(mean(ddp(ones()))); };
              // Rank 0 may hear of it before it has left the first step.
              seen.note(group->rank(), text_thrown_by([&] {
                          step();
                          if (group->rank() == 1) {
                            EXPECT_NE(text_thrown_by([&] { fail(ddp); }), "nothing");
                          }
                          step();
                          step();
                        }));
              EXPECT_THROW(step(), PeerLost);
            },
            {.timeout = std::chrono::minutes(10)});
  EXPECT_NE(seen.texts()[1].find(seen.texts()[0].substr(seen.texts()[0].find("rank 1"))), std::string::npos)
      << seen.texts()[1];
  return seen.texts()[0];
}

TEST(Faults, AnExceptionInBackwardThatIsCaughtReachesTheOthersAtOnce) {
  const std::string text = heard_when([](DistributedDataParallel& ddp) {
    Tensor y = ddp(ones());
    ddp.backward(mean(thrower(y)));
  });
  EXPECT_NE(text.find("rank 1 (host "), std::string::npos) << text;
  EXPECT_NE(text.find(") failed in the backward of step 1: no more luck"), std::string::npos) << text;
}

TEST(Faults, ALossThatBackwardRefusesReachesTheOthersAtOnce) {
  const std::string text = heard_when([](DistributedDataParallel& ddp) { ddp.backward(ddp(ones())); });
  EXPECT_NE(text.find("failed in the backward of step 1: "), std::string::npos) << text;
}

TEST(Faults, AnExceptionInTheForwardBetweenMicroBatchesReachesTheOthersAtOnce) {
  const std::string text = heard_when([](DistributedDataParallel& ddp) {
    ddp.backward(mean(ddp(ones())), {.synchronize = false});
    ddp(Tensor::ones({2, 3}));
  });
  EXPECT_NE(text.find("failed in the forward of step 1: "), std::string::npos) << text;
}

TEST(Faults, AnExceptionOutsideOurCallsThatUnwindsAnOpenStepReachesTheOthers) {
  Seen seen(2);
  EXPECT_THROW(run_ranks(2,
                         [&](const std::shared_ptr<ProcessGroup>& group) {
                           nn::Linear model(5, 2);
                           try {
                             DistributedDataParallel ddp(model, group);
                             ddp.backward(mean(ddp(ones())), {.synchronize = false});
                             if (group->rank() == 1) throw std::domain_error("no more luck");
                             ddp.backward(mean(ddp(ones())));
                           } catch (const PeerLost& error) {
                             seen.note(group->rank(), error.what());
                             throw;
                           } catch (const std::domain_error&) {  // the group lives on here
                             EXPECT_THROW(group->barrier().wait(), PeerLost);
                           }
                         },
                         {.timeout = std::chrono::minutes(10)}),
               PeerLost);
  EXPECT_NE(seen.texts()[0].find("failed in the middle of a step: an exception of the program's own"),
            std::string::npos)
      << seen.texts()[0];
}

TEST(Faults, AnExceptionInAForwardThatIsCaughtCostsNothing) {
  run_ranks(2, [](const std::shared_ptr<ProcessGroup>& group) {
    nn::Linear model(5, 2);
    DistributedDataParallel ddp(model, group);
    if (group->rank() == 1) {
      EXPECT_THROW(ddp(Tensor::ones({2, 3})), InvalidArgument);
    }
    EXPECT_EQ(ddp.backward(mean(ddp(ones()))), 4);
  });
}

TEST(Faults, AWorldOfOneGoesOnAfterAnException) {
  run_ranks(1, [](const std::shared_ptr<ProcessGroup>& group) {
    nn::Linear alone(5, 2);
    alone.initialize(3);
    nn::Linear model(5, 2);
    model.initialize(3);
    DistributedDataParallel ddp(model, group);
    backward(mean(alone(ones())));
    const auto expect_good_step = [&] {
      EXPECT_EQ(ddp.backward(mean(ddp(ones()))), 2);
      EXPECT_EQ(model.parameters()[0].grad().to_vector(), alone.parameters()[0].grad().to_vector());
    };
    for (int step = 0; step < 2; ++step) {
      EXPECT_THROW(ddp.backward(mean(thrower(ddp(ones())))), std::domain_error);
      expect_good_step();
      ddp.backward(mean(ddp(ones())), {.synchronize = false});
      EXPECT_THROW(ddp.backward(mean(thrower(ddp(ones())))), std::domain_error);
      expect_good_step();
      ddp.backward(mean(ddp(ones())), {.synchronize = false});
      EXPECT_THROW(ddp(Tensor::ones({2, 3})), InvalidArgument);
      expect_good_step();
    }
    EXPECT_EQ(ddp.step(), 6);
  });
}

// The others may be gone, and have unwound their groups, before the last one has heard.
TEST(Faults, WhatFailsOnRankZeroIsNeverBlamedOnWhoHearsOfIt) {
  for (int round = 0; round < 50; ++round) {
    Seen seen(3);
    EXPECT_THROW(run_ranks(3,
                           [&](const std::shared_ptr<ProcessGroup>& group) {
                             try {
                               on_rank0("save_weights", *group,
                                        []() -> std::string { throw SystemError("writing 'w': write", ENOSPC); });
                             } catch (const PeerLost& error) {
                               EXPECT_NE(group->rank(), 0);
                               const Cause* const cause = error.cause();
                               ASSERT_NE(cause, nullptr) << error.what();
                               EXPECT_EQ(cause->kind, Cause::Kind::failed);
                               EXPECT_EQ(cause->rank, 0);
                               EXPECT_EQ(cause->error_number, ENOSPC);
                               seen.note(group->rank(), error.what());
                               throw;
                             } catch (const SystemError& error) {
                               EXPECT_EQ(error.error_number(), ENOSPC);
                               seen.note(group->rank(), error.what());
                               throw;
                             }
                           }),
                 Error);
    EXPECT_EQ(seen.texts()[0], "writing 'w': write: No space left on device (errno 28)");
    for (const int rank : {1, 2}) {
      const std::string& text = seen.texts()[static_cast<std::size_t>(rank)];
      EXPECT_TRUE(text.starts_with("save_weights: rank 0 (host ")) << text;
      EXPECT_TRUE(text.ends_with(") failed: writing 'w': write: No space left on device (errno 28)")) << text;
    }
  }
}

TEST(Faults, ASaveThatFailsOnRankZeroFailsEverywhereAndTheJobGoesOn) {
  Seen seen(3);
  run_ranks(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    nn::Linear model(5, 2);
    try {
      save_weights("/no/such/folder/weights", model, group);
    } catch (const Error& error) {
      seen.note(group->rank(), error.what());
    }
    DistributedDataParallel ddp(model, group);
    EXPECT_EQ(ddp.backward(mean(ddp(Tensor::ones({2, 5})))), 6);
  });
  for (const std::string& text : seen.texts()) {
    EXPECT_NE(text.find("the folder '/no/such/folder' is not there"), std::string::npos) << text;
  }
  EXPECT_TRUE(seen.texts()[2].starts_with("save_weights: rank 0 (host ")) << seen.texts()[2];
}

}  // namespace
}  // namespace lockstep::testing
