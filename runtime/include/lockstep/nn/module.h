// SPDX-License-Identifier: Apache-2.0
// Module is a layer, or a model made of layers.
//
//   struct Mlp : ls::nn::Module {
//     ls::nn::Linear in = register_module("in", ls::nn::Linear(784, 256));
//     ls::nn::Linear out = register_module("out", ls::nn::Linear(256, 10));
//     ls::Tensor forward(const ls::Tensor& x) override { return out(ls::relu(in(x))); }
//   };
//
// A Module is a handle, like a Tensor: copies share parameters, mode and children, so layers are plain members that may
// be copied and moved.
//
// Initialisation: parameters are drawn at the first use of the tree, each from (seed 0, its dotted name in the tree),
// or when initialize(seed) is called. So they depend only on names, not on the order of construction or on a rank.
//
// Randomness: layers like Dropout read the tree's ForwardContext; set one before each forward that trains.
// Threads: one at a time per tree.
// Failure: InvalidArgument, naming the parameter or layer.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/base/api.h"
#include "lockstep/base/random.h"
#include "lockstep/tensor/tensor.h"

namespace lockstep::nn {

// The initial values of a parameter.

struct LOCKSTEP_API Init {
  enum class Kind : std::uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  // The constant; the bound of a uniform on [-value, value); the standard deviation of a normal with mean 0.
  float value = 0;

  static constexpr Init zeros() { return {Kind::constant, 0}; }
  static constexpr Init ones() { return {Kind::constant, 1}; }
  static constexpr Init constant(float value) { return {Kind::constant, value}; }
  static constexpr Init uniform(float bound) { return {Kind::uniform, bound}; }
  static constexpr Init normal(float deviation) { return {Kind::normal, deviation}; }
  // PyTorch's default for Linear, kaiming_uniform with a = sqrt(5): uniform with bound 1 / sqrt(fan_in), for weight and
  // bias. He et al., arXiv:1502.01852.
  static Init kaiming_uniform(std::int64_t fan_in);
};

// Overwrites an f32 tensor. The numbers depend only on the generator.
LOCKSTEP_API void initialize(const Tensor& tensor, const Init& init, Generator generator);

// The state that a forward in training depends on besides its input.
struct ForwardContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  // The global ids of the batch's samples, in its order; empty for a batch of 0 rows.
  std::vector<std::int64_t> sample_ids = {};
};

// How a parameter lies in files, which are PyTorch's: a Linear's weight is [in, out] in memory and [out, in] in files.
enum class FileLayout { as_it_is, transposed };

struct NamedParameter {
  std::string name;  // dotted: "blocks.0.attention.qkv.weight"
  Tensor tensor;
};

class LOCKSTEP_API Module {
 public:
  Module();
  virtual ~Module() = default;
  Module(const Module&) = default;
  Module& operator=(const Module&) = default;
  Module(Module&&) noexcept = default;
  Module& operator=(Module&&) noexcept = default;

  // Computes the module's output. Override it in modules of one input and one output; otherwise it throws
  // InvalidArgument.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x) { return forward(x); }

  // Every parameter once (a shared one under its first name), in the order of registration, followed by the children's.
  std::vector<NamedParameter> named_parameters() const;
  std::vector<Tensor> parameters() const;
  // All names of each of named_parameters(), in their order, the first name first. A parameter has several names if it
  // is shared, or if its module is registered several times.
  std::vector<std::vector<std::string>> parameter_names() const;
  // The layouts of named_parameters(), in their order.
  std::vector<FileLayout> file_layouts() const;
  // The number of elements of all parameters.
  std::int64_t parameter_count() const;

  // Draws every parameter again, from (seed, dotted name).
  void initialize(std::uint64_t seed) const;
  // Sets the mode of the whole tree; modules begin in training mode. Dropout is the identity in evaluation.
  void train(bool on = true) const;
  void eval() const { train(false); }
  bool is_training() const;
  // Moves all parameters; drops their gradients and bindings.
  void to(DeviceId device) const;
  // Sets the context for the next forwards of the whole tree, until the next call. Layers are keyed by their dotted
  // names below this module, so call it always on the same module: otherwise a layer draws other numbers.
  // DistributedDataParallel calls it for batches with ids.
  void set_context(ForwardContext context) const;
  // Drops all gradients (Tensor::clear_grad).
  void zero_grad() const;

 protected:
  // Makes a new parameter of this module. InvalidArgument if the name is taken, empty or has a dot, or if a parameter
  // that is transposed in files is not a matrix.
  Tensor register_parameter(std::string_view name, const Shape& shape, const Init& init,
                            FileLayout in_files = FileLayout::as_it_is) const;
  // Registers another module's parameter under a name of this one: shared weights. Its layout in files is that of its
  // own module; `in_files` counts if that module is not part of what is saved.
  Tensor share_parameter(std::string_view name, const Tensor& parameter,
                         FileLayout in_files = FileLayout::as_it_is) const;
  // Registers a child, and returns it, to initialise a member with.
  template <typename M>
  M register_module(std::string_view name, M child) const {
    add_child(name, child);
    return child;
  }
  void add_child(std::string_view name, const Module& child) const;
  // Draws parameters that were not drawn yet. Layers call it before they use theirs.
  void ensure_initialized() const;
  // The key of this layer in this forward. InvalidArgument, with the remedy, if no context was set.
  RandomSource random_source() const;

 private:
  struct LOCKSTEP_LOCAL State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::nn
