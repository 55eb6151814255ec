// SPDX-License-Identifier: Apache-2.0
// HashStore is a key-value store inside one process. A job of a single rank uses a HashStore, and so does a job whose
// ranks are threads of one process.
#pragma once

#include <cstdint>
#include <map>

#include "lockstep/store/store.h"
#include "runtime/base/internal_api.h"
#include "runtime/base/mutex.h"

namespace lockstep::store {

class LOCKSTEP_INTERNAL_API HashStore : public Store {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::string get(std::string_view key, const Deadline& deadline) override;
  std::int64_t add(std::string_view key, std::int64_t delta) override;
  std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override;
  bool check(std::span<const std::string> keys) override;
  bool erase(std::string_view key) override;
  std::vector<std::string> multi_get(std::span<const std::string> keys, const Deadline& deadline) override;
  std::int64_t num_keys() override;
  std::vector<std::string> list_keys() override;
  void stop_waiting() override;
  std::string description() const override { return "in-process"; }

 private:
  std::vector<std::string> missing(std::span<const std::string> keys) const REQUIRES(mutex_);
  void wait_locked(std::span<const std::string> keys, const Deadline& deadline) REQUIRES(mutex_);

  // Waits for a write. Returns false if the deadline has passed or stop_waiting() was called.
  bool wait_for_change(const Deadline& deadline) REQUIRES(mutex_);

  Mutex mutex_;
  Condition changed_;
  std::map<std::string, std::string, std::less<>> values_ GUARDED_BY(mutex_);
  bool stopped_ GUARDED_BY(mutex_) = false;
};

}  // namespace lockstep::store
