// SPDX-License-Identifier: Apache-2.0
// A word that a rank of a group over NCCL says to all of them, itself among them, in the group's scope
// (membership/scopes.h). A record (base/record.h). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/op_record.h"

namespace lockstep::nccl {

struct GroupWord {
  enum class Kind : std::uint8_t {
    called,    // has called the collective `sequence`, as `record`; where collectives are checked
    question,  // where is everybody, who are to come to the collective `sequence`?
    answer,    // has started `last`; `record` is that of `sequence`, if it is known
    left,      // goodbye after `last` and after these `messages`
    aborted,   // has not waited for the others' goodbye
  };
  Kind kind = Kind::called;
  int rank = 0;  // that says it
  std::int64_t last = 0;
  std::int64_t sequence = 0;
  bool has_record = false;
  comm::OpRecord record = {};
  std::vector<std::string> messages = {};  // for each rank that it had some with: that, sent, received
};

std::string encode(const GroupWord& word);
// Nothing if the text is not a word, or not of a rank below `ranks`.
std::optional<GroupWord> decode_word(std::string_view text, int ranks);

}  // namespace lockstep::nccl
