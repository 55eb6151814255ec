// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/offers.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/values.h"
#include "runtime/base/hash.h"
#include "runtime/base/logging.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/series.h"

namespace lockstep {
namespace {

using checkpoint::FoundSnapshot, checkpoint::Generation, checkpoint::ManifestItem, checkpoint::SnapshotState;

constexpr std::size_t kOfferFields = 6;
constexpr std::size_t kGenerationFields = 2;

// Snapshots of the folder to resume from, for this lockstep or a later one, and why not from the rest.
std::vector<FoundSnapshot> offered(const std::filesystem::path& folder, int rank) {
  std::vector<FoundSnapshot> found;
  for (FoundSnapshot& snapshot : checkpoint::list_snapshots(folder)) {
    const bool is_later = snapshot.state == SnapshotState::later;
    if (!snapshot.why_not.empty() && rank == 0) {
      log_warn("snapshots: '{}' {}: {}", snapshot.path.string(), is_later ? "can't be read" : "is passed over",
               snapshot.why_not);
    }
    if (snapshot.why_not.empty() || is_later) found.push_back(std::move(snapshot));
  }
  return found;
}

// The texts that each rank gives, by rank; `fields` of them are one thing.
std::vector<std::vector<std::string>> gather(ProcessGroup& group, const std::vector<std::string>& own,
                                             std::size_t fields) {
  std::vector<std::vector<std::string>> all;
  for (const std::string& text : all_gather_text(group, write_texts(own))) {
    auto texts = read_texts(text);
    if (!texts || texts->size() % fields != 0) {
      throw CorruptData(fmt::format("snapshots: what {} offers can't be read; do all ranks run the same build?",
                                    group.roster()[all.size()].describe()));
    }
    all.push_back(*std::move(texts));
  }
  return all;
}

// The starts of the job of which any rank's disk knows: a disk that was away knows only the earlier ones.
std::vector<Generation> gather_generations(ProcessGroup& group, const std::vector<Generation>& own) {
  std::vector<std::string> texts;
  for (const Generation& it : own) {
    if (!it.why_not.empty()) continue;
    texts.insert(texts.end(), {std::to_string(it.number), std::to_string(it.from_step.value_or(-1))});
  }
  std::vector<Generation> generations;
  for (const auto& of_rank : gather(group, texts, kGenerationFields)) {
    for (std::size_t i = 0; i < of_rank.size(); i += kGenerationFields) {
      generations.push_back({.number = std::stoll(of_rank[i]), .from_step = std::stoll(of_rank[i + 1])});
    }
  }
  return generations;
}

}  // namespace

void agree(ProcessGroup& group, std::string_view what, const std::string& own) {
  const std::vector<std::string> all = all_gather_text(group, own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    barrier_before_throw(group);
    throw InvalidArgument(fmt::format("{}: on {}: {}", what, group.roster()[rank].describe(), all[rank]));
  }
}

std::vector<BasicSnapshots::Impl::Offer> BasicSnapshots::Impl::gather_offers(std::string_view call) const {
  std::vector<FoundSnapshot> here;
  std::vector<Generation> known;
  std::string failure;
  try {
    here = offered(folder, group->rank());
    known = checkpoint::list_generations(folder);
  } catch (const Error& error) {
    failure = error.what();
  }
  agree(*group, call, failure);
  std::vector<std::string> own;
  for (const FoundSnapshot& found : here) {
    const bool is_read = found.manifest.has_value();
    own.insert(own.end(), {std::to_string(found.step), std::to_string(found.generation),
                           std::to_string(is_read ? hash64(checkpoint::to_text(*found.manifest)) : 0),
                           is_read && found.manifest->value ? fmt::format("{}", *found.manifest->value) : "",
                           std::filesystem::absolute(found.path).string(), found.why_not});
  }
  const std::vector<Generation> generations = gather_generations(*group, known);
  std::vector<Offer> offers;
  const auto all = gather(*group, own, kOfferFields);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    for (std::size_t i = 0; i < all[rank].size(); i += kOfferFields) {
      const std::string* const texts = &all[rank][i];
      Offer offer{.rank = static_cast<int>(rank),
                  .step = std::stoll(texts[0]),
                  .generation = std::stoll(texts[1]),
                  .manifest = std::stoull(texts[2]),
                  .value = texts[3].empty() ? std::nullopt : std::optional(std::stod(texts[3])),
                  .path = texts[4],
                  .later = texts[5]};
      const auto later = std::find_if(generations.begin(), generations.end(), [&](const Generation& it) {
        return it.number > offer.generation && *it.from_step < offer.step;
      });
      if (later == generations.end()) {
        offers.push_back(std::move(offer));
      } else if (group->rank() == 0) {
        log_warn("snapshots: '{}' of {} is passed over: generation {} did not resume from it", offer.path,
                 group->roster()[rank].describe(), later->number);
      }
    }
  }
  std::sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) { return a.is_newer_than(b); });
  return offers;
}

BasicSnapshots::Impl::Choice BasicSnapshots::Impl::choose(const std::vector<Offer>& offers,
                                                          std::string_view call) const {
  Choice choice;
  std::string said;  // several ranks may offer one
  for (const Offer& offer : offers) {
    std::string why_not, failure;
    if (offer.rank == group->rank() && !offer.later.empty()) {
      // A run that resumes from an older one fences it, and trains its steps again.
      failure =
          fmt::format("'{}' can't be read: {}; or move away what that one has written, to resume from what is older",
                      offer.path, offer.later);
    } else if (offer.rank == group->rank()) {
      try {
        checkpoint::verify_snapshot(checkpoint::open_snapshot(offer.path));
      } catch (const CorruptData& error) {
        why_not = error.what();
      } catch (const Error& error) {  // the snapshot may be whole: a rank that can't look must not begin anew
        failure = error.what();
      }
    }
    agree(*group, call, failure);
    why_not = broadcast_value(std::string_view(why_not), *group, offer.rank);
    if (why_not.empty()) {
      choice.offer = offer;
      return choice;
    }
    choice.damaged.push_back(offer);
    const std::string text = fmt::format("snapshots: '{}' is passed over: {}", offer.path, why_not);
    if (group->rank() == 0 && text != std::exchange(said, text)) log_warn("{}", text);
  }
  return choice;
}

BasicSnapshots::Impl::Contents BasicSnapshots::Impl::read(const Offer& offer) const {
  // The holder's, as texts: the manifest, then of each tensor item, name, dtype and shape.
  std::vector<std::string> texts;
  std::map<std::string, checkpoint::SafetensorsFile> files;
  if (offer.rank == group->rank()) {
    const FoundSnapshot found = checkpoint::open_snapshot(offer.path);
    texts.push_back(checkpoint::to_text(*found.manifest));
    for (const ManifestItem& item : found.manifest->items) {
      if (!item.tensors) continue;
      const auto file = files.try_emplace(item.name, found.path / *item.tensors).first;
      for (const auto& [name, entry] : file->second.tensors()) {
        texts.insert(texts.end(), {item.name, name, std::to_string(static_cast<int>(entry.dtype)),
                                   fmt::format("{}", fmt::join(entry.shape, ","))});
      }
    }
  }
  const auto shared = read_texts(broadcast_value(std::string_view(write_texts(texts)), *group, offer.rank));
  if (!shared || shared->size() % 4 != 1) throw CorruptData(fmt::format("snapshots: '{}' has gone", offer.path));
  Contents contents{
      .manifest = checkpoint::manifest_from_text(shared->front()), .tensors = {}, .files = std::move(files)};
  for (const ManifestItem& item : contents.manifest.items) contents.tensors[item.name];
  for (std::size_t i = 1; i < shared->size(); i += 4) {
    SavedItem::Entry entry{.dtype = static_cast<DType>(std::stoi((*shared)[i + 2])), .shape = {}};
    if (const std::string& shape = (*shared)[i + 3]; !shape.empty()) {
      for (const std::string_view extent : split(shape, ',')) entry.shape.push_back(std::stoll(std::string(extent)));
    }
    contents.tensors[(*shared)[i]].emplace((*shared)[i + 1], std::move(entry));
  }
  return contents;
}

void BasicSnapshots::Impl::refuse_damaged(const std::vector<Offer>& damaged) const {
  std::string own;
  try {
    auto count = std::ranges::count(damaged, group->rank(), &Offer::rank);
    for (const FoundSnapshot& found : checkpoint::list_snapshots(folder)) {
      if (found.state == SnapshotState::damaged) ++count;
    }
    if (count > 0) {
      own = fmt::format(
          "'{}' has {} snapshot{}, damaged, and none that is whole; mend one, or move them away to begin "
          "anew; `lockstep snapshots --verify {}` says what is wrong",
          folder.string(), count, count == 1 ? "" : "s", folder.string());
    }
  } catch (const Error& error) {
    own = error.what();
  }
  agree(*group, "Snapshots::restore", own);
}

}  // namespace lockstep
