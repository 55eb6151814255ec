// SPDX-License-Identifier: Apache-2.0
// optimizers IN OUT CLASS [OPTION=VALUE...]: the steps of a fused optimizer, for python_optimizers_test.py.
//
// IN: parameters "p0", "p1", ... and their gradients "g0", ... of [steps, shape of the parameter]; all of one dtype.
// OUT: the parameters after the steps. Options are torch's, and scale=SCALE: gradients are multiplied by the scale of a
// GradScaler, which grows every ten steps, and unscaled by it. Exit code 77 where LibTorch has no fused operators.
#include <lockstep/libtorch.h>
#include <torch/torch.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

using Options = std::map<std::string, double>;

torch::Tensor read(const lockstep::checkpoint::SafetensorsFile& file, const std::string& name) {
  const auto& entry = file.find(name);
  const bool is_narrow = entry.dtype == lockstep::DType::bf16;
  const torch::Tensor result = torch::empty(entry.shape, is_narrow ? torch::kBFloat16 : torch::kFloat);
  file.read(entry, {static_cast<std::byte*>(result.data_ptr()), result.nbytes()});
  return result;
}

double get(const Options& options, const std::string& name, double otherwise) {
  const auto found = options.find(name);
  return found == options.end() ? otherwise : found->second;
}

template <typename Fused, typename FusedOptions>
std::unique_ptr<torch::optim::Optimizer> adam(const std::vector<torch::Tensor>& parameters, const Options& options) {
  FusedOptions those(options.at("lr"));
  those.betas({get(options, "beta1", 0.9), get(options, "beta2", 0.999)}).eps(get(options, "eps", 1e-8));
  those.weight_decay(get(options, "weight_decay", 0)).amsgrad(get(options, "amsgrad", 0) != 0);
  return std::make_unique<Fused>(parameters, those);
}

std::unique_ptr<torch::optim::Optimizer> make(const std::string& name, const std::vector<torch::Tensor>& parameters,
                                              const Options& options) {
  if (name == "AdamW") return adam<lockstep::libtorch::FusedAdamW, torch::optim::AdamWOptions>(parameters, options);
  if (name == "Adam") return adam<lockstep::libtorch::FusedAdam, torch::optim::AdamOptions>(parameters, options);
  torch::optim::SGDOptions those(options.at("lr"));
  those.momentum(get(options, "momentum", 0)).dampening(get(options, "dampening", 0));
  those.weight_decay(get(options, "weight_decay", 0)).nesterov(get(options, "nesterov", 0) != 0);
  return std::make_unique<lockstep::libtorch::FusedSGD>(parameters, those);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: %s IN OUT CLASS [OPTION=VALUE...]\n", argv[0]);
    return 2;
  }
  Options options;
  for (int i = 4; i < argc; ++i) {
    const std::string word = argv[i];
    options[word.substr(0, word.find('='))] = std::stod(word.substr(word.find('=') + 1));
  }
  torch::set_num_threads(1);
  const lockstep::checkpoint::SafetensorsFile in(argv[1]);
  torch::nn::Module module;
  std::vector<torch::Tensor> parameters, gradients;
  for (std::size_t i = 0; in.tensors().size() > 2 * i; ++i) {
    const std::string number = std::to_string(i);
    parameters.push_back(module.register_parameter("p" + number, read(in, "p" + number)));
    gradients.push_back(read(in, "g" + number));
  }
  const auto optimizer = make(argv[3], parameters, options);
  if (!dynamic_cast<lockstep::libtorch::FusedOptimizer&>(*optimizer).is_fused()) return 77;
  lockstep::libtorch::GradScaler scaler(
      {.init_scale = get(options, "scale", 1), .growth_interval = 10, .enabled = options.contains("scale")});
  for (int64_t step = 0; step < gradients[0].size(0); ++step) {
    scaler.scale(torch::zeros({}));  // as a loss would be
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].mutable_grad() = gradients[i][step] * scaler.get_scale();
    }
    scaler.step(*optimizer);
    scaler.update();
  }
  lockstep::libtorch::save_weights(argv[2], module);
}
