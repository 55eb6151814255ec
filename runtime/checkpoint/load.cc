// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "lockstep/base/error.h"
#include "runtime/base/text.h"

namespace lockstep::checkpoint {
namespace {

bool is_bool_of(const ForeignTensor& tensor, const WantedTensor& wanted) {
  return wanted.is_bool && tensor.dtype == "BOOL" && tensor.entry.shape == wanted.shape;
}

// "missing 'a', 'b', 'c', 'd' and 9 more".
std::string list(std::string_view what, const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 4;
  return fmt::format("{} {}", what, joined(items, std::identity(), ", ", kShown));
}

struct Differences {
  std::vector<std::string> missing;
  std::vector<std::string> unexpected;
  std::vector<std::string> different;
  bool prefixed = true;  // every unexpected name begins as those that PyTorch's wrappers save

  std::string text() const {
    std::string all;
    for (const auto& [what, items] :
         {std::pair("missing", &missing), std::pair("unexpected", &unexpected), std::pair("different", &different)}) {
      if (!items->empty()) all += (all.empty() ? "" : "; ") + list(what, *items);
    }
    return all;
  }
  std::string remedy(std::string_view whose) const {
    if (!unexpected.empty() && prefixed) {
      return "its names begin with 'module.', as PyTorch's wrappers save them: pass a LoadOptions::name_in_file that "
             "puts it before each name";
    }
    if (missing.empty() && different.empty()) {
      return fmt::format("leave out of the file what is not the {}'s, or pass LoadOptions::allow_unexpected", whose);
    }
    return fmt::format("build the {} with the sizes it was saved with", whose);
  }
};

bool is_integer(const TensorFiles& files, const std::string& name) {
  if (const auto foreign = files.foreign().find(name); foreign != files.foreign().end()) {
    const std::string& dtype = foreign->second.dtype;
    return dtype == "BOOL" || dtype.starts_with("I") || dtype.starts_with("U");
  }
  const DType dtype = files.tensors().at(name).dtype;
  return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8;
}

class Comparison {
 public:
  Comparison(const TensorFiles& files, const LoadOptions& options, std::string_view whose)
      : files_(files), options_(options), whose_(whose) {}

  void take(const WantedTensor& wanted) {
    const std::string name = options_.name_in_file ? options_.name_in_file(wanted.name) : wanted.name;
    known_.insert(name);
    const auto held = files_.tensors().find(name);
    const auto foreign = files_.foreign().find(name);
    plan_.sources.push_back(name);
    if (held != files_.tensors().end()) {
      const TensorEntry& entry = held->second;
      if (entry.dtype != wanted.dtype || entry.shape != wanted.shape) {
        differs(wanted, describe(entry.dtype, entry.shape));
      }
    } else if (foreign != files_.foreign().end()) {
      if (!is_bool_of(foreign->second, wanted)) differs(wanted, describe(foreign->second));
    } else {
      plan_.sources.back().reset();
      plan_.loaded.missing.push_back(wanted.name);
      if (!options_.allow_missing) {
        found_.missing.push_back(in_quotes(wanted.name) +
                                 (name == wanted.name ? "" : fmt::format(" (in the file {})", in_quotes(name))));
      }
    }
  }

  void look_for_unexpected() {
    for (const auto& [name, entry] : files_.tensors()) unexpected(name, in_quotes(name));
    for (const auto& [name, tensor] : files_.foreign()) {
      unexpected(name, fmt::format("{} ({}, a dtype that lockstep does not have)", in_quotes(name), describe(tensor)));
    }
    std::sort(plan_.loaded.unexpected.begin(), plan_.loaded.unexpected.end());
  }

  const Differences& found() const { return found_; }
  LoadPlan take_plan() { return std::move(plan_); }

 private:
  void differs(const WantedTensor& wanted, const std::string& in_file) {
    found_.different.push_back(fmt::format("{} (file {}, {} {})", in_quotes(wanted.name), in_file, whose_,
                                           describe(wanted.dtype, wanted.shape)));
  }
  void unexpected(const std::string& name, const std::string& text) {
    if (known_.contains(name)) return;
    plan_.loaded.unexpected.push_back(name);
    if (options_.allow_unexpected || (options_.allow_unexpected_integers && is_integer(files_, name))) return;
    found_.unexpected.push_back(text);
    found_.prefixed = found_.prefixed && name.starts_with("module.");
  }

  const TensorFiles& files_;
  const LoadOptions& options_;
  const std::string_view whose_;
  std::set<std::string> known_;
  Differences found_;
  LoadPlan plan_;
};

}  // namespace

LoadPlan plan_load(const TensorFiles& files, std::span<const WantedTensor> wanted, const LoadOptions& options,
                   std::string_view operation, std::string_view whose) {
  Comparison comparison(files, options, whose);
  for (const WantedTensor& one : wanted) comparison.take(one);
  comparison.look_for_unexpected();
  const std::string text = comparison.found().text();
  if (!text.empty()) {
    throw InvalidArgument(fmt::format("{}: '{}' does not fit the {}: {}; {}", operation, files.path().string(), whose,
                                      text, comparison.found().remedy(whose)));
  }
  LoadPlan plan = comparison.take_plan();
  plan.loaded.metadata = files.metadata();
  return plan;
}

std::string to_text(const Loaded& loaded) {
  return nlohmann::json{{"metadata", loaded.metadata}, {"missing", loaded.missing}, {"unexpected", loaded.unexpected}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Loaded loaded_from_text(const std::string& text) {
  try {
    const auto json = nlohmann::json::parse(text);
    return {json.at("metadata"), json.at("missing"), json.at("unexpected")};
  } catch (const nlohmann::json::exception& error) {
    throw CorruptData(fmt::format("what rank 0 tells of the file it read can't be read: {}", error.what()));
  }
}

}  // namespace lockstep::checkpoint
