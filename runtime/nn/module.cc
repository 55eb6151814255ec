// SPDX-License-Identifier: Apache-2.0
#include "lockstep/nn/module.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/hash.h"

namespace lockstep::nn {

struct Module::State {
  struct Parameter {
    std::string name;
    Tensor tensor;
    Init init;
    FileLayout in_files = FileLayout::as_it_is;
    bool drawn = false;
    bool shared = false;  // another module's: that one draws it
  };
  struct Child {
    std::string name;
    std::shared_ptr<State> state;
  };

  std::vector<Parameter> parameters;
  std::vector<Child> children;
  std::weak_ptr<State> parent;  // the first module it was added to
  bool all_drawn = false;       // meaningful at a root
  bool training = true;
  std::shared_ptr<const ForwardContext> context;
  std::string path;  // below the module on which set_context was called
  std::uint64_t layer_key = 0;

  bool has(std::string_view name) const {
    return std::any_of(parameters.begin(), parameters.end(), [&](const Parameter& p) { return p.name == name; }) ||
           std::any_of(children.begin(), children.end(), [&](const Child& c) { return c.name == name; });
  }

  // Calls f(state, prefix) for this module and all below, parents first, each once; prefix is "" or ends in a dot.
  template <typename F>
  void visit(const F& f) {
    std::unordered_set<const State*> seen;
    visit_below("", seen, f);
  }

  // The same with each parameter, under each of its names.
  template <typename F>
  void visit_names(const F& f, const std::string& prefix = "") const {
    for (const Parameter& parameter : parameters) f(parameter, prefix);
    for (const Child& child : children) child.state->visit_names(f, prefix + child.name + ".");
  }

  // The same with each parameter, a shared one at its first name.
  template <typename F>
  void visit_parameters(const F& f) const {
    std::unordered_set<const void*> seen;
    visit_names([&](const Parameter& parameter, const std::string& prefix) {
      if (seen.insert(parameter.tensor.id()).second) f(parameter, prefix);
    });
  }

  void draw(std::uint64_t seed, bool again) {
    visit([&](State& state, const std::string& prefix) {
      for (Parameter& parameter : state.parameters) {
        if (parameter.shared || (parameter.drawn && !again)) continue;
        const Generator generator(seed, hash64(prefix + parameter.name));
        nn::initialize(parameter.tensor, parameter.init, generator);
        parameter.drawn = true;
      }
    });
  }

 private:
  template <typename F>
  void visit_below(const std::string& prefix, std::unordered_set<const State*>& seen, const F& f) {
    if (!seen.insert(this).second) return;
    f(*this, prefix);
    for (const Child& child : children) child.state->visit_below(prefix + child.name + ".", seen, f);
  }
};

namespace {

void expect_name(std::string_view name, bool taken) {
  if (name.empty() || name.find('.') != std::string_view::npos) {
    throw InvalidArgument(fmt::format(
        "module: '{}' can't name a parameter or a layer; give a name that is not empty and has no dot", name));
  }
  if (taken)
    throw InvalidArgument(fmt::format(
        "module: the name '{}' is taken by another parameter or layer; give each parameter and layer its own name",
        name));
}

}  // namespace

Module::Module() : state_(std::make_shared<State>()) {}

Tensor Module::forward(const Tensor&) {
  throw InvalidArgument(
      "module: forward(x) was called, but this module does not override it; declare Tensor forward(const Tensor& x) "
      "override");
}

std::vector<NamedParameter> Module::named_parameters() const {
  ensure_initialized();
  std::vector<NamedParameter> result;
  state_->visit_parameters([&](const State::Parameter& parameter, const std::string& prefix) {
    result.push_back({prefix + parameter.name, parameter.tensor});
  });
  return result;
}

std::vector<std::vector<std::string>> Module::parameter_names() const {
  std::unordered_map<const void*, std::size_t> index;
  std::vector<std::vector<std::string>> result;
  state_->visit_names([&](const State::Parameter& parameter, const std::string& prefix) {
    const auto [at, is_new] = index.try_emplace(parameter.tensor.id(), result.size());
    if (is_new) result.emplace_back();
    result[at->second].push_back(prefix + parameter.name);
  });
  return result;
}

std::vector<FileLayout> Module::file_layouts() const {
  // The layout is that of the module which made the parameter, under whatever name it comes first.
  std::unordered_map<const void*, FileLayout> made;
  state_->visit([&](const State& state, const std::string&) {
    for (const State::Parameter& parameter : state.parameters) {
      if (!parameter.shared) made[parameter.tensor.id()] = parameter.in_files;
    }
  });
  std::vector<FileLayout> result;
  state_->visit_parameters([&](const State::Parameter& parameter, const std::string&) {
    const auto found = made.find(parameter.tensor.id());
    result.push_back(found == made.end() ? parameter.in_files : found->second);
  });
  return result;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> result;
  for (NamedParameter& parameter : named_parameters()) result.push_back(std::move(parameter.tensor));
  return result;
}

std::int64_t Module::parameter_count() const {
  std::int64_t total = 0;
  for (const Tensor& parameter : parameters()) total += parameter.count();
  return total;
}

void Module::initialize(std::uint64_t seed) const { state_->draw(seed, true); }

void Module::train(bool on) const {
  state_->visit([&](State& state, const std::string&) { state.training = on; });
}

bool Module::is_training() const { return state_->training; }

void Module::to(DeviceId device) const {
  for (const Tensor& parameter : parameters()) parameter.move_to(device);
}

void Module::set_context(ForwardContext context) const {
  const auto shared = std::make_shared<const ForwardContext>(std::move(context));
  state_->visit([&](State& state, const std::string& prefix) {
    state.context = shared;
    if (state.layer_key != 0 && state.path == prefix) return;
    state.path = prefix;
    state.layer_key = hash64(prefix);
  });
}

void Module::zero_grad() const {
  for (const Tensor& parameter : parameters()) parameter.clear_grad();
}

Tensor Module::register_parameter(std::string_view name, const Shape& shape, const Init& init,
                                  FileLayout in_files) const {
  expect_name(name, state_->has(name));
  if (in_files == FileLayout::transposed && shape.dims() != 2) {
    throw InvalidArgument(
        fmt::format("module: parameter '{}' has {} dimensions and can't be transposed in files; only a matrix can: "
                    "leave FileLayout::transposed out",
                    name, shape.dims()));
  }
  const Tensor tensor = Tensor::empty(shape);
  tensor.set_requires_grad();
  state_->parameters.push_back({.name = std::string(name), .tensor = tensor, .init = init, .in_files = in_files});
  return tensor;
}

Tensor Module::share_parameter(std::string_view name, const Tensor& parameter, FileLayout in_files) const {
  expect_name(name, state_->has(name));
  state_->parameters.push_back({.name = std::string(name),
                                .tensor = parameter,
                                .init = {},
                                .in_files = in_files,
                                .drawn = true,
                                .shared = true});
  return parameter;
}

void Module::add_child(std::string_view name, const Module& child) const {
  expect_name(name, state_->has(name));
  if (child.state_->parent.expired()) child.state_->parent = state_;
  state_->children.push_back({.name = std::string(name), .state = child.state_});
  for (std::shared_ptr<State> state = state_; state; state = state->parent.lock()) state->all_drawn = false;
}

void Module::ensure_initialized() const {
  std::shared_ptr<State> root = state_;
  while (std::shared_ptr<State> parent = root->parent.lock()) root = std::move(parent);
  if (root->all_drawn) return;
  root->draw(0, false);
  root->all_drawn = true;
}

RandomSource Module::random_source() const {
  const std::shared_ptr<const ForwardContext>& context = state_->context;
  if (!context) {
    throw InvalidArgument(
        "module: a layer that draws random numbers in training, such as dropout, needs the ids of the batch's samples, "
        "and has none; call ddp(x, ids) with the ids of the batch's rows; without a DistributedDataParallel, call "
        "model.set_context({.seed, .step, .sample_ids}) before the forward; to evaluate, call model.eval()");
  }
  return {.key = {.seed = context->seed, .layer = state_->layer_key, .step = context->step},
          .sample_ids = {context, &context->sample_ids}};
}

Init Init::kaiming_uniform(std::int64_t fan_in) {
  return uniform(fan_in > 0 ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(fan_in))) : 0.0f);
}

void initialize(const Tensor& tensor, const Init& init, Generator generator) {
  if (init.kind == Init::Kind::constant) {
    tensor.fill(init.value);
    return;
  }
  // Drawn on the host, so that every device begins with the same numbers.
  std::vector<float> values(static_cast<std::size_t>(tensor.count()));
  for (float& value : values) {
    value = init.kind == Init::Kind::uniform ? init.value * (2.0f * generator.uniform() - 1.0f)
                                             : init.value * generator.normal();
  }
  tensor.copy_from(Tensor::of(tensor.shape(), values));
}

}  // namespace lockstep::nn
