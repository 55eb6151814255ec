// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/optional_value.h"

#include <algorithm>

namespace lockstep::launcher {
namespace {

// An empty word is probably an unset variable of a script; it is taken as the value, and then rejected.
bool may_be_value(const std::string& word) { return word.empty() || (word.front() >= '0' && word.front() <= '9'); }

// Returns true if the flag `word`, as written, takes the next word as its value.
bool takes_next_word(const CLI::App& app, const std::string& word) {
  const CLI::Option* const option = app.get_option_no_throw(word);  // "--flag=value" is not the name of an option
  return option != nullptr && option->get_items_expected_min() > 0;
}

}  // namespace

void complete_optional_value(const CLI::App& app, const std::vector<std::string>& names, const std::string& value,
                             std::vector<std::string>& arguments) {
  for (std::size_t i = 1; i < arguments.size() && arguments[i].size() > 1 && arguments[i].front() == '-'; ++i) {
    if (std::find(names.begin(), names.end(), arguments[i]) != names.end()) {
      if (i + 1 == arguments.size() || !may_be_value(arguments[i + 1])) {
        arguments.insert(arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, value);
      }
      ++i;
    } else if (takes_next_word(app, arguments[i])) {
      ++i;
    }
  }
}

}  // namespace lockstep::launcher
