// SPDX-License-Identifier: Apache-2.0
// Measures the processor time of reading files of many small tensors; benchmarks/run_files calls it. Each mode prints
// seconds, if any:
//
//   bench_files write FILE TENSORS       a safetensors file of so many
//   bench_files load FILE                its tensors, all of them, in memory
//   bench_files save FOLDER TENSORS      a snapshot of a model of so many parameters, with AdamW
//   bench_files restore FOLDER TENSORS   Snapshots::restore() of it
#include <fmt/format.h>

#include <ctime>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/lockstep.h"

namespace {

namespace ls = lockstep;

// Processor time of this process.
double seconds_since(std::clock_t begin) { return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC; }

void write(const std::string& file, std::size_t tensors) {
  const std::vector<float> values(4, 1.0f);
  std::vector<ls::checkpoint::TensorSource> sources;
  for (std::size_t i = 0; i < tensors; ++i) {
    sources.push_back({fmt::format("model.layers.{}.self_attn.q_proj.weight", i),
                       ls::DType::f32,
                       {2, 2},
                       std::as_bytes(std::span(values))});
  }
  ls::checkpoint::write_safetensors(file, sources);
}

void load(const std::string& path) {
  const std::clock_t begin = std::clock();
  const ls::checkpoint::SafetensorsFile file(path);
  std::vector<std::vector<std::byte>> tensors;
  for (const auto& [name, entry] : file.tensors()) file.read(entry, tensors.emplace_back(entry.bytes));
  fmt::print("{:.6f}\n", seconds_since(begin));
}

void snapshot(const std::string& folder, int tensors, bool saves) {
  const auto group = ls::init_process_group();
  ls::nn::Sequential model;
  for (int i = 0; i < tensors / 2; ++i) model.append(ls::nn::Linear(1, 1));
  ls::DistributedDataParallel ddp(model, group);
  ls::optim::AdamW optimizer(ddp.parameters(), {.lr = 1e-4});
  ls::Snapshots snapshots(folder, ddp, {.rescue = false});
  snapshots.add("optimizer", optimizer);
  const std::clock_t begin = std::clock();
  snapshots.restore();
  if (!saves) fmt::print("{:.6f}\n", seconds_since(begin));
  if (saves) snapshots.save("to be restored");
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  if (words.size() == 2 && words[0] == "load") {
    load(words[1]);
  } else if (words.size() == 3 && words[0] == "write") {
    write(words[1], std::stoul(words[2]));
  } else if (words.size() == 3) {
    snapshot(words[1], std::stoi(words[2]), words[0] == "save");
  } else {
    return 2;
  }
  return 0;
}
