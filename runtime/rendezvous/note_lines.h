// Lines "name value", in a fixed order: how claims and notes are written, so that people can read them too.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::rendezvous {

class LineReader {
 public:
  explicit LineReader(std::string_view text) : rest_(text) {}

  // The value of the next line; nothing if that line is not `name`'s. Values have no line breaks and may be empty.
  std::optional<std::string_view> take(std::string_view name);
  // The same into `result`; false if it is not there, or no number from `low` to `high`.
  bool take_text(std::string_view name, std::string& result);
  bool take_int(std::string_view name, std::int64_t low, std::int64_t high, std::int64_t& result);
  bool take_int(std::string_view name, int low, int& result);
  bool at_end() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

}  // namespace lockstep::rendezvous
