// SPDX-License-Identifier: Apache-2.0
// What goes wrong, and when: LOCKSTEP_FAKE_CUDA. fake_cuda.h has the form of a rule.
//
// Threads: the caller's lock.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::fake_cuda {

struct Effect {
  enum class Kind { none, error, skip, wait };
  Kind kind = Kind::none;
  cudaError_t error = cudaSuccess;
};

class Rules {
 public:
  // Several, separated by ';'. Throws std::invalid_argument with the rule and what is wanted.
  void add(std::string_view text);
  void clear() { rules_.clear(); }
  // Counts a call, or an operation ("operation"), and says what happens to it.
  Effect count(std::string_view name);
  std::int64_t counted(std::string_view name) const;

 private:
  struct Rule {
    std::string name;
    Effect effect;
    std::int64_t first = 1;
    std::int64_t last = 0;
  };
  std::vector<Rule> rules_;
  std::map<std::string, std::int64_t, std::less<>> counts_;
};

}  // namespace lockstep::fake_cuda
