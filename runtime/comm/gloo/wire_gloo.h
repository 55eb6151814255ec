// SPDX-License-Identifier: Apache-2.0
// Bytes between ranks over Gloo's TCP transport.
//
// Gloo can't be asked whether something has come: it can only be waited for. So besides the communication thread one
// thread waits for frames and one for connections that end; and Gloo has one of its own that reads and writes the
// sockets. Bulk is asked about through a class derived from Gloo's (polled_buffer.h): whenever Gloo's thread has read
// or written, it looks whether that has ended a transfer, and then wakes the communication thread.
#pragma once

#include <gloo/transport/unbound_buffer.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/mutex.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/gloo/device_choice.h"
#include "runtime/comm/gloo/mesh.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::gloo_backend {

class WireGloo final : public wire::Wire {
 public:
  explicit WireGloo(GroupContext context);
  ~WireGloo() override;

  std::string_view name() const override { return "Gloo"; }
  void open(wire::Listener& listener, const Deadline& deadline) override;
  std::string opening() const override;
  void send_frame(int peer, const wire::FrameBytes& frame) override;
  wire::Transfer send(const wire::Piece& piece, wire::Tag tag) override;
  wire::Transfer receive(const wire::Piece& piece, wire::Tag tag) override;
  bool done(wire::Transfer transfer) override;
  std::vector<int> awaited() override;
  void sleep_on(wire::Doorbell& bell) override { bell_ = &bell; }
  void wait(const Deadline& deadline) override;
  void wake() override;
  void interrupt() override;
  void cancel_transfers() override;
  void close(const Deadline& deadline) override;

 private:
  using Buffer = std::unique_ptr<::gloo::transport::UnboundBuffer>;

  // Frames on their way to one peer: a ring, filled again when its oldest is out.
  struct Outbox {
    std::vector<wire::FrameBytes> frames;
    Buffer buffer;
    std::size_t next = 0;
    std::size_t under_way = 0;
  };
  // Where frames come in: each takes one, from whoever is first.
  struct Inbox {
    wire::FrameBytes frame;
    Buffer buffer;
  };

  // A transfer that done() has not said to be through.
  struct Posted {
    int peer = -1;
    wire::Tag tag = {};
    std::unique_ptr<PolledBuffer> buffer = {};
    bool is_told = false;  // the communication thread has been woken for it
  };

  Buffer buffer_over(void* data, std::size_t bytes);
  enum class Direction { out, in };
  wire::Transfer post(Direction direction, const wire::Piece& piece, wire::Tag tag);
  // Wakes the communication thread if a transfer has ended. Gloo's thread, which holds the lock of a pair.
  void look_for_ends();
  // Waits until a frame of the outbox is out. Throws Broken.
  void await(Outbox& outbox);
  void receive_frames(wire::Listener& listener);
  void watch_connections(wire::Listener& listener);
  std::vector<int> still_connected(const std::vector<int>& peers);
  void flush(Outbox& outbox, const Deadline& deadline);

  const GroupContext context_;
  const int rank_;
  const int size_;
  std::vector<int> others_;
  std::vector<std::atomic<bool>> lost_;  // by rank: its connection has ended
  const DeviceChoice choice_;
  std::shared_ptr<Mesh> mesh_;  // null once closed
  std::vector<Outbox> outboxes_;
  std::vector<Inbox> inboxes_;
  std::thread receiver_;
  std::thread watcher_;
  std::atomic<bool> stopping_{false};
  wire::Doorbell* bell_ = nullptr;

  Mutex mutex_;
  bool interrupted_ GUARDED_BY(mutex_) = false;
  std::shared_ptr<Mesh> opening_ GUARDED_BY(mutex_);  // during open()
  // What the communication thread is blocked in.
  ::gloo::transport::UnboundBuffer* blocked_in_ GUARDED_BY(mutex_) = nullptr;
  ::gloo::transport::UnboundBuffer* watched_ GUARDED_BY(mutex_) = nullptr;

  // Gloo is never called under its lock, which its thread takes while it holds its own.
  Mutex posted_mutex_;
  std::map<wire::Transfer, Posted> posted_ GUARDED_BY(posted_mutex_);
  wire::Transfer last_ GUARDED_BY(posted_mutex_) = 0;
};

}  // namespace lockstep::gloo_backend
