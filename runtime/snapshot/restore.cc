// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/stop.h"
#include "lockstep/comm/values.h"
#include "lockstep/ddp/on_rank0.h"
#include "lockstep/job/cause.h"
#include "runtime/base/logging.h"
#include "runtime/checkpoint/file_error.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/series_lock.h"
#include "runtime/checkpoint/storage.h"
#include "runtime/checkpoint/tensor_files.h"
#include "runtime/comm/coordinated_stop.h"
#include "runtime/comm/disagreement.h"
#include "runtime/comm/group_internals.h"
#include "runtime/comm/roster_cause.h"
#include "runtime/job/exit_code.h"
#include "runtime/job/step_board.h"
#include "runtime/snapshot/offers.h"

namespace lockstep {

namespace {

using checkpoint::Manifest, checkpoint::ManifestItem, checkpoint::SnapshotValue, checkpoint::SnapshotValues;

// An item of the snapshot, of which each file is read for all by a rank that has it.
class SharedItem final : public SavedItem {
 public:
  using Tensors = std::map<std::string, checkpoint::SlicedTensor>;

  // `tensors`, `files`, which are this rank's, and `readers`, by file, outlive this object.
  SharedItem(const ManifestItem& item, SnapshotValues values, const Tensors& tensors, checkpoint::SnapshotFiles& files,
             const std::map<std::string, int>& readers, ProcessGroup& group)
      : name_(item.name),
        type_(item.type),
        values_(std::move(values)),
        sliced_(tensors),
        files_(files),
        readers_(readers),
        group_(group) {
    for (const auto& [name, tensor] : tensors) tensors_[name] = {.dtype = tensor.dtype, .shape = tensor.shape};
  }

  const std::string& name() const override { return name_; }
  const std::string& type() const override { return type_; }
  const SnapshotValues& values() const override { return values_; }
  const std::map<std::string, Entry>& tensors() const override { return tensors_; }
  void read(const std::string& tensor, std::span<std::byte> destination) override {
    const checkpoint::SlicedTensor& whole = sliced_.at(tensor);
    checkpoint::read_whole(whole, destination, [&](const checkpoint::TensorSlice& slice, std::span<std::byte> bytes) {
      const int reader = readers_.at(slice.file);
      if (reader == group_.rank()) files_.read(whole, slice, bytes);
      if (group_.size() > 1) broadcast_bytes(bytes, group_, reader);
    });
  }

 private:
  std::string name_;
  std::string type_;
  SnapshotValues values_;
  std::map<std::string, Entry> tensors_;
  const Tensors& sliced_;
  checkpoint::SnapshotFiles& files_;
  const std::map<std::string, int>& readers_;
  ProcessGroup& group_;
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

// Rank 0's sums of numbers that each rank had its own of; the others get 0.
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
      throw InvalidArgument(fmt::format("item {} is not a number, and has no sum; add it with another AtAnotherSize",
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

// This rank's values; nullopt if it keeps those it has.
std::optional<SnapshotValues> own_values(const ManifestItem& item, AtAnotherSize at_another_size, int rank, int size) {
  if (item.kind != checkpoint::ItemKind::per_rank) return item.values.front();
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

void BasicSnapshots::Impl::compare_items() const {
  std::vector<std::string> own;
  for (const Item& item : items) {
    own.push_back(fmt::format("{} ({}{})", checkpoint::in_quotes(item.name), item.item->type(),
                              item.kind == checkpoint::ItemKind::per_rank  ? ", per rank"
                              : item.kind == checkpoint::ItemKind::sharded ? ", in shares"
                                                                           : ""));
  }
  const std::string listed = fmt::format("{}", fmt::join(own, ", "));
  const std::vector<std::string> all = all_gather_text(*group, listed);
  const auto other = std::find_if(all.begin(), all.end(), [&](const std::string& text) { return text != all[0]; });
  if (other == all.end()) return;
  comm::throw_disagreement(
      *group, fmt::format("Snapshots::restore: rank 0 has added {}, and rank {} {}; add the same in the same order on "
                          "every rank",
                          all[0], other - all.begin(), *other));
}

void BasicSnapshots::Impl::begin_generation(std::optional<std::int64_t> from_step) {
  std::int64_t newest = checkpoint::newest_generation(folder);
  for (const std::int64_t of_rank : all_gather_value(newest, *group)) newest = std::max(newest, of_rank);
  checkpoint::Generation next{.number = newest + 1,
                              .from_step = from_step,
                              .writer = group->roster().front().describe(),
                              .time = broadcast_value(std::string_view(checkpoint::utc_now()), *group)};
  generation = next.number;
  unrecorded = next;
  on_rank0("Snapshots::restore", *group, [&] {
    with_room([&] { record_start(); });
    return std::string();
  });
  // A run of before may still write to a disk of another host's.
  std::error_code ignored;
  std::string failure;
  if (group->rank() != 0 && (is_sharded() || std::filesystem::is_directory(folder, ignored))) {
    try {
      if (is_sharded()) {
        with_room([&] { record_start(); });
      } else {
        record_start();
      }
    } catch (const Error& error) {
      failure = error.what();
      const auto* const system = dynamic_cast<const SystemError*>(&error);
      if (!is_sharded() || (system != nullptr && is_full(*system))) {
        log_warn("snapshots: the folder of {} does not know of this run{}: {}", who(),
                 is_sharded() ? ", and no step is saved until its disk has room" : "", std::exchange(failure, ""));
      }
    }
  }
  if (is_sharded()) agree(*group, "Snapshots::restore", failure);
  if (group->rank() != 0 && keeps_disk) {
    try {
      const checkpoint::SeriesLock only(folder, who());
      checkpoint::clean_rescues(folder, generation, from_step);
    } catch (const Error& error) {
      log_warn("snapshots: what earlier runs have left on this host stays: {}", error.what());
    }
  }
}

void BasicSnapshots::Impl::record_start() {
  if (!unrecorded) return;
  if (is_sharded()) checkpoint::make_folders(folder);
  // Else rank 0 keeps it, or another rank of this host.
  keeps_disk = checkpoint::record_generation(folder, *unrecorded);
  unrecorded.reset();
  resumes_from.clear();
}

void BasicSnapshots::Impl::refuse_absent(const Choice& choice) const {
  if (!choice.absent) return;
  const checkpoint::ManifestFile& file = choice.absent->file;
  const std::string host = file.host.empty() ? "the host" : "host " + file.host;
  const std::string without =
      choice.offer ? fmt::format(
                         "Without it the job would resume from step {} ('{}') and do {} steps again: only if "
                         "that host is gone for good, remove '{}' on each host",
                         choice.offer->step, choice.offer->path, choice.absent->step - choice.offer->step,
                         choice.absent->snapshot.filename().string())
                   : "No older snapshot is whole without it";
  const std::string text = fmt::format(
      "snapshots: nothing is damaged, but step {} is not whole on the hosts of this job: {} is on the disk of {}, "
      "where rank {} wrote it. Bring that host back, or copy its file to '{}'. {}",
      choice.absent->step, file.name, host, file.owner, choice.absent->snapshot.string(), without);
  barrier_before_throw(*group);
  Cause cause = comm::cause_about(group->roster(), Cause::Kind::mismatch, -1, group->rank(), text);
  cause.error_number = kHostAbsent;
  cause.step = choice.absent->step;
  cause.ends_group = false;
  group->internals().report_failure(cause);
  throw InvalidArgument(text);
}

void BasicSnapshots::Impl::check_room(bool is_resumed) const {
  const auto free_bytes = [&] {
    struct statvfs disk {};
    if (::statvfs(folder.c_str(), &disk) != 0) {
      throw checkpoint::file_error("snapshots: looking for room in", folder, "statvfs", errno);
    }
    // A file system that does not say its size may have any.
    if (disk.f_blocks == 0) return std::numeric_limits<std::uint64_t>::max();
    return static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  };
  const std::uint64_t one = state_bytes();
  std::uint64_t free = free_bytes();
  // The snapshot that the job resumes from stays, and those before it in the order, which may look whole.
  for (int keep = options.keep; is_resumed && keep > 0 && free < one; --keep, free = free_bytes()) clean(keep);
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
    const auto saved = std::ranges::find(manifest.items, item.name, &ManifestItem::name);
    if (saved == manifest.items.end()) {
      if (!options.restore.allow_missing) {
        say(fmt::format("it lacks {}, which the program has added", checkpoint::in_quotes(item.name)));
      }
      continue;
    }
    try {
      // Whether a state is in shares is a matter of each run's own.
      const bool is_same_kind =
          (saved->kind == checkpoint::ItemKind::per_rank) == (item.kind == checkpoint::ItemKind::per_rank);
      if (saved->type != item.item->type() || !is_same_kind) {
        throw InvalidArgument(fmt::format("it is of type {}, and the program's is {}",
                                          checkpoint::in_quotes(saved->type),
                                          checkpoint::in_quotes(item.item->type())));
      }
      const auto values = own_values(*saved, item.at_another_size, group->rank(), group->size());
      const SharedItem shared(*saved, values.value_or(item.item->values()), contents.tensors.at(saved->name),
                              *contents.files, offer.readers, *group);
      item.item->check(shared, options.restore);
    } catch (const Error& error) {
      say(fmt::format("{}: {}", item.name, error.what()));
    }
  }
  agree(*group, fmt::format("snapshots: '{}' does not fit this program", offer.path), own);
  compare_tied(offer, contents);
}

// Apart from check(), for the ranks read together: every rank has found by now that each item fits.
void BasicSnapshots::Impl::compare_tied(const Offer& offer, const Contents& contents) const {
  for (const Item& item : items) {
    const auto saved = std::ranges::find(contents.manifest.items, item.name, &ManifestItem::name);
    if (saved == contents.manifest.items.end()) continue;
    SharedItem shared(*saved, {}, contents.tensors.at(saved->name), *contents.files, offer.readers, *group);
    for (const SnapshotTensor& tensor : item.item->tensors()) {
      if (tensor.other_names.empty()) continue;
      std::optional<std::string> first;
      std::vector<std::byte> bytes(tensor.bytes.size()), again(tensor.bytes.size());
      for (const std::string& name : tensor.names()) {
        if (!shared.tensors().contains(name)) continue;
        shared.read(name, first ? again : bytes);
        if (first && again != bytes) {
          throw InvalidArgument(
              fmt::format("snapshots: '{}' does not fit this program: {}: {} and {} are tied in the program, and not "
                          "equal in the snapshot; was the program changed?",
                          offer.path, item.name, checkpoint::in_quotes(*first), checkpoint::in_quotes(name)));
        }
        if (!first) first = name;
      }
    }
  }
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
    SharedItem shared(saved, *std::move(values), contents.tensors.at(saved.name), *contents.files, offer.readers,
                      *group);
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
    return std::string();
  });
  self.compare_items();
  const std::vector<Impl::Offer> offers = self.gather_offers("Snapshots::restore");
  const Impl::Choice choice = self.choose(offers, "Snapshots::restore");
  const auto& offer = choice.offer;
  self.refuse_absent(choice);
  if (offer) self.resumes_from = offer->own_path.filename().string();
  // The others are those that this start will fence.
  for (const Impl::Offer& it : offers) {
    if (it.manifest != 0 && offer && it.step <= offer->step) self.saved_elsewhere.emplace(it.step, it.generation);
  }
  const auto check_room = [&] {
    on_rank0("Snapshots::restore", group, [&] {
      self.check_room(offer.has_value());
      return std::string();
    });
  };
  std::optional<RestoredSnapshot> restored;
  if (offer) {
    const Impl::Contents contents = self.read(*offer);
    self.check(*offer, contents);
    check_room();
    self.begin_generation(offer->step);
    self.load(*offer, contents);
    group.internals().coordinated_stop()->set_steps_before(offer->step - self.steps.count());
    self.steps.set(offer->step);
    self.last_saved = offer->step;
    keep_saved_step(offer->step);
    restored = {.step = offer->step,
                .path = offer->path,
                .rank = offer->rank,
                .world_size = contents.manifest.world_size,
                .value = offer->value};
    if (group.rank() == 0) {
      log_info("snapshots: resumes from step {}, which {} ranks saved at {} ({}): '{}' of {}", offer->step,
               contents.manifest.world_size, contents.manifest.time, contents.manifest.reason, offer->path,
               group.roster()[static_cast<std::size_t>(offer->rank)].describe());
    }
  } else {
    self.refuse_damaged(choice.damaged);  // a fresh start would remove snapshots that can perhaps be mended
    check_room();
    self.begin_generation(std::nullopt);
    if (group.rank() == 0) log_info("snapshots: a fresh start: there is none in '{}'", self.folder.string());
  }
  self.is_begun = true;
  self.last_step = self.steps.count();
  if (group.rank() == 0 || self.is_sharded()) {
    const auto write = [&self](const Manifest& head, std::span<const checkpoint::ItemSource> items,
                               const std::exception_ptr& why_not) {
      if (self.is_sharded()) return self.write_slices(head, items, why_not);
      if (why_not) std::rethrow_exception(why_not);
      self.with_room([&] { checkpoint::write_snapshot(self.folder, head, items); });
      keep_saved_step(head.step);
      self.clean(self.options.keep);
    };
    self.writer = std::make_unique<BackgroundWriter>(write);
  }
  self.before_updates([&self] {
    self.is_updating = true;
    if (self.writer) self.writer->wait_copied();
  });
  if (self.options.rescue) self.after_broadcasts([&self] { self.keep_buffers(); });
  if (self.options.stop_on_signals) stop_on_signals(group);
  if (self.options.rescue) {
    self.at_fatal_error = std::make_unique<AtFatalError>([&self] { self.rescue("the job has failed"); });
  }
  return restored;
}

}  // namespace lockstep
