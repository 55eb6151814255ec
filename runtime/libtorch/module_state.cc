// SPDX-License-Identifier: Apache-2.0
#include "runtime/libtorch/module_state.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/ddp/broadcast_parameters.h"
#include "lockstep/libtorch/torch_stream.h"
#include "runtime/ddp/equality/compare_parameters.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {

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

std::vector<TensorInFiles> state_in_files(const ::torch::nn::Module& module) {
  using Place =
      std::tuple<const void*, std::int64_t, at::ScalarType, std::vector<std::int64_t>, std::vector<std::int64_t>>;
  std::vector<TensorInFiles> state;
  std::map<Place, std::size_t> index;
  const auto add = [&](const std::string& name, const at::Tensor& tensor, bool is_parameter) {
    if (!tensor.defined()) return;
    Place place{tensor.unsafeGetTensorImpl(), 0, tensor.scalar_type(), {}, {}};
    if (tensor.has_storage()) {
      place = {tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), tensor.scalar_type(),
               tensor.sizes().vec(), tensor.strides().vec()};
    }
    const auto [at, is_new] = index.try_emplace(std::move(place), state.size());
    if (is_new) state.push_back({{}, tensor, is_parameter});
    TensorInFiles& one = state[at->second];
    one.names.push_back(name);
    one.is_parameter = one.is_parameter && is_parameter;
  };
  for (const auto& item : module.named_parameters()) add(item.key(), item.value(), true);
  for (const auto& item : module.named_buffers()) add(item.key(), item.value(), false);
  return state;
}

std::vector<const void*> parts_of(const ::torch::nn::Module& module) {
  std::vector<const void*> parts;
  module.apply(::torch::nn::Module::ConstModuleApplyFunction([&](const ::torch::nn::Module& part) {
    parts.push_back(&part);
    for (const at::Tensor& tensor : part.parameters(/*recurse=*/false)) parts.push_back(tensor.unsafeGetTensorImpl());
    for (const at::Tensor& tensor : part.buffers(/*recurse=*/false)) parts.push_back(tensor.unsafeGetTensorImpl());
  }));
  return parts;
}

void require_on_group_device(const std::string& operation, const ProcessGroup& group,
                             const std::vector<NamedTensor>& state) {
  for (const auto& [name, tensor, is_parameter] : state) {
    if (tensor.layout() != at::kStrided) {
      throw InvalidArgument(
          fmt::format("{}: '{}' is not a dense tensor; replace it by its to_dense() first", operation, name));
    }
    if (is_at_home(group, tensor.device()) || (!is_parameter && tensor.is_cpu())) continue;
    throw InvalidArgument(
        fmt::format("{}: '{}' is on {}, and the group computes on {} (backend {}); move the module with "
                    "module->to(lockstep::libtorch::device_of(*group)), or take a group on the module's device, by "
                    "InitOptions::device or LOCKSTEP_DEVICE",
                    operation, name, tensor.device().str(), group.device().str(), group.backend()));
  }
}

void require_elements_apart(const std::string& operation, const std::vector<NamedTensor>& state) {
  for (const auto& [name, tensor, is_parameter] : state) {
    if (!elements_share_memory(tensor)) continue;
    throw InvalidArgument(
        fmt::format("{}: '{}' of sizes [{}] and strides [{}] has elements that share memory, as expand() makes them, "
                    "and can't be written; register its clone(at::MemoryFormat::Contiguous)",
                    operation, name, fmt::join(tensor.sizes(), ", "), fmt::join(tensor.strides(), ", ")));
  }
}

std::vector<std::int64_t> gradient_strides(const at::Tensor& parameter) {
  if (parameter.is_non_overlapping_and_dense()) return parameter.strides().vec();
  return at::empty_like(parameter, at::MemoryFormat::Contiguous).strides().vec();
}

namespace {

// The strides without those of dimensions that do not affect where elements lie.
std::vector<std::int64_t> strides_that_count(const at::Tensor& parameter) {
  std::vector<std::int64_t> strides = gradient_strides(parameter);
  for (std::size_t d = 0; d < strides.size(); ++d) {
    if (parameter.numel() == 0 || parameter.sizes()[d] == 1) strides[d] = 1;
  }
  return strides;
}

std::string kind_of(const NamedTensor& item, bool is_unused) {
  if (!item.is_parameter) return "buffer";
  if (!item.tensor.requires_grad()) return "frozen parameter";
  return fmt::format("{}parameter, strides [{}]", is_unused ? "unused " : "",
                     fmt::join(strides_that_count(item.tensor), ", "));
}

}  // namespace

void compare_state(ProcessGroup& group, const std::vector<NamedTensor>& state, const std::vector<std::string>& unused) {
  if (group.size() == 1) return;
  std::vector<ParameterSpec> specs;
  for (const NamedTensor& item : state) {
    const auto& [name, tensor, is_parameter] = item;
    const std::string kind = kind_of(item, std::find(unused.begin(), unused.end(), name) != unused.end());
    // lockstep lacks some of torch's dtypes: the name says those.
    const auto dtype = dtype_of(tensor.scalar_type());
    specs.push_back({dtype ? fmt::format("{} ({})", name, kind)
                           : fmt::format("{} ({} of {})", name, kind, c10::toString(tensor.scalar_type())),
                     dtype.value_or(DType::u8), tensor.sizes().vec()});
  }
  compare_parameters(group, specs, {},
                     "where strides differ, give the parameters one memory format on every rank before wrapping: "
                     "parameter.set_data(parameter.contiguous())");
}

void broadcast_state(ProcessGroup& group, const std::vector<NamedTensor>& state) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  const OnCurrentStream ordered(group);
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

void broadcast_state_in_stream(ProcessGroup& group, const std::vector<NamedTensor>& state) {
  if (group.size() == 1) return;
  constexpr std::int64_t kAlignment = 16;  // the largest element
  std::vector<NamedTensor> on_host;
  std::vector<at::Tensor> here;
  std::int64_t bytes = 0;
  for (const NamedTensor& item : state) {
    if (item.tensor.is_cpu()) {
      on_host.push_back(item);
    } else {
      here.push_back(item.tensor.detach());
      bytes += static_cast<std::int64_t>(item.tensor.nbytes()) + kAlignment;
    }
  }
  if (!on_host.empty()) broadcast_state(group, on_host);
  if (here.empty()) return;
  const at::NoGradGuard no_grad;
  const OnCurrentStream ordered(group);
  const at::Tensor all = at::empty({bytes}, here.front().options().dtype(at::kByte));
  const auto for_each = [&](const auto& copy) {
    std::int64_t begin = 0;
    for (const at::Tensor& tensor : here) {
      const auto end = begin + static_cast<std::int64_t>(tensor.nbytes());
      copy(all.slice(0, begin, end).view(tensor.scalar_type()).view(tensor.sizes()), tensor);
      begin = (end + kAlignment - 1) / kAlignment * kAlignment;
    }
  };
  if (group.rank() == 0) for_each([](const at::Tensor& staged, const at::Tensor& tensor) { staged.copy_(tensor); });
  ordered.wait(group.broadcast(bytes_of(all), 0));
  if (group.rank() != 0) for_each([](const at::Tensor& staged, const at::Tensor& tensor) { tensor.copy_(staged); });
}

}  // namespace lockstep::libtorch
