// SPDX-License-Identifier: Apache-2.0
// Small records as text: lines "name value", so that people can read them too. A line's end in a value is written as
// "\n", a backslash as "\\".
//
// A record's fields are listed once, in a function that writes and reads alike:
//
//   constexpr auto kFields = [](auto& claim, auto& fields) {
//     fields.kind("claim");
//     fields("rank", claim.rank, 0);
//     fields.list("groups", claim.groups);
//     fields.list("peers", claim.peers, kPeerFields);
//   };
//   write_record(claim, kFields);               // "lockstep claim\nrank 3\ngroups 1:03:all\npeers ...\n"
//   read_record<Claim>(text, kFields);          // nullopt if the text is not a claim
//   require_record<Claim>(text, kFields, who);  // CorruptData if it is not
//
// A reader takes the fields in the order of the list and passes over lines of other names, which another build may
// have. Text from outside is read: whatever it is, the answer is a record or nullopt. Pure; any thread.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/text.h"

namespace lockstep {

// A list of texts as one text, "5:first6:second", whatever the texts hold; and back, nullopt if it is not one.
LOCKSTEP_INTERNAL_API std::string write_texts(std::span<const std::string> texts);
LOCKSTEP_INTERNAL_API std::optional<std::vector<std::string>> read_texts(std::string_view packed);
// The list that another process wrote, as require_record() below.
LOCKSTEP_INTERNAL_API std::vector<std::string> require_texts(std::string_view packed, std::string_view what);

// A text as one line, without its end, and back.
LOCKSTEP_INTERNAL_API std::string escaped(std::string_view text);
LOCKSTEP_INTERNAL_API std::string unescaped(std::string_view line);

template <typename Record, typename EachField>
std::string write_record(const Record& record, EachField each_field);
// Whether the text was a record.
template <typename Record, typename EachField>
bool read_record(std::string_view text, Record& record, EachField each_field);

class LOCKSTEP_INTERNAL_API RecordWriter {
 public:
  // The first line, which tells this kind of record from every other.
  void kind(std::string_view kind) { line("lockstep", kind); }
  void operator()(std::string_view name, std::string_view text) { line(name, text); }
  // A text that may have lines, as others may not: what is read is shown on terminals.
  void lines(std::string_view name, std::string_view text) { line(name, text); }
  template <Number N>
  void operator()(std::string_view name, N number, N = {}, N = {}) {
    line(name, text_of(number));
  }
  // An enum as its number.
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void operator()(std::string_view name, Enum value, Enum) { line(name, text_of(static_cast<int>(value))); }
  // A number; the value of nullopt is empty.
  template <Number N>
  void operator()(std::string_view name, std::optional<N> number) {
    line(name, number ? text_of(*number) : std::string());
  }
  template <typename Value, typename ToText, typename FromText>
  void operator()(std::string_view name, const Value& value, ToText to_text, FromText) {
    line(name, to_text(value));
  }
  // A text that a reader can do without.
  void optional(std::string_view name, std::string_view text) { line(name, text); }
  // A record within this one.
  template <typename Record, typename EachField>
  void record(std::string_view name, const Record& record, EachField each_field) {
    line(name, write_record(record, each_field));
  }
  // Texts or numbers, in any container.
  template <typename Items>
  void list(std::string_view name, const Items& items) {
    std::vector<std::string> texts;
    for (const auto& item : items) {
      if constexpr (Number<typename Items::value_type>) {
        texts.push_back(text_of(item));
      } else {
        texts.push_back(item);
      }
    }
    line(name, write_texts(texts));
  }
  // Records.
  template <typename Items, typename EachField>
  void list(std::string_view name, const Items& items, EachField each_field) {
    std::vector<std::string> texts;
    for (const auto& item : items) texts.push_back(write_record(item, each_field));
    line(name, write_texts(texts));
  }

  std::string take() { return std::move(text_); }

 private:
  void line(std::string_view name, std::string_view value);

  std::string text_;
};

class LOCKSTEP_INTERNAL_API RecordReader {
 public:
  explicit RecordReader(std::string_view text) : rest_(text) {}

  void kind(std::string_view kind);
  // A line's end in the text is read as '?'.
  void operator()(std::string_view name, std::string& text);
  void lines(std::string_view name, std::string& text);
  // A number from `low` to `high`.
  template <Number N>
  void operator()(std::string_view name, N& number, N low = std::numeric_limits<N>::lowest(),
                  N high = std::numeric_limits<N>::max()) {
    const auto text = take(name);
    const auto read = text ? number_of<N>(*text) : std::nullopt;
    good_ = read && *read >= low && *read <= high;
    if (good_) number = *read;
  }
  // An enum whose numbers end with `last`.
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void operator()(std::string_view name, Enum& value, Enum last) {
    int number = 0;
    (*this)(name, number, 0, static_cast<int>(last));
    value = static_cast<Enum>(number);
  }
  template <Number N>
  void operator()(std::string_view name, std::optional<N>& number) {
    const auto text = take(name);
    number = text && !text->empty() ? number_of<N>(*text) : std::nullopt;
    good_ = text && (text->empty() || number);
  }
  // A value from from_text(std::string_view), which throws InvalidArgument for a text that is not one.
  template <typename Value, typename ToText, typename FromText>
  void operator()(std::string_view name, Value& value, ToText, FromText from_text) {
    try {
      if (const auto text = take(name)) value = from_text(std::string_view(*text));
    } catch (const InvalidArgument&) {
      good_ = false;
    }
  }
  void optional(std::string_view name, std::string& text);
  template <typename Record, typename EachField>
  void record(std::string_view name, Record& record, EachField each_field) {
    const auto text = take(name);
    good_ = text && read_record(*text, record, each_field);
  }
  template <typename Items>
  void list(std::string_view name, Items& items) {
    for (std::string& text : take_list(name)) {
      if constexpr (Number<typename Items::value_type>) {
        const auto number = number_of<typename Items::value_type>(text);
        good_ = good_ && number;
        items.insert(items.end(), number.value_or(0));
      } else {
        items.insert(items.end(), std::move(text));
      }
    }
  }
  template <typename Items, typename EachField>
  void list(std::string_view name, Items& items, EachField each_field) {
    for (const std::string& text : take_list(name)) {
      good_ = good_ && read_record(text, items.emplace_back(), each_field);
    }
  }

  // The value of the next line of that name. Without one: nothing, and good() is false from then on.
  std::optional<std::string> take(std::string_view name);
  // Whether all fields were there until now.
  bool good() const { return good_; }
  bool at_end() const { return good_ && rest_.empty(); }
  // Whether the rest is lines of other names.
  bool complete() const { return good_ && (rest_.empty() || rest_.back() == '\n'); }

 private:
  std::vector<std::string> take_list(std::string_view name);

  std::string_view rest_;
  bool good_ = true;
};

template <typename Record, typename EachField>
std::string write_record(const Record& record, EachField each_field) {
  RecordWriter fields;
  each_field(record, fields);
  return fields.take();
}

template <typename Record, typename EachField>
bool read_record(std::string_view text, Record& record, EachField each_field) {
  RecordReader fields(text);
  each_field(record, fields);
  return fields.complete();
}

template <typename Record, typename EachField>
std::optional<Record> read_record(std::string_view text, EachField each_field) {
  Record record;
  return read_record(text, record, each_field) ? std::optional(std::move(record)) : std::nullopt;
}

// Throws CorruptData: "WHAT: got 12 bytes that can't be read; run the same build of lockstep on all ranks".
[[noreturn]] LOCKSTEP_INTERNAL_API void refuse_record(std::string_view what, std::size_t bytes);

// The record that another process wrote. `what` says what it is, and whose.
template <typename Record, typename EachField>
Record require_record(std::string_view text, EachField each_field, std::string_view what) {
  if (auto record = read_record<Record>(text, each_field)) return *std::move(record);
  refuse_record(what, text.size());
}

// A list of records as one text, and back.
template <typename Record, typename EachField>
std::string write_records(const std::vector<Record>& records, EachField each_field) {
  RecordWriter fields;
  fields.list("records", records, each_field);
  return fields.take();
}
template <typename Record, typename EachField>
std::vector<Record> require_records(std::string_view text, EachField each_field, std::string_view what) {
  std::vector<Record> records;
  RecordReader fields(text);
  fields.list("records", records, each_field);
  if (!fields.at_end()) refuse_record(what, text.size());
  return records;
}

}  // namespace lockstep
