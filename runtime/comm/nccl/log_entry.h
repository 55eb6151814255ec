// SPDX-License-Identifier: Apache-2.0
// An entry of the ranks' log (store_log.h): a letter, numbers, and a text behind a line break if there is one.
// "C 2 17 1 0 0 1 0 1000 32 0". Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/op_record.h"

namespace lockstep::nccl {

enum class EntryKind : char {
  called = 'C',    // rank, sequence, record: comes to a collective; where collectives are checked
  failed = 'F',    // text: the group's Cause (job/cause.h)
  question = 'Q',  // rank, sequence: where is everybody?
  answer = 'A',    // rank, last sequence, sequence asked for, record if it is known: so far
  left = 'L',      // rank, last sequence, then for each rank that it had messages with: that, sent, received: goodbye
  aborted = 'X',   // rank: has not waited for the others' goodbye
};

struct Entry {
  EntryKind kind = EntryKind::failed;
  std::vector<std::int64_t> numbers = {};
  std::string text = {};

  std::int64_t at(std::size_t index) const { return numbers[index]; }
  int rank() const { return static_cast<int>(numbers[0]); }
};

std::string write(const Entry& entry);
// Nothing if the text is not an entry, or a rank is not below `ranks`.
std::optional<Entry> read(const std::string& text, int ranks);

// A record as numbers, and back; `numbers` has as many as append() appends.
inline constexpr std::size_t kRecordNumbers = 8;
void append(std::vector<std::int64_t>& numbers, const comm::OpRecord& record);
std::optional<comm::OpRecord> record_of(std::span<const std::int64_t> numbers);

}  // namespace lockstep::nccl
