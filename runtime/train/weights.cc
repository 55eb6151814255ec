// SPDX-License-Identifier: Apache-2.0
#include "lockstep/train/weights.h"

#include <utility>
#include <vector>

#include "lockstep/ddp/broadcast_parameters.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/train/distributed_data_parallel.h"
#include "runtime/checkpoint/load.h"
#include "runtime/checkpoint/transpose.h"
#include "runtime/train/compute_stream.h"

namespace lockstep {
namespace {

std::span<std::byte> bytes_of(const Tensor& host) {
  const BufferView view = host.view();
  return {static_cast<std::byte*>(view.data), view.bytes()};
}

std::vector<std::int64_t> shape_in_files(const Tensor& parameter, nn::FileLayout layout) {
  const auto extents = parameter.shape().extents();
  std::vector<std::int64_t> shape(extents.begin(), extents.end());
  if (layout == nn::FileLayout::transposed) std::swap(shape[0], shape[1]);
  return shape;
}

// A copy on the host, from its layout in memory to that in files.
Tensor in_file_layout(const Tensor& tensor, nn::FileLayout layout) {
  const Tensor host = tensor.to(DeviceId{});
  if (layout == nn::FileLayout::as_it_is) return host;
  const Tensor swapped = host.clone();
  checkpoint::transpose(bytes_of(swapped), host.size(0), host.size(1), size_of(host.dtype()));
  return swapped.view_as(Shape({host.size(1), host.size(0)}));
}

// The model's parameters, as files have them.
std::vector<checkpoint::WantedTensor> wanted_by(const nn::Module& model) {
  const auto layouts = model.file_layouts();
  const auto names = model.parameter_names();
  std::vector<checkpoint::WantedTensor> wanted;
  for (const Tensor& tensor : model.parameters()) {
    const std::size_t i = wanted.size();
    wanted.push_back({names[i], tensor.dtype(), shape_in_files(tensor, layouts[i])});
  }
  return wanted;
}

}  // namespace

void save_weights(const std::filesystem::path& path, const nn::Module& model, const checkpoint::Metadata& metadata) {
  const auto layouts = model.file_layouts();
  const auto names = model.parameter_names();
  std::vector<Tensor> hosts;
  std::vector<checkpoint::TensorSource> sources;
  for (const Tensor& tensor : model.parameters()) {
    const std::size_t i = hosts.size();
    hosts.push_back(in_file_layout(tensor, layouts[i]));
    for (const std::string& name : names[i]) {
      sources.push_back({name, tensor.dtype(), shape_in_files(tensor, layouts[i]), bytes_of(hosts.back())});
    }
  }
  checkpoint::write_safetensors(path, sources, metadata);
}

void save_weights(const std::filesystem::path& path, const nn::Module& model, ProcessGroup& group,
                  const checkpoint::Metadata& metadata) {
  on_rank0(
      "save_weights",
      [&] {
        save_weights(path, model, metadata);
        return std::string();
      },
      group);
}

checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model,
                                const checkpoint::LoadOptions& options) {
  const checkpoint::TensorFiles files(path);
  const auto parameters = model.parameters();
  const auto layouts = model.file_layouts();
  const std::vector<checkpoint::WantedTensor> wanted = wanted_by(model);
  checkpoint::LoadPlan plan = checkpoint::plan_load(files, wanted, options, "load_weights", "model");
  // All of it is read before any of it counts.
  std::vector<Tensor> hosts(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!plan.sources[i]) continue;
    hosts[i] = Tensor::empty(parameters[i].shape(), wanted[i].dtype);
    files.read(*plan.sources[i], bytes_of(hosts[i]));
    if (layouts[i] == nn::FileLayout::transposed) {
      checkpoint::transpose(bytes_of(hosts[i]), hosts[i].size(1), hosts[i].size(0), size_of(wanted[i].dtype));
    }
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    if (plan.sources[i]) parameters[i].copy_from(hosts[i]);
  }
  return std::move(plan.loaded);
}

checkpoint::Loaded load_weights(const std::filesystem::path& path, const nn::Module& model, ProcessGroup& group,
                                const checkpoint::LoadOptions& options) {
  const std::string text = on_rank0(
      "load_weights", [&] { return checkpoint::to_text(load_weights(path, model, options)); }, group);
  join_compute_stream(group);
  std::vector<BufferView> values;
  for (const Tensor& parameter : model.parameters()) values.push_back(parameter.view());
  broadcast_parameters(group, values);
  if (group.rank() != 0) {  // rank 0 copied them there
    for (const Tensor& parameter : model.parameters()) parameter.mark_written();
  }
  return checkpoint::loaded_from_text(text);
}

void save_weights(const std::filesystem::path& path, const DistributedDataParallel& ddp,
                  const checkpoint::Metadata& metadata) {
  save_weights(path, ddp.module(), *ddp.group(), metadata);
}
checkpoint::Loaded load_weights(const std::filesystem::path& path, const DistributedDataParallel& ddp,
                                const checkpoint::LoadOptions& options) {
  return load_weights(path, ddp.module(), *ddp.group(), options);
}

checkpoint::Metadata read_weights_metadata(const std::filesystem::path& path) {
  return checkpoint::TensorFiles(path).metadata();
}

}  // namespace lockstep
