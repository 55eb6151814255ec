// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/flag_table.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

namespace lockstep::launcher {
namespace {

// Returns "--log-dir,--log_dir" for "--log-dir".
std::string spellings(const std::string& names) {
  const auto at = names.find("--");
  if (at == names.npos) return names;
  std::string other = names.substr(at);
  std::replace(other.begin() + 2, other.end(), '-', '_');
  return names.substr(at) == other ? names : fmt::format("{},{}", names, other);
}

// An empty value is treated as an unset variable of a script, as in --log-dir "$LOGS", not as a wish for the default.
std::string empty_value(const std::string& text) {
  return text.empty() ? "its value is empty; give one, or leave the flag out" : "";
}

}  // namespace

void FlagTable::add(const std::string& names, const std::string& form, const std::string& help, FlagTarget target,
                    FlagExtras extras) {
  CLI::Option* option = nullptr;
  if (bool* const* const on = std::get_if<bool*>(&target)) {
    option = app_.add_flag(spellings(names), **on, help);
  } else if (auto* const* const texts = std::get_if<std::vector<std::string>*>(&target)) {
    option = app_.add_option(names, **texts, help)->option_text(form)->allow_extra_args(false);
  } else {
    option = app_.add_option(spellings(names), CLI::callback_t(), help)->option_text(form)->check(empty_value);
  }
  const auto comma = names.find(',');
  rows_.push_back(
      {comma == names.npos ? names : names.substr(comma + 1), std::move(target), std::move(extras), option});
}

void FlagTable::complete(std::vector<std::string>& arguments) const {
  for (std::size_t i = 1; i < arguments.size() && arguments[i].size() > 1 && arguments[i].front() == '-'; ++i) {
    const CLI::Option* const option = app_.get_option_no_throw(arguments[i]);  // null for "--flag=value"
    if (option == nullptr || option->get_items_expected_min() == 0) continue;
    const auto row = std::ranges::find(rows_, option, &Row::option);
    const auto next = arguments.begin() + static_cast<std::ptrdiff_t>(++i);
    // An empty word is probably an unset variable of a script; it is taken as the value, and then rejected.
    const bool has_value = next != arguments.end() && (next->empty() || (next->front() >= '0' && next->front() <= '9'));
    if (!has_value && row != rows_.end() && !row->extras.value.empty()) arguments.insert(next, row->extras.value);
  }
}

std::string FlagTable::text(const std::string& flag) const {
  const CLI::Option* const option = app_.get_option_no_throw(flag);
  return option == nullptr || option->empty() ? "" : option->results().front();
}

void FlagTable::take_variables(const Environment& environment,
                               const std::function<bool(std::string_view variable)>& applies) {
  for (Row& row : rows_) {
    const auto value = environment.get(row.extras.variable);
    if (!value || !row.option->empty() || !applies(row.extras.variable)) continue;
    row.option->add_result(*value);
    row.is_from_variable = true;
  }
}

void FlagTable::read() const {
  for (const Row& row : rows_) {
    if (row.option->empty()) continue;
    const std::string& text = row.option->results().front();
    if (std::string* const* const target = std::get_if<std::string*>(&row.target)) **target = text;
    if (const auto* read = std::get_if<ReadFlag>(&row.target); read != nullptr && *read) (*read)(row.name, text);
  }
}

std::string FlagTable::source_of(std::string_view problem) const {
  for (const Row& row : rows_) {
    if (row.is_from_variable && problem.starts_with(row.name) && !problem.substr(row.name.size()).starts_with('-')) {
      return fmt::format("; the variable {} says so", row.extras.variable);
    }
  }
  return {};
}

std::string FlagTable::brief_help() const {
  std::string help;
  std::string last;
  for (const Row& row : rows_) {
    const auto& [form, text] = row.extras.brief;
    if (form.empty()) continue;
    const std::string section = row.option->get_group();
    const std::string heading = section.substr(0, section.find(','));
    if (heading != last) help += heading + ":\n";
    help += fmt::format("  {:<23} {}\n", form, text);
    last = heading;
  }
  return help;
}

std::string flag_meant(const CLI::App& app, std::string_view flag) {
  std::string word(flag.substr(0, flag.find('=')));
  if (!word.starts_with("--")) return {};
  std::replace(word.begin(), word.end(), '_', '-');
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return meant(word, std::vector<std::string_view>(flags.begin(), flags.end()));
}

}  // namespace lockstep::launcher
