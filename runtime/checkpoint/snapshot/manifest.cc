// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/snapshot/manifest.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "runtime/base/printable.h"
#include "runtime/checkpoint/header.h"
#include "runtime/checkpoint/snapshot/sealed_json.h"
#include "runtime/checkpoint/strict_json.h"

namespace lockstep::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr SealedFormat kManifestFormat{.name = "lockstep snapshot", .version = 1};
constexpr int kDepthOfValues = 3;  // values, a list, a number that is not finite
constexpr std::array<const char*, 3> kItemKinds{"replicated", "per_rank", "sharded"};
constexpr std::array<const char*, 3> kAtAnotherSize{"refuse", "sum", "drop"};
// JSON has no such numbers.
constexpr const char* kNotANumber = "NaN";
constexpr const char* kInfinity = "Infinity";
constexpr const char* kMinusInfinity = "-Infinity";

Json json_of(double number) {
  if (std::isnan(number)) return {{"double", kNotANumber}};
  if (std::isinf(number)) return {{"double", number > 0 ? kInfinity : kMinusInfinity}};
  return number;
}

Json json_of(const SnapshotValue& value) {
  return std::visit(
      []<typename T>(const T& it) -> Json {
        if constexpr (std::is_same_v<T, double>) {
          return json_of(it);
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
          Json list = Json::array();
          for (const double number : it) list.push_back(json_of(number));
          return list;
        } else {
          return it;
        }
      },
      value);
}

Json json_of(const SnapshotValues& values) {
  Json json = Json::object();
  for (const auto& [name, value] : values) json[name] = json_of(value);
  return json;
}

Json json_of(const SlicedTensor& tensor) {
  Json slices = Json::array();
  for (const TensorSlice& slice : tensor.slices) {
    slices.push_back({{"file", slice.file}, {"begin", slice.begin}, {"end", slice.end}});
  }
  return {{"name", tensor.name},
          {"dtype", format_name(tensor.dtype)},
          {"shape", tensor.shape},
          {"transposed", tensor.is_transposed},
          {"slices", std::move(slices)}};
}

// Readers of members, which say which one is wrong.
[[noreturn]] void refuse(const std::string& where, const char* wanted) {
  throw CorruptData(fmt::format("{} is not {}", where, wanted));
}

const Json& member(const Json& json, const char* name, const std::string& where) {
  if (!json.is_object()) refuse(where, "an object");
  const auto found = json.find(name);
  if (found == json.end()) throw CorruptData(fmt::format("{} has no '{}'", where, name));
  return *found;
}

std::string text_at(const Json& json, const char* name, const std::string& where) {
  const Json& found = member(json, name, where);
  if (!found.is_string()) refuse(fmt::format("{}: '{}'", where, name), "text");
  return found.get<std::string>();
}

// A text for people alone: a line of a listing can't be made by a newline in it.
std::string words_at(const Json& json, const char* name, const std::string& where) {
  const std::string text = text_at(json, name, where);
  return printable(text, text.size());
}

// A name that becomes a file's, here or where items are exported: in one folder and nowhere else, and as it is shown.
std::string file_name_at(const Json& json, const std::string& where, const char* wanted) {
  std::string name = text_at(json, "name", where);
  if (name.empty() || name.front() == '.' || name.find('/') != name.npos || printable(name, name.size()) != name) {
    refuse(fmt::format("{}: 'name', {},", where, in_quotes(name)), wanted);
  }
  return name;
}

// A number of 0 or more that fits a T.
template <typename T>
T count_at(const Json& json, const char* name, const std::string& where) {
  const Json& found = member(json, name, where);
  if (!found.is_number_unsigned() || !std::in_range<T>(found.get<std::uint64_t>())) {
    refuse(fmt::format("{}: '{}'", where, name),
           fmt::format("a whole number from 0 to {}", std::numeric_limits<T>::max()).c_str());
  }
  return found.get<T>();
}

std::uint64_t hash_at(const Json& json, const char* name, const std::string& where) {
  const std::string text = text_at(json, name, where);
  std::uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size() || text != hex(hash)) {
    refuse(fmt::format("{}: '{}'", where, name), "a hash of 16 hexadecimal digits");
  }
  return hash;
}

template <typename Names>
std::size_t choice_at(const Json& json, const char* name, const std::string& where, const Names& names) {
  const std::string text = text_at(json, name, where);
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return i;
  }
  throw LaterFormat(where, fmt::format("its '{}' is '{}', which this one does not know", name, printable(text)));
}

std::optional<double> number_of(const Json& json) {
  if (json.is_number()) return json.get<double>();
  if (!json.is_object() || json.size() != 1 || !json.contains("double")) return std::nullopt;
  const Json& name = json["double"];
  if (name == kNotANumber) return std::numeric_limits<double>::quiet_NaN();
  if (name == kInfinity) return std::numeric_limits<double>::infinity();
  if (name == kMinusInfinity) return -std::numeric_limits<double>::infinity();
  return std::nullopt;
}

template <typename T, typename Convert>
std::optional<SnapshotValue> list_of(const Json& json, Convert convert) {
  std::vector<T> list;
  for (const Json& item : json) {
    const std::optional<T> value = convert(item);
    if (!value) return std::nullopt;
    list.push_back(*value);
  }
  return list;
}

std::optional<std::int64_t> int_of(const Json& json) {
  if (!json.is_number_integer()) return std::nullopt;
  if (json.is_number_unsigned() && json.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
    return std::nullopt;
  }
  return json.get<std::int64_t>();
}

SnapshotValue value_of(const Json& json, const std::string& where) {
  if (json.is_boolean()) return json.get<bool>();
  if (const auto number = int_of(json)) return *number;
  if (json.is_number_unsigned()) return json.get<std::uint64_t>();
  if (const auto number = number_of(json)) return *number;
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    if (auto list = list_of<std::int64_t>(json, int_of)) return *std::move(list);
    if (auto list = list_of<double>(json, number_of)) return *std::move(list);
    const auto text = [](const Json& item) -> std::optional<std::string> {
      if (!item.is_string()) return std::nullopt;
      return item.get<std::string>();
    };
    if (auto list = list_of<std::string>(json, text)) return *std::move(list);
  }
  refuse(where, "a number, text, true or false, or a list of one kind of them");
}

SnapshotValues values_of(const Json& json, const std::string& where) {
  if (!json.is_object()) refuse(where, "an object");
  SnapshotValues values;
  for (const auto& [name, value] : json.items()) {
    values.emplace(name, value_of(value, fmt::format("{}: {}", where, in_quotes(name))));
  }
  return values;
}

ManifestFile file_of(const Json& json, const std::string& where) {
  return {.name = file_name_at(json, where, "the name of a file in this folder"),
          .bytes = count_at<std::uint64_t>(json, "bytes", where),
          .xxh3 = hash_at(json, "xxh3", where),
          .owner = count_at<int>(json, "owner", where),
          .host = json.contains("host") ? words_at(json, "host", where) : ""};
}

template <typename T, typename Read>
std::vector<T> list_at(const Json& json, const char* name, const std::string& where, Read read) {
  const Json& list = member(json, name, where);
  if (!list.is_array()) refuse(fmt::format("{}: '{}'", where, name), "a list");
  std::vector<T> all;
  for (const Json& item : list) {
    all.push_back(read(item, fmt::format("{}{}[{}]", where == "it" ? "" : where + ": ", name, all.size())));
  }
  return all;
}

TensorSlice slice_of(const Json& json, const std::string& where) {
  return {.file = text_at(json, "file", where),
          .begin = count_at<std::int64_t>(json, "begin", where),
          .end = count_at<std::int64_t>(json, "end", where)};
}

SlicedTensor sliced_of(const Json& json, const std::string& where) {
  SlicedTensor tensor{.name = text_at(json, "name", where)};
  const std::string dtype = text_at(json, "dtype", where);
  const auto known = dtype_of_format(dtype);
  if (!known)
    throw LaterFormat(where, fmt::format("its 'dtype' is '{}', which this one does not know", printable(dtype)));
  tensor.dtype = *known;
  tensor.shape = list_at<std::int64_t>(json, "shape", where, [](const Json& extent, const std::string& at) {
    const auto number = int_of(extent);
    if (!number || *number < 0) refuse(at, "a whole number of 0 or more");
    return *number;
  });
  const Json& transposed = member(json, "transposed", where);
  if (!transposed.is_boolean()) refuse(where + ": 'transposed'", "true or false");
  tensor.is_transposed = transposed.get<bool>();
  tensor.slices = list_at<TensorSlice>(json, "slices", where, slice_of);
  return tensor;
}

ManifestItem item_of(const Json& json, const std::string& where) {
  ManifestItem item{.name = file_name_at(json, where, "an item's name"), .type = text_at(json, "type", where)};
  item.kind = static_cast<ItemKind>(choice_at(json, "kind", where, kItemKinds));
  if (item.kind == ItemKind::per_rank) {
    item.at_another_size = static_cast<AtAnotherSize>(choice_at(json, "at_another_size", where, kAtAnotherSize));
  }
  if (item.kind == ItemKind::sharded) {
    item.sliced = list_at<SlicedTensor>(json, "tensors", where, sliced_of);
  } else if (json.contains("tensors")) {
    item.tensors = text_at(json, "tensors", where);
  }
  const Json& values = member(json, "values", where);
  if (item.kind != ItemKind::per_rank) {
    item.values.push_back(values_of(values, where));
  } else {
    if (!values.is_array()) refuse(where + ": 'values'", "a list, of each rank");
    for (const Json& of_rank : values) item.values.push_back(values_of(of_rank, where));
  }
  return item;
}

// That the slices of the item make up its tensors.
void check_slices(const ManifestItem& item, const std::set<std::string>& files) {
  std::set<std::string> names;
  for (const SlicedTensor& tensor : item.sliced) {
    const std::string name = fmt::format("item {}: tensor {}", in_quotes(item.name), in_quotes(tensor.name));
    if (!names.insert(tensor.name).second) throw CorruptData(fmt::format("{} is there twice", name));
    const auto count = tensor.count();
    if (!count || (tensor.is_transposed && tensor.shape.size() != 2)) {
      throw CorruptData(fmt::format("{} has the shape {}{}, which no tensor has", name,
                                    describe(tensor.dtype, tensor.shape), tensor.is_transposed ? " transposed" : ""));
    }
    std::set<std::string> its_files;
    std::int64_t end = 0;
    for (const TensorSlice& slice : tensor.slices) {
      if (slice.begin != end || slice.end <= slice.begin || slice.end > *count) {
        throw CorruptData(fmt::format("{} has elements {} to {} in {}, which do not follow its first {} of {} elements",
                                      name, slice.begin, slice.end, in_quotes(slice.file), end, *count));
      }
      if (!files.contains(slice.file) || !its_files.insert(slice.file).second) {
        throw CorruptData(
            fmt::format("{} has a slice in file {}, which {}", name, in_quotes(slice.file),
                        files.contains(slice.file) ? "has another slice too" : "is not one of the snapshot's files"));
      }
      end = slice.end;
    }
    if (end != *count) throw CorruptData(fmt::format("{} ends after {} of {} elements", name, end, *count));
  }
}

}  // namespace

std::optional<std::int64_t> SlicedTensor::count() const {
  const auto bytes = tensor_bytes(dtype, shape);
  if (!bytes || !std::in_range<std::int64_t>(*bytes)) return std::nullopt;
  return static_cast<std::int64_t>(*bytes / size_of(dtype));
}

void check_references(const Manifest& manifest) {
  std::set<std::string> files, items;
  for (const ManifestFile& file : manifest.files) {
    if (!files.insert(file.name).second) throw CorruptData(fmt::format("file {} is there twice", in_quotes(file.name)));
  }
  for (const ManifestItem& item : manifest.items) {
    const std::string name = in_quotes(item.name);
    if (!items.insert(item.name).second) throw CorruptData(fmt::format("item {} is there twice", name));
    if (item.tensors && !files.contains(*item.tensors)) {
      throw CorruptData(fmt::format("item {} has its tensors in file {}, which is not one of the snapshot's files",
                                    name, in_quotes(*item.tensors)));
    }
    if (item.kind == ItemKind::per_rank && std::cmp_not_equal(item.values.size(), manifest.world_size)) {
      throw CorruptData(fmt::format("item {} has values of {} ranks, and there were {} ranks in the job", name,
                                    item.values.size(), manifest.world_size));
    }
    check_slices(item, files);
  }
}

void join_part(Manifest& manifest, Manifest part) {
  std::ranges::move(part.files, std::back_inserter(manifest.files));
  for (ManifestItem& item : part.items) {
    const auto whole = std::ranges::find(manifest.items, item.name, &ManifestItem::name);
    for (SlicedTensor& tensor : item.sliced) {
      if (tensor.slices.empty()) continue;
      const auto known = whole == manifest.items.end()
                             ? std::vector<SlicedTensor>::iterator()
                             : std::ranges::find(whole->sliced, tensor.name, &SlicedTensor::name);
      if (whole == manifest.items.end() || known == whole->sliced.end() || known->dtype != tensor.dtype ||
          known->shape != tensor.shape || known->is_transposed != tensor.is_transposed) {
        throw CorruptData(
            fmt::format("item {}: tensor {} is {} in a rank's part of the manifest, and rank 0 has another, or none; "
                        "add the same items on every rank",
                        in_quotes(item.name), in_quotes(tensor.name), describe(tensor.dtype, tensor.shape)));
      }
      // Ranks come in no order of elements. Gaps and overlaps are looked for once all are there, by check_references().
      std::ranges::move(tensor.slices, std::back_inserter(known->slices));
      std::ranges::sort(known->slices, {}, &TensorSlice::begin);
    }
  }
}

std::string to_text(const Manifest& manifest) {
  Json json = {{"step", manifest.step},
               {"generation", manifest.generation},
               {"world_size", manifest.world_size},
               {"time", manifest.time},
               {"writer", manifest.writer},
               {"reason", manifest.reason},
               {"files", Json::array()},
               {"items", Json::array()}};
  if (manifest.value) json["value"] = json_of(*manifest.value);
  if (manifest.audited) json["audited"] = *manifest.audited;
  for (const ManifestFile& file : manifest.files) {
    json["files"].push_back(
        {{"name", file.name}, {"bytes", file.bytes}, {"xxh3", hex(file.xxh3)}, {"owner", file.owner}});
    if (!file.host.empty()) json["files"].back()["host"] = file.host;
  }
  for (const ManifestItem& item : manifest.items) {
    Json one = {{"name", item.name}, {"type", item.type}, {"kind", kItemKinds[static_cast<std::size_t>(item.kind)]}};
    if (item.tensors) one["tensors"] = *item.tensors;
    if (item.kind == ItemKind::sharded) {
      one["tensors"] = Json::array();
      for (const SlicedTensor& tensor : item.sliced) one["tensors"].push_back(json_of(tensor));
    }
    if (item.kind == ItemKind::per_rank) {
      one["at_another_size"] = kAtAnotherSize[static_cast<std::size_t>(item.at_another_size)];
      one["values"] = Json::array();
      for (const SnapshotValues& values : item.values) one["values"].push_back(json_of(values));
    } else {
      one["values"] = item.values.empty() ? Json::object() : json_of(item.values.front());
    }
    json["items"].push_back(std::move(one));
  }
  return seal(std::move(json), kManifestFormat);
}

std::string to_text(const SnapshotValues& values) { return dump_json(json_of(values)); }

SnapshotValues values_from_text(std::string_view text) {
  return values_of(parse_json(text, "a rank's values", kDepthOfValues), "a rank's values");
}

Manifest manifest_from_text(std::string_view text) {
  Manifest manifest = part_from_text(text);
  try {
    check_references(manifest);
  } catch (const CorruptData& error) {
    throw CorruptData(fmt::format("{}; the manifest is damaged: use another snapshot", error.what()));
  }
  return manifest;
}

Manifest part_from_text(std::string_view text) {
  const Json json = unseal(text, kManifestFormat, "the manifest");
  Manifest manifest{.step = count_at<std::int64_t>(json, "step", "it"),
                    .generation = count_at<std::int64_t>(json, "generation", "it"),
                    .world_size = count_at<int>(json, "world_size", "it"),
                    .time = words_at(json, "time", "it"),
                    .writer = words_at(json, "writer", "it"),
                    .reason = words_at(json, "reason", "it"),
                    .files = list_at<ManifestFile>(json, "files", "it", file_of),
                    .items = list_at<ManifestItem>(json, "items", "it", item_of)};
  if (manifest.world_size == 0) refuse("it: 'world_size'", "1 or more");
  if (json.contains("value")) {
    manifest.value = number_of(json["value"]);
    if (!manifest.value) refuse("it: 'value'", "a number");
  }
  if (json.contains("audited")) manifest.audited = count_at<std::int64_t>(json, "audited", "it");
  return manifest;
}

}  // namespace lockstep::checkpoint
