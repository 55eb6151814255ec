// What reading a model's tensors from files may pass over, and what was passed over. One contract for load_weights and
// libtorch's load_state.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/checkpoint/tensor_files.h"

namespace lockstep {

struct LoadOptions {
  // From a name of the model's to its name in the file. Empty: the same.
  //   [](const std::string& name) { return "module." + name; }   // what PyTorch's wrappers have saved
  std::function<std::string(const std::string& name)> name_in_file = {};
  // What the file lacks keeps its value.
  bool allow_missing = false;
  // The file may hold what the model lacks.
  bool allow_unexpected = false;
  // The file may hold tensors of bool and integers that the model lacks: masks, position ids.
  bool allow_unexpected_integers = false;
};

// What was read, as PyTorch's load_state_dict(strict=False) tells it. Names in order.
struct Loaded {
  std::map<std::string, std::string> metadata;  // the file's
  std::vector<std::string> missing;             // the model's names that the file lacks
  std::vector<std::string> unexpected;          // the file's names that the model lacks
};

namespace checkpoint {

struct WantedTensor {
  std::string name;
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;  // in the file
  bool is_bool = false;             // one byte for each element: U8 of ours, or the format's BOOL
};

// Where each wanted tensor lies: names in the file, "" where it lacks one that may be missing.
struct LoadPlan {
  std::vector<std::string> sources;  // one for each wanted tensor
  Loaded loaded;
};

// Throws InvalidArgument that lists what is missing, unexpected and different, and what to do. `operation`,
// "load_weights", and `whose`, "model", are words of that message.
LoadPlan plan_load(const TensorFiles& files, std::span<const WantedTensor> wanted, const LoadOptions& options,
                   std::string_view operation, std::string_view whose);

// For a rank that reads to tell the others. from_text() throws CorruptData for what to_text() has not written.
std::string to_text(const Loaded& loaded);
Loaded loaded_from_text(const std::string& text);

}  // namespace checkpoint
}  // namespace lockstep
