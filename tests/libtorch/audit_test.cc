// SPDX-License-Identifier: Apache-2.0
// Audits: a rank whose processor computes wrong values is named, nobody else is, and nothing else changes. A processor
// is made to lie by a hook that flips a bit of a gradient.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>

#include "lockstep/libtorch/data_loader.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "tests/libtorch/common.h"
#include "tests/support/messages.h"
#include "tests/support/wait_until.h"
#include "tests/support/warnings.h"

namespace lockstep::testing::audit_test {
namespace {

namespace nn = ::torch::nn;
using libtorch::DistributedDataParallel;

constexpr std::int64_t kSamples = 100;

class Images : public ::torch::data::datasets::BatchDataset<Images, ::torch::data::Example<>> {
 public:
  ::torch::data::Example<> get_batch(::torch::ArrayRef<std::size_t> ids) override {
    std::vector<at::Tensor> x, y;
    for (const std::size_t id : ids) {
      x.push_back(random_tensor({1, 6, 6}, 2 * id));
      y.push_back(random_classes({1}, 3, 2 * id + 1));
    }
    return {at::stack(x), at::cat(y)};
  }
  ::torch::optional<std::size_t> size() const override { return kSamples; }
};

struct CnnImpl : nn::Module {
  nn::Conv2d first = register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 4, 3)));
  nn::BatchNorm2d over_images = register_module("over_images", nn::BatchNorm2d(4));
  nn::Linear head = register_module("head", nn::Linear(4 * 4 * 4, 3));
  at::Tensor turns = register_buffer("turns", at::zeros({1}));
  at::Tensor forward(const at::Tensor& x) {
    turns.add_(1);
    const at::Tensor hidden = seen(1, at::relu(seen(0, over_images(first(x)))));
    return seen(2, head(hidden.flatten(1)));
  }
  // Numbers that a processor has computed, at one of kPlaces.
  at::Tensor seen(int place, const at::Tensor& values) const { return lie ? lie(place, values) : values; }
  std::function<at::Tensor(int place, const at::Tensor& values)> lie;
};
TORCH_MODULE(Cnn);

// The number of places: three in the forward, and the gradient of each parameter.
constexpr int kPlaces = 9;

// A bit of an element, which a processor flips at a place.
struct Flip {
  int place = 0;
  std::uint64_t element = 0;
  int bit = 0;

  at::Tensor operator()(const at::Tensor& values) const {
    const at::NoGradGuard no_grad;
    at::Tensor wrong = values.clone(at::MemoryFormat::Contiguous);
    auto* const at = static_cast<std::int32_t*>(wrong.data_ptr()) + element % static_cast<std::uint64_t>(wrong.numel());
    *at ^= static_cast<std::int32_t>(1u << bit);
    return wrong;
  }
};

// Flips the bit wherever `is_lying` says so.
void make_liar(Cnn& model, const Flip& flip, std::function<bool()> is_lying) {
  model->lie = [=](int place, const at::Tensor& values) {
    if (place != flip.place || !is_lying()) return values;
    at::Tensor wrong = values.clone(at::MemoryFormat::Contiguous);  // with the gradient of what is right
    wrong.detach().copy_(flip(values));
    return wrong;
  };
  int place = 3;
  for (const at::Tensor& parameter : model->parameters()) {
    parameter.register_hook([=, here = place++](const at::Tensor& gradient) {
      return here == flip.place && is_lying() ? flip(gradient) : gradient;
    });
  }
}

// A call of loss_of.
struct Call {
  int rank;
  std::int64_t step;
  bool is_audit;       // of another rank's rows
  std::int64_t begin;  // of the rows
  int number;          // of the rank's calls in the step
};
using Lies = std::function<bool(const Call&)>;

struct Training {
  int ranks = 2;
  int micro_batches = 6;
  std::int64_t global_batch = 24;
  int epochs = 2;
  int audit_every = 2;
  Lies lies = {};
  Flip flip = {.place = 3, .element = 0, .bit = 20};  // of the gradient of first.weight
  NotFinite not_finite = NotFinite::tell;
  std::vector<Tensors>* states = nullptr;  // of each step's begin, of rank 0
  int reads_other_rows = -1;               // a rank with another dataset
  Shard shard = Shard::none;
  std::vector<int> hosts = {};
};

struct Outcome {
  Tensors state;
  std::vector<double> losses;
  std::vector<std::int64_t> steps;  // as records count them
  std::int64_t counted = 0;         // rows in calls that count
  std::string error;                // that all ranks have
  int blamed = -2;                  // the rank in its cause; -2: no error
};

Tensors state_of(const Cnn& model) {
  Tensors state = weights_of(*model);
  for (const auto& buffer : model->named_buffers()) state[buffer.key()] = buffer.value().clone();
  return state;
}

// Also of NaN.
bool has_equal_bytes(const Tensors& a, const Tensors& b) {
  return std::ranges::all_of(a, [&](const auto& item) {
    return std::memcmp(item.second.contiguous().data_ptr(), b.at(item.first).contiguous().data_ptr(),
                       item.second.nbytes()) == 0;
  });
}

Outcome train(const Training& run) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(run.ranks));
  RankThreadsOptions threads;
  threads.hosts = run.hosts;
  if (!run.hosts.empty()) threads.backend = "tcp";
  run_torch_ranks(
      run.ranks,
      [&](const Group& group) {
        Outcome& outcome = outcomes[static_cast<std::size_t>(group->rank())];
        Cnn model;
        initialize(*model, 4);
        libtorch::DdpOptions options;
        options.reproducible = {.micro_batches = run.micro_batches, .global_batch = run.global_batch};
        options.shard = run.shard;
        options.buffer_rules["turns"] = libtorch::BufferRule::sum;
        options.not_finite = run.not_finite;
        bool is_lying = false;
        make_liar(model, run.flip, [&is_lying] { return is_lying; });
        DistributedDataParallel ddp(model, group, options);
        ::torch::optim::Adam whole(ddp.parameters(), ::torch::optim::AdamOptions(0.01));
        std::optional<libtorch::ShardedOptimizer<::torch::optim::Adam>> in_shards;
        if (run.shard == Shard::optimizer) in_shards.emplace(ddp, ::torch::optim::AdamOptions(0.01));
        libtorch::DataLoader loader(
            Images(), *group,
            {.global_batch = run.global_batch, .micro_batches = run.micro_batches, .audit_every = run.audit_every});
        ddp.watch(loader);
        try {
          for (int epoch = 0; epoch < run.epochs; ++epoch) {
            for (auto& batch : loader) {
              model->zero_grad();
              if (run.states != nullptr && group->rank() == 0) run.states->push_back(state_of(model));
              int number = 0;
              ddp.backward(batch.data.size(0), [&](std::int64_t begin, std::int64_t end) {
                const bool is_audit = ddp.is_auditing();
                if (!is_audit) outcome.counted += end - begin;
                is_lying = run.lies && run.lies({group->rank(), ddp.steps(), is_audit, begin, number++});
                const int shift = run.reads_other_rows == group->rank() ? 1 : 0;
                return at::cross_entropy_loss(ddp(batch.data.slice(0, begin, end) + shift),
                                              batch.target.slice(0, begin, end));
              });
              outcome.losses.push_back(ddp.last_loss().value_or(-1));
              outcome.steps.insert(outcome.steps.end(), {ddp.steps() - 1, ddp.last_batch().step});
              if (in_shards) {
                in_shards->step();
              } else {
                whole.step();
              }
            }
          }
        } catch (const Mismatch& error) {
          outcome.error = error.what();
          outcome.blamed = error.cause() == nullptr ? -1 : error.cause()->rank;
        }
        outcome.state = state_of(model);
      },
      threads);
  for (const Outcome& outcome : outcomes) {
    EXPECT_TRUE(has_equal_bytes(outcome.state, outcomes[0].state));
    EXPECT_EQ(fmt::format("{}", fmt::join(outcome.losses, " ")), fmt::format("{}", fmt::join(outcomes[0].losses, " ")));
    EXPECT_EQ(outcome.error, outcomes[0].error);
    EXPECT_EQ(outcome.blamed, outcomes[0].blamed);
  }
  for (std::size_t i = 1; i < outcomes.size(); ++i) outcomes[0].counted += outcomes[i].counted;
  return outcomes[0];
}

// Returns the warnings.
std::vector<std::string> expect_undisturbed(const Training& run) {
  const Warnings warnings;
  const Outcome with = train(run);
  Training alone = run;
  alone.ranks = 1;
  alone.audit_every = 0;
  alone.lies = {};
  alone.shard = Shard::none;
  alone.hosts = {};
  const Outcome without = train(alone);
  EXPECT_EQ(with.error, "");
  EXPECT_TRUE(same_bits(with.state, without.state));
  EXPECT_EQ(with.losses, without.losses);
  EXPECT_EQ(with.steps, without.steps);
  EXPECT_EQ(with.counted, run.epochs * kSamples);
  return warnings.lines();
}

TEST(Audits, ChangeNothing) {
  for (const int ranks : {2, 3, 5}) {
    for (const Shard shard : {Shard::none, Shard::optimizer}) {
      EXPECT_TRUE(expect_undisturbed({.ranks = ranks, .shard = shard}).empty());
    }
  }
  EXPECT_TRUE(expect_undisturbed({.ranks = 2, .global_batch = 30}).empty());  // epochs end with a short batch
  EXPECT_TRUE(expect_undisturbed({.ranks = 4, .audit_every = 3, .hosts = {2, 2}}).empty());
}

// The gradients of the first computation are wrong, and right when they are computed again.
TEST(Audits, ComputeAStepAgainInWhichTheAuditedRankWasWrongOnce) {
  for (const auto& [ranks, shard] :
       {std::pair(2, Shard::none), {2, Shard::optimizer}, {3, Shard::none}, {3, Shard::optimizer}}) {
    const auto lies = [own = 6 / ranks](const Call& call) {
      return call.rank == 1 && call.step == 2 && !call.is_audit && call.number <= own;
    };
    const auto warnings = expect_undisturbed({.ranks = ranks, .lies = lies, .shard = shard});
    ASSERT_EQ(warnings.size(), 1u);
    expect_text(warnings[0], {"the audit of step 2", "first in 'first.weight'", "rank 1 on",
                              " got another result when it computed again", "transient", "computed again."});
  }
}

TEST(Audits, NameTheAuditorThatWasWrongOnce) {
  const auto warnings = expect_undisturbed(
      {.ranks = 3, .lies = [](const Call& call) { return call.rank == 2 && call.step == 6 && call.number == 0; }});
  ASSERT_EQ(warnings.size(), 1u);
  expect_text(warnings[0], {"the audit of step 6", "rank 2 on", " got another result"});
  EXPECT_EQ(warnings[0].find("the step is computed again"), std::string::npos);
}

TEST(Audits, EndTheJobAtTheSecondFaultOfARank) {
  const Outcome outcome = train({.ranks = 3, .lies = [](const Call& call) {
                                   return call.rank == 2 && call.step >= 5 && call.is_audit && call.number == 0;
                                 }});
  EXPECT_EQ(outcome.blamed, 2);
  EXPECT_EQ(outcome.losses.size(), 8u);
  expect_text(outcome.error, {"the audit of step 8", "as in an earlier audit", "Up to step 2 all is sound"});
}

// From step 1 on. A third rank agrees with one of the two.
TEST(Audits, NameTheRankThatIsWrongForGood) {
  for (const int liar : {0, 1, 2}) {
    const Outcome outcome =
        train({.ranks = 3, .lies = [liar](const Call& call) { return call.rank == liar && call.step >= 1; }});
    EXPECT_EQ(outcome.blamed, liar) << outcome.error;
    EXPECT_EQ(outcome.losses.size(), 2u);
    expect_text(outcome.error,
                {"the audit of step 2", "'first.weight'", "contradicts 2 ranks", "Up to step 0 all is sound"});
  }
}

// In the ring of two hosts each rank is compared with both ranks of the other host.
TEST(Audits, NameTheRankThatIsWrongForGoodOnTwoHosts) {
  const Outcome outcome =
      train({.ranks = 4, .lies = [](const Call& call) { return call.rank == 3 && call.step >= 1; }, .hosts = {2, 2}});
  EXPECT_EQ(outcome.blamed, 3) << outcome.error;
}

// A program that draws numbers of its own in loss_of, or whose ranks have other datasets: no rank is blamed for it, or
// it is said what differs.
TEST(Audits, SayThatTheProgramDiffers) {
  const Outcome random =
      train({.ranks = 3, .lies = [&](const Call& call) { return !call.is_audit && call.number <= 2; }});
  expect_text(random.error, {"ranks 0-2 got other results", "the program computes something else each time"});
  EXPECT_EQ(random.blamed, -1);
  const Outcome other = train({.ranks = 3, .reads_other_rows = 1});
  expect_text(other.error,
              {"first in 'the inputs of forward'", "unless the program computes something else on this rank"});
}

TEST(Audits, SayThatTwoRanksCannotTellWhichOfThemIsWrong) {
  const Training two{.ranks = 2,
                     .lies = [](const Call& call) { return call.rank == 1; },
                     .flip = {.place = 8, .element = 0, .bit = 20}};
  {
    const Outcome outcome = train(two);
    EXPECT_EQ(outcome.blamed, -1);
    EXPECT_TRUE(outcome.losses.empty());
    expect_text(outcome.error,
                {"the audit of step 0", "'head.bias'", "nobody knows which", "Up to step 0 all is sound"});
  }
}

// Returns the loss and the gradients of a micro-batch of a full batch, and the buffers after its forward.
Tensors computed(const Tensors& state, std::int64_t step, int micro_batch, const Flip* flip) {
  Cnn model;
  const at::NoGradGuard no_grad;
  for (const auto& [name, values] : state) {
    at::Tensor* parameter = model->named_parameters().find(name);
    (parameter != nullptr ? *parameter : model->named_buffers()[name]).copy_(values);
  }
  if (flip != nullptr) make_liar(model, *flip, [] { return true; });
  data::GlobalBatchSampler sampler(kSamples, 0, 1, {.global_batch = 24, .micro_batches = 6});
  sampler.set_epoch(step / 5);
  const std::vector<std::int64_t> ids = sampler.batch(step % 5);
  const std::vector<std::size_t> rows(ids.begin() + 4 * micro_batch, ids.begin() + 4 * micro_batch + 4);
  const ::torch::data::Example<> batch = Images().get_batch(rows);
  const at::AutoGradMode with_gradients(true);
  const at::Tensor loss = at::cross_entropy_loss(model->forward(batch.data), batch.target);
  (loss * 4).backward();
  Tensors result = gradients_of(*model);
  result["(loss)"] = loss.detach();
  for (const auto& buffer : model->named_buffers()) result["buffer " + buffer.key()] = buffer.value();
  return result;
}

// Any bit of any number at any time, in one computation of one micro-batch. What a digest shows is computed beside it.
TEST(Audits, NameEachFlippedBitThatADigestShowsInAnAuditedMicroBatchAndNoOther) {
  std::vector<Tensors> states;
  const Outcome undisturbed =
      train({.ranks = 1, .epochs = 1, .audit_every = 0, .not_finite = NotFinite::ignore, .states = &states});
  Generator random(20261130);
  int effective = 0, named = 0;
  for (int i = 0; i < 200; ++i) {
    const int ranks = 2 + i % 2, own = 6 / ranks;
    const auto rank = static_cast<int>(random.below(static_cast<std::uint64_t>(ranks)));
    // Most are in audited steps, which are 0 and 2.
    const auto step = std::array<std::int64_t, 6>{0, 2, 0, 2, 1, 3}[random.below(6)];
    const std::int64_t audit = step % 2 == 0 ? step / 2 + 1 : 0;
    const Flip flip{static_cast<int>(random.below(kPlaces)), random.below(1u << 20),
                    static_cast<int>(random.below(32))};
    const auto number = static_cast<int>(random.below(static_cast<std::uint64_t>(own + (audit > 0 ? 1 : 0))));
    const auto audited = [&](int auditor) { return data::audited_micro_batch(24, 6, auditor, ranks, ranks, audit); };
    const bool is_rehearsal = audit > 0 && number == 0;
    const int micro_batch = is_rehearsal ? audited(rank) : rank * own + number - (audit > 0 ? 1 : 0);
    bool is_audited = is_rehearsal;
    for (int other = 0; audit > 0 && other < ranks; ++other) is_audited |= audited(other) == micro_batch;
    const Tensors& state = states[static_cast<std::size_t>(step)];
    const bool is_effective =
        !has_equal_bytes(computed(state, step, micro_batch, nullptr), computed(state, step, micro_batch, &flip));
    const Warnings warnings;
    const Outcome outcome = train(
        {.ranks = ranks,
         .epochs = 1,
         .lies = [&](const Call& call) { return call.rank == rank && call.step == step && call.number == number; },
         .flip = flip,
         .not_finite = NotFinite::ignore});
    SCOPED_TRACE(fmt::format("flip {}: bit {} at place {}, rank {} of {}, step {}, call {}, micro-batch {}", i,
                             flip.bit, flip.place, rank, ranks, step, number, micro_batch));
    const bool is_named = is_effective && is_audited;
    effective += is_effective ? 1 : 0;
    named += is_named ? 1 : 0;
    EXPECT_EQ(outcome.error, "");
    EXPECT_EQ(warnings.lines().size(), is_named ? 1u : 0u);
    EXPECT_EQ(warnings.count(fmt::format("; rank {} on", rank)), is_named ? 1 : 0);
    EXPECT_TRUE((is_effective && !is_named) || has_equal_bytes(outcome.state, undisturbed.state));
  }
  EXPECT_GE(effective, 150);
  EXPECT_GE(named, 50);
  RecordProperty("effective", effective);
  RecordProperty("named", named);
}

// Without these refusals a program would train on rows of other ranks, or compare unrelated rows.
TEST(Audits, RefuseRowsThatAreNotThoseOfTheBatch) {
  run_torch_ranks(2, [](const Group& group) {
    const libtorch::DdpOptions fixed{.reproducible = {.micro_batches = 6, .global_batch = 24}};
    const data::GroupLoaderOptions audited{.global_batch = 24, .micro_batches = 6, .audit_every = 2};
    Cnn model;
    for (const int every : {-1, 1}) {
      expect_text(error_of([&] {
                    libtorch::DataLoader(Images(), *group,
                                         {.global_batch = 24, .micro_batches = 6, .audit_every = every});
                  }),
                  {fmt::format("audit_every is {} with 6 micro_batches", every)});
    }
    expect_text(error_of([&] { libtorch::DataLoader(Images(), *group, {.global_batch = 24, .audit_every = 2}); }),
                {"audit_every is 2 with 0 micro_batches"});
    libtorch::GlobalBatchSampler sampler(kSamples, *group, audited.sampler());
    expect_text(error_of([&] { sampler.reset(); }), {"audit_every is set with torch's loader"});
    libtorch::DataLoader loader(Images(), *group, audited);
    expect_text(error_of([&] { loader.begin(); }), {"call ddp.watch(loader) before the loop"});
    {
      DistributedDataParallel fast(model, group);
      expect_text(error_of([&] { fast.watch(loader); }), {"DdpOptions::reproducible is not set"});
    }
    DistributedDataParallel ddp(model, group, fixed);
    ddp.watch(loader);
    auto batch = loader.begin();
    const std::int64_t rows = batch->data.size(0);
    EXPECT_EQ(rows, 16);
    ++batch;
    EXPECT_EQ(batch->data.size(0), 12);
    const auto never = [](std::int64_t, std::int64_t) { return at::zeros({}); };
    // A later call would throw the other rank's error.
    if (group->rank() != 0) return group->store().set("loaded", "");
    group->store().get("loaded", Deadline::after(kPatience));
    expect_text(
        error_of([&] { ddp.backward(rows, never); }),
        {"has 12 rows of rank", "and no audit; call backward with all rows of a batch before the next batch is read"});
  });
}

}  // namespace
}  // namespace lockstep::testing::audit_test
