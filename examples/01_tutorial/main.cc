// SPDX-License-Identifier: Apache-2.0
// 01_tutorial: PyTorch's data-parallelism tutorial, in C++ and with one process per replica.
//
// https://pytorch.org/tutorials/beginner/blitz/data_parallel_tutorial.html: a batch of 30 samples is split over the
// replicas, each says what it sees inside the model, and the outputs come together outside. Here it also trains.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include <lockstep/lockstep.h>

namespace ls = lockstep;

namespace {

constexpr std::int64_t kInputSize = 5;
constexpr std::int64_t kOutputSize = 2;
constexpr std::int64_t kBatchSize = 30;
constexpr std::int64_t kDataSize = 100;

// Normally distributed inputs, the same on every rank; the targets are the sum of each and the first less the last.
ls::data::TensorDataset random_dataset(std::int64_t size, std::int64_t length) {
  const ls::Tensor x = ls::Tensor::empty({length, size});
  const ls::Tensor y = ls::Tensor::zeros({length, kOutputSize});
  ls::Generator generator(0);
  for (std::int64_t row = 0; row < length; ++row) {
    float* in = x.data<float>() + row * size;
    float* out = y.data<float>() + row * kOutputSize;
    for (std::int64_t i = 0; i < size; ++i) out[0] += in[i] = generator.normal();
    out[1] = in[0] - in[size - 1];
  }
  return ls::data::TensorDataset(x, y);
}

struct Model : ls::nn::Module {
  ls::nn::Linear fc = register_module("fc", ls::nn::Linear(kInputSize, kOutputSize));
  std::string said;  // by the last forward

  ls::Tensor forward(const ls::Tensor& input) override {
    ls::Tensor output = fc(input);
    said = "In Model: input size " + input.shape().str() + " output size " + output.shape().str();
    return output;
  }
};

// Lines of all ranks on rank 0's stdout, in rank order: printed by each rank, they would mix.
void print_in_rank_order(ls::ProcessGroup& group, const std::string& line) {
  const std::vector<std::string> lines = ls::all_gather_text(group, line);
  if (group.rank() != 0) return;
  for (const std::string& one : lines) {
    if (!one.empty()) std::puts(one.c_str());
  }
}

void run(const std::string& out) {
  const auto group = ls::init_process_group({.device = "auto"});
  if (group->rank() == 0 && group->size() > 1) {
    const char* what = group->device().kind == ls::DeviceKind::cuda ? "GPUs" : "ranks";
    std::printf("Let's use %d %s!\n", group->size(), what);
  }
  Model model;
  model.to(group->device());
  ls::DistributedDataParallel ddp(model, group);
  ls::optim::SGD optimizer(ddp.parameters(), {.lr = 0.1});
  ls::data::DataLoader loader(random_dataset(kInputSize, kDataSize), *group, {.global_batch = kBatchSize});
  for (const ls::data::Batch& batch : loader) {
    const auto& [input, target, ids] = batch.to(group->device());
    const ls::Tensor output = ddp(input);
    ddp.backward(ls::mse_loss(output, target));
    optimizer.step();
    optimizer.zero_grad();

    print_in_rank_order(*group, ids.empty() ? "" : model.said);
    const ls::Tensor all_inputs = ls::gather_rows(input, *group);
    const ls::Tensor all_outputs = ls::gather_rows(output, *group);
    if (group->rank() == 0) {
      std::printf("Outside: input size %s output_size %s\n", all_inputs.shape().str().c_str(),
                  all_outputs.shape().str().c_str());
    }
  }
  if (!out.empty()) ls::save_weights(out, ddp);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("PyTorch's data-parallelism tutorial with lockstep.", "01_tutorial");
  std::string out;
  app.add_option("--out", out, "Write the trained weights to this file (safetensors)");
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return std::string("01_tutorial: ") + error.what() + "; see 01_tutorial --help\n";
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {  // whose own text has them in reverse
    std::fprintf(stderr, "01_tutorial: '%s' is not expected; see 01_tutorial --help\n",
                 app.remaining().front().c_str());
    return 2;
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // lines as they come, into a pipe too
  try {
    run(out);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "01_tutorial: %s\n", error.what());
    return 1;
  }
  return 0;
}
