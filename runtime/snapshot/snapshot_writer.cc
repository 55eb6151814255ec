// SPDX-License-Identifier: Apache-2.0
#include "runtime/snapshot/snapshot_writer.h"

#include <fmt/format.h>

#include <chrono>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/ddp/on_rank0.h"
#include "runtime/base/logging.h"
#include "runtime/comm/collective_call.h"
#include "runtime/job/step_board.h"
#include "runtime/snapshot/sharded_write.h"

namespace lockstep {
namespace {

// The least time between two warnings. If the warnings came more often, they could fill a pipe that nobody reads for a
// while, such as mpirun's pipe while mpirun ends a job.
constexpr std::chrono::seconds kBetweenWarnings{10};

}  // namespace

SnapshotWriter::SnapshotWriter(ProcessGroup& group, Catalogue& catalogue)
    : group_(group),
      catalogue_(catalogue),
      thread_([this](const checkpoint::Manifest& head, std::span<const checkpoint::ItemSource> sources,
                     const std::exception_ptr& why_not) { write(head, sources, why_not); }) {}

void SnapshotWriter::write(const checkpoint::Manifest& head, std::span<const checkpoint::ItemSource> items,
                           const std::exception_ptr& why_not) {
  if (catalogue_.all_write()) return write_sharded(group_, catalogue_, head, items, why_not);
  if (why_not) std::rethrow_exception(why_not);
  catalogue_.with_room([&] { checkpoint::write_snapshot(catalogue_.folder(), head, items); });
  keep_saved_step(head.step);
  // Call clean() last, so that an older snapshot is removed only after the newer snapshot is durable.
  catalogue_.clean();
}

void SnapshotWriter::start(checkpoint::Manifest head, std::vector<CapturedItem> items) {
  const std::int64_t step = head.step;
  // Set last_saved_ on every rank, even if the step is not saved below, because all ranks must decide alike which steps
  // to save.
  last_saved_ = step;
  const bool is_sharded = catalogue_.all_write();
  if (group_.rank() != 0 && !is_sharded) return;
  const bool is_busy = thread_.is_busy();
  const std::string why_not = is_sharded ? open_sharded(group_, catalogue_, head, is_busy) : is_busy ? kBusy : "";
  if (why_not.empty()) {
    being_written_ = step;
    why_it_is_written_ = head.reason;
    is_open_ = is_sharded;
    return thread_.start(std::move(head), std::move(items));
  }
  if (group_.rank() != 0) return;
  if (why_not != kBusy) {
    return log_error(
        "snapshots: step {} was not saved, and the run continues: {}; remove this cause before the next snapshot", step,
        why_not);
  }
  ++left_out_;
  if (!next_left_out_.expired()) return;
  log_warn(
      "snapshots: step {} is left out{}: {} is still being written to '{}'; save less often, save to a faster disk, or "
      "call wait() between the two saves",
      step, left_out_ > 1 ? fmt::format(", as were {} before", left_out_ - 1) : "",
      being_written_ < 0 ? "another rank's shard of the one before"
                         : fmt::format("step {} ({})", being_written_, why_it_is_written_),
      catalogue_.folder().string());
  next_left_out_ = Deadline::after(kBetweenWarnings);
  left_out_ = 0;
}

void SnapshotWriter::save(const checkpoint::Manifest& head, std::vector<CapturedItem> items) {
  constexpr const char* kCall = "Snapshots::save";
  const auto write = [&] {
    being_written_ = head.step;
    thread_.start(head, std::move(items));
    thread_.wait();
  };
  // Wait until every rank's background thread is idle, because open_sharded() refuses a step while some rank is
  // still writing.
  wait(kCall);
  const auto say_durable = [&] {
    return std::string(last_saved_ == head.step && catalogue_.find(head.step) ? "durable" : "");
  };
  if (on_rank0(kCall, say_durable, group_).empty()) {
    const bool all_write = catalogue_.all_write();
    const std::string why_not = all_write ? open_sharded(group_, catalogue_, head, thread_.is_busy()) : "";
    // The other ranks write at the same time as rank 0, because rank 0's write waits for the keys that the other
    // ranks set.
    if (group_.rank() != 0 && all_write && why_not.empty()) write();
    on_rank0(
        kCall,
        [&] {
          if (!why_not.empty()) throw Error(why_not);
          write();
          being_written_ = -1;
          if (const std::exception_ptr failure = thread_.take_failure()) std::rethrow_exception(failure);
          log_info("snapshots: step {} is saved in '{}' ({})", head.step, catalogue_.folder().string(), head.reason);
          return std::string();
        },
        group_);
    report();
  }
  last_saved_ = head.step;
}

void SnapshotWriter::meet_to_wait(const char* call) {
  if (!std::exchange(is_open_, false)) return;
  try {
    comm::within_call(call, [&] { group_.barrier().wait(); });
  } catch (...) {
    give_up();
    throw;
  }
}

void SnapshotWriter::wait(const char* call) {
  meet_to_wait(call);
  thread_.wait();
  report();
}

void SnapshotWriter::report() {
  if (being_written_ < 0 || thread_.is_busy()) return;
  const std::int64_t step = std::exchange(being_written_, -1);
  if (const std::exception_ptr failure = thread_.take_failure()) {
    try {
      std::rethrow_exception(failure);
    } catch (const std::exception& error) {
      log_error(
          "snapshots: step {} was not saved{}, and the run continues: {}; remove this cause before the next snapshot",
          step, group_.rank() == 0 ? "" : fmt::format(" to the disk of {}", catalogue_.who()), error.what());
    }
    return;
  }
  if (group_.rank() == 0) log_info("snapshots: step {} is saved in '{}'", step, catalogue_.folder().string());
}

void SnapshotWriter::give_up() {
  is_open_ = false;
  if (being_written_ >= 0 && catalogue_.all_write()) give_up_sharded(group_, catalogue_, being_written_);
}

}  // namespace lockstep
