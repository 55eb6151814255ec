// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/hosts/gloo_peer.h"

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep::bench {
namespace {

class StoreForGloo final : public ::gloo::rendezvous::Store {
 public:
  explicit StoreForGloo(store::Store& store) : store_(store) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set("gloo_peer/" + key, {data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get("gloo_peer/" + key, deadline());
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, std::chrono::seconds(60)); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    for (const std::string& key : keys) get(key);
  }

 private:
  static Deadline deadline() { return Deadline::after(std::chrono::seconds(60)); }

  store::Store& store_;
};

}  // namespace

struct GlooPeer::State {
  std::shared_ptr<::gloo::rendezvous::Context> context;
};

GlooPeer::GlooPeer(ProcessGroup& group, const std::string& interface) : state_(std::make_unique<State>()) {
  ::gloo::transport::tcp::attr attributes;
  attributes.iface = interface;
  auto device = ::gloo::transport::tcp::CreateDevice(attributes);
  StoreForGloo store(group.store());
  state_->context = std::make_shared<::gloo::rendezvous::Context>(group.rank(), group.size());
  state_->context->setTimeout(std::chrono::minutes(2));
  state_->context->connectFullMesh(store, device);
}

GlooPeer::~GlooPeer() = default;

void GlooPeer::all_reduce(Algorithm algorithm, float* data, std::size_t count) {
  ::gloo::AllreduceOptions options(state_->context);
  options.setOutput(data, count);
  options.setAlgorithm(algorithm == Algorithm::ring ? ::gloo::AllreduceOptions::Algorithm::RING
                                                    : ::gloo::AllreduceOptions::Algorithm::BCUBE);
  options.setReduceFunction(
      [](void* c, const void* a, const void* b, std::size_t n) { ::gloo::sum<float>(c, a, b, n); });
  ::gloo::allreduce(options);
}

}  // namespace lockstep::bench
