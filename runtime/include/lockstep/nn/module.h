// SPDX-License-Identifier: Apache-2.0
// Module is a layer, or a model made of layers.
//
//   struct Mlp : ls::nn::Module {
//     ls::nn::Linear in = register_module("in", ls::nn::Linear(784, 256));
//     ls::nn::Linear out = register_module("out", ls::nn::Linear(256, 10));
//     ls::Tensor forward(const ls::Tensor& x) override { return out(ls::relu(in(x))); }
//   };
//
// A Module is a handle, like a Tensor: copies share parameters, mode and children. So layers are plain members that may
// be copied and moved.
//
// Initialisation: a parameter's values are drawn at the first use of the module tree, from seed 0 and the parameter's
// dotted name in the tree, or by initialize(seed). So the values depend only on seed and names, and not on the order of
// construction or on the rank.
//
// Randomness: layers like Dropout read the tree's ForwardContext; the program sets a ForwardContext before each forward
// in training.
// Threads: only one thread at a time may use a module tree.
// Failure: functions throw InvalidArgument, which names the parameter or layer.
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

// Init: the initial values of a parameter.

struct LOCKSTEP_API Init {
  enum class Kind : std::uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  // The value of a constant, the bound of a uniform distribution on [-value, value), or the standard deviation of a
  // normal distribution with mean 0.
  float value = 0;

  static constexpr Init zeros() { return {Kind::constant, 0}; }
  static constexpr Init ones() { return {Kind::constant, 1}; }
  static constexpr Init constant(float value) { return {Kind::constant, value}; }
  static constexpr Init uniform(float bound) { return {Kind::uniform, bound}; }
  static constexpr Init normal(float deviation) { return {Kind::normal, deviation}; }
  // Returns PyTorch's default for Linear's weight and bias, kaiming_uniform with a = sqrt(5): a uniform distribution
  // with bound 1 / sqrt(fan_in). He et al., arXiv:1502.01852.
  static Init kaiming_uniform(std::int64_t fan_in);
};

// Overwrites an f32 tensor with initial values. Random values depend only on `init` and `generator`.
LOCKSTEP_API void initialize(const Tensor& tensor, const Init& init, Generator generator);

// ForwardContext is the state on which a forward in training depends besides its input.
struct ForwardContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  // The global ids of the batch's samples, in the order of the batch; empty for a batch of 0 rows.
  std::vector<std::int64_t> sample_ids = {};
};

// FileLayout says whether files store a parameter transposed. Files use PyTorch's layouts: a Linear's weight is [in,
// out] in memory and [out, in] in files.
enum class FileLayout { as_it_is, transposed };

struct NamedParameter {
  std::string name;  // dotted name: "blocks.0.attention.qkv.weight"
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

  // Computes the module's output. Modules with one input and one output override forward(), which throws
  // InvalidArgument if it is not overridden.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x) { return forward(x); }

  // Returns the module's parameters in the order of registration, followed by the children's parameters. Each parameter
  // is listed once, a shared parameter under its first name.
  std::vector<NamedParameter> named_parameters() const;
  std::vector<Tensor> parameters() const;
  // Returns all names of each parameter, in the order of named_parameters(), the first name first. A parameter has
  // several names if it is shared, or if its module is registered several times.
  std::vector<std::vector<std::string>> parameter_names() const;
  // Returns the layout of each parameter, in the order of named_parameters().
  std::vector<FileLayout> file_layouts() const;
  // Returns the number of elements of all parameters together.
  std::int64_t parameter_count() const;

  // Draws the values of every parameter again, from (seed, dotted name).
  void initialize(std::uint64_t seed) const;
  // Sets the mode of the whole tree, training or evaluation; modules begin in training mode. Dropout is the identity
  // in evaluation.
  void train(bool on = true) const;
  void eval() const { train(false); }
  bool is_training() const;
  // Moves all parameters to a device, and drops their gradients and bindings.
  void to(DeviceId device) const;
  // Sets the context for the forwards of the whole tree until the next call. Random numbers depend on a layer's dotted
  // name below this module, so always call set_context() on the same module. DistributedDataParallel calls
  // set_context() for batches with ids.
  void set_context(ForwardContext context) const;
  // Drops all gradients (Tensor::clear_grad).
  void zero_grad() const;

 protected:
  // Makes a new parameter of this module. Throws InvalidArgument if the name is taken, empty or has a dot, or if a
  // parameter that is transposed in files is not a matrix.
  Tensor register_parameter(std::string_view name, const Shape& shape, const Init& init,
                            FileLayout in_files = FileLayout::as_it_is) const;
  // Registers another module's parameter under a name of this module, to share weights. The parameter's layout in files
  // is the layout in its own module; `in_files` is used if the own module is not part of the saved tree.
  Tensor share_parameter(std::string_view name, const Tensor& parameter,
                         FileLayout in_files = FileLayout::as_it_is) const;
  // Registers a child and returns the child, to initialise a member.
  template <typename M>
  M register_module(std::string_view name, M child) const {
    add_child(name, child);
    return child;
  }
  void add_child(std::string_view name, const Module& child) const;
  // Draws the values of parameters that have none yet. Layers call ensure_initialized() before they use
  // their parameters.
  void ensure_initialized() const;
  // Returns the key for this layer's random numbers in this forward. Throws InvalidArgument, with the remedy, if no
  // context was set.
  RandomSource random_source() const;

 private:
  struct LOCKSTEP_LOCAL State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::nn
