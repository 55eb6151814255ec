#include "runtime/rendezvous/string_lists.h"

namespace lockstep::rendezvous {
namespace {

constexpr int kMostNested = 8;

class Parser {
 public:
  explicit Parser(std::string_view text) : rest_(text) {}

  bool value(StringList& out, int depth) {
    skip_space();
    if (take("null")) return true;
    if (!rest_.empty() && rest_.front() == '"') return string(out.text);
    return array(out, depth);
  }
  bool at_end() {
    skip_space();
    return rest_.empty();
  }

 private:
  void skip_space() {
    const auto begin = rest_.find_first_not_of(" \t\r\n");
    rest_.remove_prefix(begin == std::string_view::npos ? rest_.size() : begin);
  }
  bool take(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  // Names and addresses need no escapes but these.
  bool string(std::string& out) {
    rest_.remove_prefix(1);
    while (!rest_.empty() && rest_.front() != '"') {
      const bool escaped = take("\\");
      if (rest_.empty() || static_cast<unsigned char>(rest_.front()) < ' ') return false;
      if (escaped && std::string_view("/\\\"").find(rest_.front()) == std::string_view::npos) return false;
      out += rest_.front();
      rest_.remove_prefix(1);
    }
    return take("\"");
  }
  bool array(StringList& out, int depth) {
    out.is_array = true;
    if (depth == kMostNested || !take("[")) return false;
    skip_space();
    if (take("]")) return true;
    do {
      if (!value(out.items.emplace_back(), depth + 1)) return false;
      skip_space();
    } while (take(","));
    return take("]");
  }

  std::string_view rest_;
};

}  // namespace

std::string StringList::first() const {
  if (!is_array) return text;
  for (const StringList& item : items) {
    if (std::string found = item.first(); !found.empty()) return found;
  }
  return {};
}

std::optional<StringList> parse_string_list(std::string_view json) {
  StringList list;
  Parser parser(json);
  if (!parser.value(list, 0) || !list.is_array || !parser.at_end()) return std::nullopt;
  return list;
}

}  // namespace lockstep::rendezvous
