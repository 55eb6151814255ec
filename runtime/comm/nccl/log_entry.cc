// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/log_entry.h"

#include <fmt/format.h>

#include "lockstep/base/environment.h"

namespace lockstep::nccl {
namespace {

// How many numbers an entry has at least, and how many of the first are ranks.
struct Form {
  std::size_t numbers = 0;
  std::size_t ranks = 0;
};

std::optional<Form> form_of(EntryKind kind) {
  switch (kind) {
    case EntryKind::aborted: return Form{1, 1};
    case EntryKind::called: return Form{2 + kRecordNumbers, 1};
    case EntryKind::question:
    case EntryKind::left: return Form{2, 1};
    case EntryKind::answer: return Form{3, 1};
    case EntryKind::failed: return Form{0, 0};
  }
  return std::nullopt;
}

}  // namespace

std::string write(const Entry& entry) {
  std::string result(1, static_cast<char>(entry.kind));
  for (const std::int64_t number : entry.numbers) result += fmt::format(" {}", number);
  return entry.text.empty() ? result : result + '\n' + entry.text;
}

std::optional<Entry> read(const std::string& text, int ranks) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  if (end == 0) return std::nullopt;
  Entry entry;
  entry.kind = static_cast<EntryKind>(text.front());
  const auto form = form_of(entry.kind);
  if (!form) return std::nullopt;
  std::string_view rest = std::string_view(text).substr(1, end - 1);
  while (!rest.empty()) {
    if (rest.front() != ' ') return std::nullopt;
    rest.remove_prefix(1);
    const std::size_t length = std::min(rest.find(' '), rest.size());
    const auto number = parse_int(rest.substr(0, length));
    if (!number) return std::nullopt;
    entry.numbers.push_back(*number);
    rest.remove_prefix(length);
  }
  if (entry.numbers.size() < form->numbers) return std::nullopt;
  for (std::size_t i = 0; i < form->ranks; ++i) {
    if (entry.numbers[i] < 0 || entry.numbers[i] >= ranks) return std::nullopt;
  }
  if (end < text.size()) entry.text = text.substr(end + 1);
  return entry;
}

void append(std::vector<std::int64_t>& numbers, const comm::OpRecord& record) {
  numbers.insert(numbers.end(), {static_cast<std::int64_t>(record.kind), static_cast<std::int64_t>(record.dtype),
                                 static_cast<std::int64_t>(record.op), record.weighted ? 1 : 0, record.root,
                                 record.count, record.words[0], record.note.bits()});
}

std::optional<comm::OpRecord> record_of(std::span<const std::int64_t> numbers) {
  if (numbers.size() < kRecordNumbers) return std::nullopt;
  const auto in_range = [](std::int64_t value, auto last) {
    return value >= 0 && value <= static_cast<std::int64_t>(last);
  };
  if (!in_range(numbers[0], comm::OpKind::allocate) || !in_range(numbers[1], DType::u8) ||
      !in_range(numbers[2], ReduceOp::product)) {
    return std::nullopt;
  }
  comm::OpRecord record;
  record.kind = static_cast<comm::OpKind>(numbers[0]);
  record.dtype = static_cast<DType>(numbers[1]);
  record.op = static_cast<ReduceOp>(numbers[2]);
  record.weighted = numbers[3] != 0;
  record.root = static_cast<std::int32_t>(numbers[4]);
  record.count = numbers[5];
  record.words[0] = numbers[6];
  record.note = comm::NoteOps::of_bits(static_cast<std::uint16_t>(numbers[7]));
  return record;
}

}  // namespace lockstep::nccl
