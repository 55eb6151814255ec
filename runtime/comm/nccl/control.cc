#include "runtime/comm/nccl/control.h"

#include <fmt/format.h>

#include <deque>
#include <exception>
#include <thread>

#include "runtime/base/error.h"
#include "runtime/base/logging.h"
#include "runtime/base/mutex.h"
#include "runtime/base/quiet_thread.h"

namespace lockstep::nccl {
namespace {

// How long the store may take to answer at the end.
constexpr std::chrono::seconds kPatience{2};
// Of whoever wants to be called no more: read by all, means something to the one alone whose token it has.
constexpr std::string_view kEnd = "end ";

}  // namespace

// Held by both threads, so that they can be left behind.
struct Control::State {
  State(std::shared_ptr<store::Store> store_of_the_group, int ranks_of_the_group)
      : store(std::move(store_of_the_group)), ranks(ranks_of_the_group) {}

  std::shared_ptr<store::Store> store;
  const int ranks;
  Mutex mutex;
  Condition changed;
  std::deque<std::string> to_write GUARDED_BY(mutex);
  std::deque<std::int64_t> read_chunks GUARDED_BY(mutex);  // that nobody knows of yet
  std::deque<std::string> to_erase;                        // keys; the writer's
  OnEntry on_entry GUARDED_BY(mutex);                      // empty once stopped
  bool calling GUARDED_BY(mutex) = false;
  bool started GUARDED_BY(mutex) = false;
  bool stopped GUARDED_BY(mutex) = false;
  bool reader_ended GUARDED_BY(mutex) = false;
  bool writer_ended GUARDED_BY(mutex) = false;
  std::thread reader;  // of start() and stop()
  std::thread writer;

  void read();
  void write();
  void put(const std::string& entry);
  void tell_of(std::int64_t chunk);
  void count_as_read(std::int64_t entry);
  // False once nobody wants to hear more.
  bool pass_on(const std::string& entry);
};

bool Control::State::pass_on(const std::string& entry) {
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

void Control::State::read() {
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
    // The store is lost, or a rank: who watches over the group says so.
    log_debug("nccl: the ranks' log can't be read any more: {}", error.what());
  }
  MutexLock lock(mutex);
  reader_ended = true;
  changed.notify_all();
}

void Control::State::count_as_read(std::int64_t entry) {
  if (entry % kChunk != 0) return;
  MutexLock lock(mutex);
  read_chunks.push_back(entry / kChunk);
  changed.notify_all();
}

void Control::State::put(const std::string& entry) { store->set(fmt::format("log/{}", store->add("log", 1)), entry); }

// Who comes last takes the chunk out.
void Control::State::tell_of(std::int64_t chunk) {
  const std::string readers = fmt::format("log/read/{}", chunk);
  if (store->add(readers, 1) < ranks) return;
  for (std::int64_t k = (chunk - 1) * kChunk + 1; k <= chunk * kChunk; ++k)
    to_erase.push_back(fmt::format("log/{}", k));
  to_erase.push_back(readers);
}

// What is to be written goes before what is to be erased, of which some may be left at the end.
void Control::State::write() {
  for (;;) {
    std::string entry;
    std::int64_t chunk = 0;
    {
      MutexLock lock(mutex);
      while (to_write.empty() && read_chunks.empty() && to_erase.empty() && !stopped) changed.wait(mutex);
      if (!to_write.empty()) {
        entry = std::move(to_write.front());
        to_write.pop_front();
      } else if (stopped) {
        break;
      } else if (!read_chunks.empty()) {
        chunk = read_chunks.front();
        read_chunks.pop_front();
      }
    }
    try {
      if (!entry.empty()) {
        put(entry);
      } else if (chunk > 0) {
        tell_of(chunk);
      } else {
        const std::string key = std::move(to_erase.front());
        to_erase.pop_front();
        store->erase(key);
      }
    } catch (const std::exception& error) {
      log_debug("nccl: the ranks' log can't be written: {}", error.what());
    }
  }
  MutexLock lock(mutex);
  writer_ended = true;
  changed.notify_all();
}

Control::Control(std::shared_ptr<store::Store> store, int ranks)
    : state_(std::make_shared<State>(std::move(store), ranks)) {}

Control::~Control() { stop(); }

void Control::start(OnEntry on_entry) {
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

void Control::post(std::string entry) {
  MutexLock lock(state_->mutex);
  if (state_->stopped) return;
  state_->to_write.push_back(std::move(entry));
  state_->changed.notify_all();
}

void Control::stop() {
  {
    MutexLock lock(state_->mutex);
    if (!state_->started || state_->stopped) return;
    state_->to_write.push_back(fmt::format("{}{}", kEnd, fmt::ptr(state_.get())));
    state_->stopped = true;
    state_->changed.notify_all();
    const Deadline patience = Deadline::after(kPatience);
    while (!(state_->reader_ended && state_->writer_ended) && state_->changed.wait_until(state_->mutex, patience)) {
    }
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
