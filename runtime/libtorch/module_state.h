// What a module consists of, by dotted name, and how replicas start equal.
#pragma once

#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "runtime/comm/process_group.h"

namespace lockstep::torch {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;  // shares the module's memory
  bool is_parameter = true;
};

// Parameters, then buffers, in registration order. A tensor that is registered several times is there once, under its
// first name; undefined ones (a layer without bias) are left out.
std::vector<NamedTensor> state_of(const ::torch::nn::Module& module);

// InvalidArgument, with `operation` in front, for a tensor that is not dense, or not where the group computes. Buffers
// may be on the CPU all the same.
void require_at_home(const std::string& operation, const ProcessGroup& group, const std::vector<NamedTensor>& state);

// Collective and blocking. Compares names, dtypes and shapes over the ranks, and which parameters are declared unused:
// Mismatch names the first that differs.
void compare_state(ProcessGroup& group, const std::vector<NamedTensor>& state, const std::vector<std::string>& unused);

// Collective and blocking. Gives every rank the bits that rank 0 has, every dtype, in place. Tensors may be on the
// group's device or on the CPU.
void broadcast_state(ProcessGroup& group, const std::vector<NamedTensor>& state);
// The same for every step. On a device it is put into the current stream, and the host does not wait; what is on the
// CPU goes as before.
void broadcast_state_in_stream(ProcessGroup& group, const std::vector<NamedTensor>& state);

}  // namespace lockstep::torch
