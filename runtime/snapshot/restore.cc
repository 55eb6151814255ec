// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/stop.h"
#include "lockstep/comm/values.h"
#include "lockstep/ddp/on_rank0.h"
#include "runtime/base/hash.h"
#include "runtime/base/logging.h"
#include "runtime/base/record.h"
#include "runtime/base/text.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/checkpoint/snapshot/series_lock.h"
#include "runtime/checkpoint/tensor_files.h"
#include "runtime/snapshot/snapshots_impl.h"

namespace lockstep {

namespace {

using checkpoint::FoundSnapshot, checkpoint::Manifest, checkpoint::ManifestItem, checkpoint::SnapshotValue,
    checkpoint::SnapshotValues;

}  // namespace

// A snapshot that a rank can read.
struct BasicSnapshots::Impl::Offer {
  int rank = 0;
  std::int64_t step = 0;
  std::int64_t generation = 0;
  std::uint64_t manifest = 0;  // a hash of it
  std::string path;

  bool is_newer_than(const Offer& other) const {
    // Of equal ones the lowest rank's; of one step by two generations, the later.
    return std::tuple(step, generation, other.manifest, other.rank) >
           std::tuple(other.step, other.generation, manifest, rank);
  }
};

// What is in one, as every rank knows it.
struct BasicSnapshots::Impl::Contents {
  using Entries = std::map<std::string, SavedItem::Entry>;

  Manifest manifest;
  std::map<std::string, Entries> tensors;  // by item

  Entries tensors_of(const ManifestItem& item) const {
    const auto found = tensors.find(item.name);
    return found == tensors.end() ? Entries() : found->second;
  }
};

namespace {

// What this rank can read of the folder, or why it can't.
std::vector<FoundSnapshot> readable(const std::filesystem::path& folder, int rank) {
  std::vector<FoundSnapshot> found;
  for (FoundSnapshot& snapshot : checkpoint::list_snapshots(folder)) {
    if (snapshot.why_not.empty()) {
      found.push_back(std::move(snapshot));
    } else if (rank == 0) {
      log_warn("snapshots: '{}' is passed over: {}", snapshot.path.string(), snapshot.why_not);
    }
  }
  return found;
}

// Throws on every rank, as InvalidArgument, what the lowest rank with a text in `own` says.
void agree(ProcessGroup& group, std::string_view what, const std::string& own) {
  const std::vector<std::string> all = all_gather_text(group, own);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    await_all_told(group);
    throw InvalidArgument(fmt::format("{}: on {}: {}", what, group.roster()[rank].describe(), all[rank]));
  }
}

// An item of the snapshot that `root` reads for all.
class SharedItem final : public SavedItem {
 public:
  // `files`: root's, null on the others.
  SharedItem(const ManifestItem& item, SnapshotValues values, std::map<std::string, Entry> tensors,
             const checkpoint::SafetensorsFile* file, ProcessGroup& group, int root)
      : name_(item.name),
        type_(item.type),
        values_(std::move(values)),
        tensors_(std::move(tensors)),
        file_(file),
        group_(group),
        root_(root) {}

  const std::string& name() const override { return name_; }
  const std::string& type() const override { return type_; }
  const SnapshotValues& values() const override { return values_; }
  const std::map<std::string, Entry>& tensors() const override { return tensors_; }
  void read(const std::string& tensor, std::span<std::byte> destination) override {
    if (file_ != nullptr) file_->read(file_->find(tensor), destination);
    if (group_.size() > 1) broadcast_bytes(destination, group_, root_);
  }

 private:
  std::string name_;
  std::string type_;
  SnapshotValues values_;
  std::map<std::string, Entry> tensors_;
  const checkpoint::SafetensorsFile* file_;
  ProcessGroup& group_;
  int root_;
};

template <typename T>
T sum_of(const std::vector<SnapshotValues>& all, const std::string& name) {
  T sum = 0;
  for (const SnapshotValues& values : all) {
    if constexpr (std::is_same_v<T, double>) {
      sum += checkpoint::get_double(values, name);
    } else if constexpr (std::is_same_v<T, std::uint64_t>) {
      sum += checkpoint::get_uint(values, name);
    } else {
      sum += checkpoint::get_int(values, name);
    }
  }
  return sum;
}

// What rank 0 gets of numbers that each rank had its own of; the others get 0.
SnapshotValues sums_of(const ManifestItem& item, int rank) {
  std::vector<SnapshotValues> known = item.values;
  std::erase_if(known, [](const SnapshotValues& values) { return values.empty(); });
  if (known.empty()) return {};
  SnapshotValues sums;
  for (const auto& [name, first] : known.front()) {
    const bool is_float = std::holds_alternative<double>(first);
    const bool is_number =
        is_float || std::holds_alternative<std::int64_t>(first) || std::holds_alternative<std::uint64_t>(first);
    if (!is_number) {
      throw InvalidArgument(fmt::format("item {} is no number, and has no sum; add it with another AtAnotherSize",
                                        checkpoint::in_quotes(item.name)));
    }
    if (is_float) {
      sums[name] = rank == 0 ? sum_of<double>(known, name) : 0.0;
    } else if (std::holds_alternative<std::uint64_t>(first)) {
      sums[name] = rank == 0 ? sum_of<std::uint64_t>(known, name) : std::uint64_t{0};
    } else {
      sums[name] = rank == 0 ? sum_of<std::int64_t>(known, name) : std::int64_t{0};
    }
  }
  return sums;
}

// This rank's values; nothing if it keeps those it has.
std::optional<SnapshotValues> own_values(const ManifestItem& item, AtAnotherSize at_another_size, int rank, int size) {
  if (item.kind == checkpoint::ItemKind::replicated) return item.values.front();
  if (std::cmp_equal(item.values.size(), size)) {
    const SnapshotValues& own = item.values[static_cast<std::size_t>(rank)];
    if (own.empty()) return std::nullopt;  // another rank saved it, when this one had died
    return own;
  }
  switch (at_another_size) {
    case AtAnotherSize::drop: return std::nullopt;
    case AtAnotherSize::sum: return sums_of(item, rank);
    case AtAnotherSize::refuse: break;
  }
  throw InvalidArgument(
      fmt::format("item {} has a value of each of {} ranks, and here are {}; run {} ranks, or add it "
                  "with AtAnotherSize::sum or drop",
                  checkpoint::in_quotes(item.name), item.values.size(), size, item.values.size()));
}

}  // namespace

std::vector<BasicSnapshots::Impl::Offer> BasicSnapshots::Impl::gather_offers() const {
  std::vector<std::string> own;
  std::vector<FoundSnapshot> here;
  std::string failure;
  try {
    here = readable(folder, group->rank());
  } catch (const Error& error) {
    failure = error.what();
  }
  agree(*group, "Snapshots::restore", failure);
  for (const FoundSnapshot& found : here) {
    const std::string manifest = checkpoint::to_text(*found.manifest);
    for (const std::string& text : {std::to_string(found.step), std::to_string(found.generation),
                                    std::to_string(hash64(manifest)), std::filesystem::absolute(found.path).string()}) {
      own.push_back(text);
    }
  }
  std::vector<Offer> offers;
  const std::vector<std::string> all = all_gather_text(*group, write_texts(own));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto texts = read_texts(all[rank]);
    if (!texts || texts->size() % 4 != 0) {
      throw CorruptData(fmt::format("snapshots: what {} offers can't be read; do all ranks run the same build?",
                                    group->roster()[rank].describe()));
    }
    for (std::size_t i = 0; i < texts->size(); i += 4) {
      offers.push_back({.rank = static_cast<int>(rank),
                        .step = std::stoll((*texts)[i]),
                        .generation = std::stoll((*texts)[i + 1]),
                        .manifest = std::stoull((*texts)[i + 2]),
                        .path = (*texts)[i + 3]});
    }
  }
  std::sort(offers.begin(), offers.end(), [](const Offer& a, const Offer& b) { return a.is_newer_than(b); });
  return offers;
}

std::optional<BasicSnapshots::Impl::Offer> BasicSnapshots::Impl::choose(const std::vector<Offer>& offers) const {
  std::string said;  // several ranks may offer one
  for (const Offer& offer : offers) {
    std::string why_not, failure;
    if (offer.rank == group->rank()) {
      try {
        checkpoint::verify_snapshot(checkpoint::open_snapshot(offer.path));
      } catch (const CorruptData& error) {
        why_not = error.what();
      } catch (const Error& error) {  // it may be whole: who can't look must not begin anew
        failure = error.what();
      }
    }
    agree(*group, "Snapshots::restore", failure);
    why_not = broadcast_value(std::string_view(why_not), *group, offer.rank);
    if (why_not.empty()) return offer;
    const std::string text = fmt::format("snapshots: '{}' is passed over: {}", offer.path, why_not);
    if (group->rank() == 0 && text != std::exchange(said, text)) log_warn("{}", text);
  }
  return std::nullopt;
}

BasicSnapshots::Impl::Contents BasicSnapshots::Impl::read(const Offer& offer) const {
  // The holder's, as texts: the manifest, then of each tensor item, name, dtype and shape.
  std::vector<std::string> texts;
  if (offer.rank == group->rank()) {
    const FoundSnapshot found = checkpoint::open_snapshot(offer.path);
    texts.push_back(checkpoint::to_text(*found.manifest));
    for (const ManifestItem& item : found.manifest->items) {
      if (!item.tensors) continue;
      const checkpoint::SafetensorsFile file(found.path / *item.tensors);
      for (const auto& [name, entry] : file.tensors()) {
        texts.insert(texts.end(), {item.name, name, std::to_string(static_cast<int>(entry.dtype)),
                                   fmt::format("{}", fmt::join(entry.shape, ","))});
      }
    }
  }
  const auto shared = read_texts(broadcast_value(std::string_view(write_texts(texts)), *group, offer.rank));
  if (!shared || shared->size() % 4 != 1) throw CorruptData(fmt::format("snapshots: '{}' has gone", offer.path));
  Contents contents{.manifest = checkpoint::manifest_from_text(shared->front()), .tensors = {}};
  for (std::size_t i = 1; i < shared->size(); i += 4) {
    SavedItem::Entry entry{.dtype = static_cast<DType>(std::stoi((*shared)[i + 2])), .shape = {}};
    if (const std::string& shape = (*shared)[i + 3]; !shape.empty()) {
      for (const std::string_view extent : split(shape, ',')) entry.shape.push_back(std::stoll(std::string(extent)));
    }
    contents.tensors[(*shared)[i]].emplace((*shared)[i + 1], std::move(entry));
  }
  return contents;
}

void BasicSnapshots::Impl::refuse_damaged() const {
  std::string own;
  try {
    int damaged = 0;
    for (const FoundSnapshot& found : checkpoint::list_snapshots(folder)) {
      // Of those that look whole choose() has read every byte.
      if (found.state == checkpoint::SnapshotState::damaged || found.state == checkpoint::SnapshotState::whole)
        ++damaged;
    }
    if (damaged > 0) {
      own = fmt::format(
          "'{}' has {} snapshot{}, damaged, and none that is whole; mend one, or move them away to begin "
          "anew; `lockstep snapshots --verify {}` says what is wrong",
          folder.string(), damaged, damaged == 1 ? "" : "s", folder.string());
    }
  } catch (const Error& error) {
    own = error.what();
  }
  agree(*group, "Snapshots::restore", own);
}

void BasicSnapshots::Impl::begin_generation(std::optional<std::int64_t> from_step) {
  std::int64_t newest = checkpoint::newest_generation(folder);
  for (const std::int64_t of_rank : all_gather_value(newest, *group)) newest = std::max(newest, of_rank);
  checkpoint::Generation next{.number = newest + 1,
                              .from_step = from_step,
                              .writer = group->roster().front().describe(),
                              .time = broadcast_value(std::string_view(checkpoint::utc_now()), *group)};
  generation = next.number;
  on_rank0("Snapshots::restore", *group, [&] {
    checkpoint::record_generation(folder, next);
    return std::string();
  });
  // A run of before may still write to a disk of another host's.
  std::error_code ignored;
  if (group->rank() != 0 && std::filesystem::is_directory(folder, ignored)) {
    try {
      checkpoint::record_generation(folder, next);
    } catch (const Error& error) {
      log_warn("snapshots: the folder of this host does not know of this run: {}", error.what());
    }
  }
}

void BasicSnapshots::Impl::check_room() const {
  struct statvfs disk {};
  if (::statvfs(folder.c_str(), &disk) != 0) throw SystemError(fmt::format("statvfs of '{}'", folder.string()), errno);
  const std::uint64_t free = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  const std::uint64_t one = state_bytes();
  const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  if (free < one) {
    throw InvalidArgument(
        fmt::format("snapshots: '{}' has {:.1f} MiB free, and one snapshot takes {:.1f}; make room, or "
                    "give another folder",
                    folder.string(), mib(free), mib(one)));
  }
  if (free / static_cast<std::uint64_t>(options.keep + 1) < one) {
    log_warn("snapshots: '{}' has {:.1f} MiB free; {} snapshots, and one that is being written, take {:.1f}",
             folder.string(), mib(free), options.keep, mib(one) * (options.keep + 1));
  }
}

void BasicSnapshots::Impl::check(const Offer& offer, const Contents& contents) const {
  const Manifest& manifest = contents.manifest;
  std::string own;
  const auto say = [&](const std::string& text) { own += fmt::format("{}{}", own.empty() ? "" : "; ", text); };
  for (const ManifestItem& saved : manifest.items) {
    const bool is_here = std::any_of(items.begin(), items.end(), [&](const Item& it) { return it.name == saved.name; });
    if (!is_here && !options.restore.allow_unexpected) {
      say(fmt::format("it has {}, which the program has not added", checkpoint::in_quotes(saved.name)));
    }
  }
  for (const Item& item : items) {
    const auto saved = std::find_if(manifest.items.begin(), manifest.items.end(),
                                    [&](const ManifestItem& it) { return it.name == item.name; });
    if (saved == manifest.items.end()) {
      if (!options.restore.allow_missing) {
        say(fmt::format("it lacks {}, which the program has added", checkpoint::in_quotes(item.name)));
      }
      continue;
    }
    try {
      if (saved->type != item.item->type() || saved->kind != item.kind) {
        throw InvalidArgument(fmt::format("it is of type {}, and the program's is {}",
                                          checkpoint::in_quotes(saved->type),
                                          checkpoint::in_quotes(item.item->type())));
      }
      const auto values = own_values(*saved, item.at_another_size, group->rank(), group->size());
      const SharedItem shared(*saved, values.value_or(item.item->values()), contents.tensors_of(*saved), nullptr,
                              *group, offer.rank);
      item.item->check(shared, options.restore);
    } catch (const Error& error) {
      say(fmt::format("{}: {}", item.name, error.what()));
    }
  }
  agree(*group, fmt::format("snapshots: '{}' does not fit this program", offer.path), own);
}

void BasicSnapshots::Impl::load(const Offer& offer, const Contents& contents) {
  for (const ManifestItem& saved : contents.manifest.items) {
    const auto item = std::find_if(items.begin(), items.end(), [&](const Item& it) { return it.name == saved.name; });
    if (item == items.end()) {
      log_warn("snapshots: {} of '{}' is left out", checkpoint::in_quotes(saved.name), offer.path);
      continue;
    }
    auto values = own_values(saved, item->at_another_size, group->rank(), group->size());
    if (!values) continue;
    std::optional<checkpoint::SafetensorsFile> file;
    if (saved.tensors && group->rank() == offer.rank) file.emplace(std::filesystem::path(offer.path) / *saved.tensors);
    SharedItem shared(saved, *std::move(values), contents.tensors_of(saved), file ? &*file : nullptr, *group,
                      offer.rank);
    item->item->load(shared);
  }
}

std::optional<RestoredSnapshot> BasicSnapshots::restore() {
  Impl& self = *impl_;
  if (self.is_begun)
    throw InvalidArgument("Snapshots: restore() was called before; it is called once, before the loop");
  ProcessGroup& group = *self.group;
  on_rank0("Snapshots::restore", group, [&] {
    self.lock = std::make_unique<checkpoint::SeriesLock>(self.folder, self.who());
    self.check_room();
    return std::string();
  });
  const auto offer = self.choose(self.gather_offers());
  std::optional<RestoredSnapshot> restored;
  if (offer) {
    const Impl::Contents contents = self.read(*offer);
    self.check(*offer, contents);
    self.begin_generation(offer->step);
    self.load(*offer, contents);
    self.steps.set(offer->step);
    self.last_saved = offer->step;
    restored = {
        .step = offer->step, .path = offer->path, .rank = offer->rank, .world_size = contents.manifest.world_size};
    if (group.rank() == 0) {
      log_info("snapshots: goes on from step {}, which {} ranks saved at {} ({}): '{}' of {}", offer->step,
               contents.manifest.world_size, contents.manifest.time, contents.manifest.reason, offer->path,
               group.roster()[static_cast<std::size_t>(offer->rank)].describe());
    }
  } else {
    self.refuse_damaged();  // a fresh start would end what can perhaps be mended
    self.begin_generation(std::nullopt);
    if (group.rank() == 0) log_info("snapshots: a fresh start: there is none in '{}'", self.folder.string());
  }
  self.is_begun = true;
  self.last_step = self.steps.count();
  if (group.rank() == 0) {
    const auto write = [folder = self.folder, keep = checkpoint::Retention{self.options.keep, self.options.keep_every}](
                           Manifest head, std::span<const checkpoint::ItemSource> items) {
      checkpoint::write_snapshot(folder, std::move(head), items);
      try {
        checkpoint::clean(folder, keep);
      } catch (const Error& error) {
        log_warn("snapshots: older ones could not be removed: {}", error.what());
      }
    };
    self.writer = std::make_unique<BackgroundWriter>(write);
  }
  self.steps.before_update([&self] {
    self.is_updating = true;
    if (self.writer) self.writer->wait_copied();
  });
  if (self.options.stop_on_signals) stop_on_signals(group);
  if (self.options.rescue) {
    self.at_fatal_error = std::make_unique<AtFatalError>([&self] { self.rescue("the job has failed"); });
  }
  return restored;
}

}  // namespace lockstep
