#include "runtime/train/weights.h"

#include <fmt/format.h>

#include <vector>

#include "runtime/base/error.h"
#include "runtime/checkpoint/fit.h"
#include "runtime/checkpoint/safetensors.h"
#include "runtime/ddp/broadcast_parameters.h"
#include "runtime/ddp/rank0.h"

namespace lockstep {
namespace {

std::span<std::byte> bytes_of(const Tensor& host) {
  const BufferView view = host.view();
  return {static_cast<std::byte*>(view.data), view.bytes()};
}

std::vector<std::int64_t> shape_of(const Tensor& tensor) {
  const auto extents = tensor.shape().extents();
  return {extents.begin(), extents.end()};
}

std::vector<checkpoint::WantedTensor> wanted_by(const std::vector<nn::NamedParameter>& parameters) {
  std::vector<checkpoint::WantedTensor> wanted;
  for (const auto& [name, tensor] : parameters) wanted.push_back({name, tensor.dtype(), shape_of(tensor)});
  return wanted;
}

}  // namespace

void save_weights(const std::filesystem::path& path, const nn::Module& model, const WeightsMetadata& metadata) {
  std::vector<Tensor> hosts;
  std::vector<checkpoint::TensorSource> sources;
  for (const auto& [name, tensor] : model.named_parameters()) {
    hosts.push_back(tensor.to(DeviceId{}));
    sources.push_back({name, tensor.dtype(), shape_of(tensor), bytes_of(hosts.back())});
  }
  checkpoint::write_safetensors(path, sources, metadata);
}

void save_weights(const std::filesystem::path& path, const nn::Module& model,
                  const std::shared_ptr<ProcessGroup>& group, const WeightsMetadata& metadata) {
  on_rank0("save_weights", *group, [&] {
    save_weights(path, model, metadata);
    return std::string();
  });
}

WeightsMetadata load_weights(const std::filesystem::path& path, const nn::Module& model) {
  const checkpoint::SafetensorsFile file(path);
  const auto parameters = model.named_parameters();
  checkpoint::require_fit(file, wanted_by(parameters), "load_weights", "model");
  // All of it is read before any of it counts.
  std::vector<Tensor> hosts;
  for (const auto& [name, tensor] : parameters) {
    hosts.push_back(Tensor::empty(tensor.shape(), tensor.dtype()));
    file.read(file.find(name), bytes_of(hosts.back()));
  }
  for (std::size_t i = 0; i < hosts.size(); ++i) parameters[i].tensor.copy_from(hosts[i]);
  return file.metadata();
}

WeightsMetadata load_weights(const std::filesystem::path& path, const nn::Module& model,
                             const std::shared_ptr<ProcessGroup>& group) {
  // The metadata travels as pairs of lines of lengths and texts: "KEYBYTES VALUEBYTES\nKEYVALUE".
  const std::string packed = on_rank0("load_weights", *group, [&] {
    std::string text;
    for (const auto& [key, value] : load_weights(path, model)) {
      text += fmt::format("{} {}\n{}{}", key.size(), value.size(), key, value);
    }
    return text;
  });
  std::vector<BufferView> values;
  for (const Tensor& parameter : model.parameters()) values.push_back(parameter.view());
  broadcast_parameters(*group, values);
  if (group->rank() != 0) {  // rank 0 copied them there
    for (const Tensor& parameter : model.parameters()) parameter.mark_written();
  }
  WeightsMetadata metadata;
  for (std::size_t at = 0; at < packed.size();) {
    std::size_t used = 0;
    const std::size_t key = std::stoul(packed.substr(at), &used);
    at += used + 1;
    const std::size_t value = std::stoul(packed.substr(at), &used);
    at += used + 1;
    metadata[packed.substr(at, key)] = packed.substr(at + key, value);
    at += key + value;
  }
  return metadata;
}

WeightsMetadata read_weights_metadata(const std::filesystem::path& path) {
  return checkpoint::SafetensorsFile(path).metadata();
}

}  // namespace lockstep
