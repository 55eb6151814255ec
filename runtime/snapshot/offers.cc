// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/offers.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <tuple>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/values.h"
#include "runtime/base/hash.h"
#include "runtime/base/logging.h"
#include "runtime/checkpoint/header.h"
#include "runtime/checkpoint/snapshot/files.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/comm/gather_records.h"

namespace lockstep {
namespace {

using checkpoint::FoundSnapshot, checkpoint::Generation, checkpoint::Manifest, checkpoint::ManifestItem,
    checkpoint::SnapshotState;

constexpr auto kGenerationFields = [](auto& generation, auto& fields) {
  fields("number", generation.number);
  fields("from-step", generation.from_step);
};

// A file of a snapshot that a rank found damaged.
struct DamagedFile {
  std::string name = {};
  std::string why_not = {};

  static constexpr auto kFields = [](auto& file, auto& fields) {
    fields.lines("name", file.name);
    fields.lines("why-not", file.why_not);
  };
};

// A tensor of an item, in a file that holds all of it.
struct WholeTensor {
  std::string item = {};
  std::string name = {};
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape = {};
  std::string file = {};

  static constexpr auto kFields = [](auto& tensor, auto& fields) {
    fields.lines("item", tensor.item);
    fields.lines("name", tensor.name);
    fields("dtype", tensor.dtype, DType::u8);
    fields.list("shape", tensor.shape);
    fields.lines("file", tensor.file);
  };
};

// Snapshots of the folder to resume from, for this lockstep or a later one, perhaps together with other ranks' disks,
// and why not from the rest.
std::vector<FoundSnapshot> offered(const std::filesystem::path& folder, int rank) {
  std::vector<FoundSnapshot> found;
  for (FoundSnapshot& snapshot : checkpoint::list_snapshots(folder)) {
    const bool is_later = snapshot.state == SnapshotState::later;
    // Another rank's manifest may make the files that are good here a snapshot, where this disk's copy is not there or
    // damaged.
    const bool is_damaged = snapshot.state == SnapshotState::damaged;
    const bool is_unfinished = (is_damaged || snapshot.state == SnapshotState::unfinished) &&
                               !checkpoint::numbers_of(snapshot.path.filename().string())->survivor;
    if (!snapshot.is_saved() && rank == 0) {
      log_warn("snapshots: '{}' {}: {}", snapshot.path.string(), is_later ? "can't be read" : "is passed over",
               snapshot.why_not);
    }
    if (is_damaged) snapshot.manifest.reset();
    if (snapshot.is_saved() || is_later || is_unfinished) found.push_back(std::move(snapshot));
  }
  return found;
}

// The same manifest, whatever value was written into it later.
std::uint64_t hash_of(Manifest manifest) {
  manifest.value.reset();
  return hash64(checkpoint::to_text(manifest));
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
  std::vector<Offer> own;
  std::vector<Generation> known;
  agree_on(*group, call, [&] {
    for (const FoundSnapshot& found : offered(folder, group->rank())) {
      const std::vector<std::string> files = checkpoint::names_in(found.path);
      Offer& offer = own.emplace_back(Offer{.step = found.step,
                                            .generation = found.generation,
                                            .path = std::filesystem::absolute(found.path).string(),
                                            .files = {files.begin(), files.end()}});
      if (found.state == SnapshotState::later) offer.later = found.why_not;
      if (!found.manifest) continue;
      offer.manifest = hash_of(*found.manifest);
      offer.value = found.manifest->value;
    }
    known = checkpoint::list_generations(folder);
    std::erase_if(known, [](const Generation& it) { return !it.why_not.empty(); });
  });
  // The starts of the job of which any rank's disk knows: a disk that was away knows only the earlier ones.
  std::vector<Generation> generations;
  for (const auto& of_rank : all_gather_records(*group, known, kGenerationFields, "snapshots: the starts")) {
    generations.insert(generations.end(), of_rank.begin(), of_rank.end());
  }
  std::vector<Offer> offers;
  for (int rank = 0;
       std::vector<Offer> & of_rank : all_gather_records(*group, own, Offer::kFields, "snapshots: the offer")) {
    for (Offer& offer : of_rank) {
      offer.rank = rank;
      const Generation* later = nullptr;
      for (const Generation& it : generations) {
        if (later == nullptr && it.number > offer.generation && it.from_step.value_or(-1) < offer.step) later = &it;
      }
      if (later == nullptr) {
        offers.push_back(std::move(offer));
      } else if (group->rank() == 0) {
        log_warn("snapshots: '{}' of {} is passed over: generation {} did not resume from it", offer.path,
                 group->roster()[static_cast<std::size_t>(rank)].describe(), later->number);
      }
    }
    ++rank;
  }
  std::sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) { return a.is_newer_than(b); });
  return offers;
}

std::optional<BasicSnapshots::Impl::Offer> BasicSnapshots::Impl::find_readers(std::span<const Offer> offers,
                                                                              std::string_view call,
                                                                              std::string_view only,
                                                                              Choice& choice) const {
  std::vector<Offer> members(offers.begin(), offers.end());
  const auto say = [&](const Offer& offer, std::string_view why_not) {
    const std::string text = fmt::format("snapshots: '{}' is passed over: {}", offer.path, why_not);
    if (group->rank() == 0 && text != std::exchange(choice.said, text)) log_warn("{}", text);
  };
  std::set<std::string> verified, lost;
  while (!members.empty() && !members.front().is_unfinished()) {
    Offer lead = members.front();
    // The first rank that has the manifest tells it. Where it can't look, the snapshot may be whole: no rank begins
    // anew.
    std::string why_not, text;
    agree_on(*group, call, [&] {
      if (lead.rank != group->rank()) return;
      if (!lead.later.empty()) {
        // A run that resumes from an older one fences it, and trains its steps again.
        throw InvalidArgument(
            fmt::format("'{}' can't be read: {}; or move away what that one has written, to resume from what is older",
                        lead.path, lead.later));
      }
      try {
        const FoundSnapshot found = checkpoint::find_snapshot(lead.path);
        if (!found.is_saved()) throw CorruptData(found.why_not);
        text = checkpoint::to_text(*found.manifest);
      } catch (const CorruptData& error) {
        why_not = error.what();
      }
    });
    why_not = broadcast_value(std::string_view(why_not), *group, lead.rank);
    if (!why_not.empty()) {
      say(lead, why_not);
      members.erase(members.begin());
      continue;
    }
    const Manifest& manifest = lead.contents.emplace(
        checkpoint::manifest_from_text(broadcast_value(std::string_view(text), *group, lead.rank)));
    for (const checkpoint::ManifestFile& file : manifest.files) {
      if (!only.empty() && file.name != only) continue;
      const Offer* reader = nullptr;  // the rank that wrote it, if it still has it: they read beside each other
      for (const Offer& member : members) {
        if (!member.files.contains(file.name)) continue;
        if (reader == nullptr || member.rank == file.owner) reader = &member;
      }
      if (reader == nullptr) {
        say(lead, fmt::format("no rank has an undamaged {}, which rank {} wrote", file.name, file.owner));
        const bool is_host_here =
            !file.host.empty() && std::ranges::count(group->roster(), file.host, &rendezvous::Member::host) > 0;
        if (lost.contains(file.name) || is_host_here) {
          choice.damaged.insert(choice.damaged.end(), offers.begin(), offers.end());
        } else if (!choice.absent) {
          choice.absent = AbsentFile{.file = file, .step = lead.step, .snapshot = lead.path};
        }
        return std::nullopt;
      }
      lead.readers[file.name] = reader->rank;
    }
    std::vector<DamagedFile> damaged;
    agree_on(*group, call, [&] {
      const auto own = std::ranges::find(members, group->rank(), &Offer::rank);
      if (own == members.end()) return;
      lead.own_path = own->path;
      const FoundSnapshot here{.path = own->path, .manifest = manifest};
      for (const checkpoint::ManifestFile& file : manifest.files) {
        const auto reader = lead.readers.find(file.name);
        if (reader == lead.readers.end() || reader->second != group->rank() || verified.contains(file.name)) continue;
        try {
          checkpoint::verify_file(here, file);
          verified.insert(file.name);
        } catch (const CorruptData& error) {
          damaged.push_back({file.name, error.what()});
        }
      }
    });
    bool is_whole = true;
    const auto all = all_gather_records(*group, damaged, DamagedFile::kFields, "snapshots: the damaged files");
    for (Offer& member : members) {
      for (const DamagedFile& file : all[static_cast<std::size_t>(member.rank)]) {
        say(member, file.why_not);
        member.files.erase(file.name);
        lost.insert(file.name);
        is_whole = false;
      }
    }
    if (is_whole) return lead;
  }
  choice.damaged.insert(choice.damaged.end(), offers.begin(), offers.end());
  return std::nullopt;
}

BasicSnapshots::Impl::Choice BasicSnapshots::Impl::choose(const std::vector<Offer>& offers, std::string_view call,
                                                          std::string_view only) const {
  Choice choice;
  for (auto offer = offers.begin(); offer != offers.end(); ++offer) {
    const auto is_same = [&](const Offer& other) {
      return std::tuple(other.step, other.generation, other.manifest, other.later.empty()) ==
             std::tuple(offer->step, offer->generation, offer->manifest, offer->later.empty());
    };
    if (offer->is_unfinished() || std::any_of(offers.begin(), offer, is_same)) continue;
    std::vector<Offer> same;
    std::ranges::copy_if(offers, std::back_inserter(same), is_same);
    std::ranges::copy_if(offers, std::back_inserter(same), [&](const Offer& other) {
      return other.is_unfinished() &&
             std::pair(other.step, other.generation) == std::pair(offer->step, offer->generation) &&
             std::ranges::count(same, other.rank, &Offer::rank) == 0;
    });
    choice.offer = find_readers(same, call, only, choice);
    if (choice.offer) break;
  }
  std::erase_if(choice.damaged, [](const Offer& it) { return it.is_unfinished(); });
  return choice;
}

BasicSnapshots::Impl::Contents BasicSnapshots::Impl::read(const Offer& offer) const {
  Contents contents{.manifest = *offer.contents};
  contents.files = std::make_shared<checkpoint::SnapshotFiles>(offer.own_path);
  // The rank that reads a file of whole tensors tells them.
  std::vector<WholeTensor> own;
  for (const ManifestItem& item : contents.manifest.items) {
    Contents::Tensors& tensors = contents.tensors[item.name];
    for (const checkpoint::SlicedTensor& tensor : item.sliced) tensors.emplace(tensor.name, tensor);
    if (!item.tensors) continue;
    const auto reader = offer.readers.find(*item.tensors);
    if (reader == offer.readers.end() || reader->second != group->rank()) continue;
    for (const checkpoint::SlicedTensor& tensor : contents.files->tensors_of(item)) {
      own.push_back({item.name, tensor.name, tensor.dtype, tensor.shape, *item.tensors});
    }
  }
  for (const auto& of_rank : all_gather_records(*group, own, WholeTensor::kFields, "snapshots: the tensors")) {
    for (const WholeTensor& whole : of_rank) {
      checkpoint::SlicedTensor tensor{.name = whole.name, .dtype = whole.dtype, .shape = whole.shape};
      tensor.slices.push_back({.file = whole.file, .begin = 0, .end = tensor.count().value_or(0)});
      contents.tensors[whole.item].emplace(tensor.name, std::move(tensor));
    }
  }
  return contents;
}

void BasicSnapshots::Impl::refuse_damaged(const std::vector<Offer>& damaged) const {
  agree_on(*group, "Snapshots::restore", [&] {
    auto count = std::ranges::count(damaged, group->rank(), &Offer::rank);
    count += std::ranges::count(checkpoint::list_snapshots(folder), SnapshotState::damaged, &FoundSnapshot::state);
    if (count == 0) return;
    throw InvalidArgument(fmt::format(
        "'{}' has {} snapshot{}, damaged, and none that is whole; mend one, or give another folder to begin anew; "
        "`lockstep snapshots --verify {}` says what is wrong",
        folder.string(), count, count == 1 ? "" : "s", folder.string()));
  });
}

}  // namespace lockstep
