#include "runtime/comm/nccl/message.h"

#include <fmt/format.h>

#include "runtime/comm/nccl/collective.h"

namespace lockstep::nccl {

std::string Message::describe() const {
  return fmt::format("{} of {} x {} {} rank {} with tag 0", is_send ? "send" : "recv", buffer.count,
                     name_of(buffer.dtype), is_send ? "to" : "from", peer);
}

void Message::launch(const Lane& lane) {
  if (ready) lane.runtime.block(lane.stream, ready.get());
  if (is_send) staged_.bring_in(lane);
  if (buffer.count == 0) return;
  const Api& api = lane.communicator->api();
  const auto stream = static_cast<cudaStream_t>(lane.stream.handle);
  const auto count = static_cast<std::size_t>(buffer.count);
  const ncclDataType_t type = data_type_of(buffer.dtype);
  if (is_send) {
    lane.communicator->call("ncclSend", api.send(staged_.data(), count, type, peer, lane.communicator->get(), stream));
  } else {
    lane.communicator->call("ncclRecv", api.recv(staged_.data(), count, type, peer, lane.communicator->get(), stream));
  }
}

void Message::follow_up(const Lane& lane) {
  if (!is_send) staged_.bring_back(lane);
}

bool Message::is_beyond(int rank, const Goodbye& goodbye) const {
  return rank == peer && number > (is_send ? goodbye.messages.received : goodbye.messages.sent);
}

}  // namespace lockstep::nccl
