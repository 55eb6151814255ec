// SPDX-License-Identifier: Apache-2.0
// A log of short texts in the store, which the ranks of a group write beside NCCL and which all read in the same order.
//
// NCCL knows neither deadlines nor goodbyes, and no rank can ask another through it. The log costs nothing while nobody
// writes: its reader waits at the store. Entry n is the key "log/n"; "log" counts them. A number that was taken and
// whose taker was not told, since the store's answer was lost, gets an entry of its own that says nothing: readers
// would wait there for ever. Entries that every rank has read are erased, kChunk at a time: "log/read/c" counts the
// ranks that have read chunk c.
//
// Threads: post() any. Two threads of its own: one reads and calls back, one writes. Where the store stands still they
// are left behind at stop().
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/store/store.h"

namespace lockstep::nccl {

class StoreLog {
 public:
  // Called for each entry, this rank's own too, in the log's order, on the reader's thread.
  using OnEntry = std::function<void(const std::string& entry)>;

  static constexpr std::int64_t kChunk = 256;

  StoreLog(std::shared_ptr<store::Store> store, int ranks);
  ~StoreLog();
  StoreLog(const StoreLog&) = delete;
  StoreLog& operator=(const StoreLog&) = delete;

  void start(OnEntry on_entry);
  // Writes an entry behind those before it. Returns at once. Where the store refuses it, that is a warning in the log
  // of the process, and it is tried again until stop(): no rank can read past an entry that is missing.
  void post(std::string entry);
  // Writes what is left and ends both threads. After it, nothing is called back.
  void stop();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace lockstep::nccl
