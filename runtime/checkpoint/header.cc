// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/header.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "runtime/base/printable.h"
#include "runtime/checkpoint/strict_json.h"

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

// The format's other dtypes, and their bits.
struct ForeignDType {
  std::string_view text;
  unsigned bits;
};
constexpr ForeignDType kForeign[] = {{"BOOL", 8},    {"I8", 8},          {"I16", 16},       {"U16", 16},
                                     {"U32", 32},    {"U64", 64},        {"C64", 64},       {"F4", 4},
                                     {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"F8_E5M2", 8},    {"F8_E4M3", 8},
                                     {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};

// A value as text, whatever bytes it holds.
std::string text_of(const Json& value) {
  return printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), kMostShown);
}

std::uint64_t number(const Json& value, std::string_view what) {
  if (!value.is_number_unsigned()) {
    throw CorruptData(
        fmt::format("{} is {}, and must be a whole number of 0 or more, so the file is damaged", what, text_of(value)));
  }
  return value.get<std::uint64_t>();
}

std::vector<std::int64_t> shape_of(const Json& value) {
  if (!value.is_array()) throw CorruptData("shape is not a list");
  std::vector<std::int64_t> shape;
  for (const Json& dimension : value) {
    const std::uint64_t size = number(dimension, "a dimension");
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      throw CorruptData(fmt::format("dimension {} is too large", size));
    }
    shape.push_back(static_cast<std::int64_t>(size));
  }
  return shape;
}

// Sets the place of the tensor in the data.
void place(TensorEntry& entry, const Json& offsets, std::uint64_t data_bytes) {
  if (!offsets.is_array() || offsets.size() != 2) throw CorruptData("data_offsets is not a pair");
  const std::uint64_t begin = number(offsets[0], "an offset");
  const std::uint64_t end = number(offsets[1], "an offset");
  if (begin > end || end > data_bytes) {
    throw CorruptData(fmt::format(
        "data_offsets [{}, {}] do not lie in the {} bytes of the file's data, so the file is cut or damaged", begin,
        end, data_bytes));
  }
  entry.offset = begin;
  entry.bytes = end - begin;
}

void check_size(const TensorEntry& entry, std::optional<std::uint64_t> wanted, const std::string& description) {
  if (wanted == entry.bytes) return;
  throw CorruptData(fmt::format(
      "a tensor of {} takes {} bytes, but its data_offsets [{}, {}] hold {} bytes, so the file is damaged", description,
      wanted ? fmt::to_string(*wanted) : "too many", entry.offset, entry.offset + entry.bytes, entry.bytes));
}

// Bytes of `shape`, at so many bits an element; nullopt if they don't fit, or are not whole bytes.
std::optional<std::uint64_t> bytes_at(unsigned bits, std::span<const std::int64_t> shape) {
  const auto elements = tensor_bytes(DType::u8, shape);
  std::uint64_t all = 0;
  if (!elements || __builtin_mul_overflow(*elements, std::uint64_t{bits}, &all) || all % 8 != 0) return std::nullopt;
  return all / 8;
}

void add_tensor(Header& header, const std::string& name, const Json& value, std::uint64_t data_bytes) {
  if (!value.is_object() || !value.contains("dtype") || !value.contains("shape") || !value.contains("data_offsets")) {
    throw CorruptData(
        "the tensor's entry in the header must have dtype, shape and data_offsets, so the file is damaged");
  }
  TensorEntry entry;
  entry.name = name;
  entry.shape = shape_of(value["shape"]);
  place(entry, value["data_offsets"], data_bytes);
  const std::string dtype = value["dtype"].is_string() ? value["dtype"].get<std::string>() : "";
  if (const auto known = dtype_of_format(dtype)) {
    entry.dtype = *known;
    check_size(entry, tensor_bytes(entry.dtype, entry.shape), describe(entry.dtype, entry.shape));
    header.tensors.emplace_hint(header.tensors.end(), name, std::move(entry));
    return;
  }
  const auto* found =
      std::find_if(std::begin(kForeign), std::end(kForeign), [&](const ForeignDType& f) { return f.text == dtype; });
  if (found == std::end(kForeign)) {
    throw CorruptData(fmt::format("the format has no dtype {}", text_of(value["dtype"])));
  }
  entry.dtype = DType::u8;
  const ForeignTensor foreign{dtype, std::move(entry)};
  check_size(foreign.entry, bytes_at(found->bits, foreign.entry.shape), describe(foreign));
  header.foreign.emplace_hint(header.foreign.end(), name, foreign);
}

void check_cover(const Header& header, std::uint64_t data_bytes) {
  std::vector<const TensorEntry*> sorted;
  for (const auto& [name, entry] : header.tensors) sorted.push_back(&entry);
  for (const auto& [name, foreign] : header.foreign) sorted.push_back(&foreign.entry);
  std::sort(sorted.begin(), sorted.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
  });
  std::uint64_t covered = 0;
  for (const TensorEntry* entry : sorted) {
    if (entry->offset != covered) {
      throw CorruptData(fmt::format(
          "tensor {} begins at byte {} of the file's data, but the tensors before it end at byte {} ({}), so the file "
          "is damaged",
          in_quotes(entry->name), entry->offset, covered, entry->offset < covered ? "an overlap" : "a hole"));
    }
    covered += entry->bytes;
  }
  if (covered != data_bytes) {
    throw CorruptData(
        fmt::format("the file holds {} bytes of data, but its tensors take {} bytes, so the file is cut or damaged",
                    data_bytes, covered));
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

std::string describe(const ForeignTensor& tensor) {
  return fmt::format("{} [{}]", tensor.dtype, fmt::join(tensor.entry.shape, ", "));
}

std::string in_quotes(std::string_view name) { return fmt::format("'{}'", printable(name, kMostShown)); }

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
    throw InvalidArgument(fmt::format(
        "safetensors: a tensor's name or a text of the metadata is not UTF-8: {}; give all names and texts in UTF-8",
        error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

std::string_view other_format(std::string_view begin) {
  constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
      {"PK\x03\x04", "it is a zip archive, as torch.save writes it: save it with safetensors.torch.save_file"},
      {"\x80", "it is a pickle, as torch.save wrote it before 1.6: save it with safetensors.torch.save_file"},
      {"version https://git-lfs", "it is a pointer of git-lfs, not the file: run 'git lfs pull' where it was cloned"},
      {"<", "it is an HTML or XML page, such as a login or an error of a server: download it again"},
      {"\x1f\x8b\x08", "it is compressed: unpack it first"},
      {"\x28\xb5\x2f\xfd", "it is compressed: unpack it first"},
      {"\x93NUMPY", "it is a NumPy array (.npy): save it with safetensors.numpy.save_file"},
      {"GGUF", "it is a GGUF file, as llama.cpp has them: take the model's safetensors files"},
      {"\x89HDF", "it is an HDF5 file, as Keras writes them: save its arrays with safetensors.numpy.save_file"}};
  // The length of a header has zeros at its end, and may begin as a pickle does.
  const bool is_length = begin.size() >= 8 && begin.substr(4, 4) == std::string_view("\0\0\0\0", 4);
  begin.remove_prefix(std::min(begin.find_first_not_of(" \t\r\n"), begin.size()));
  for (const auto& [magic, text] : kFormats) {
    if (begin.starts_with(magic) && (magic.size() > 1 || !is_length)) return text;
  }
  return {};
}

Header decode_header(std::string_view text, std::uint64_t data_bytes) {
  if (text.empty() || text.front() != '{')
    throw CorruptData("the header of the file does not begin with '{', so the file is damaged");
  const Json json = parse_json(text, "the header");
  Header header;
  for (const auto& [name, value] : json.items()) {
    if (name == kMetadata) {
      if (value.is_null()) continue;  // Python's safetensors takes it for none
      if (!value.is_object()) throw CorruptData("__metadata__ is not a map");
      for (const auto& [key, item] : value.items()) {
        if (!item.is_string()) throw CorruptData(fmt::format("__metadata__ {} is not text", in_quotes(key)));
        header.metadata[key] = item.get<std::string>();
      }
      continue;
    }
    try {
      add_tensor(header, name, value, data_bytes);
    } catch (const CorruptData& error) {
      throw CorruptData(fmt::format("tensor {}: {}", in_quotes(name), error.what()));
    }
  }
  check_cover(header, data_bytes);
  return header;
}

}  // namespace lockstep::checkpoint
