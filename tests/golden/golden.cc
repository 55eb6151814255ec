// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/golden.h"

#include <cctype>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <stdexcept>

namespace lockstep::golden {
namespace {

using Kind = Step::Kind;

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw std::runtime_error(where + ": " + what);
}

std::optional<int> hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return std::nullopt;
}

char hex_byte(const std::string& where, std::string_view digits) {
  if (digits.size() != 2 || !hex_digit(digits[0]) || !hex_digit(digits[1])) {
    fail(where, "'" + std::string(digits) + "' is not a byte of two digits 0-9 a-f");
  }
  return static_cast<char>(*hex_digit(digits[0]) * 16 + *hex_digit(digits[1]));
}

// The word at the head of `text`, taken off it with the blanks behind it.
std::string_view take_word(std::string_view& text) {
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return word;
}

// A text in quotes with \xNN in it, taken off `text`.
std::string take_quoted(const std::string& where, std::string_view& text) {
  std::string out;
  text.remove_prefix(1);
  while (!text.empty() && text.front() != '"') {
    if (text.substr(0, 2) == "\\x") {
      out.push_back(hex_byte(where, text.substr(2, 2)));
      text.remove_prefix(4);
    } else {
      out.push_back(text.front());
      text.remove_prefix(1);
    }
  }
  if (text.empty()) fail(where, "a quote is not closed");
  text.remove_prefix(1);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return out;
}

proto::Op op_named(const std::string& where, std::string_view name) {
  for (const auto dialect : {proto::Dialect::current, proto::Dialect::legacy, proto::Dialect::lockstep}) {
    for (int code = 0; code < 256; ++code) {
      const auto op = proto::op_from_code(static_cast<std::uint8_t>(code), dialect);
      if (op && proto::shape_of(*op).name == name) return *op;
    }
  }
  fail(where, "no operation is called '" + std::string(name) + "'");
}

proto::Dialect dialect_named(const std::string& where, std::string_view name) {
  if (name == "current") return proto::Dialect::current;
  if (name == "legacy") return proto::Dialect::legacy;
  if (name == "lockstep") return proto::Dialect::lockstep;
  fail(where, "no dialect is called '" + std::string(name) + "'");
}

// "a > SET keys ..." and its like.
Step parse_step(const std::string& where, std::string_view line) {
  Step step{Kind::raw, '?', proto::Op::validate, {}, {}, where};
  const std::string_view client = take_word(line);
  if (client.size() != 1) fail(where, "a step begins with the letter of a client");
  step.client = client.front();
  const std::string_view verb = take_word(line);
  if (verb == ">" || verb == "<") {
    const std::string_view name = take_word(line);
    step.contents = line;
    if (name == "raw") {
      step.kind = Kind::raw;
    } else if (name == "FRAME") {
      step.kind = Kind::frame;
    } else if (name == "EVENT") {
      step.kind = Kind::event;
    } else {
      step.kind = verb == ">" ? Kind::request : Kind::reply;
      step.op = op_named(where, name);
    }
    if (step.from_client() != (verb == ">")) fail(where, std::string(name) + " does not go in this direction");
  } else if (verb == "silent") {
    step.kind = Kind::silent;
  } else if (verb == "closed") {
    step.kind = Kind::closed;
  } else if (verb == "deadline") {
    step.kind = Kind::deadline;
  } else {
    fail(where, "'" + std::string(verb) + "' is none of > < silent closed deadline");
  }
  return step;
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  if (!in || text.empty()) fail(path, "can't be read");
  return text;
}

}  // namespace

proto::Contents OwnedContents::view() const {
  return {{keys.begin(), keys.end()}, {values.begin(), values.end()}, number};
}

OwnedContents contents_of(const Step& step) {
  OwnedContents contents;
  std::string_view text = step.contents;
  std::vector<std::string>* into = nullptr;
  while (!text.empty()) {
    if (text.front() == '"') {
      if (into == nullptr) fail(step.where, "a text that is neither among keys nor values");
      into->push_back(take_quoted(step.where, text));
      continue;
    }
    const std::string_view word = take_word(text);
    if (word == "keys") {
      into = &contents.keys;
    } else if (word == "values") {
      into = &contents.values;
    } else if (word == "number") {
      contents.number = std::stoll(std::string(take_word(text)));
    } else {
      fail(step.where, "'" + std::string(word) + "' is none of keys values number");
    }
  }
  return contents;
}

std::vector<Conversation> parse(std::string_view file, std::string_view text) {
  std::vector<Conversation> result;
  std::optional<proto::Dialect> dialect;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const std::string where = std::string(file) + ":" + std::to_string(number);
    std::string_view rest = line;
    if (line.empty() || line.front() == '#') continue;
    if (line.front() == ' ') {
      if (result.empty() || result.back().steps.empty()) fail(where, "bytes without a step");
      take_word(rest);
      while (!rest.empty()) result.back().steps.back().bytes.push_back(hex_byte(where, take_word(rest)));
    } else if (line.starts_with("dialect ")) {
      take_word(rest);
      dialect = dialect_named(where, rest);
    } else if (line.starts_with("conversation ") || line.starts_with("exchange ")) {
      if (!dialect) fail(where, "no dialect yet");
      const bool replayable = take_word(rest) == "conversation";
      const std::string stem(file.substr(0, file.find('.')));
      result.push_back({stem + ": " + std::string(rest), *dialect, replayable, {}});
    } else {
      if (result.empty()) fail(where, "a step outside of a conversation");
      result.back().steps.push_back(parse_step(where, line));
    }
  }
  return result;
}

const std::vector<Conversation>& conversations() {
  static const std::vector<Conversation> all = [] {
    std::vector<Conversation> result;
    for (const char* file : {"current.txt", "legacy.txt", "lockstep.txt"}) {
      const std::string text = read_file(std::string(LOCKSTEP_GOLDEN_FOLDER) + "/" + file);
      for (Conversation& conversation : parse(file, text)) result.push_back(std::move(conversation));
    }
    return result;
  }();
  return all;
}

std::string test_name(const Conversation& conversation) {
  std::string name;
  for (const char c : conversation.name) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) {
      name.push_back(c);
    } else if (!name.empty() && name.back() != '_') {
      name.push_back('_');
    }
  }
  return name;
}

}  // namespace lockstep::golden
