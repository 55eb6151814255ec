// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/mpi/wire_mpi.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>

#include "lockstep/base/error.h"
#include "runtime/comm/failure/patience.h"
#include "runtime/comm/mpi/mpi_process.h"

namespace lockstep::mpi_backend {
namespace {

// MPI counts in int.
constexpr std::size_t kLargestMessage = std::size_t{1} << 30;
constexpr int kFrameTag = 1;
constexpr int kBulkTag = 2;
// The least that every MPI has as the largest tag.
constexpr std::uint64_t kMessageTags = 32768;

// Between two looks: first none, while something is likely to come soon, then ever longer ones.
constexpr int kRoundsWithoutNap = 64;
constexpr std::chrono::microseconds kShortNap{50};
constexpr std::chrono::microseconds kLongNap{1000};
constexpr int kRoundsOfShortNaps = 2000;
// How long a transfer that is given up may take to end.
constexpr std::chrono::milliseconds kLastPush{200};

void require(int code, const char* call) {
  if (auto problem = mpi_error(code, call); !problem.empty()) throw wire::Broken(problem);
}

int tag_of(std::uint64_t number) { return static_cast<int>(number % kMessageTags); }

}  // namespace

WireMpi::WireMpi(const GroupContext& context)
    : rank_(context.identity.rank), size_(static_cast<int>(context.roster.size())) {}

void WireMpi::open(wire::Listener& listener, const Deadline& deadline) {
  listener_ = &listener;
  try {
    start_and_connect(deadline);
  } catch (...) {
    interrupt();  // what is half done can't be taken back
    throw;
  }
}

void WireMpi::start_and_connect(const Deadline& deadline) {
  start_mpi(rank_, size_);
  for (MPI_Comm* comm : {&frames_, &bulk_, &messages_}) {
    MPI_Request request = MPI_REQUEST_NULL;
    require(MPI_Comm_idup(MPI_COMM_WORLD, comm, &request), "MPI_Comm_idup");
    for (int done = 0; done == 0;) {
      require(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) break;
      if (interrupted_.load()) throw wire::Broken("interrupted");
      if (deadline.expired()) {
        throw Timeout(fmt::format("backend 'mpi': rank {} waited for all ranks to make a communicator, {}", rank_,
                                  deadline.progress()));
      }
      nap();
    }
    idle_rounds_ = 0;
    require(MPI_Comm_set_errhandler(*comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
}

void WireMpi::send_frame(int peer, const wire::FrameBytes& frame) {
  if (at_rest_) return;
  reap_frames();
  FrameOnItsWay& sent = *on_their_way_.emplace_back(std::make_unique<FrameOnItsWay>());
  sent.bytes = frame;
  require(MPI_Isend(sent.bytes.data(), wire::kFrameBytes, MPI_BYTE, peer, kFrameTag, frames_, &sent.request),
          "MPI_Isend");
}

void WireMpi::reap_frames() {
  while (!on_their_way_.empty()) {
    int done = 0;
    require(MPI_Test(&on_their_way_.front()->request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done == 0) return;
    on_their_way_.pop_front();
  }
}

bool WireMpi::take_frames() {
  bool any = false;
  for (;;) {
    int there = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status{};
    require(MPI_Improbe(MPI_ANY_SOURCE, kFrameTag, frames_, &there, &message, &status), "MPI_Improbe");
    if (there == 0) return any;
    wire::FrameBytes frame;
    require(MPI_Mrecv(frame.data(), wire::kFrameBytes, MPI_BYTE, &message, &status), "MPI_Mrecv");
    listener_->on_frame(status.MPI_SOURCE, frame);
    any = true;
  }
}

void WireMpi::start(Requests& requests, Direction direction, const wire::Piece& piece, int tag, MPI_Comm comm) {
  for (std::size_t begin = 0; begin < piece.bytes; begin += kLargestMessage) {
    const int length = static_cast<int>(std::min(kLargestMessage, piece.bytes - begin));
    requests.push_back(MPI_REQUEST_NULL);
    if (direction == Direction::out) {
      require(MPI_Isend(piece.data + begin, length, MPI_BYTE, piece.peer, tag, comm, &requests.back()), "MPI_Isend");
    } else {
      require(MPI_Irecv(piece.data + begin, length, MPI_BYTE, piece.peer, tag, comm, &requests.back()), "MPI_Irecv");
    }
  }
}

void WireMpi::complete(std::vector<int> peers) {
  {
    MutexLock lock(mutex_);
    std::sort(peers.begin(), peers.end());
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    awaited_ = std::move(peers);
  }
  for (;;) {
    if (interrupted_.load()) throw wire::Broken("interrupted");
    int done = 0;
    require(MPI_Testall(static_cast<int>(under_way_.size()), under_way_.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
    if (done != 0) break;
    if (take_frames()) idle_rounds_ = 0;
    nap();
  }
  idle_rounds_ = 0;
  under_way_.clear();
  MutexLock lock(mutex_);
  awaited_.clear();
}

std::vector<int> WireMpi::awaited() {
  MutexLock lock(mutex_);
  return awaited_;
}

void WireMpi::cancel_transfers() {
  for (const auto& [key, requests] : expected_) under_way_.insert(under_way_.end(), requests.begin(), requests.end());
  expected_.clear();
  for (MPI_Request& request : under_way_) {
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  }
  // A receive that nobody has begun to fill is gone with that. Any other transfer has to end, or MPI to rest: it moves
  // nothing by itself.
  comm::Patience patience(kLastPush);
  do {
    std::erase_if(under_way_, [](MPI_Request& request) {
      int done = 0;
      return request == MPI_REQUEST_NULL || MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
    });
  } while (!under_way_.empty() && !patience.over());
  at_rest_ = !under_way_.empty();
}

void WireMpi::exchange(std::span<const wire::Piece> sends, std::span<const wire::Piece> recvs) {
  std::vector<int> peers;
  for (const wire::Piece& piece : recvs) start(under_way_, Direction::in, piece, kBulkTag, bulk_);
  for (const wire::Piece& piece : sends) start(under_way_, Direction::out, piece, kBulkTag, bulk_);
  for (const auto pieces : {recvs, sends}) {
    for (const wire::Piece& piece : pieces) peers.push_back(piece.peer);
  }
  complete(std::move(peers));
}

void WireMpi::expect(const wire::Piece& piece, std::uint64_t number) {
  start(expected_[{piece.peer, number}], Direction::in, piece, tag_of(number), messages_);
}

void WireMpi::deliver(const wire::Piece& piece, std::uint64_t number) {
  start(under_way_, Direction::out, piece, tag_of(number), messages_);
  complete({piece.peer});
}

void WireMpi::finish(int peer, std::uint64_t number) {
  const auto found = expected_.find({peer, number});
  if (found == expected_.end()) return;
  under_way_ = std::move(found->second);
  expected_.erase(found);
  complete({peer});
}

void WireMpi::wait(const Deadline& deadline) {
  idle_rounds_ = 0;
  for (;;) {
    reap_frames();
    if (take_frames() || interrupted_.load() || deadline.expired()) break;
    {
      MutexLock lock(mutex_);
      if (woken_) break;
    }
    // Messages under way need a push too.
    for (auto& [key, requests] : expected_) {
      int done = 0;
      require(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
              "MPI_Testall");
    }
    nap();
  }
  idle_rounds_ = 0;
  MutexLock lock(mutex_);
  woken_ = false;
}

void WireMpi::nap() {
  if (++idle_rounds_ < kRoundsWithoutNap) return;
  MutexLock lock(mutex_);
  if (woken_) return;
  changed_.wait_until(mutex_, Deadline::after(idle_rounds_ < kRoundsOfShortNaps ? kShortNap : kLongNap));
}

void WireMpi::wake() {
  MutexLock lock(mutex_);
  woken_ = true;
  changed_.notify_all();
}

void WireMpi::interrupt() {
  interrupted_.store(true);
  never_finalize();
  wake();
}

void WireMpi::close(const Deadline& deadline) {
  comm::Patience patience(deadline.remaining());
  try {
    while (!at_rest_ && !on_their_way_.empty() && !patience.over()) {
      reap_frames();
      if (on_their_way_.empty()) break;
      // The peers send theirs now too, and each waits for the other to take them.
      take_frames();
      nap();
    }
  } catch (const wire::Broken&) {
    // There is nobody left to send them to.
  }
  // A group that has failed leaves its communicators to the end of the process: freeing them needs every rank.
  if (interrupted_.load() || !on_their_way_.empty()) {
    static auto* const kept = new std::vector<std::unique_ptr<FrameOnItsWay>>;
    std::move(on_their_way_.begin(), on_their_way_.end(), std::back_inserter(*kept));
    on_their_way_.clear();
    return never_finalize();
  }
  for (MPI_Comm* comm : {&frames_, &bulk_, &messages_}) {
    if (*comm != MPI_COMM_NULL) MPI_Comm_free(comm);
  }
}

}  // namespace lockstep::mpi_backend
