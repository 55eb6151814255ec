// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/record.h"

#include <algorithm>

#include "lockstep/base/environment.h"
#include "runtime/base/text.h"

namespace lockstep {
namespace {

// The text behind "name " in a line of that name.
std::optional<std::string_view> value_of(std::string_view line, std::string_view name) {
  if (!line.starts_with(name) || !line.substr(name.size()).starts_with(' ')) return std::nullopt;
  return line.substr(name.size() + 1);
}

}  // namespace

void RecordWriter::line(std::string_view name, std::string_view value) {
  text_.append(name).append(" ");
  const std::size_t begin = text_.size();
  text_.append(value);
  std::replace(text_.begin() + static_cast<std::ptrdiff_t>(begin), text_.end(), '\n', '?');
  text_ += '\n';
}

void RecordWriter::rest(std::string_view name, std::string_view text) { text_.append(name).append(" ").append(text); }

std::optional<std::string_view> RecordReader::take(std::string_view name) {
  while (good_ && !rest_.empty()) {
    const auto end = rest_.find('\n');
    if (end == rest_.npos) break;
    const auto value = value_of(rest_.substr(0, end), name);
    rest_.remove_prefix(end + 1);
    if (value) return value;
  }
  good_ = false;
  return std::nullopt;
}

void RecordReader::kind(std::string_view kind) {
  if (!rest_.starts_with("lockstep ") || take("lockstep") != kind) good_ = false;
}

void RecordReader::operator()(std::string_view name, std::string& text) {
  if (const auto value = take(name)) text = *value;
}

void RecordReader::operator()(std::string_view name, std::optional<std::int64_t>& number) {
  const std::int64_t read = take_number(name, -1, std::numeric_limits<std::int64_t>::max());
  if (read >= 0) number = read;
}

void RecordReader::optional(std::string_view name, std::string& text) {
  if (!good_) return;
  const std::string_view before = rest_;
  if (const auto value = take(name)) {
    text = *value;
    return;
  }
  rest_ = before;
  good_ = true;
}

void RecordReader::rest(std::string_view name, std::string& text) {
  while (good_) {
    if (const auto value = value_of(rest_, name)) {
      text = *value;
      rest_ = {};
      return;
    }
    const auto end = rest_.find('\n');
    good_ = end != rest_.npos;
    if (good_) rest_.remove_prefix(end + 1);
  }
}

std::int64_t RecordReader::take_number(std::string_view name, std::int64_t low, std::int64_t high) {
  const auto value = take(name);
  const auto number = value ? parse_int(*value) : std::nullopt;
  if (number && *number >= low && *number <= high) return *number;
  good_ = false;
  return 0;
}

bool unpack(std::string_view packed, std::string& text) {
  text = packed;
  return true;
}

bool unpack(std::string_view packed, std::vector<std::string>& texts) {
  auto read = read_texts(packed);
  if (read) texts = std::move(*read);
  return read.has_value();
}

std::string write_texts(std::span<const std::string> texts) {
  std::string packed;
  for (const std::string& text : texts) packed += std::to_string(text.size()) + ':' + text;
  return packed;
}

std::optional<std::vector<std::string>> read_texts(std::string_view packed) {
  std::vector<std::string> texts;
  while (!packed.empty()) {
    const auto colon = packed.find(':');
    if (colon == packed.npos) return std::nullopt;
    const auto length = parse_int(packed.substr(0, colon));
    packed.remove_prefix(colon + 1);
    if (!length || *length < 0 || static_cast<std::size_t>(*length) > packed.size()) return std::nullopt;
    texts.emplace_back(packed.substr(0, static_cast<std::size_t>(*length)));
    packed.remove_prefix(texts.back().size());
  }
  return texts;
}

}  // namespace lockstep
