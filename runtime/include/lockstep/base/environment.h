// SPDX-License-Identifier: Apache-2.0
// An Environment is a copy of a process's environment variables, so that tests can give variables to a function without
// starting a process.
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
  // Returns a copy of the environment variables that the last call of keep_of_process() read. Before the first call of
  // keep_of_process(), returns a copy of the current environment.
  static Environment of_process();
  // Reads this process's environment and keeps a copy, which of_process() returns from then on. Because
  // init_process_group() calls keep_of_process(), no thread of the program may call setenv() during
  // init_process_group(). After init_process_group() has returned, any thread may call setenv().
  static Environment keep_of_process();

  // Returns the value of the variable, or nullopt if the variable is unset. A variable with an empty value counts as
  // unset, because most launchers treat empty values as unset.
  std::optional<std::string> get(std::string_view name) const;
  // Returns the variable's value, converted to an integer, or nullopt if the variable is unset. Throws InvalidArgument
  // if the value is not a decimal integer; the message holds the variable's name and value.
  std::optional<std::int64_t> get_int(std::string_view name) const;
  bool has(std::string_view name) const { return get(name).has_value(); }
  void set(std::string name, std::string value) { variables_[std::move(name)] = std::move(value); }
  const std::map<std::string, std::string, std::less<>>& variables() const { return variables_; }

 private:
  std::map<std::string, std::string, std::less<>> variables_;
};

// Converts a decimal text, such as "-12", to an integer. Returns nullopt if `text` is not a decimal integer, or if the
// integer does not fit into 64 bits.
LOCKSTEP_API std::optional<std::int64_t> parse_int(std::string_view text);

}  // namespace lockstep
