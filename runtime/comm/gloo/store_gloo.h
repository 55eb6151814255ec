// Our store as Gloo's rendezvous wants one: where its ranks leave their addresses for each other.
#pragma once

#include <gloo/rendezvous/store.h>

#include "runtime/base/deadline.h"
#include "runtime/store/store.h"

namespace lockstep::gloo_backend {

// Threads: one. All waits end at the deadline, whatever Gloo asks for; they throw lockstep::Timeout with the rank that
// did not come.
class StoreGloo final : public ::gloo::rendezvous::Store {
 public:
  StoreGloo(store::Store& store, const Deadline& deadline) : store_(store), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set("gloo/" + key, std::string_view(data.data(), data.size()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get("gloo/" + key, deadline_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) static_cast<void>(get(key));
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  store::Store& store_;
  const Deadline deadline_;
};

}  // namespace lockstep::gloo_backend
