// SPDX-License-Identifier: Apache-2.0
// The launchers that identify() knows, one reader each. To add one, write a reader (family_readers.h) and add it to the
// table.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/rendezvous/identity/identity.h"

namespace lockstep::rendezvous {

// The identity that one family of variables states.
struct Reading {
  enum class Verdict {
    rank,        // `identity` is this process's
    incomplete,  // a launcher started this process, and what it said is not enough: `problem`
    no_rank,     // these variables are there and make this process no rank of theirs, for example in a batch script
  };
  Verdict verdict = Verdict::rank;
  Identity identity;      // of verdict `rank`; source is set
  std::string variables;  // as found: "RANK=1 WORLD_SIZE=2"
  std::string problem;    // why it is no identity and what to set; follows "who am I: "
};

struct Family {
  // A launcher starts ranks and nothing else. A scheduler starts tasks, which may be launchers of another family. Ranks
  // by hand are a person's word.
  enum class Kind { by_hand, launcher, scheduler };

  std::string_view name;
  Kind kind;
  // Nothing if none of the variables that betray this launcher is set. Throws InvalidArgument for bad values.
  std::optional<Reading> (*read)(const Environment&, const FileReader&);
};

// In order of precedence.
std::span<const Family> families();

}  // namespace lockstep::rendezvous
