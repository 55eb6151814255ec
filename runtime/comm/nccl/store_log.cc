// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/store_log.h"

#include <fmt/format.h>

#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::nccl {
namespace {

// How long the store may take to answer at the end.
constexpr std::chrono::seconds kPatience{2};
// Between two attempts to write an entry.
constexpr std::chrono::milliseconds kRetryPause{20};
// Attempts at the end.
constexpr int kLastAttempts = 5;
// The last entry of a rank that stops reading: all read it, and it means something only to the rank whose token it has.
// Without a token it stands where a number was lost.
constexpr std::string_view kEnd = "end ";

}  // namespace

// Held by both threads, so that they can be left behind.
struct StoreLog::State {
  State(std::shared_ptr<store::Store> store_of_the_group, int ranks_of_the_group)
      : store(std::move(store_of_the_group)), ranks(ranks_of_the_group) {}

  std::shared_ptr<store::Store> store;
  const int ranks;
  Mutex mutex;
  Condition changed;
  std::deque<std::string> to_write GUARDED_BY(mutex);
  std::deque<std::int64_t> read_chunks GUARDED_BY(mutex);  // that nobody knows of yet
  std::int64_t unread GUARDED_BY(mutex) = 1;               // the next entry that is read
  // The writer's.
  std::deque<std::string> to_erase;    // keys
  std::string unwritten;               // taken from to_write
  std::int64_t number = 0;             // taken for it; 0: none yet
  bool lost_a_number = false;          // perhaps: the store did not say which
  OnEntry on_entry GUARDED_BY(mutex);  // empty once stopped
  bool calling GUARDED_BY(mutex) = false;
  bool started GUARDED_BY(mutex) = false;
  bool stopped GUARDED_BY(mutex) = false;
  bool reader_ended GUARDED_BY(mutex) = false;
  bool writer_ended GUARDED_BY(mutex) = false;
  std::thread reader;  // of start() and stop()
  std::thread writer;

  void read();
  void write();
  // Writes what is unwritten; may be tried again where it throws.
  void put();
  void tell_of(std::int64_t chunk);
  void count_as_read(std::int64_t entry);
  // False once nobody wants to hear more.
  bool pass_on(const std::string& entry);
};

bool StoreLog::State::pass_on(const std::string& entry) {
  OnEntry call;
  {
    MutexLock lock(mutex);
    if (stopped) return false;
    call = on_entry;
    calling = true;
  }
  call(entry);
  MutexLock lock(mutex);
  calling = false;
  changed.notify_all();
  return !stopped;
}

void StoreLog::State::read() {
  try {
    for (std::int64_t next = 1;; ++next) {
      const std::string entry = store->get(fmt::format("log/{}", next), Deadline::never());
      count_as_read(next);
      if (entry == fmt::format("{}{}", kEnd, fmt::ptr(this))) {
        MutexLock lock(mutex);
        if (stopped) break;
        continue;
      }
      if (entry.starts_with(kEnd)) continue;
      if (!pass_on(entry)) break;
    }
  } catch (const std::exception& error) {
    // The store is lost, or a rank: the group's watchdog says so.
    log_debug("nccl: the ranks' log can't be read any more: {}", error.what());
  }
  MutexLock lock(mutex);
  reader_ended = true;
  changed.notify_all();
}

void StoreLog::State::count_as_read(std::int64_t entry) {
  MutexLock lock(mutex);
  unread = entry + 1;
  if (entry % kChunk != 0) return;
  read_chunks.push_back(entry / kChunk);
  changed.notify_all();
}

void StoreLog::State::put() {
  while (!unwritten.empty()) {
    if (number == 0) {
      const bool lost_before = std::exchange(lost_a_number, true);
      number = store->add("log", 1);
      lost_a_number = lost_before;
    }
    if (lost_a_number) {
      // The lost number is below this one, and nobody has read past it. An entry that this rank has not read is not
      // erased.
      std::int64_t k = 0;
      {
        MutexLock lock(mutex);
        k = unread;
      }
      for (; k < number; ++k) store->compare_set(fmt::format("log/{}", k), "", kEnd);
      lost_a_number = false;
    }
    // A writer that was too slow finds that another has taken the number for lost.
    if (store->compare_set(fmt::format("log/{}", number), "", unwritten) == unwritten) unwritten.clear();
    number = 0;
  }
}

// The last reader erases the chunk.
void StoreLog::State::tell_of(std::int64_t chunk) {
  const std::string readers = fmt::format("log/read/{}", chunk);
  if (store->add(readers, 1) < ranks) return;
  for (std::int64_t k = (chunk - 1) * kChunk + 1; k <= chunk * kChunk; ++k)
    to_erase.push_back(fmt::format("log/{}", k));
  to_erase.push_back(readers);
}

// Entries are written before others are erased, of which some may be left at the end. Between two attempts to write the
// other may come: a store that is full takes nothing more before something is erased.
void StoreLog::State::write() {
  bool refused = false;  // the last attempt
  bool warned = false;   // since the last that went well
  int last_attempts = 0;
  for (;;) {
    std::int64_t chunk = 0;
    bool puts = false;
    {
      MutexLock lock(mutex);
      while (unwritten.empty() && to_write.empty() && read_chunks.empty() && to_erase.empty() && !stopped) {
        changed.wait(mutex);
      }
      const bool may_erase = !read_chunks.empty() || !to_erase.empty();
      if (refused && (!may_erase || stopped)) changed.wait_until(mutex, Deadline::after(kRetryPause));
      if (unwritten.empty() && !to_write.empty()) {
        unwritten = std::move(to_write.front());
        to_write.pop_front();
      }
      if (unwritten.empty() && stopped) break;
      puts = !unwritten.empty() && (!refused || !may_erase || stopped);
      if (!puts && !read_chunks.empty()) {
        chunk = read_chunks.front();
        read_chunks.pop_front();
      }
    }
    try {
      if (puts) {
        put();
        warned = false;
        last_attempts = 0;
      } else if (chunk > 0) {
        tell_of(chunk);
      } else {
        const std::string key = std::move(to_erase.front());
        to_erase.pop_front();
        store->erase(key);
      }
      refused = false;
    } catch (const std::exception& error) {
      refused = puts;
      // Every rank hears of the store's loss in another way.
      const bool is_lost = dynamic_cast<const store::StoreLost*>(&error) != nullptr;
      const bool is_news = puts && !warned && !is_lost;
      log_at(is_news ? LogLevel::warn : LogLevel::debug,
             "nccl: the store does not take what goes into the ranks' log: {}", error.what());
      warned |= is_news;
      MutexLock lock(mutex);
      if (stopped && puts && (is_lost || ++last_attempts == kLastAttempts)) {
        last_attempts = 0;
        unwritten.clear();
        number = 0;
      }
    }
  }
  MutexLock lock(mutex);
  writer_ended = true;
  changed.notify_all();
}

StoreLog::StoreLog(std::shared_ptr<store::Store> store, int ranks)
    : state_(std::make_shared<State>(std::move(store), ranks)) {}

StoreLog::~StoreLog() { stop(); }

void StoreLog::start(OnEntry on_entry) {
  {
    MutexLock lock(state_->mutex);
    state_->on_entry = std::move(on_entry);
    state_->started = true;
  }
  state_->reader = start_quiet_thread([state = state_] { state->read(); });
  try {
    state_->writer = start_quiet_thread([state = state_] { state->write(); });
  } catch (...) {
    MutexLock lock(state_->mutex);
    state_->writer_ended = true;  // stop() lets go of the reader
    throw;
  }
}

void StoreLog::post(std::string entry) {
  MutexLock lock(state_->mutex);
  if (state_->stopped) return;
  state_->to_write.push_back(std::move(entry));
  state_->changed.notify_all();
}

void StoreLog::stop() {
  {
    MutexLock lock(state_->mutex);
    if (!state_->started || state_->stopped) return;
    state_->to_write.push_back(fmt::format("{}{}", kEnd, fmt::ptr(state_.get())));
    state_->stopped = true;
    state_->changed.notify_all();
    const Deadline patience = Deadline::after(kPatience);
    while (!(state_->reader_ended && state_->writer_ended) && state_->changed.wait_until(state_->mutex, patience)) {
    }
    // Until the last call has returned: on_entry refers to the group, which goes when stop() returns.
    while (state_->calling) state_->changed.wait(state_->mutex);
    state_->on_entry = {};
  }
  for (std::thread* thread : {&state_->reader, &state_->writer}) {
    if (!thread->joinable()) continue;
    bool ended = false;
    {
      MutexLock lock(state_->mutex);
      ended = thread == &state_->reader ? state_->reader_ended : state_->writer_ended;
    }
    if (ended) {
      thread->join();
    } else {
      thread->detach();
    }
  }
}

}  // namespace lockstep::nccl
