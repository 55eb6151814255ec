// SPDX-License-Identifier: Apache-2.0
// Connections of every rank with every other, as Gloo's transport uses them.
//
// Gloo would take whoever connects first, and believes what it is sent: a stranger's packet can end the process. So it
// gets sockets that are connected and proved (comm/wire/proven_connections.h). Its pairs and context let a derived
// class put one in, in the way they do it themselves. What Gloo's device listens at of its own accord is a port of the
// loopback interface, which nobody is told and which closes when its pair has a connection.
#pragma once

#include <gloo/context.h>

#include <chrono>
#include <functional>
#include <memory>

#include "lockstep/base/deadline.h"
#include "lockstep/base/mutex.h"
#include "lockstep/rendezvous/roster.h"
#include "lockstep/store/store.h"
#include "runtime/comm/gloo/polled_buffer.h"
#include "runtime/comm/wire/proven_connections.h"

namespace lockstep::gloo_backend {

// Of Gloo's own waits: it closes every connection when one times out, so none of ours does. They are interrupted.
inline constexpr std::chrono::milliseconds kForever = std::chrono::hours(24 * 365);

class Mesh final : public ::gloo::Context {
 public:
  // `on_io` is called on Gloo's thread after it has read from, or written to, a connection. It may not call Gloo.
  Mesh(int own_rank, int ranks, std::function<void()> on_io) : Context(own_rank, ranks), on_io_(std::move(on_io)) {}

  // Collective; once. Throws what wire::connect_all() throws, and what Gloo throws: std::exceptions.
  void connect(store::Store& store, const rendezvous::Roster& roster, wire::ConnectOptions options,
               const Deadline& deadline);
  // Ends connect(). Any thread.
  void interrupt();
  // Once it is connected.
  std::unique_ptr<PolledBuffer> make_polled_buffer(void* data, std::size_t bytes);

 private:
  void stop_if_interrupted();

  const std::function<void()> on_io_;
  Mutex interrupt_mutex_;
  bool interrupted_ GUARDED_BY(interrupt_mutex_) = false;
};

}  // namespace lockstep::gloo_backend
