// SPDX-License-Identifier: Apache-2.0
#include "runtime/checkpoint/load.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
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

// The prefix of the names of `shorter` in `longer`, at least of half of them: wrappers of modules put a prefix before
// all. Empty: nothing.
std::string prefix_between(const std::set<std::string>& shorter, const std::set<std::string>& longer) {
  if (shorter.empty()) return {};
  const std::string& longest = *std::ranges::max_element(shorter, {}, &std::string::size);
  int tried = 0;
  for (auto name = longer.begin(); name != longer.end() && tried < 8; ++name) {
    if (!name->ends_with("." + longest)) continue;
    ++tried;  // it may end so by chance
    const std::string prefix = name->substr(0, name->size() - longest.size());
    const auto has = [&](const std::string& it) { return longer.contains(prefix + it); };
    if (2 * std::ranges::count_if(shorter, has) >= std::ssize(shorter)) return prefix;
  }
  return {};
}

struct Differences {
  std::vector<std::string> missing;  // texts for the message, as are the next three
  std::vector<std::string> unexpected;
  std::vector<std::string> different;
  std::vector<std::string> unequal;
  std::set<std::string> missing_names;  // in the file
  std::set<std::string> unexpected_names;
  bool dtypes_alone = true;  // each that is different has another dtype, and the wanted shape

  std::string text() const {
    std::string all;
    for (const auto& [what, items] :
         {std::pair("missing", &missing), std::pair("unexpected", &unexpected), std::pair("different", &different),
          std::pair("tied in the program and not equal in the file", &unequal)}) {
      if (!items->empty()) all += (all.empty() ? "" : "; ") + list(what, *items);
    }
    return all;
  }
  std::string remedy(std::string_view whose) const {
    if (const std::string more = prefix_between(missing_names, unexpected_names); !more.empty()) {
      return fmt::format(
          "its names begin with {}, as wrappers of modules save them: pass a LoadOptions::name_in_file that puts it "
          "before each name",
          in_quotes(more));
    }
    if (const std::string less = prefix_between(unexpected_names, missing_names); !less.empty()) {
      return fmt::format(
          "the {}'s names begin with {}, and the file's do not: pass a LoadOptions::name_in_file that takes it off "
          "each "
          "name",
          whose, in_quotes(less));
    }
    if (!unequal.empty()) {
      return "tie them where the file is written, or pass a LoadOptions::name_in_file that gives both the name to read";
    }
    if (missing.empty() && different.empty()) {
      return fmt::format("leave out of the file what is not the {}'s, or pass LoadOptions::allow_unexpected", whose);
    }
    if (missing.empty() && unexpected.empty() && dtypes_alone) {
      return fmt::format("the shapes fit and the dtypes do not: convert the file's tensors, or build the {} in theirs",
                         whose);
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
    std::set<std::string> in_file;  // the map may give one name to several
    plan_.sources.emplace_back();
    for (const std::string& own : wanted.names) {
      const std::string name = name_in_file(own);
      known_.insert(name);
      if (in_file.insert(name).second && is_held(name)) take_held(wanted, own, name);
    }
    if (plan_.sources.back()) return;
    plan_.loaded.missing.insert(plan_.loaded.missing.end(), wanted.names.begin(), wanted.names.end());
    if (options_.allow_missing) return;
    found_.missing_names.merge(in_file);
    const auto shown = [&](const std::string& own) {
      const std::string name = name_in_file(own);
      return in_quotes(own) + (name == own ? "" : fmt::format(" (in the file {})", in_quotes(name)));
    };
    found_.missing.push_back(joined(wanted.names, shown, " or "));
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
  std::string name_in_file(const std::string& own) const {
    return options_.name_in_file ? options_.name_in_file(own) : own;
  }
  bool is_held(const std::string& name) const {
    return files_.tensors().contains(name) || files_.foreign().contains(name);
  }
  // `own`: the name of `wanted` that is `name` in the file, which has it.
  void take_held(const WantedTensor& wanted, const std::string& own, const std::string& name) {
    std::optional<std::string>& source = plan_.sources.back();
    const auto foreign = files_.foreign().find(name);
    const bool is_foreign = foreign != files_.foreign().end();
    const TensorEntry& entry = is_foreign ? foreign->second.entry : files_.tensors().at(name);
    if (is_foreign ? !is_bool_of(foreign->second, wanted)
                   : entry.dtype != wanted.dtype || entry.shape != wanted.shape) {
      found_.dtypes_alone = found_.dtypes_alone && entry.shape == wanted.shape;
      found_.different.push_back(
          fmt::format("{} (file {}, {} {})", in_quotes(own),
                      is_foreign ? describe(foreign->second) : describe(entry.dtype, entry.shape), whose_,
                      describe(wanted.dtype, wanted.shape)));
    } else if (source && found_.different.empty() && bytes_of(*source, entry.bytes) != bytes_of(name, entry.bytes)) {
      found_.unequal.push_back(fmt::format("{} and {}", in_quotes(*source), in_quotes(name)));
    }
    if (!source) source = name;
  }
  std::vector<std::byte> bytes_of(const std::string& name, std::uint64_t size) const {
    std::vector<std::byte> bytes(size);
    files_.read(name, bytes);
    return bytes;
  }
  void unexpected(const std::string& name, const std::string& text) {
    if (known_.contains(name)) return;
    plan_.loaded.unexpected.push_back(name);
    if (options_.allow_unexpected || (options_.allow_unexpected_integers && is_integer(files_, name))) return;
    found_.unexpected.push_back(text);
    found_.unexpected_names.insert(name);
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
    throw InvalidArgument(fmt::format("{}: the content of '{}' does not fit the {}: {}; {}", operation,
                                      files.path().string(), whose, text, comparison.found().remedy(whose)));
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
    throw CorruptData(fmt::format(
        "load: this rank can't read what rank 0 sent about the file: {}; run the same build of lockstep on all ranks",
        error.what()));
  }
}

}  // namespace lockstep::checkpoint
