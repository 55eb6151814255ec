// SPDX-License-Identifier: Apache-2.0
// The state of BasicSnapshots; its parts are snapshots.cc (items, saving), shares.cc, best.cc, rescue.cc,
// offers.cc and restore.cc.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/snapshot/snapshots.h"
#include "runtime/base/at_fatal_error.h"
#include "runtime/base/unwind_guard.h"
#include "runtime/checkpoint/snapshot/generations.h"
#include "runtime/checkpoint/snapshot/retention.h"
#include "runtime/checkpoint/snapshot/series.h"
#include "runtime/checkpoint/snapshot/series_lock.h"
#include "runtime/snapshot/background_writer.h"

namespace lockstep {

struct BasicSnapshots::Impl {
  struct Item {
    std::string name;
    std::shared_ptr<SnapshotItem> item;
    checkpoint::ItemKind kind = checkpoint::ItemKind::replicated;
    AtAnotherSize at_another_size = AtAnotherSize::refuse;
  };

  // snapshots.cc
  std::string who() const;
  void add(Item item);
  void require_begun(const char* call) const;
  // On rank 0: removes the snapshots that the options, with `keep` in place of theirs, don't keep.
  // `being_written`: the step whose folder other ranks write to now.
  void clean(int keep, std::int64_t being_written = -1) const;
  checkpoint::Retention retention() const;
  static bool is_full(const SystemError& error);
  // Calls `write`. On a full disk it removes older snapshots, but not the newest, and calls it again.
  void with_room(const std::function<void()>& write, std::int64_t being_written = -1) const;
  void start(std::string_view reason, std::optional<double> value);
  // Collective, within save(): saves the step of `head` with `items`, unless it is saved, and returns once it is
  // durable.
  void save_now(const checkpoint::Manifest& head, std::vector<CapturedItem> items);
  // On rank 0: waits for what is being written. Whether that step is durable then.
  bool is_durable(std::int64_t step);
  // The items that this rank saves now; on rank 0 with the values of each rank. Collective if there are such values.
  std::vector<CapturedItem> capture();
  // The item with these values and tensors; if it is sharded, with the slices of this rank.
  CapturedItem captured_as(const Item& item, std::vector<checkpoint::SnapshotValues> values,
                           std::vector<SnapshotTensor> tensors) const;
  checkpoint::Manifest head(std::string_view reason) const;
  // Logs the outcome of the last background write, on rank 0, or that of this rank's disk if it has failed.
  void report();
  std::uint64_t state_bytes() const;
  // Gradients are not part of the state that is taken now: a backward that adds to existing ones is refused.
  void refuse_adding();
  // This run's snapshot of that step.
  std::optional<checkpoint::FoundSnapshot> find_durable(std::int64_t step) const;

  // shares.cc
  bool is_sharded() const;
  // In a captured item that is sharded puts the slices of this rank in place of whole tensors.
  void take_slices(CapturedItem& item) const;
  // Collective: makes the step's folder on each disk. Empty, or why it can't be saved now, on every rank; then it has
  // gone again. kBusy if a rank still writes the step before.
  std::string open_step(checkpoint::Manifest head);
  static constexpr const char* kBusy = "busy";
  // On the writer's thread of each rank, behind open_step(): writes this rank's files. Rank 0 then waits until all have
  // told it that theirs are durable, writes the manifest, and tells the ranks that keep a disk.
  // `why_not`: null, or why there is nothing to write.
  void write_slices(checkpoint::Manifest head, std::span<const checkpoint::ItemSource> sources,
                    const std::exception_ptr& why_not);
  void join_slices(const std::filesystem::path& snapshot, checkpoint::Manifest manifest, std::string failure) const;
  void copy_manifest(const std::filesystem::path& snapshot);
  // On a rank that ends by itself: ends its thread's waits for others, whose copies end with a backward that this rank
  // does not come to.
  void give_up_waiting() const;
  // Before a rank waits for its thread: a rank that does something else meanwhile is named, for the copies of the
  // others end with a backward that this rank does not come to. Collective once for each step that was opened.
  void meet_to_wait(const char* call);
  // The key under which a rank says that its files are durable, or gets the manifest.
  std::string key_of(const std::filesystem::path& snapshot, int rank, const char* what) const;

  // best.cc
  enum class BestStep : std::uint8_t { is_none, is_saved, to_save };
  // On rank 0.
  BestStep judge(double value);

  static checkpoint::SnapshotValues values_of(const Item& item);

  // rescue.cc
  struct KeptTensor {
    SnapshotTensor now;
    std::vector<std::byte> bytes;  // at the end of the step
  };
  // An item that a forward, or the program, changes after the step.
  struct KeptItem {
    checkpoint::SnapshotValues values;
    bool has_tensors = false;
    std::vector<KeptTensor> tensors;
  };
  void keep_step();
  // A forward begins with rank 0's buffers, after that step: a survivor then has them too.
  void keep_buffers();
  void copy_kept();
  // A tensor that optimizers write, by the number of writes.
  struct Counted {
    std::function<std::uint64_t()> version;
    bool is_parameter = false;
    std::uint64_t kept = 0;  // at the end of the step
  };
  void keep_counts();
  // Whether no optimizer has written anything since the last step().
  bool is_as_kept() const;
  // As capture(), of the state that keep_step() has kept. `of_ranks`: per item, the values of all ranks; empty for a
  // replicated one, and where only this rank's are known.
  std::vector<CapturedItem> capture_kept(std::vector<std::vector<checkpoint::SnapshotValues>> of_ranks);
  // The values of items that have values of each rank, by item. Collective.
  std::vector<std::vector<checkpoint::SnapshotValues>> gather_kept();
  checkpoint::SnapshotValues kept_values(std::size_t index) const;
  // On one of the ranks that call it: saves the state that keep_step() has kept. No collective, unless `all_live`: the
  // ranks have agreed to stop.
  void rescue(std::string_view why, bool all_live = false) noexcept;
  // The first item whose values, or share, are lost with a rank and may not be dropped.
  const Item* first_lost() const;
  // The step from which the job resumes where a death costs the last ones, and the number of those, for a message.
  std::string cost_of_loss() const;

  // offers.cc: all of it collective; `call` is for messages.
  struct Offer;
  struct AbsentFile;
  struct Choice;
  struct Contents;
  // Newest first.
  std::vector<Offer> gather_offers(std::string_view call) const;
  // The first snapshot that the ranks that offer it can read to its end, and the offers before it. Throws on every rank
  // if one before it is a later lockstep's. `only`: the one file that is needed; empty: all.
  Choice choose(const std::vector<Offer>& offers, std::string_view call, std::string_view only = {}) const;
  // Finds for each file a rank that has it undamaged; `offers` are of one snapshot. If a file has none, `choice` says
  // whether it is damaged or on the disk of an absent host.
  std::optional<Offer> find_readers(std::span<const Offer> offers, std::string_view call, std::string_view only,
                                    Choice& choice) const;
  // Throws on every rank, and tells the job's launcher that a host is awaited, if `choice` has an absent file.
  void refuse_absent(const Choice& choice) const;
  // Throws on every rank if a rank has `damaged` ones.
  void refuse_damaged(const std::vector<Offer>& damaged) const;
  Contents read(const Offer& offer) const;

  // restore.cc: all of it collective.
  // Mismatch, on every rank, where ranks have added different items.
  void compare_items() const;
  // Throws on every rank if the contents don't fit the state of some rank.
  void check(const Offer& offer, const Contents& contents) const;
  // Throws on every rank if a tied tensor of the program has different bits under its names. Behind check().
  void compare_tied(const Offer& offer, const Contents& contents) const;
  void begin_generation(std::optional<std::int64_t> from_step);
  // Records this start on this rank's disk, unless it is recorded there.
  void record_start();
  void load(const Offer& offer, const Contents& contents);
  // On rank 0: if the disk lacks space for one snapshot, and the job resumes from one, removes older ones.
  void check_room(bool is_resumed) const;

  std::filesystem::path folder;
  std::shared_ptr<ProcessGroup> group;
  Steps steps;
  std::vector<Steps> others;  // those of follow()
  // Sets the actions of `steps` and of all others; null: nothing.
  void before_updates(const std::function<void()>& action);
  void before_adding(const std::function<void()>& action);
  void after_broadcasts(const std::function<void()>& action);
  bool are_steps_over() const;
  SnapshotOptions options;
  std::vector<Item> items;
  bool is_begun = false;
  std::int64_t generation = 0;
  std::int64_t last_saved = -1;  // or restored: steps
  std::int64_t last_step = -1;   // steps at the last step(), or at restore()
  std::int64_t saved_for_stop = -1;
  std::vector<KeptItem> kept;
  std::int64_t kept_step = -1;
  std::vector<Counted> counted;   // the tensors that optimizers write
  bool are_writes_known = false;  // a write to every parameter was counted in the step before
  bool is_updating = false;       // a backward has ended, and step() was not called since
  bool is_rescued = false;
  bool is_over = false;  // load_best_model() has changed the model
  UnwindGuard unwinding;
  std::unique_ptr<AtFatalError> at_fatal_error;
  // Whether this rank is the one of those on its disk that makes and removes folders there: rank 0, and on another disk
  // that has the folder the first to record the generation.
  bool keeps_disk = false;
  std::optional<checkpoint::Generation> unrecorded;  // this start, until this disk has its record
  std::string resumes_from;                          // as Retention has it
  std::unique_ptr<checkpoint::SeriesLock> lock;      // rank 0's
  // Rank 0's; if an item is sharded every rank's.
  std::unique_ptr<BackgroundWriter> writer;
  std::int64_t being_written = -1;
  bool is_open = false;  // open_step() has opened one since meet_to_wait(), the same on every rank
  // As Retention has it. The writer's thread owns it from restore() on.
  std::set<std::pair<std::int64_t, std::int64_t>> saved_elsewhere;
  // Rank 0's.
  std::int64_t left_out = 0;  // since the line that said so
  Deadline next_left_out = Deadline::after({});
};

}  // namespace lockstep
