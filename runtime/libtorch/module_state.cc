#include "runtime/libtorch/module_state.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <unordered_set>

#include "runtime/base/error.h"
#include "runtime/ddp/broadcast_parameters.h"
#include "runtime/ddp/compare_parameters.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::torch {

std::vector<NamedTensor> state_of(const ::torch::nn::Module& module) {
  std::vector<NamedTensor> state;
  std::unordered_set<const void*> seen;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_parameter) {
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) {
      state.push_back({name, tensor, is_parameter});
    }
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), true);
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), false);
  return state;
}

void require_cpu(const std::string& operation, const std::vector<NamedTensor>& state) {
  for (const auto& [name, tensor, is_parameter] : state) {
    if (!tensor.is_cpu() || tensor.layout() != at::kStrided) {
      throw InvalidArgument(
          fmt::format("{}: '{}' is on {} with layout {}; this build takes dense tensors in CPU memory: "
                      "move the module with to(torch::kCPU)",
                      operation, name, tensor.device().str(), tensor.layout() == at::kStrided ? "strided" : "sparse"));
    }
  }
}

void compare_state(ProcessGroup& group, const std::vector<NamedTensor>& state) {
  if (group.size() == 1) return;
  std::vector<ParameterSpec> specs;
  for (const auto& [name, tensor, is_parameter] : state) {
    // The dtype is part of the name: not every one of torch's is one of ours.
    const char* kind = !is_parameter ? "buffer" : tensor.requires_grad() ? "parameter" : "frozen parameter";
    specs.push_back(
        {fmt::format("{} ({} {})", name, kind, c10::toString(tensor.scalar_type())), DType::u8, tensor.sizes().vec()});
  }
  compare_parameters(group, specs, {});
}

void broadcast_state(ProcessGroup& group, const std::vector<NamedTensor>& state) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> dense;
  std::vector<BufferView> views;
  for (const NamedTensor& item : state) {
    dense.push_back(item.tensor.detach().contiguous());
    views.push_back(bytes_of(dense.back()));
  }
  broadcast_parameters(group, views);
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (!state[i].tensor.is_contiguous()) state[i].tensor.detach().copy_(dense[i]);
  }
}

}  // namespace lockstep::torch
