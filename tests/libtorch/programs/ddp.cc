// SPDX-License-Identifier: Apache-2.0
// What torch_ddp.py beside it does, by lockstep: ddp START DATA END, or with data of its own, and perhaps with
// gradients that travel as bfloat16: ddp --backend NAME END [bf16].
#include <lockstep/libtorch.h>
#include <torch/torch.h>

#include <cstdio>
#include <string>

namespace {

torch::Tensor read(const lockstep::checkpoint::SafetensorsFile& file, const std::string& name) {
  const auto& entry = file.find(name);
  const torch::Tensor result = torch::empty(entry.shape);
  file.read(entry, {static_cast<std::byte*>(result.data_ptr()), result.nbytes()});
  return result;
}

int usage(const char* program) {
  std::fprintf(stderr, "usage: %s START DATA END, or %s --backend NAME END [bf16]\n", program, program);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_own_data = argc > 1 && std::string(argv[1]) == "--backend";
  const bool is_compressed = has_own_data && argc == 5 && std::string(argv[4]) == "bf16";
  if (argc != 4 && !is_compressed) return usage(argv[0]);
  torch::set_num_threads(1);
  torch::manual_seed(3);
  auto group = lockstep::init_process_group({.backend = has_own_data ? argv[2] : "auto"});
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 2));
  torch::Tensor x;
  torch::Tensor y;
  if (has_own_data) {
    x = torch::randn({20, 12, 8});
    y = torch::randn({20, 12, 2});
  } else {
    lockstep::libtorch::load_weights(argv[1], *model, *group);
    const lockstep::checkpoint::SafetensorsFile data(argv[2]);
    x = read(data, "x");
    y = read(data, "y");
  }
  lockstep::libtorch::DdpOptions options;
  if (is_compressed) options.comm_hook = lockstep::bf16_compress_hook();
  lockstep::libtorch::DistributedDataParallel ddp(model, group, options);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3));
  const int64_t rows = x.size(1) / group->size();
  for (int64_t step = 0; step < x.size(0); ++step) {
    const auto own = [&](const torch::Tensor& all) {
      return all[step].slice(0, group->rank() * rows, (group->rank() + 1) * rows);
    };
    optimizer.zero_grad();
    torch::mse_loss(ddp(own(x)), own(y)).backward();
    optimizer.step();
  }
  lockstep::libtorch::save_weights(argv[3], *model, *group);
}
