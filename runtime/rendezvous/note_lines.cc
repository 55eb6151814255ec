#include "runtime/rendezvous/note_lines.h"

#include <climits>

#include "runtime/base/environment.h"

namespace lockstep::rendezvous {

std::optional<std::string_view> LineReader::take(std::string_view name) {
  const auto end = rest_.find('\n');
  if (end == std::string_view::npos) return std::nullopt;
  const std::string_view line = rest_.substr(0, end);
  rest_.remove_prefix(end + 1);
  if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ' ') return std::nullopt;
  return line.substr(name.size() + 1);
}

bool LineReader::take_text(std::string_view name, std::string& result) {
  const auto value = take(name);
  if (value) result = *value;
  return value.has_value();
}

bool LineReader::take_int(std::string_view name, std::int64_t low, std::int64_t high, std::int64_t& result) {
  const auto value = take(name);
  const auto number = value ? parse_int(*value) : std::nullopt;
  if (!number || *number < low || *number > high) return false;
  result = *number;
  return true;
}

bool LineReader::take_int(std::string_view name, int low, int& result) {
  std::int64_t number = 0;
  if (!take_int(name, low, INT_MAX, number)) return false;
  result = static_cast<int>(number);
  return true;
}

}  // namespace lockstep::rendezvous
