// SPDX-License-Identifier: Apache-2.0
// Differences that a load of a model's tensors from files may pass over, and those that it did. One contract for
// load_weights and libtorch's load_state.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace lockstep::checkpoint {

struct LoadOptions {
  // From a name of the model's to its name in the file. Empty: the same. Two may have one name in the file: tied
  // weights.
  //   [](const std::string& name) { return "module." + name; }   // what PyTorch's wrappers have saved
  std::function<std::string(const std::string& name)> name_in_file = {};
  // A tensor that the file lacks keeps its value: in a job rank 0's, on every rank.
  bool allow_missing = false;
  // The file may hold what the model lacks.
  bool allow_unexpected = false;
  // The file may hold tensors of bool and integers that the model lacks: masks, position ids.
  bool allow_unexpected_integers = false;
};

// The result of a load, as PyTorch's load_state_dict(strict=False) tells it. Names in order.
struct Loaded {
  std::map<std::string, std::string> metadata;  // the file's
  std::vector<std::string> missing;             // the model's names that the file lacks
  std::vector<std::string> unexpected;          // the file's names that the model lacks
};

}  // namespace lockstep::checkpoint
