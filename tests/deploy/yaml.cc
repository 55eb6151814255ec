#include "tests/deploy/yaml.h"

#include <fmt/format.h>

#include <optional>
#include <sstream>
#include <string_view>

#include "runtime/base/error.h"

namespace lockstep::testing {
namespace {

using nlohmann::json;

struct Line {
  int number;
  std::size_t indent;
  std::string text;  // without indentation and comment
};

[[noreturn]] void refuse(int line, const std::string& what) {
  throw InvalidArgument(fmt::format("yaml, line {}: {}", line, what));
}

// Where a comment starts, or the end: '#' at the beginning or after a space, outside of quotes.
std::size_t end_of_content(std::string_view text, int line) {
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quote != 0) {
      if (c == '\\' && quote == '"') refuse(line, "an escape, which is not read here");
      if (c == quote) quote = 0;
    } else if (c == '#' && (i == 0 || text[i - 1] == ' ')) {
      return i;
    } else if ((c == '"' || c == '\'') && (i == 0 || std::string_view(" [{,").find(text[i - 1]) != std::string::npos)) {
      quote = c;
    }
  }
  if (quote != 0) refuse(line, "a quote that does not end on its line");
  return text.size();
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// A value that stands on one line.
class Inline {
 public:
  Inline(std::string_view text, int line) : text_(text), line_(line) {}

  json read_all() {
    json value = read_value("");
    skip_spaces();
    if (at_ < text_.size()) refuse(line_, fmt::format("'{}' after a value", text_.substr(at_)));
    return value;
  }

 private:
  std::string_view text_;
  int line_;
  std::size_t at_ = 0;

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // A plain scalar ends before any of `stops`; in a block that is none.
  std::string read_scalar(std::string_view stops) {
    skip_spaces();
    if (at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'')) {
      const char quote = text_[at_++];
      const auto end = text_.find(quote, at_);
      if (end == std::string_view::npos) refuse(line_, "a quote that does not end");
      std::string value(text_.substr(at_, end - at_));
      at_ = end + 1;
      return value;
    }
    const auto end = std::min(text_.find_first_of(stops, at_), text_.size());
    const auto value = trimmed(text_.substr(at_, stops.empty() ? std::string_view::npos : end - at_));
    if (value.empty()) refuse(line_, "a value is missing");
    if (std::string_view("&*!|>%@`?").find(value.front()) != std::string_view::npos) {
      refuse(line_, fmt::format("'{}' starts with what is not read here", value));
    }
    if (value.find(": ") != std::string_view::npos) refuse(line_, fmt::format("'{}': a map within a value", value));
    at_ = stops.empty() ? text_.size() : end;
    return std::string(value);
  }
  json read_value(std::string_view stops) {
    if (take('[')) return read_list();
    if (take('{')) return read_map();
    return read_scalar(stops);
  }
  json read_list() {
    json list = json::array();
    if (take(']')) return list;
    do {
      list.push_back(read_value(",]"));
    } while (take(','));
    if (!take(']')) refuse(line_, "a list without its ]");
    return list;
  }
  json read_map() {
    json map = json::object();
    if (take('}')) return map;
    do {
      const std::string key = read_scalar(":,}");
      if (!take(':')) refuse(line_, fmt::format("'{}' without a value", key));
      if (map.contains(key)) refuse(line_, fmt::format("'{}' comes twice", key));
      map[key] = read_value(",}");
    } while (take(','));
    if (!take('}')) refuse(line_, "a map without its }");
    return map;
  }
};

// "key: value" or "key:", if the text is one.
struct Entry {
  std::string key;
  std::string_view value;
};
std::optional<Entry> entry_of(std::string_view text, int line) {
  if (text.empty() || text.front() == '[' || text.front() == '{' || text.front() == '"' || text.front() == '\'')
    return {};
  const auto colon = text.find(": ");
  if (colon != std::string_view::npos) {
    return Entry{std::string(trimmed(text.substr(0, colon))), trimmed(text.substr(colon + 1))};
  }
  if (text.back() != ':') return {};
  if (text.size() == 1) refuse(line, "a key is missing");
  return Entry{std::string(text.substr(0, text.size() - 1)), {}};
}

class Blocks {
 public:
  explicit Blocks(std::vector<Line> lines) : lines_(std::move(lines)) {}

  json read_document() {
    json value = read_block(lines_.front().indent);
    if (at_ < lines_.size()) refuse(lines_[at_].number, "an indentation that fits nothing above");
    return value;
  }

 private:
  std::vector<Line> lines_;
  std::size_t at_ = 0;

  static bool is_item(const Line& line) { return line.text == "-" || line.text.starts_with("- "); }
  bool more_at(std::size_t indent) const { return at_ < lines_.size() && lines_[at_].indent == indent; }

  json read_block(std::size_t indent) {
    if (is_item(lines_[at_])) return read_list(indent);
    if (entry_of(lines_[at_].text, lines_[at_].number)) return read_map(indent);
    const Line& line = lines_[at_++];
    return Inline(line.text, line.number).read_all();
  }
  json read_list(std::size_t indent) {
    json list = json::array();
    while (more_at(indent) && is_item(lines_[at_])) {
      // What follows the dash is a block whose indentation is its own.
      Line& line = lines_[at_];
      const auto start = line.text.find_first_not_of(' ', 1);
      if (start == std::string::npos) refuse(line.number, "an item on the lines below its dash");
      line.indent += start;
      line.text.erase(0, start);
      list.push_back(read_block(line.indent));
    }
    return list;
  }
  json read_map(std::size_t indent) {
    json map = json::object();
    while (more_at(indent) && !is_item(lines_[at_])) {
      const Line line = lines_[at_];
      const auto entry = entry_of(line.text, line.number);
      if (!entry) refuse(line.number, fmt::format("'{}' is no entry of a map", line.text));
      if (map.contains(entry->key)) refuse(line.number, fmt::format("'{}' comes twice", entry->key));
      ++at_;
      if (!entry->value.empty()) {
        map[entry->key] = Inline(entry->value, line.number).read_all();
        continue;
      }
      const bool deeper = at_ < lines_.size() && lines_[at_].indent > indent;
      const bool list_beside = more_at(indent) && is_item(lines_[at_]);
      if (!deeper && !list_beside) refuse(line.number, fmt::format("'{}' has no value", entry->key));
      map[entry->key] = read_block(lines_[at_].indent);
    }
    return map;
  }
};

}  // namespace

std::vector<json> parse_yaml(const std::string& text) {
  std::vector<json> documents;
  std::vector<Line> lines;
  const auto end_document = [&] {
    if (!lines.empty()) documents.push_back(Blocks(std::exchange(lines, {})).read_document());
  };
  std::istringstream stream(text);
  int number = 0;
  for (std::string line; std::getline(stream, line);) {
    ++number;
    if (line.find('\t') != std::string::npos) refuse(number, "a tab");
    if (line == "---") {
      end_document();
      continue;
    }
    const auto indent = std::min(line.find_first_not_of(' '), line.size());
    const auto content = std::string_view(line).substr(indent);
    const auto kept = trimmed(content.substr(0, end_of_content(content, number)));
    if (!kept.empty()) lines.push_back({number, indent, std::string(kept)});
  }
  end_document();
  if (documents.empty()) refuse(number, "nothing to read");
  return documents;
}

}  // namespace lockstep::testing
