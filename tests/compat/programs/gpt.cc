// SPDX-License-Identifier: Apache-2.0
// A GPT whose file PyTorch wrote, and that PyTorch reads: compat_gpt FOLDER. See gpt_test.py.
//
// Reads FOLDER/torch.safetensors (the weights; the sizes as metadata) and data.safetensors (tokens and targets
// [steps, rows, length], i64). Writes result.safetensors: logits and, of the first step, each parameter's gradient
// under its name, as it lies in memory; losses [steps]. Then ours.safetensors: the weights after all steps of AdamW.
#include <lockstep/lockstep.h>

#include <cstdio>
#include <filesystem>
#include <vector>

#include "examples/02_char_gpt/gpt.h"

namespace ls = lockstep;

namespace {

struct Batches {
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> tokens;

  Batches(const ls::checkpoint::SafetensorsFile& file, const std::string& name) {
    const auto& entry = file.find(name);
    shape = entry.shape;
    tokens.resize(entry.bytes / sizeof(std::int64_t));
    file.read(entry, std::as_writable_bytes(std::span(tokens)));
  }
  ls::Tensor step(std::int64_t i) const {
    const auto count = static_cast<std::size_t>(shape[1] * shape[2]);
    ls::Tensor batch = ls::Tensor::empty({shape[1], shape[2]}, ls::DType::i64);
    std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(i) * count), count,
                batch.data<std::int64_t>());
    return batch;
  }
};

class Results {
 public:
  void add(const std::string& name, const ls::Tensor& tensor) {
    const auto extents = tensor.shape().extents();
    add(name, tensor.to_vector(), {extents.begin(), extents.end()});
  }
  void add(const std::string& name, std::vector<float> values, std::vector<std::int64_t> shape) {
    values_.push_back(std::move(values));
    sources_.push_back({name, ls::DType::f32, std::move(shape), {}});
  }
  void write(const std::filesystem::path& path) {
    for (std::size_t i = 0; i < values_.size(); ++i) sources_[i].bytes = std::as_bytes(std::span(values_[i]));
    ls::checkpoint::write_safetensors(path, sources_);
  }

 private:
  std::vector<std::vector<float>> values_;
  std::vector<ls::checkpoint::TensorSource> sources_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  const std::filesystem::path folder(argv[1]);
  char_gpt::GptOptions options = char_gpt::from_metadata(ls::read_weights_metadata(folder / "torch.safetensors"));
  options.dropout = 0;
  char_gpt::Gpt model(options);
  ls::load_weights(folder / "torch.safetensors", model);
  const ls::checkpoint::SafetensorsFile data(folder / "data.safetensors");
  const Batches tokens(data, "tokens"), targets(data, "targets");
  ls::optim::AdamW optimizer(model.parameters(), {.lr = 1e-3});
  Results results;
  std::vector<float> losses;
  for (std::int64_t step = 0; step < tokens.shape[0]; ++step) {
    const ls::Tensor logits = model(tokens.step(step));
    const ls::Tensor loss = ls::cross_entropy(logits, targets.step(step));
    ls::backward(loss);
    losses.push_back(loss.item());
    if (step == 0) {
      results.add("logits", logits);
      for (const auto& [name, parameter] : model.named_parameters()) results.add(name, parameter.grad());
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  results.add("losses", losses, {static_cast<std::int64_t>(losses.size())});
  results.write(folder / "result.safetensors");
  ls::save_weights(folder / "ours.safetensors", model, char_gpt::to_metadata(options));
}
