// What torch_ddp.py beside it does, by lockstep: ddp START DATA END.
#include <lockstep/libtorch.h>
#include <torch/torch.h>

#include <cstdio>

namespace {

torch::Tensor read(const lockstep::checkpoint::SafetensorsFile& file, const std::string& name) {
  const auto& entry = file.find(name);
  const torch::Tensor result = torch::empty(entry.shape);
  file.read(entry, {static_cast<std::byte*>(result.data_ptr()), result.nbytes()});
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s START DATA END\n", argv[0]);
    return 2;
  }
  torch::set_num_threads(1);
  auto group = lockstep::init_process_group();
  torch::nn::Sequential model(torch::nn::Linear(8, 16), torch::nn::BatchNorm1d(16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 2));
  lockstep::torch::load_state(argv[1], *model, group);
  lockstep::torch::DistributedDataParallel ddp(model, group);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-3));
  const lockstep::checkpoint::SafetensorsFile data(argv[2]);
  const torch::Tensor x = read(data, "x");
  const torch::Tensor y = read(data, "y");
  const int64_t rows = x.size(1) / group->size();
  for (int64_t step = 0; step < x.size(0); ++step) {
    const auto own = [&](const torch::Tensor& all) {
      return all[step].slice(0, group->rank() * rows, (group->rank() + 1) * rows);
    };
    optimizer.zero_grad();
    torch::mse_loss(ddp(own(x)), own(y)).backward();
    optimizer.step();
  }
  lockstep::torch::save_state(argv[3], *model, group);
}
