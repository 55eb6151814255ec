// SPDX-License-Identifier: Apache-2.0
// Module is a layer, or a model made of layers.
//
//   struct Mlp : ls::nn::Module {
//     ls::nn::Linear in = register_module("in", ls::nn::Linear(784, 256));
//     ls::nn::Linear out = register_module("out", ls::nn::Linear(256, 10));
//     ls::Tensor forward(const ls::Tensor& x) override { return out(ls::relu(in(x))); }
//   };
//
// A Module is a handle, like a Tensor: copies of a Module share its parameters, mode and children. Layers can therefore
// be plain members of a class whose objects are copied and moved.
//
// Initialisation: a parameter gets its initial values from initialize(seed). If initialize() was not called before the
//   first use of the module tree, the seed is 0. The initial values depend only on the seed and on the parameter's
//   dotted name in the tree, and not on the order of construction or on the rank.
//
// Randomness: layers such as Dropout read the ForwardContext of their module tree; the program sets a ForwardContext
//   before each forward in training.
// Threads: only one thread at a time may use a module tree.
// Failure: the functions of Module throw InvalidArgument, whose message names the parameter or layer.
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
  // The number that belongs to `kind`: the constant, the bound of a uniform distribution on [-value, value), or the
  // standard deviation of a normal distribution with mean 0.
  float value = 0;

  static constexpr Init zeros() { return {Kind::constant, 0}; }
  static constexpr Init ones() { return {Kind::constant, 1}; }
  static constexpr Init constant(float value) { return {Kind::constant, value}; }
  static constexpr Init uniform(float bound) { return {Kind::uniform, bound}; }
  static constexpr Init normal(float deviation) { return {Kind::normal, deviation}; }
  // Returns PyTorch's default for the weight and bias of a Linear: a uniform distribution with bound 1 / sqrt(fan_in),
  // which PyTorch calls kaiming_uniform with a = sqrt(5). He et al., arXiv:1502.01852.
  static Init kaiming_uniform(std::int64_t fan_in);
};

// Overwrites an f32 tensor with initial values. The random values depend only on `init` and `generator`.
LOCKSTEP_API void initialize(const Tensor& tensor, const Init& init, Generator generator);

// ForwardContext holds the values that determine, together with the layer's name, the randomness of a
// forward in training.
struct ForwardContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  // The global ids of the batch's samples, in the order of the batch; empty for a batch of 0 rows.
  std::vector<std::int64_t> sample_ids = {};
};

// FileLayout says whether files store a parameter transposed. Files use PyTorch's layouts: a Linear's weight is [in,
// out] in memory and [out, in] in a file.
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

  // Computes the module's output. A module with one input and one output overrides forward(); the base class's
  // forward() throws InvalidArgument.
  virtual Tensor forward(const Tensor& x);
  Tensor operator()(const Tensor& x) { return forward(x); }

  // Returns the module's own parameters in the order of registration, followed by the parameters of its children. Each
  // parameter is listed once; a shared parameter is listed under its first name.
  std::vector<NamedParameter> named_parameters() const;
  std::vector<Tensor> parameters() const;
  // Returns all names of each parameter, in the order of named_parameters(); each list begins with the parameter's
  // first name. A parameter has several names if several modules share the parameter, or if the parameter's module is
  // registered several times.
  std::vector<std::vector<std::string>> parameter_names() const;
  // Returns for each parameter the layout in which files store the parameter, in the order of named_parameters().
  std::vector<FileLayout> file_layouts() const;
  // Returns the total number of elements of all parameters.
  std::int64_t parameter_count() const;

  // Draws new values for every parameter; the values depend only on `seed` and the parameter's dotted name.
  void initialize(std::uint64_t seed) const;
  // Sets this module and all modules below it to training mode or evaluation mode; modules begin in training mode.
  // Dropout is the identity in evaluation.
  void train(bool on = true) const;
  void eval() const { train(false); }
  bool is_training() const;
  // Moves all parameters to `device`, and drops their gradients together with the gradients' memory.
  void to(DeviceId device) const;
  // Sets the ForwardContext for all forwards of this module and of the modules below it, until the next call of
  // set_context(). Random numbers depend on the dotted name that a layer has relative to this module, so always call
  // set_context() on the same module. DistributedDataParallel itself calls set_context() for batches with sample ids.
  void set_context(ForwardContext context) const;
  // Drops all gradients (Tensor::clear_grad).
  void zero_grad() const;

 protected:
  // Makes a new parameter of this module. Throws InvalidArgument if `name` is already in use, is empty or has a dot, or
  // if `in_files` is FileLayout::transposed and the parameter is not a matrix.
  Tensor register_parameter(std::string_view name, const Shape& shape, const Init& init,
                            FileLayout in_files = FileLayout::as_it_is) const;
  // Registers another module's parameter under a name of this module, so both modules share the parameter. Files store
  // the parameter in the layout that was given when the parameter was made. `in_files` is used only if the saved module
  // tree does not contain the module that made the parameter.
  Tensor share_parameter(std::string_view name, const Tensor& parameter,
                         FileLayout in_files = FileLayout::as_it_is) const;
  // Registers `child` under `name` and returns the child, so a class can initialise a member with the result
  // of register_module().
  template <typename M>
  M register_module(std::string_view name, M child) const {
    add_child(name, child);
    return child;
  }
  void add_child(std::string_view name, const Module& child) const;
  // Draws the values of all parameters that have no values yet. Layers call ensure_initialized() before they use
  // their parameters.
  void ensure_initialized() const;
  // Returns the source of this layer's random numbers in the current forward. Throws InvalidArgument, whose message
  // gives the remedy, if no ForwardContext was set.
  RandomSource random_source() const;

 private:
  struct LOCKSTEP_LOCAL State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::nn
