// SPDX-License-Identifier: Apache-2.0
// Environment is a copy of a process environment: tests can pass variables to code without a process of their own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API Environment {
 public:
  Environment() = default;
  explicit Environment(std::map<std::string, std::string, std::less<>> variables) : variables_(std::move(variables)) {}
  // Returns a copy of this process's environment as the last keep_of_process() read it. Before the first
  // keep_of_process(), returns the current environment.
  static Environment of_process();
  // Reads this process's environment, which of_process() returns from now on. init_process_group() calls
  // keep_of_process(): no thread of the program may call setenv() during init_process_group(); afterwards any
  // thread may.
  static Environment keep_of_process();

  // Returns the value of the variable, or nullopt if the variable is unset. An empty value counts as unset, as in
  // most launchers.
  std::optional<std::string> get(std::string_view name) const;
  // Returns the value as a decimal integer, or nullopt if the variable is unset. Throws InvalidArgument, which holds
  // name and value, if the value is not an integer.
  std::optional<std::int64_t> get_int(std::string_view name) const;
  bool has(std::string_view name) const { return get(name).has_value(); }
  void set(std::string name, std::string value) { variables_[std::move(name)] = std::move(value); }
  const std::map<std::string, std::string, std::less<>>& variables() const { return variables_; }

 private:
  std::map<std::string, std::string, std::less<>> variables_;
};

// Converts the whole of a decimal text to an integer. Returns nullopt if the text is not an integer or the integer does
// not fit.
LOCKSTEP_API std::optional<std::int64_t> parse_int(std::string_view text);

}  // namespace lockstep
