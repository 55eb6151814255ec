// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/strict_json.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/printable.h"

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::json;

// Builds the value while the text is parsed. The parser's own builder with a callback visits all members of an object
// whenever an object in it ends: a header of 80,000 tensors takes it minutes.
class Builder final : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string_view what, int most_depth) : what_(what), most_depth_(static_cast<std::size_t>(most_depth)) {}

  bool null() override { return put(nullptr) != nullptr; }
  bool boolean(bool value) override { return put(value) != nullptr; }
  bool number_integer(number_integer_t value) override { return put(value) != nullptr; }
  bool number_unsigned(number_unsigned_t value) override { return put(value) != nullptr; }
  bool number_float(number_float_t value, const string_t&) override { return put(value) != nullptr; }
  bool string(string_t& value) override { return put(std::move(value)) != nullptr; }
  bool binary(binary_t&) override { return false; }  // no text has it
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    auto& members = open_.back()->get_ref<Json::object_t&>();
    const std::size_t known = members.size();
    const auto place = members.try_emplace(members.end(), std::move(name));  // mostly sorted: no search
    if (members.size() == known) throw CorruptData(fmt::format("{} is there twice", in_quotes(place->first)));
    member_ = &place->second;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw CorruptData(fmt::format("{} is not JSON: {}", what_, printable(error.what(), kMostShown)));
  }

  Json take() { return std::move(root_); }

 private:
  // Stores `value` and returns its place, which stays the same while the value is open: only the innermost open value
  // grows.
  Json* put(Json value) {
    Json* place = open_.empty() ? &root_ : member_;
    if (!open_.empty() && open_.back()->is_array()) place = &open_.back()->emplace_back();
    *place = std::move(value);
    return place;
  }
  bool open(Json value) {
    if (open_.size() >= most_depth_) throw CorruptData(fmt::format("{} is nested too deeply", what_));
    open_.push_back(put(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  const std::string_view what_;
  const std::size_t most_depth_;
  Json root_;
  std::vector<Json*> open_;  // objects and lists, the innermost last
  Json* member_ = nullptr;   // the value of the key that was read last, in the innermost object
};

}  // namespace

nlohmann::json parse_json(std::string_view text, std::string_view what, int most_depth) {
  // The parser takes it for the end of the text.
  if (text.find('\0') != text.npos)
    throw CorruptData(fmt::format("{} is not JSON: there is a NUL byte in it, so the file is damaged", what));
  Builder builder(what, most_depth);
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace lockstep::checkpoint
