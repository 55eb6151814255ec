// Lists in JSON, as MLX keeps hosts and devices in files: arrays of strings, nulls, or such arrays. Nothing else of
// JSON is read. Pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::rendezvous {

struct StringList {
  bool is_array = false;
  std::string text;               // of a string; empty for null
  std::vector<StringList> items;  // of an array

  // The first string in it, in the order of the text; empty if there is none.
  std::string first() const;
};

// The list that is the whole of `json`; nothing if it is none, or nested more than eight deep.
std::optional<StringList> parse_string_list(std::string_view json);

}  // namespace lockstep::rendezvous
