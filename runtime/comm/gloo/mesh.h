// SPDX-License-Identifier: Apache-2.0
// Connections of every rank with every other over Gloo's transport.
//
// As gloo::rendezvous::Context makes them, but for what that lacks: it can be interrupted, who does not come is named,
// and its limit is the one it is given (Gloo gives a connection five times the timeout of its context to come about).
#pragma once

#include <gloo/context.h>
#include <gloo/transport/device.h>

#include <memory>

#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/rendezvous/roster.h"
#include "lockstep/store/store.h"

namespace lockstep::gloo_backend {

class Mesh final : public ::gloo::Context {
 public:
  Mesh(int own_rank, int ranks) : Context(own_rank, ranks) {}

  // Collective; once. Throws lockstep::Timeout, what the store throws, and what Gloo throws: std::exceptions.
  void connect(std::shared_ptr<::gloo::transport::Device> device, store::Store& store, const rendezvous::Roster& roster,
               const Deadline& deadline);
  // Ends connect(). Any thread.
  void interrupt();

 private:
  void stop_if_interrupted();

  Mutex interrupt_mutex_;
  bool interrupted_ GUARDED_BY(interrupt_mutex_) = false;
  std::shared_ptr<::gloo::transport::Context> connecting_ GUARDED_BY(interrupt_mutex_);
};

}  // namespace lockstep::gloo_backend
