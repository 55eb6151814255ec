// The launchers that identify() knows, one reader each. To add one, write a reader and add it to the table.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/rendezvous/identity.h"

namespace lockstep::rendezvous {

// What one family of variables says.
struct Reading {
  Identity identity;      // meaningful if `problem` is empty; source is set
  std::string variables;  // as found: "RANK=1 WORLD_SIZE=2"
  std::string problem;    // why it is no identity and what to set, or empty; follows "who am I: "
};

struct Family {
  std::string_view name;
  // Nothing if none of the variables that betray this launcher is set. Throws InvalidArgument for bad values.
  std::optional<Reading> (*read)(const Environment&);
};

// In order of precedence.
std::span<const Family> families();

// "RANK=1 WORLD_SIZE=2": those of `names` that are set, for messages.
std::string list_set(const Environment& environment, std::span<const std::string_view> names);

}  // namespace lockstep::rendezvous
