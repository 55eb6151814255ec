#include "runtime/checkpoint/header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "runtime/base/error.h"

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadata = "__metadata__";

struct Name {
  DType dtype;
  std::string_view text;
};
constexpr Name kNames[] = {{DType::f32, "F32"}, {DType::f64, "F64"}, {DType::bf16, "BF16"}, {DType::f16, "F16"},
                           {DType::i32, "I32"}, {DType::i64, "I64"}, {DType::u8, "U8"}};

// A file is small in what it may say: three levels, and no key twice (a parser that keeps the last one, and another
// that keeps the first, would read different weights from the same file).
Json parse(std::string_view text) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start) {
      if (depth >= 3) throw CorruptData("the header is nested too deeply");
      keys.emplace_back();
    } else if (event == Json::parse_event_t::object_end || event == Json::parse_event_t::array_end) {
      keys.pop_back();
    } else if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      throw CorruptData(fmt::format("'{}' is there twice", value.get<std::string>()));
    }
    return true;
  };
  try {
    return Json::parse(text, check);
  } catch (const Json::exception& error) {
    throw CorruptData(fmt::format("the header is no JSON: {}", error.what()));
  }
}

// A value as text, whatever bytes it holds.
std::string text_of(const Json& value) { return value.dump(-1, ' ', true, Json::error_handler_t::replace); }

std::uint64_t number(const Json& value, std::string_view what) {
  if (!value.is_number_unsigned()) {
    throw CorruptData(fmt::format("{} is {}, not a whole number of 0 or more", what, text_of(value)));
  }
  return value.get<std::uint64_t>();
}

TensorEntry entry_of(const std::string& name, const Json& value, std::uint64_t data_bytes) {
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets")) {
    throw CorruptData("it must have exactly dtype, shape and data_offsets");
  }
  TensorEntry entry;
  entry.name = name;
  const Json& dtype = value["dtype"];
  const auto known = dtype.is_string() ? dtype_of_format(dtype.get<std::string>()) : std::nullopt;
  if (!known) {
    throw CorruptData(fmt::format("dtype {} is none of F32, F64, BF16, F16, I32, I64, U8", text_of(dtype)));
  }
  entry.dtype = *known;
  if (!value["shape"].is_array()) throw CorruptData("shape is no list");
  for (const Json& dimension : value["shape"]) {
    const std::uint64_t size = number(dimension, "a dimension");
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      throw CorruptData(fmt::format("dimension {} is too large", size));
    }
    entry.shape.push_back(static_cast<std::int64_t>(size));
  }
  const Json& offsets = value["data_offsets"];
  if (!offsets.is_array() || offsets.size() != 2) throw CorruptData("data_offsets is no pair");
  const std::uint64_t begin = number(offsets[0], "an offset");
  const std::uint64_t end = number(offsets[1], "an offset");
  if (begin > end || end > data_bytes) {
    throw CorruptData(fmt::format("data_offsets [{}, {}] do not lie in the {} bytes of data", begin, end, data_bytes));
  }
  const auto wanted = tensor_bytes(entry.dtype, entry.shape);
  if (wanted != end - begin) {
    throw CorruptData(fmt::format("{} takes {} bytes, but data_offsets [{}, {}] hold {}",
                                  describe(entry.dtype, entry.shape), wanted ? fmt::to_string(*wanted) : "too many",
                                  begin, end, end - begin));
  }
  entry.offset = begin;
  entry.bytes = end - begin;
  return entry;
}

void check_cover(const std::map<std::string, TensorEntry>& tensors, std::uint64_t data_bytes) {
  std::vector<const TensorEntry*> sorted;
  for (const auto& [name, entry] : tensors) sorted.push_back(&entry);
  std::sort(sorted.begin(), sorted.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
  });
  std::uint64_t covered = 0;
  for (const TensorEntry* entry : sorted) {
    if (entry->offset != covered) {
      throw CorruptData(
          fmt::format("tensor '{}': it begins at byte {} of the data, but the tensors before it end at {} "
                      "({})",
                      entry->name, entry->offset, covered, entry->offset < covered ? "an overlap" : "a hole"));
    }
    covered += entry->bytes;
  }
  if (covered != data_bytes) {
    throw CorruptData(fmt::format("the file holds {} bytes of data, but its tensors take {}", data_bytes, covered));
  }
}

}  // namespace

std::string_view format_name(DType dtype) {
  const auto* found =
      std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& n) { return n.dtype == dtype; });
  return found == std::end(kNames) ? "?" : found->text;
}

std::optional<DType> dtype_of_format(std::string_view name) {
  const auto* found = std::find_if(std::begin(kNames), std::end(kNames), [&](const Name& n) { return n.text == name; });
  return found == std::end(kNames) ? std::nullopt : std::optional(found->dtype);
}

std::string describe(DType dtype, std::span<const std::int64_t> shape) {
  return fmt::format("{} [{}]", format_name(dtype), fmt::join(shape, ", "));
}

std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = size_of(dtype);
  bool none = false;
  for (const std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    none = none || dimension == 0;
    if (dimension != 0 && __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes)) {
      return std::nullopt;
    }
  }
  return none ? 0 : bytes;
}

std::string encode_header(const Header& header) {
  Json json = Json::object();
  for (const auto& [name, entry] : header.tensors) {
    json[name] = {{"dtype", format_name(entry.dtype)},
                  {"shape", entry.shape},
                  {"data_offsets", {entry.offset, entry.offset + entry.bytes}}};
  }
  if (!header.metadata.empty()) json[std::string(kMetadata)] = header.metadata;
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception& error) {
    throw InvalidArgument(fmt::format("safetensors: a name or a metadata text is not UTF-8: {}", error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

Header decode_header(std::string_view text, std::uint64_t data_bytes) {
  if (text.empty() || text.front() != '{') throw CorruptData("the header does not begin with '{'");
  const Json json = parse(text);
  Header header;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadata) {
      if (!value.is_object()) throw CorruptData("__metadata__ is no map");
      for (const auto& [key, item] : value.items()) {
        if (!item.is_string()) throw CorruptData(fmt::format("__metadata__ '{}' is no text", key));
        header.metadata[key] = item.get<std::string>();
      }
      continue;
    }
    try {
      header.tensors.emplace(name, entry_of(name, value, data_bytes));
    } catch (const CorruptData& error) {
      throw CorruptData(fmt::format("tensor '{}': {}", name, error.what()));
    }
  }
  check_cover(header.tensors, data_bytes);
  return header;
}

}  // namespace lockstep::checkpoint
