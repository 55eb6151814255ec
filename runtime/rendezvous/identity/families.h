// SPDX-License-Identifier: Apache-2.0
// The launchers that identify() knows: a table of the variables that each sets (families.cc), with a function where
// variables are not enough (families_*.cc). To add a launcher, add a row.
#pragma once

#include <array>
#include <cstdint>
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
  Identity identity = {};      // of verdict `rank`; source is set
  std::string variables = {};  // as found: "RANK=1 WORLD_SIZE=2"
  std::string problem = {};    // why it is not an identity, and what to set; follows "init_process_group: "
};

struct Family {
  // A launcher starts ranks and nothing else. A scheduler starts tasks, which may be launchers of another family. Ranks
  // by hand are a person's word.
  enum class Kind { by_hand, launcher, scheduler };

  // The meaning of variables. If an entry names several, the first one that is set counts.
  enum class What : std::uint8_t {
    rank,
    size,
    local_rank,
    local_size,
    node_rank,
    job,   // the job's name, unique among the family's jobs
    also,  // shown in messages if set: all of them. Messages show the entries up to here, in the row's order
    restarts,
    ancestors,  // not variables: the programs that name the job (Identity::job_ancestors)
    when,       // the family is there if one of these is set; of several entries, each. Without any: rank or size
    unless,     // and not if all of these are set; of several entries, one
    source,     // not a variable: Identity::source, if it is not the family's name
    remedy,     // not a variable: what to do if half of rank and size is missing, if it is not kByHand
  };
  struct Entry {
    What what = What::also;
    std::string_view names = {};  // with spaces between
  };
  // Reads an environment that has the family. Throws InvalidArgument for bad values.
  using Reader = Reading(const Family&, const Environment&, const FileReader&);

  template <typename... Entries>
  constexpr Family(std::string_view its_name, Kind its_kind, Reader& its_reader, Entries... its_entries)
      : name(its_name), kind(its_kind), reader(its_reader), entries{its_entries...} {}

  // Nothing if the family's variables are not there. Throws InvalidArgument for bad values.
  std::optional<Reading> read(const Environment& environment, const FileReader& read_file) const;
  // The names of the first entry of that kind; empty if there is none.
  std::string_view names_of(What what) const;

  std::string_view name;
  Kind kind;
  Reader& reader;
  std::array<Entry, 13> entries;
};

// In order of precedence.
std::span<const Family> families();

}  // namespace lockstep::rendezvous
