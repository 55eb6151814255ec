// SPDX-License-Identifier: Apache-2.0
#include "lockstep/libtorch/state_file.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <span>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/ddp/on_rank0.h"
#include "runtime/checkpoint/load.h"
#include "runtime/libtorch/module_state.h"
#include "runtime/libtorch/tensor_bytes.h"

namespace lockstep::libtorch {
namespace {

std::span<std::byte> span_of(const at::Tensor& contiguous) {
  const BufferView view = bytes_of(contiguous);
  return {static_cast<std::byte*>(view.data), view.bytes()};
}

std::vector<checkpoint::WantedTensor> wanted_by(const std::vector<TensorInFiles>& state) {
  std::vector<checkpoint::WantedTensor> wanted;
  for (const auto& [names, tensor, is_parameter] : state) {
    const bool is_bool = tensor.scalar_type() == at::kBool;
    wanted.push_back({names, file_dtype("load_weights", names.front(), tensor), tensor.sizes().vec(), is_bool});
  }
  return wanted;
}

}  // namespace

void save_weights(const std::filesystem::path& path, const ModuleRef& module, const checkpoint::Metadata& metadata) {
  std::vector<at::Tensor> dense;
  std::vector<checkpoint::TensorSource> sources;
  for (const auto& [names, tensor, is_parameter] : state_in_files(module.get())) {
    dense.push_back(tensor.detach().to(at::kCPU).contiguous());
    for (const std::string& name : names) {
      sources.push_back({name, file_dtype("save_weights", name, tensor), tensor.sizes().vec(), span_of(dense.back())});
    }
  }
  checkpoint::write_safetensors(path, sources, metadata);
}

void save_weights(const std::filesystem::path& path, const ModuleRef& module, ProcessGroup& group,
                  const checkpoint::Metadata& metadata) {
  on_rank0(
      "save_weights",
      [&] {
        save_weights(path, module, metadata);
        return std::string();
      },
      group);
}

checkpoint::Loaded load_weights(const std::filesystem::path& path, const ModuleRef& module,
                                const checkpoint::LoadOptions& options) {
  const checkpoint::TensorFiles files(path);
  const std::vector<TensorInFiles> state = state_in_files(module.get());
  const std::vector<checkpoint::WantedTensor> wanted = wanted_by(state);
  checkpoint::LoadPlan plan = checkpoint::plan_load(files, wanted, options, "load_weights", "module");
  // All of it is read before any of it counts.
  std::vector<at::Tensor> read(state.size());
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (!plan.sources[i]) continue;
    const at::Tensor& tensor = state[i].tensor;
    read[i] = at::empty(tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()));
    files.read(*plan.sources[i], span_of(read[i]));
  }
  for (std::size_t i = 0; i < state.size(); ++i) {
    if (read[i].defined()) state[i].tensor.detach().copy_(read[i]);
  }
  return std::move(plan.loaded);
}

checkpoint::Loaded load_weights(const std::filesystem::path& path, const ModuleRef& module, ProcessGroup& group,
                                const checkpoint::LoadOptions& options) {
  const std::string text = on_rank0(
      "load_weights", [&] { return checkpoint::to_text(load_weights(path, module, options)); }, group);
  const std::vector<NamedTensor> state = state_of(module.get());
  compare_state(group, state, {});
  broadcast_state(group, state);
  return checkpoint::loaded_from_text(text);
}

}  // namespace lockstep::libtorch
