// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <type_traits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/snapshot_value.h"
#include "runtime/base/text.h"

namespace lockstep::checkpoint {
namespace {

// Names of SnapshotValue's alternatives, in their order.
constexpr const char* kKinds[] = {"true or false", "a whole number",          "a whole number",    "a number",
                                  "text",          "a list of whole numbers", "a list of numbers", "a list of texts"};

const SnapshotValue& find(const SnapshotValues& values, std::string_view name) {
  if (const auto found = values.find(std::string(name)); found != values.end()) return found->second;
  throw InvalidArgument(
      fmt::format("snapshot: the saved item has no value {}; the item's values: {}; resume with the program that saved "
                  "the snapshot, or use another snapshot",
                  in_quotes(name),
                  values.empty() ? "none"
                                 : joined(
                                       values, [](const auto& item) { return in_quotes(item.first); }, ", ", 12)));
}

[[noreturn]] void refuse(std::string_view name, const SnapshotValue& value, const char* wanted) {
  throw InvalidArgument(
      fmt::format("snapshot: the saved value {} is {}, and must be {}; resume with the program that saved the "
                  "snapshot, or use another snapshot",
                  in_quotes(name), kKinds[value.index()], wanted));
}

template <typename T>
T number_of(const SnapshotValues& values, std::string_view name, const char* wanted) {
  const SnapshotValue& value = find(values, name);
  if (const auto* const number = std::get_if<std::int64_t>(&value); number && std::in_range<T>(*number)) {
    return static_cast<T>(*number);
  }
  if (const auto* const number = std::get_if<std::uint64_t>(&value); number && std::in_range<T>(*number)) {
    return static_cast<T>(*number);
  }
  refuse(name, value, wanted);
}

template <typename T>
const T& exactly(const SnapshotValues& values, std::string_view name, const char* wanted) {
  const SnapshotValue& value = find(values, name);
  if (const T* const found = std::get_if<T>(&value)) return *found;
  refuse(name, value, wanted);
}

// "[]" in the file says nothing of its kind.
bool is_empty_list(const SnapshotValue& value) {
  return std::visit(
      []<typename T>(const T& list) {
        if constexpr (std::is_same_v<T, std::string> || !requires { list.empty(); }) {
          return false;
        } else {
          return list.empty();
        }
      },
      value);
}

template <typename T>
std::vector<T> list_of(const SnapshotValues& values, std::string_view name, const char* wanted) {
  if (is_empty_list(find(values, name))) return {};
  return exactly<std::vector<T>>(values, name, wanted);
}

}  // namespace

bool get_bool(const SnapshotValues& values, std::string_view name) { return exactly<bool>(values, name, kKinds[0]); }

std::int64_t get_int(const SnapshotValues& values, std::string_view name) {
  return number_of<std::int64_t>(values, name, "a whole number of 64 bits with a sign");
}

std::uint64_t get_uint(const SnapshotValues& values, std::string_view name) {
  return number_of<std::uint64_t>(values, name, "a whole number of 64 bits without a sign");
}

double get_double(const SnapshotValues& values, std::string_view name) {
  const SnapshotValue& value = find(values, name);
  if (const auto* const number = std::get_if<double>(&value)) return *number;
  if (const auto* const number = std::get_if<std::int64_t>(&value)) return static_cast<double>(*number);
  if (const auto* const number = std::get_if<std::uint64_t>(&value)) return static_cast<double>(*number);
  refuse(name, value, kKinds[3]);
}

const std::string& get_text(const SnapshotValues& values, std::string_view name) {
  return exactly<std::string>(values, name, kKinds[4]);
}

std::vector<std::int64_t> get_ints(const SnapshotValues& values, std::string_view name) {
  return list_of<std::int64_t>(values, name, kKinds[5]);
}

std::vector<double> get_doubles(const SnapshotValues& values, std::string_view name) {
  const SnapshotValue& value = find(values, name);
  if (const auto* const whole = std::get_if<std::vector<std::int64_t>>(&value)) return {whole->begin(), whole->end()};
  return list_of<double>(values, name, kKinds[6]);
}

std::vector<std::string> get_texts(const SnapshotValues& values, std::string_view name) {
  return list_of<std::string>(values, name, kKinds[7]);
}

}  // namespace lockstep::checkpoint
