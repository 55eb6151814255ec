// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/record.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep {
namespace {

// The text behind "name " in a line of that name.
std::optional<std::string_view> value_of(std::string_view line, std::string_view name) {
  if (!line.starts_with(name) || !line.substr(name.size()).starts_with(' ')) return std::nullopt;
  return line.substr(name.size() + 1);
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string line;
  for (const char c : text) {
    if (c == '\\' || c == '\n') line += '\\';
    line += c == '\n' ? 'n' : c;
  }
  return line;
}

std::string unescaped(std::string_view line) {
  std::string text;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const bool is_escaped = line[i] == '\\' && i + 1 < line.size();
    if (is_escaped) ++i;
    text += is_escaped && line[i] == 'n' ? '\n' : line[i];
  }
  return text;
}

void RecordWriter::line(std::string_view name, std::string_view value) {
  text_.append(name).append(" ").append(escaped(value)) += '\n';
}

std::optional<std::string> RecordReader::take(std::string_view name) {
  while (good_ && !rest_.empty()) {
    const auto end = rest_.find('\n');
    if (end == rest_.npos) break;
    const auto value = value_of(rest_.substr(0, end), name);
    rest_.remove_prefix(end + 1);
    if (value) return unescaped(*value);
  }
  good_ = false;
  return std::nullopt;
}

void RecordReader::kind(std::string_view kind) {
  if (!rest_.starts_with("lockstep ") || take("lockstep") != kind) good_ = false;
}

void RecordReader::operator()(std::string_view name, std::string& text) {
  lines(name, text);
  std::ranges::replace(text, '\n', '?');
}

void RecordReader::lines(std::string_view name, std::string& text) {
  if (auto value = take(name)) text = *std::move(value);
}

void RecordReader::optional(std::string_view name, std::string& text) {
  if (!good_) return;
  const std::string_view before = rest_;
  if (auto value = take(name)) {
    text = *std::move(value);
    return;
  }
  rest_ = before;
  good_ = true;
}

std::vector<std::string> RecordReader::take_list(std::string_view name) {
  const auto packed = take(name);
  auto texts = packed ? read_texts(*packed) : std::nullopt;
  good_ = texts.has_value();
  return std::move(texts).value_or(std::vector<std::string>());
}

std::vector<std::string> require_texts(std::string_view packed, std::string_view what) {
  if (auto texts = read_texts(packed)) return *std::move(texts);
  refuse_record(what, packed.size());
}

void refuse_record(std::string_view what, std::size_t bytes) {
  throw CorruptData(
      fmt::format("{}: got {} bytes that can't be read; run the same build of lockstep on all ranks", what, bytes));
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
    const auto length = number_of<std::size_t>(packed.substr(0, colon));
    packed.remove_prefix(colon + 1);
    if (!length || *length > packed.size()) return std::nullopt;
    texts.emplace_back(packed.substr(0, *length));
    packed.remove_prefix(texts.back().size());
  }
  return texts;
}

}  // namespace lockstep
