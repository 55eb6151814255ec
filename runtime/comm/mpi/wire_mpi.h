// SPDX-License-Identifier: Apache-2.0
// Bytes between ranks over Open MPI.
//
// MPI moves nothing by itself: whoever waits has to ask it again and again. So the one thread that calls it looks for
// frames whenever it waits for anything, with short naps in between that a call from this process ends.
#pragma once

#include <mpi.h>

#include <array>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/comm/backend.h"
#include "runtime/comm/wire/wire.h"

namespace lockstep::mpi_backend {

class WireMpi final : public wire::Wire {
 public:
  explicit WireMpi(const GroupContext& context);

  std::string_view name() const override { return "Open MPI"; }
  void open(wire::Listener& listener, const Deadline& deadline) override;
  std::string opening() const override { return "MPI_Init, which waits for every rank"; }
  bool can_interrupt_open() const override { return false; }
  void send_frame(int peer, const wire::FrameBytes& frame) override;
  wire::Transfer send(const wire::ConstPiece& piece, wire::Tag tag) override;
  wire::Transfer receive(const wire::Piece& piece, wire::Tag tag) override;
  bool done(wire::Transfer transfer) override;
  std::vector<int> awaited() override;
  void wait(const Deadline& deadline) override;
  void wake() override;
  void interrupt() override;
  void cancel_transfers() override;
  void close(const Deadline& deadline) override;

 private:
  using Requests = std::vector<MPI_Request>;

  // A transfer that done() has not said to be through: its requests are more than one where it is larger than what MPI
  // counts with.
  struct Posted {
    int peer = -1;
    wire::Tag tag = {};
    Requests requests = {};
    bool is_through = false;
  };

  void start_and_connect(const Deadline& deadline);
  template <typename Byte>
  wire::Transfer post(const wire::BasicPiece<Byte>& piece, wire::Tag tag);
  // Pushes MPI; true if a transfer has ended. Throws Broken.
  bool push_transfers();
  // Notes whom the oldest transfer waits for.
  void note_awaited();
  // Takes the frames that are there and gives them to the listener; true if there was one.
  bool take_frames();
  void reap_frames();
  // Until somebody calls wake(), interrupt(), or a moment has passed.
  void nap();

  const int rank_;
  const int size_;
  wire::Listener* listener_ = nullptr;
  // Each kind of traffic has a communicator of its own.
  MPI_Comm frames_ = MPI_COMM_NULL;
  std::array<MPI_Comm, 3> bulk_ = {MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL};  // by Tag::Kind
  struct FrameOnItsWay {
    wire::FrameBytes bytes;
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::deque<std::unique_ptr<FrameOnItsWay>> on_their_way_;  // MPI knows them by their address
  std::map<wire::Transfer, Posted> posted_;
  wire::Transfer last_ = 0;
  bool at_rest_ = false;    // MPI is not called any more: it would continue a transfer whose memory is not ours now
  bool has_ended_ = false;  // done() has seen transfers end: the next wait() returns at once
  std::atomic<bool> interrupted_{false};
  int idle_rounds_ = 0;

  Mutex mutex_;
  Condition changed_;
  bool woken_ GUARDED_BY(mutex_) = false;
  std::vector<int> awaited_ GUARDED_BY(mutex_);
};

}  // namespace lockstep::mpi_backend
