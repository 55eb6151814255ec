// SPDX-License-Identifier: Apache-2.0
// Small records as text: lines "name value", so that people can read them too.
//
// A record's fields are listed once, in a function that writes and reads alike:
//
//   constexpr auto kFields = [](auto& claim, auto& fields) {
//     fields.kind("claim 2");
//     fields("rank", claim.rank, 0);
//   };
//   write_record(claim, kFields);          // "lockstep claim 2\nrank 3\n"
//   read_record<Claim>(text, kFields);     // nullopt if the text is not a claim
//
// A reader takes the fields in the order of the list and passes over lines of other names, which a later version may
// have. Text from outside is read: whatever it is, the answer is a record or nullopt. Pure; any thread.
#pragma once

#include <concepts>
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

namespace lockstep {

// A list of texts as one text, "5:first6:second", whatever the texts hold; and back, nullopt if it is not one.
LOCKSTEP_INTERNAL_API std::string write_texts(std::span<const std::string> texts);
LOCKSTEP_INTERNAL_API std::optional<std::vector<std::string>> read_texts(std::string_view packed);

// An item of RecordWriter::items() as one text, and back: false if the text is not an item. A folder may have more of
// these, beside its own types.
inline std::string packed(const std::string& text) { return text; }
inline std::string packed(const std::vector<std::string>& texts) { return write_texts(texts); }
LOCKSTEP_INTERNAL_API bool unpack(std::string_view packed, std::string& text);
LOCKSTEP_INTERNAL_API bool unpack(std::string_view packed, std::vector<std::string>& texts);

class LOCKSTEP_INTERNAL_API RecordWriter {
 public:
  // The first line, which tells this kind of record, and its version, from every other.
  void kind(std::string_view kind) { line("lockstep", kind); }
  // A line's end in the text becomes '?'.
  void operator()(std::string_view name, std::string_view text) { line(name, text); }
  template <std::integral Number>
  void operator()(std::string_view name, Number number, Number = {}, Number = {}) {
    line(name, std::to_string(number));
  }
  // An enum as its number.
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void operator()(std::string_view name, Enum value, Enum) { line(name, std::to_string(static_cast<int>(value))); }
  // A number from 0 up; nullopt is written as -1.
  void operator()(std::string_view name, std::optional<std::int64_t> number) {
    line(name, std::to_string(number.value_or(-1)));
  }
  template <typename Value, typename ToText, typename FromText>
  void operator()(std::string_view name, const Value& value, ToText to_text, FromText) {
    line(name, to_text(value));
  }
  // A text that a reader can do without.
  void optional(std::string_view name, std::string_view text) { line(name, text); }
  // The last field, which may have lines.
  void rest(std::string_view name, std::string_view text);
  // Several items instead, such as texts and lists of texts, which may have lines too.
  template <typename... Items>
  void items(std::string_view name, const Items&... items) {
    rest(name, write_texts(std::vector<std::string>{packed(items)...}));
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
  void operator()(std::string_view name, std::string& text);
  // A number from `low` to `high`.
  template <std::integral Number>
  void operator()(std::string_view name, Number& number, Number low = std::numeric_limits<Number>::min(),
                  Number high = std::numeric_limits<Number>::max()) {
    static_assert(sizeof(Number) < sizeof(std::int64_t) || std::signed_integral<Number>);
    number = static_cast<Number>(take_number(name, low, high));
  }
  // An enum whose numbers end with `last`.
  template <typename Enum>
  requires std::is_enum_v<Enum>
  void operator()(std::string_view name, Enum& value, Enum last) {
    value = static_cast<Enum>(take_number(name, 0, static_cast<int>(last)));
  }
  void operator()(std::string_view name, std::optional<std::int64_t>& number);
  // A value from from_text(std::string_view), which throws InvalidArgument for a text that is not one.
  template <typename Value, typename ToText, typename FromText>
  void operator()(std::string_view name, Value& value, ToText, FromText from_text) {
    try {
      if (const auto text = take(name)) value = from_text(*text);
    } catch (const InvalidArgument&) {
      good_ = false;
    }
  }
  void optional(std::string_view name, std::string& text);
  void rest(std::string_view name, std::string& text);
  template <typename... Items>
  void items(std::string_view name, Items&... items) {
    std::string text;
    rest(name, text);
    const auto texts = read_texts(text);
    good_ = good_ && texts && texts->size() == sizeof...(Items);
    std::size_t next = 0;
    ((good_ = good_ && unpack((*texts)[next++], items)), ...);
  }

  // The value of the next line of that name. Without one: nothing, and good() is false from then on.
  std::optional<std::string_view> take(std::string_view name);
  // Whether all fields were there until now.
  bool good() const { return good_; }
  bool at_end() const { return good_ && rest_.empty(); }
  // Whether the rest is lines of other names.
  bool complete() const { return good_ && (rest_.empty() || rest_.back() == '\n'); }

 private:
  std::int64_t take_number(std::string_view name, std::int64_t low, std::int64_t high);

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
std::optional<Record> read_record(std::string_view text, EachField each_field) {
  Record record;
  RecordReader fields(text);
  each_field(record, fields);
  if (!fields.complete()) return std::nullopt;
  return record;
}

}  // namespace lockstep
