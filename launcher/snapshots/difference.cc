// SPDX-License-Identifier: Apache-2.0
#include "launcher/snapshots/difference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <type_traits>
#include <utility>

#include "lockstep/device/dtype.h"
#include "runtime/base/printable.h"
#include "runtime/checkpoint/snapshot/item_tensors.h"
#include "runtime/checkpoint/snapshot/series.h"

namespace lockstep::launcher::snapshots {
namespace {

namespace fs = std::filesystem;
using checkpoint::FoundSnapshot, checkpoint::ManifestItem, checkpoint::SlicedTensor, checkpoint::SnapshotFiles;
using Json = nlohmann::json;

template <typename T>
double distance(T a, T b) {
  if constexpr (std::is_same_v<T, bfloat16> || std::is_same_v<T, float16>) {
    return std::abs(static_cast<double>(to_float(a)) - static_cast<double>(to_float(b)));
  } else if constexpr (std::is_integral_v<T>) {  // the difference of two large values may exceed their type
    using U = std::make_unsigned_t<T>;
    return static_cast<double>(
        static_cast<U>(a > b ? static_cast<U>(a) - static_cast<U>(b) : static_cast<U>(b) - static_cast<U>(a)));
  } else {
    return std::abs(static_cast<double>(a) - static_cast<double>(b));
  }
}

template <typename T>
void compare_elements(std::span<const std::byte> a, std::span<const std::byte> b, TensorDifference& difference) {
  for (std::size_t at = 0; at < a.size(); at += sizeof(T)) {
    if (std::memcmp(&a[at], &b[at], sizeof(T)) == 0) continue;
    ++difference.different;
    T left, right;
    std::memcpy(&left, &a[at], sizeof(T));
    std::memcpy(&right, &b[at], sizeof(T));
    const double apart = distance(left, right);
    if (std::isnan(apart)) {
      ++difference.nans;
    } else {
      difference.largest = std::max(difference.largest, apart);
    }
  }
}

using Items = std::map<std::string, const ManifestItem*>;
Items items_of(const FoundSnapshot& snapshot) {
  Items items;
  for (const ManifestItem& item : snapshot.manifest->items) items[item.name] = &item;
  return items;
}

// Calls `both(name, a, b)` for names in both maps, and `only(name, is_a)` for the others.
template <typename Map, typename Both, typename Only>
void match(const Map& a, const Map& b, Both both, Only only) {
  for (const auto& [name, it] : a) {
    const auto other = b.find(name);
    other == b.end() ? only(name, true) : both(name, it, other->second);
  }
  for (const auto& [name, it] : b) {
    if (!a.contains(name)) only(name, false);
  }
}

std::map<std::string, std::string> texts_of(const ManifestItem& item) {
  std::map<std::string, std::string> texts;
  const bool is_per_rank = item.kind == checkpoint::ItemKind::per_rank;
  for (std::size_t rank = 0; rank < item.values.size(); ++rank) {
    const Json values = Json::parse(checkpoint::to_text(item.values[rank]));
    for (const auto& [name, value] : values.items()) {
      texts[is_per_rank ? fmt::format("rank {}: {}", rank, name) : name] = value.dump();
    }
  }
  return texts;
}

class Comparison {
 public:
  Comparison(const fs::path& a, const fs::path& b)
      : a_(checkpoint::open_snapshot(a)), b_(checkpoint::open_snapshot(b)) {
    checkpoint::verify_snapshot(a_);
    checkpoint::verify_snapshot(b_);
    result_.a = a;
    result_.b = b;
  }

  Difference run() {
    match(
        items_of(a_), items_of(b_),
        [&](const std::string& name, const ManifestItem* a, const ManifestItem* b) { compare_items(name, *a, *b); },
        [&](const std::string& name, bool is_a) {
          say_only(fmt::format("item {}", checkpoint::in_quotes(name)), is_a);
        });
    return std::move(result_);
  }

 private:
  void say_only(const std::string& what, bool is_a) {
    result_.structure.push_back(fmt::format("{} is only in {}", what, is_a ? "A" : "B"));
  }
  void compare_items(const std::string& name, const ManifestItem& a, const ManifestItem& b) {
    const bool is_same_kind = (a.kind == checkpoint::ItemKind::per_rank) == (b.kind == checkpoint::ItemKind::per_rank);
    if (a.type != b.type || !is_same_kind) {
      result_.structure.push_back(fmt::format("item {} is of type {} in A and {} in B", checkpoint::in_quotes(name),
                                              checkpoint::in_quotes(a.type), checkpoint::in_quotes(b.type)));
      return;
    }
    match(
        texts_of(a), texts_of(b),
        [&](const std::string& value, const std::string& in_a, const std::string& in_b) {
          if (in_a != in_b) result_.values.push_back({name, value, in_a, in_b});
        },
        [&](const std::string& value, bool is_a) {
          result_.values.push_back({name, value, is_a ? texts_of(a).at(value) : "", is_a ? "" : texts_of(b).at(value)});
        });
    compare_all_tensors(name, a, b);
  }
  void compare_all_tensors(const std::string& item, const ManifestItem& a, const ManifestItem& b) {
    SnapshotFiles files_a(a_.path), files_b(b_.path);
    const auto tensors_in = [](SnapshotFiles& files, const ManifestItem& its) {
      std::map<std::string, SlicedTensor> tensors;
      for (SlicedTensor& tensor : files.tensors_of(its)) tensors.emplace(tensor.name, std::move(tensor));
      return tensors;
    };
    match(
        tensors_in(files_a, a), tensors_in(files_b, b),
        [&](const std::string& name, const SlicedTensor& left, const SlicedTensor& right) {
          if (left.dtype != right.dtype || left.shape != right.shape) {
            result_.structure.push_back(fmt::format(
                "{}: tensor {} is {} in A and {} in B", item, checkpoint::in_quotes(name),
                checkpoint::describe(left.dtype, left.shape), checkpoint::describe(right.dtype, right.shape)));
            return;
          }
          TensorDifference difference = compare_tensors(left.dtype, checkpoint::read_whole(left, files_a),
                                                        checkpoint::read_whole(right, files_b));
          difference.item = item;
          difference.name = name;
          if (difference.different == 0) {
            ++result_.equal_tensors;
          } else {
            result_.tensors.push_back(std::move(difference));
          }
        },
        [&](const std::string& name, bool is_a) {
          say_only(fmt::format("{}: tensor {}", item, checkpoint::in_quotes(name)), is_a);
        });
  }

  FoundSnapshot a_, b_;
  Difference result_;
};

}  // namespace

TensorDifference compare_tensors(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b) {
  TensorDifference difference;
  difference.elements = a.size() / size_of(dtype);
  switch (dtype) {
    case DType::f32: compare_elements<float>(a, b, difference); break;
    case DType::f64: compare_elements<double>(a, b, difference); break;
    case DType::bf16: compare_elements<bfloat16>(a, b, difference); break;
    case DType::f16: compare_elements<float16>(a, b, difference); break;
    case DType::i32: compare_elements<std::int32_t>(a, b, difference); break;
    case DType::i64: compare_elements<std::int64_t>(a, b, difference); break;
    case DType::u8: compare_elements<std::uint8_t>(a, b, difference); break;
  }
  return difference;
}

Difference compare(const fs::path& a, const fs::path& b) { return Comparison(a, b).run(); }

std::string as_text(const Difference& difference) {
  std::string text = fmt::format("A: {}\nB: {}\n", difference.a.string(), difference.b.string());
  for (const std::string& line : difference.structure) text += line + "\n";
  for (const ValueDifference& it : difference.values) {
    const auto shown = [](const std::string& value) { return value.empty() ? "not there" : value; };
    text += fmt::format("{}: value {}: {} in A, {} in B\n", it.item, printable(it.name), shown(it.a), shown(it.b));
  }
  for (const TensorDifference& it : difference.tensors) {
    text += fmt::format("{}: tensor {}: {} of {} elements differ, by at most {:.6g}{}\n", it.item,
                        checkpoint::in_quotes(it.name), it.different, it.elements, it.largest,
                        it.nans == 0 ? "" : fmt::format("; {} are NaN", it.nans));
  }
  return text + fmt::format("{} tensors are equal, {} differ\n", difference.equal_tensors, difference.tensors.size());
}

std::string as_json(const Difference& difference) {
  Json json = {{"a", difference.a.string()},
               {"b", difference.b.string()},
               {"equal", difference.is_equal()},
               {"structure", difference.structure},
               {"values", Json::array()},
               {"tensors", Json::array()},
               {"equal_tensors", difference.equal_tensors}};
  for (const ValueDifference& it : difference.values) {
    Json one = {{"item", it.item}, {"name", it.name}};
    if (!it.a.empty()) one["a"] = Json::parse(it.a);
    if (!it.b.empty()) one["b"] = Json::parse(it.b);
    json["values"].push_back(std::move(one));
  }
  for (const TensorDifference& it : difference.tensors) {
    Json one = {
        {"item", it.item}, {"name", it.name}, {"elements", it.elements}, {"different", it.different}, {"nan", it.nans}};
    // JSON lacks infinity.
    one["largest"] = std::isinf(it.largest) ? Json("Infinity") : Json(it.largest);
    json["tensors"].push_back(std::move(one));
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace lockstep::launcher::snapshots
