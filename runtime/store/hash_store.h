// A store inside one process: for a world of one, and for ranks that are threads.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>

#include "runtime/base/mutex.h"
#include "runtime/store/barrier_table.h"
#include "runtime/store/store.h"

namespace lockstep::store {

class HashStore : public Store {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, const Deadline& deadline) override;
  void wait(std::span<const std::string> keys, const Deadline& deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  bool check(std::span<const std::string> keys) override;
  bool erase(std::string_view key) override;
  void append(std::string_view key, std::string_view value) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) override;
  void multi_set(std::span<const std::string> keys, std::span<const std::string> values) override;
  std::int64_t num_keys() override;
  std::vector<std::string> list_keys() override;
  void queue_push(std::string_view queue, std::string_view value) override;
  std::string queue_pop(std::string_view queue, const Deadline& deadline) override;
  std::int64_t queue_length(std::string_view queue) override;
  void barrier(std::string_view name, std::int64_t rank, std::int64_t world_size, const Deadline& deadline) override;
  void stop_waiting() override;
  std::string description() const override { return "in-process"; }

 private:
  struct Queue {
    std::deque<std::string> items;
    std::deque<std::uint64_t> waiting;  // tickets, the longest first
  };

  bool has_items(std::string_view queue) const REQUIRES(mutex_);
  std::vector<std::string> missing(std::span<const std::string> keys, bool queues_count) const REQUIRES(mutex_);
  // Waits for values; if `queues_count`, also for queues that aren't empty.
  void wait_locked(std::span<const std::string> keys, bool queues_count, const Deadline& deadline) REQUIRES(mutex_);

  // False if the deadline has passed, or nobody shall wait.
  bool wait_for_change(const Deadline& deadline) REQUIRES(mutex_);

  Mutex mutex_;
  Condition changed_;
  std::map<std::string, std::string, std::less<>> values_ GUARDED_BY(mutex_);
  std::map<std::string, Queue, std::less<>> queues_ GUARDED_BY(mutex_);
  BarrierTable barriers_ GUARDED_BY(mutex_);
  std::set<std::uint64_t> released_ GUARDED_BY(mutex_);  // of a barrier, and not gone on yet
  std::uint64_t next_ticket_ GUARDED_BY(mutex_) = 0;
  bool stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::store
