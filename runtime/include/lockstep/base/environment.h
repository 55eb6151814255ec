// SPDX-License-Identifier: Apache-2.0
// Environment is a process environment as a value, so that code which reads it can be tested without a process.
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
  // A copy of this process's environment: as the last keep_of_process() read it, or, before any such call, as it is
  // now.
  static Environment of_process();
  // Reads this process's environment, which of_process() returns from now on. init_process_group() calls it: during
  // that call no other thread of the program may call setenv(); afterwards any may.
  static Environment keep_of_process();

  // The value; nullopt if it is unset. An empty value counts as unset, as in most launchers.
  std::optional<std::string> get(std::string_view name) const;
  // The value as a decimal integer; nullopt if it is unset. Throws InvalidArgument, with name and value, if it is set
  // and not an integer.
  std::optional<std::int64_t> get_int(std::string_view name) const;
  bool has(std::string_view name) const { return get(name).has_value(); }
  void set(std::string name, std::string value) { variables_[std::move(name)] = std::move(value); }
  const std::map<std::string, std::string, std::less<>>& variables() const { return variables_; }

 private:
  std::map<std::string, std::string, std::less<>> variables_;
};

// Converts the whole of a decimal text to an integer; nullopt if the text is not one or does not fit.
LOCKSTEP_API std::optional<std::int64_t> parse_int(std::string_view text);

}  // namespace lockstep
