// A store inside one process: for a world of one, and for ranks that are threads.
#pragma once

#include <functional>
#include <map>

#include "runtime/base/mutex.h"
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
  std::string description() const override { return "in-process"; }

 private:
  void wait_locked(std::span<const std::string> keys, const Deadline& deadline) REQUIRES(mutex_);

  Mutex mutex_;
  Condition changed_;
  std::map<std::string, std::string, std::less<>> values_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::store
