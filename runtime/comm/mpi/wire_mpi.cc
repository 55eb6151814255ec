// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/mpi/wire_mpi.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "lockstep/base/error.h"
#include "runtime/comm/failure/active_timeout.h"
#include "runtime/comm/mpi/mpi_process.h"

namespace lockstep::mpi_backend {
namespace {

// MPI counts in int.
constexpr std::size_t kLargestMessage = std::size_t{1} << 30;
constexpr int kFrameTag = 1;
// The least that every MPI has as the largest tag.
constexpr std::uint64_t kTags = 32768;

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

int tag_of(wire::Tag tag) { return static_cast<int>(tag.number % kTags); }

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
  for (MPI_Comm* comm : {&frames_, &bulk_[0], &bulk_[1], &bulk_[2]}) {
    MPI_Request request = MPI_REQUEST_NULL;
    require(MPI_Comm_idup(MPI_COMM_WORLD, comm, &request), "MPI_Comm_idup");
    for (int done = 0; done == 0;) {
      require(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) break;
      if (interrupted_.load()) throw wire::Broken("interrupted");
      if (deadline.expired()) {
        throw Timeout(
            fmt::format("backend 'mpi': rank {} timed out while it waited for all ranks to make a communicator, {}; "
                        "look at the other ranks' output",
                        rank_, deadline.progress()));
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

template <typename Byte>
wire::Transfer WireMpi::post(const wire::BasicPiece<Byte>& piece, wire::Tag tag) {
  const MPI_Comm comm = bulk_[static_cast<std::size_t>(tag.kind)];
  Posted& posted = posted_[++last_] = {.peer = piece.peer, .tag = tag};
  for (std::size_t begin = 0; begin < piece.bytes; begin += kLargestMessage) {
    const int length = static_cast<int>(std::min(kLargestMessage, piece.bytes - begin));
    MPI_Request& request = posted.requests.emplace_back(MPI_REQUEST_NULL);
    if constexpr (std::is_const_v<Byte>) {
      require(MPI_Isend(piece.data + begin, length, MPI_BYTE, piece.peer, tag_of(tag), comm, &request), "MPI_Isend");
    } else {
      require(MPI_Irecv(piece.data + begin, length, MPI_BYTE, piece.peer, tag_of(tag), comm, &request), "MPI_Irecv");
    }
  }
  note_awaited();
  return last_;
}

wire::Transfer WireMpi::send(const wire::ConstPiece& piece, wire::Tag tag) { return post(piece, tag); }

wire::Transfer WireMpi::receive(const wire::Piece& piece, wire::Tag tag) { return post(piece, tag); }

bool WireMpi::push_transfers() {
  bool any = false;
  for (auto& [transfer, posted] : posted_) {
    if (posted.is_through) continue;
    int done = 0;
    require(MPI_Testall(static_cast<int>(posted.requests.size()), posted.requests.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
    posted.is_through = done != 0;
    any |= posted.is_through;
  }
  if (any) note_awaited();
  return any;
}

bool WireMpi::done(wire::Transfer transfer) {
  if (interrupted_.load()) throw wire::Broken("interrupted");
  const auto found = posted_.find(transfer);
  if (!found->second.is_through) has_ended_ |= push_transfers();
  if (!found->second.is_through) return false;
  posted_.erase(found);
  return true;
}

void WireMpi::note_awaited() {
  std::vector<int> peers = wire::peers_of_oldest(posted_);
  MutexLock lock(mutex_);
  awaited_ = std::move(peers);
}

std::vector<int> WireMpi::awaited() {
  MutexLock lock(mutex_);
  return awaited_;
}

void WireMpi::cancel_transfers() {
  Requests under_way;
  for (const auto& [transfer, posted] : posted_) {
    under_way.insert(under_way.end(), posted.requests.begin(), posted.requests.end());
  }
  posted_.clear();
  for (MPI_Request& request : under_way) {
    if (request != MPI_REQUEST_NULL) MPI_Cancel(&request);
  }
  // A receive that nobody has begun to fill is gone with that. Any other transfer has to end, or MPI to rest: it moves
  // nothing by itself.
  comm::ActiveTimeout patience(kLastPush);
  do {
    std::erase_if(under_way, [](MPI_Request& request) {
      int done = 0;
      return request == MPI_REQUEST_NULL || MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
    });
  } while (!under_way.empty() && !patience.over());
  at_rest_ = !under_way.empty();
}

void WireMpi::wait(const Deadline& deadline) {
  idle_rounds_ = 0;
  for (;;) {
    reap_frames();
    const bool has_news = take_frames() || push_transfers() || std::exchange(has_ended_, false);
    if (has_news || interrupted_.load() || deadline.expired()) break;
    {
      MutexLock lock(mutex_);
      if (woken_) break;
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
  comm::ActiveTimeout patience(deadline.remaining());
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
  for (MPI_Comm* comm : {&frames_, &bulk_[0], &bulk_[1], &bulk_[2]}) {
    if (*comm != MPI_COMM_NULL) MPI_Comm_free(comm);
  }
}

}  // namespace lockstep::mpi_backend
