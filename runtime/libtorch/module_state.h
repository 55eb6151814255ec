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

// InvalidArgument, with `operation` in front, for a tensor outside dense CPU memory.
void require_cpu(const std::string& operation, const std::vector<NamedTensor>& state);

// Collective and blocking. Compares names, dtypes and shapes over the ranks: Mismatch names the first that differs.
void compare_state(ProcessGroup& group, const std::vector<NamedTensor>& state);

// Collective and blocking. Gives every rank the bits that rank 0 has, every dtype, in place.
void broadcast_state(ProcessGroup& group, const std::vector<NamedTensor>& state);

}  // namespace lockstep::torch
