// SPDX-License-Identifier: Apache-2.0
// Layers whose gradient is computed in its place: the bits of torch's layers, whatever else a program does, and memory
// of the program's own wherever somebody else may see the gradient.
#include "lockstep/libtorch/linear.h"

#include <ATen/record_function.h>

#include <functional>
#include <limits>
#include <string>
#include <tuple>

#include "lockstep/libtorch/autocast.h"
#include "lockstep/libtorch/sharded_optimizer.h"
#include "tests/libtorch/common.h"

namespace lockstep::testing::linear_test {
namespace {

namespace nn = ::torch::nn;

// An embedding, two layers with a bias, of which the second may be used twice, and a head without one.
struct Net : nn::Module {
  explicit Net(bool is_placed) : in_place(is_placed) {}

  at::Tensor layer(const at::Tensor& x, const nn::Linear& of) const {
    return in_place ? libtorch::linear(x, of->weight, of->bias) : at::linear(x, of->weight, of->bias);
  }
  at::Tensor forward(const at::Tensor& numbers) {
    at::Tensor x = in_place ? libtorch::embedding(table->weight, numbers) : at::embedding(table->weight, numbers);
    x = at::tanh(layer(x.to(a->weight.scalar_type()), a));
    for (int i = 0; i < uses; ++i) x = at::tanh(layer(x, b));
    x = x + (in_place ? libtorch::linear(x, transposed.t()) : at::linear(x, transposed.t()));
    return layer(x, head).mean(1);
  }

  bool in_place;
  int uses = 1;
  nn::Embedding table = register_module("table", nn::Embedding(11, 6));
  nn::Linear a = register_module("a", nn::Linear(6, 5));
  nn::Linear b = register_module("b", nn::Linear(5, 5));
  at::Tensor transposed = register_parameter("transposed", at::zeros({5, 5}));
  nn::Linear head = register_module("head", nn::Linear(nn::LinearOptions(5, 3).bias(false)));
};

using Ddp = libtorch::DistributedDataParallel<Net>;

// How many gradients this thread has computed in memory that it was given, since it began to watch.
class Placed {
 public:
  Placed() {
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback([](const at::RecordFunction& call) {
      if (std::string_view(call.name()) == "aten::mm" && call.num_inputs() == 3) ++count_;
      return std::unique_ptr<at::ObserverContext>();
    }));
    count_ = 0;
  }
  ~Placed() { at::removeCallback(handle_); }
  Placed(const Placed&) = delete;
  Placed& operator=(const Placed&) = delete;
  int count() const { return count_; }

 private:
  at::CallbackHandle handle_;
  static thread_local int count_;
};
thread_local int Placed::count_ = 0;

// Rows of word numbers: another number of rows on each rank, and none on rank 2 in step 1.
at::Tensor words(int rank, int step) {
  const std::int64_t count = rank == 2 && step == 1 ? 0 : 3 + rank;
  return random_classes({count, 4}, 11, static_cast<std::uint64_t>(100 * step + rank));
}

struct Program {
  const char* name = "";
  std::function<void(Net&)> change = [](Net&) {};
  libtorch::DdpOptions options = {};
  // The step's gradients; by default of one loss.
  std::function<void(Ddp&, int step)> gradients = [](Ddp& ddp, int step) {
    ddp(words(ddp.group()->rank(), step)).square().mean().backward();
  };
  enum { none, zeroed, kept } earlier = none;  // what becomes of earlier steps' gradients
  int least = 12, most = 12;                   // gradients in their places in three steps: of 4 layers
  int alone = -1;                              // on one rank, where that differs
};

struct Result {
  Tensors weights;
  int placed = 0;
};

Result train(const Group& group, const Program& program, bool in_place) {
  Net net(in_place);
  initialize(net, 1);
  program.change(net);
  Ddp ddp(net, group, program.options);
  ::torch::optim::SGD sgd(ddp.parameters(), 0.1);
  const Placed placed;
  for (int step = 0; step < 3; ++step) {
    for (const at::Tensor& parameter : ddp.parameters()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (program.earlier == Program::none) gradient.reset();
      if (program.earlier == Program::zeroed && gradient.defined()) gradient.zero_();
    }
    program.gradients(ddp, step);
    EXPECT_EQ(ddp.steps(), step + 1) << program.name;
    sgd.step();
  }
  return {weights_of(net), placed.count()};
}

at::Tensor loss_of(Ddp& ddp, int step) { return ddp(words(ddp.group()->rank(), step)).square().mean(); }

std::vector<Program> programs() {
  return {
      {.name = "plain"},
      {.name = "a bucket for each", .options = {.buckets = {.cap_bytes = 0, .first_cap_bytes = 0}}},
      {.name = "float64", .change = [](Net& net) { net.to(at::kDouble); }},
      {.name = "bfloat16", .change = [](Net& net) { net.to(at::kBFloat16); }, .least = 0, .most = 0},
      {.name = "tied", .change = [](Net& net) { net.uses = 3; }},
      {.name = "frozen", .change = [](Net& net) { net.b->weight.set_requires_grad(false); }, .least = 9, .most = 9},
      {.name = "frozen bias", .change = [](Net& net) { net.a->bias.set_requires_grad(false); }},
      {.name = "weights as they lie in memory are not in rows",
       .change = [](Net& net) { net.b->weight.set_data(net.b->weight.detach().t().contiguous().t()); },
       .least = 9,
       .most = 9},
      {.name = "without overlap", .options = {.overlap = false}, .least = 0, .most = 0},
      {.name = "weight of outputs", .options = {.weight_outputs = true}},
      {.name = "sums", .options = {.loss = Loss::sum}},
      {.name = "gradients that are zeroed", .earlier = Program::zeroed},
      {.name = "gradients that are kept", .earlier = Program::kept, .alone = 4},
      {.name = "micro-batches",
       .gradients =
           [](Ddp& ddp, int step) {
             {
               const auto no_sync = ddp.no_sync();
               loss_of(ddp, step).backward();
             }
             loss_of(ddp, step + 3).backward();
           }},
      {.name = "the graph twice",
       .gradients =
           [](Ddp& ddp, int step) {
             const at::Tensor loss = loss_of(ddp, step);
             {
               const auto no_sync = ddp.no_sync();
               loss.backward({}, /*retain_graph=*/true);
             }
             ddp.set_weight(5);
             loss.backward();
           }},
      {.name = "autograd::grad before",
       .gradients =
           [](Ddp& ddp, int step) {
             const at::Tensor loss = loss_of(ddp, step);
             const auto found = ::torch::autograd::grad({loss}, {ddp.module().b->weight}, {}, /*retain_graph=*/true);
             const at::Tensor copy = found[0].clone();
             loss.backward();
             EXPECT_TRUE(at::equal(found[0], copy));
           }},
      {.name = "a penalty of the gradient",
       .gradients =
           [](Ddp& ddp, int step) {
             const at::Tensor loss = loss_of(ddp, step);
             const auto found =
                 ::torch::autograd::grad({loss}, {ddp.module().b->weight}, {}, true, /*create_graph=*/true);
             ddp.set_weight(3 + ddp.group()->rank());
             (loss + found[0].square().sum()).backward();
           },
       .least = 0},
      {.name = "autocast",
       .gradients =
           [](Ddp& ddp, int step) {
             at::Tensor loss;
             {
               const libtorch::Autocast scope(at::kCPU, at::kBFloat16);
               loss = loss_of(ddp, step);
             }
             loss.backward();
           },
       .least = 0,
       .most = 0},
  };
}

TEST(Linear, HasTheBitsOfTorchWhateverElseAProgramDoes) {
  for (const Program& program : programs()) {
    for (const int ranks : {1, 2, 3}) {
      run_torch_ranks(ranks, [&](const Group& group) {
        const Result torchs = train(group, program, false);
        const Result ours = train(group, program, true);
        EXPECT_EQ(torchs.placed, 0) << program.name;
        EXPECT_TRUE(same_bits(ours.weights, torchs.weights)) << program.name << ", " << ranks << " ranks";
        const bool differs = ranks == 1 && program.alone >= 0;
        EXPECT_GE(ours.placed, differs ? program.alone : program.least) << program.name;
        EXPECT_LE(ours.placed, differs ? program.alone : program.most) << program.name;
      });
    }
  }
}

TEST(Linear, OfOneRankHasItsGradientInTheSameMemoryUnlessTheProgramHasKeptThat) {
  run_torch_ranks(1, [](const Group& group) {
    Net net(true);
    initialize(net, 1);
    Ddp ddp(net, group);
    const auto step = [&] {
      loss_of(ddp, 0).backward();
      return net.a->weight.grad();
    };
    at::Tensor first = step();
    const void* const place = first.data_ptr();
    const at::Tensor copy = first.clone();
    for (const bool is_zeroed : {false, true}) {
      first.reset();
      at::Tensor& gradient = net.a->weight.mutable_grad();
      is_zeroed ? (void)gradient.zero_() : gradient.reset();
      first = step();
      EXPECT_EQ(first.data_ptr(), place) << is_zeroed;
      EXPECT_TRUE(at::equal(first, copy));
    }
    net.a->weight.mutable_grad().reset();
    EXPECT_NE(step().data_ptr(), place);
    EXPECT_TRUE(at::equal(first, copy));
    EXPECT_TRUE(at::equal(net.a->weight.grad(), copy));
  });
}

TEST(Linear, LeavesAHookTheGradientOfThisRank) {
  run_torch_ranks(2, [](const Group& group) {
    Net net(true);
    initialize(net, 1);
    Ddp ddp(net, group);
    at::Tensor seen;
    at::Tensor copy;
    net.a->weight.register_hook([&](const at::Tensor& gradient) {
      seen = gradient;
      copy = gradient.clone();
    });
    const Placed placed;
    loss_of(ddp, 0).backward();
    EXPECT_EQ(placed.count(), 3);
    EXPECT_TRUE(at::equal(seen, copy));
    EXPECT_FALSE(at::equal(seen, net.a->weight.grad()));
  });
}

// A backward that is lost after a layer has written its place, and the next one.
TEST(Linear, IsRightAfterABackwardThatWasLost) {
  run_torch_ranks(1, [](const Group& group) {
    Net net(true);
    initialize(net, 1);
    Ddp ddp(net, group, {.reproducible = {.micro_batches = 2, .global_batch = 4}});
    const auto step = [&](bool fails) {
      net.zero_grad();
      ddp.backward(4, [&](std::int64_t begin, std::int64_t end) {
        const at::Tensor y = ddp(random_classes({4, 4}, 11, 5).slice(0, begin, end));
        if (fails && begin > 0)
          net.table->weight.register_hook([](const at::Tensor&) { throw std::runtime_error("own"); });
        return y.square().mean();
      });
    };
    step(false);
    const Tensors wanted = gradients_of(net);
    net.zero_grad();
    EXPECT_THROW(step(true), std::runtime_error);
    ::torch::autograd::impl::clear_hooks(net.table->weight);
    step(false);
    EXPECT_TRUE(same_bits(gradients_of(net), wanted));
  });
}

TEST(Linear, TrainsInShards) {
  const auto weights = [](const Group& group, bool in_place) {
    Net net(in_place);
    initialize(net, 1);
    Ddp ddp(net, group, {.shard = Shard::optimizer});
    libtorch::ShardedOptimizer<::torch::optim::Adam> adam(ddp, ::torch::optim::AdamOptions(0.01));
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      loss_of(ddp, step).backward();
      adam.step();
    }
    return weights_of(net);
  };
  run_torch_ranks(3, [&](const Group& group) {
    const Tensors torchs = weights(group, false);
    EXPECT_TRUE(same_bits(weights(group, true), torchs));
  });
}

// A layer whose gradient is far larger than what it is computed from, so that a bound is looked for.
struct Wide : nn::Module {
  explicit Wide(bool is_placed) : in_place(is_placed) {}
  at::Tensor forward(const at::Tensor& x) const {
    return in_place ? libtorch::linear(x, layer->weight) : at::linear(x, layer->weight);
  }
  bool in_place;
  nn::Linear layer = register_module("layer", nn::Linear(nn::LinearOptions(80, 60).bias(false)));
};

// Returns the error of a step of rank 0, in which one row and the gradient of the outputs are multiplied by two
// factors.
std::string refusal(int ranks, bool in_place, double of_rows, double of_outputs, bool keeps = false,
                    at::ScalarType dtype = at::kFloat) {
  std::string thrown;
  run_torch_ranks(ranks, [&](const Group& group) {
    Wide net(in_place);
    initialize(net, 1);
    net.to(dtype);
    libtorch::DistributedDataParallel ddp(net, group, {.not_finite = NotFinite::raise});
    const bool is_first = group->rank() == 0;
    try {
      if (keeps) ddp(random_tensor({3, 80}, 2).to(dtype)).mean().backward();
      const at::Tensor x = random_tensor({3, 80}, 3).to(dtype);
      if (is_first) x[1][5] *= of_rows;
      (ddp(x) * (is_first ? of_outputs : 1)).mean().backward();
    } catch (const std::exception& error) {
      if (is_first) thrown = error.what();
    }
  });
  return thrown;
}

TEST(Linear, FindsNanAndInfinityWhereverTheLookAtTheGradientDoes) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const int ranks : {1, 2}) {
    for (const bool keeps : {false, true}) {
      for (const auto& [of_rows, of_outputs, is_found] : {std::tuple(1.0, 1.0, false),
                                                          {nan, 1.0, true},
                                                          {1.0, nan, true},
                                                          {infinity, 1.0, true},
                                                          {1.0, -infinity, true},
                                                          {1e25, 1e25, true},
                                                          {-1e20, 1e15, false}}) {
        const std::string torchs = refusal(ranks, false, of_rows, of_outputs, keeps);
        EXPECT_EQ(refusal(ranks, true, of_rows, of_outputs, keeps), torchs);
        EXPECT_EQ(torchs.find("layer.weight") != torchs.npos, is_found) << of_rows << ", " << of_outputs << torchs;
      }
    }
  }
}

// Of 16 bits a product overflows long before that of its factors in float32 does.
TEST(Linear, FindsAnOverflowOf16Bits) {
  for (const int ranks : {1, 2}) {
    const std::string torchs = refusal(ranks, false, 1e20, 1e25, false, at::kBFloat16);
    EXPECT_NE(torchs.find("layer.weight"), torchs.npos);
    EXPECT_EQ(refusal(ranks, true, 1e20, 1e25, false, at::kBFloat16), torchs);
  }
}

TEST(Linear, TakesWhatTorchTakes) {
  run_torch_ranks(2, [](const Group& group) {
    Net net(true);
    initialize(net, 1);
    const Ddp ddp(net, group);
    nn::Linear layer = net.a;
    for (const at::Tensor& x : {random_tensor({6}, 1), random_tensor({0, 6}, 1), random_tensor({2, 3, 4, 6}, 1),
                                random_tensor({6, 7}, 1).t()}) {
      EXPECT_TRUE(at::equal(libtorch::linear(x, layer->weight, layer->bias), layer->forward(x)));
    }
    for (const auto dtype : {at::kInt, at::kLong}) {
      const at::Tensor numbers = random_classes({2, 3}, 11, 1).to(dtype);
      EXPECT_TRUE(at::equal(libtorch::embedding(net.table->weight, numbers), net.table->forward(numbers)));
    }
    EXPECT_THROW(libtorch::linear(random_tensor({2, 5}, 1), layer->weight, layer->bias), c10::Error);
    // Transposes that were made without a graph.
    const at::Tensor constant = [&] {
      const at::NoGradGuard no_grad;
      return net.transposed.t();
    }();
    for (const at::Tensor& weight : {constant, net.transposed.detach().t()}) {
      const at::Tensor x = random_tensor({2, 5}, 1);
      EXPECT_EQ(libtorch::linear(x, weight).requires_grad(), at::linear(x, weight).requires_grad());
    }
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(libtorch::linear(random_tensor({2, 6}, 1), layer->weight).requires_grad());
  });
}

TEST(Linear, IsAModule) {
  nn::Sequential net(libtorch::Linear(4, 3), nn::ReLU(), libtorch::Linear(nn::LinearOptions(3, 2).bias(false)));
  const at::Tensor x = random_tensor({2, 4}, 1);
  const auto parameters = net->parameters();
  const at::Tensor wanted = at::linear(at::relu(at::linear(x, parameters[0], parameters[1])), parameters[2]);
  EXPECT_TRUE(at::equal(net->forward(x), wanted));
}

}  // namespace
}  // namespace lockstep::testing::linear_test
