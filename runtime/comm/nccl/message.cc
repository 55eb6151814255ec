#include "runtime/comm/nccl/message.h"

#include <fmt/format.h>

#include "runtime/comm/nccl/collective.h"

namespace lockstep::nccl {

std::string Message::describe() const {
  return fmt::format("{} of {} x {} {} rank {} with tag {}", is_send ? "send" : "recv", buffer.count,
                     name_of(buffer.dtype), is_send ? "to" : "from", peer, tag);
}

void Message::launch(const Lane& lane) {
  // The sender's side of a message to oneself is launched with the receiver's.
  auto* const own_send = static_cast<Message*>(twin.get());
  for (const Message* side : {static_cast<const Message*>(this), static_cast<const Message*>(own_send)}) {
    if (side != nullptr && side->ready) lane.runtime.block(lane.stream, side->ready.get());
  }
  if (is_send) staged_.bring_in(lane);
  if (buffer.count == 0) return;
  if (own_send != nullptr) {
    own_send->staged_.bring_in(lane);
    lane.runtime.copy(staged_.data(), own_send->staged_.data(), buffer.bytes(), lane.stream);
    return;
  }
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

std::optional<Pair> Matches::add(const Posting& posting) {
  const auto key = std::tuple(posting.sender, posting.receiver, posting.tag);
  Waiting& waiting = waiting_[key];
  (posting.is_send ? waiting.sends : waiting.recvs).push_back(posting);
  if (waiting.sends.empty() || waiting.recvs.empty()) return std::nullopt;
  const Pair pair{waiting.sends.front(), waiting.recvs.front()};
  waiting.sends.pop_front();
  waiting.recvs.pop_front();
  if (waiting.sends.empty() && waiting.recvs.empty()) waiting_.erase(key);
  return pair;
}

}  // namespace lockstep::nccl
