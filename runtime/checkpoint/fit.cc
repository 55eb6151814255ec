#include "runtime/checkpoint/fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "runtime/base/error.h"

namespace lockstep::checkpoint {
namespace {

bool is_bool_of(const ForeignTensor& tensor, const WantedTensor& wanted) {
  return wanted.is_bool && tensor.dtype == "BOOL" && tensor.entry.shape == wanted.shape;
}

// "missing 'a', 'b', 'c', 'd' and 9 more".
std::string list(std::string_view what, const std::vector<std::string>& items) {
  constexpr std::size_t kShown = 4;
  std::string text(what);
  for (std::size_t i = 0; i < std::min(items.size(), kShown); ++i) text += (i == 0 ? " " : ", ") + items[i];
  if (items.size() > kShown) text += fmt::format(" and {} more", items.size() - kShown);
  return text;
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
      return "its names begin with 'module.', as PyTorch's wrappers save them: strip that prefix from the file";
    }
    if (missing.empty() && different.empty())
      return "leave out of the file what is not the " + std::string(whose) + "'s";
    return fmt::format("build the {} with the sizes it was saved with", whose);
  }
};

Differences compare(const SafetensorsFile& file, std::span<const WantedTensor> all, std::string_view whose) {
  Differences found;
  std::set<std::string_view> known;
  const auto differs = [&](const WantedTensor& wanted, const std::string& in_file) {
    found.different.push_back(fmt::format("{} (file {}, {} {})", in_quotes(wanted.name), in_file, whose,
                                          describe(wanted.dtype, wanted.shape)));
  };
  for (const WantedTensor& wanted : all) {
    known.insert(wanted.name);
    const auto held = file.tensors().find(wanted.name);
    const auto foreign = file.foreign().find(wanted.name);
    if (held != file.tensors().end()) {
      const TensorEntry& entry = held->second;
      if (entry.dtype != wanted.dtype || entry.shape != wanted.shape)
        differs(wanted, describe(entry.dtype, entry.shape));
    } else if (foreign != file.foreign().end()) {
      if (!is_bool_of(foreign->second, wanted)) differs(wanted, describe(foreign->second));
    } else {
      found.missing.push_back(in_quotes(wanted.name));
    }
  }
  const auto unexpected = [&](const std::string& name, const std::string& text) {
    if (known.contains(name)) return;
    found.unexpected.push_back(text);
    found.prefixed = found.prefixed && name.starts_with("module.");
  };
  for (const auto& [name, entry] : file.tensors()) unexpected(name, in_quotes(name));
  for (const auto& [name, tensor] : file.foreign()) {
    unexpected(name, fmt::format("{} ({}, a dtype that lockstep does not have)", in_quotes(name), describe(tensor)));
  }
  return found;
}

}  // namespace

void require_fit(const SafetensorsFile& file, std::span<const WantedTensor> wanted, std::string_view operation,
                 std::string_view whose) {
  const Differences found = compare(file, wanted, whose);
  const std::string text = found.text();
  if (text.empty()) return;
  throw InvalidArgument(fmt::format("{}: '{}' does not fit the {}: {}; {}", operation, file.path().string(), whose,
                                    text, found.remedy(whose)));
}

const TensorEntry& entry_of(const SafetensorsFile& file, const WantedTensor& wanted) {
  const auto foreign = file.foreign().find(wanted.name);
  if (foreign != file.foreign().end() && is_bool_of(foreign->second, wanted)) return foreign->second.entry;
  return file.find(wanted.name);
}

}  // namespace lockstep::checkpoint
