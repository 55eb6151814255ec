// SPDX-License-Identifier: Apache-2.0
// The parameters and buffers of a module, by dotted name, and how replicas start equal.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep::libtorch {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;  // shares the module's memory
  bool is_parameter = true;
};

// Parameters, then buffers, in registration order. A tensor that is registered several times is there once, under its
// first name; undefined ones (a layer without bias) are left out.
std::vector<NamedTensor> state_of(const ::torch::nn::Module& module);

// A tensor of a module as files have it, under each of its names.
struct TensorInFiles {
  std::vector<std::string> names;  // the first one first
  at::Tensor tensor;
  bool is_parameter = true;  // under all of its names
};

// state_of() for files, with all names. Tensors of one storage, offset, dtype, sizes and strides are one: tied.
std::vector<TensorInFiles> state_in_files(const ::torch::nn::Module& module);

// The identities of the module's parts and of the tensors that each has registered, in one order: they differ once a
// part or a tensor is replaced, added or removed. Without names, so that each step can compare them.
std::vector<const void*> parts_of(const ::torch::nn::Module& module);

// InvalidArgument, with `operation` in front, for a tensor that is not dense, or not where the group computes. Buffers
// may be on the CPU all the same.
void require_on_group_device(const std::string& operation, const ProcessGroup& group,
                             const std::vector<NamedTensor>& state);

// InvalidArgument, with `operation` in front, for a tensor with elements that share memory, as expand() makes them: it
// can't be written.
void require_elements_apart(const std::string& operation, const std::vector<NamedTensor>& state);

// How the gradient of a parameter lies: as autograd wants it, see its "Gradient Layout Contract".
std::vector<std::int64_t> gradient_strides(const at::Tensor& parameter);

// Collective and blocking. Compares names, dtypes, shapes and the strides of trained tensors over the ranks, and which
// parameters are declared unused: Mismatch names the first that differs. Strides of other tensors may differ, and those
// of dimensions of one element.
void compare_state(ProcessGroup& group, const std::vector<NamedTensor>& state, const std::vector<std::string>& unused);

// Collective and blocking. Gives every rank the bits that rank 0 has, every dtype, in place. Tensors may be on the
// group's device or on the CPU.
void broadcast_state(ProcessGroup& group, const std::vector<NamedTensor>& state);
// broadcast_state() for every step. On a device it is put into the current stream, and the host does not wait; tensors
// on the CPU are sent as by broadcast_state().
void broadcast_state_in_stream(ProcessGroup& group, const std::vector<NamedTensor>& state);

}  // namespace lockstep::libtorch
