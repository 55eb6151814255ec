// SPDX-License-Identifier: Apache-2.0
// The flags of one command, a row each. The command line's parser, --help, the completion of shells and the variables
// that supply flags are made from the rows.
#pragma once

#include <CLI/App.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/flags/flag_values.h"
#include "lockstep/base/environment.h"

namespace lockstep::launcher {

// Sets what `flag` stands for to the value of `text`, never empty. Throws InvalidArgument.
using ReadFlag = std::function<void(std::string_view flag, const std::string& text)>;

// Member of the options that a flag sets: a switch, the text, the texts of a flag that may be repeated, or what a
// ReadFlag makes of the text. With an empty ReadFlag the command reads FlagTable::text() itself.
using FlagTarget = std::variant<bool*, std::string*, std::vector<std::string>*, ReadFlag>;

struct FlagExtras {
  std::string value = {};     // value of a flag that is given without one; empty: the flag needs a value
  std::string variable = {};  // variable that supplies the text if the flag is not given; empty: none
  // Flag and help in the short --help; empty: only --help-all shows the flag.
  std::pair<std::string, std::string> brief = {};
};

class FlagTable {
 public:
  // Adds flags to `app`, which must outlive the table, as must the targets.
  explicit FlagTable(CLI::App& app) : app_(app) {}

  // Begins a section of --help.
  void section(const std::string& heading) { app_.option_defaults()->group(heading); }
  // Adds a row. `names` are "--log-dir", for which --log_dir is accepted too, as by torchrun; or "-t,--tee". `form` is
  // the form of the value in --help, such as "SECONDS", and empty for a switch.
  void add(const std::string& names, const std::string& form, const std::string& help, FlagTarget target,
           FlagExtras extras = {});
  // Sets `words` to the words of the command line that are neither flags nor their values.
  void add_words(std::vector<std::string>& words) { app_.add_option("words", words)->group(""); }

  // Inserts the values of flags that are given without one, since CLI11 would take PROGRAM for the value. `arguments`
  // are the command's name and the words after it. A number or an empty word after such a flag is its value.
  void complete(std::vector<std::string>& arguments) const;

  // The functions below are for a parsed command line.

  // Returns the text of a flag, as typed or from its variable; empty: not given.
  std::string text(const std::string& flag) const;
  // Fills flags that were not given from their variables, unless `applies` returns false for the variable.
  void take_variables(const Environment& environment, const std::function<bool(std::string_view variable)>& applies);
  // Sets the targets of the flags that were given, in the order of the rows. Throws InvalidArgument.
  void read() const;
  // Returns "; the variable PET_NNODES says so" for a problem of a flag that a variable supplied; else an empty string.
  std::string source_of(std::string_view problem) const;
  // Returns the flags of the short --help, each section under its heading up to a ','.
  std::string brief_help() const;

  CLI::App& app() const { return app_; }

 private:
  struct Row {
    std::string name;  // the last of the names, which messages have
    FlagTarget target;
    FlagExtras extras;
    CLI::Option* option;
    bool is_from_variable = false;
  };

  CLI::App& app_;
  std::vector<Row> rows_;
};

// Returns "; did you mean --log-dir?" for a flag that `app` does not have, such as "--log_dri=x"; else an empty string.
std::string flag_meant(const CLI::App& app, std::string_view flag);

// Sets `target`. `parse` returns nullopt for a text that it rejects; the error is "FLAG TEXT: WANTED" then.
template <typename Target, typename Parse>
ReadFlag read_as(Target& target, Parse parse, std::string wanted) {
  return [&target, parse, wanted = std::move(wanted)](std::string_view flag, const std::string& text) {
    target = static_cast<Target>(required(parse(text), flag, text, wanted));
  };
}
template <typename Target>
ReadFlag read_seconds_above_0(Target& target) {
  return read_as(target, parse_seconds_above_0, kSecondsAbove0);
}

}  // namespace lockstep::launcher
