// SPDX-License-Identifier: Apache-2.0
#include "launcher/flags/help_format.h"

#include <fmt/format.h>

#include <utility>

#include "launcher/flags/help_text.h"
#include "runtime/base/text.h"

namespace lockstep::launcher {
namespace {

constexpr std::size_t kNameColumns = 26;

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kNameColumns); }
  // torchrun accepts both spellings of its long flags, so both are accepted here.
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return CLI::Formatter::make_option_name(option, is_positional);
    std::string text;
    for (const auto& name : option->get_snames()) text += (text.empty() ? "-" : ",-") + name;
    for (const auto& name : option->get_lnames()) {
      if (name.find('_') == std::string::npos) text += (text.empty() ? "--" : ",--") + name;
    }
    return text;
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description(), kHelpColumns - kNameColumns);
  }
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    return CLI::detail::find_and_replace(CLI::Formatter::make_help(app, std::move(name), mode), "\n\n\n", "\n\n");
  }
  std::string make_usage(const CLI::App* app, std::string) const override {
    return fmt::format("Usage: lockstep {}\n", help_of(app->get_name()).form);
  }
};

}  // namespace

std::shared_ptr<CLI::FormatterBase> help_formatter() { return std::make_shared<HelpFormatter>(); }

std::string wrapped(std::string_view text, std::size_t columns) {
  std::string lines;
  std::size_t begin = 0;  // start of the current line
  while (!text.empty()) {
    const std::string_view word = take_word(text);
    if (!lines.empty()) lines += lines.size() - begin + 1 + word.size() > columns ? '\n' : ' ';
    if (lines.ends_with('\n')) begin = lines.size();
    lines += word;
  }
  return lines;
}

}  // namespace lockstep::launcher
