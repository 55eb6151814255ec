// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/message.h"

#include <fmt/format.h>

#include "runtime/comm/nccl/collective.h"
#include "runtime/comm/nccl/goodbye.h"

namespace lockstep::nccl {

std::string NcclMessage::describe() const {
  return fmt::format("{} of {} x {} {} rank {} with tag 0", p2p.is_send ? "send" : "recv", p2p.buffer.count,
                     name_of(p2p.buffer.dtype), p2p.is_send ? "to" : "from", p2p.peer);
}

void NcclMessage::launch(const LaunchContext& context) {
  if (ready) context.runtime.block(context.stream, ready.get());
  if (p2p.is_send) staged_.copy_in(context);
  if (p2p.buffer.count == 0) return;
  const Api& api = context.communicator->api();
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const auto count = static_cast<std::size_t>(p2p.buffer.count);
  const ncclDataType_t type = data_type_of(p2p.buffer.dtype);
  if (p2p.is_send) {
    context.communicator->call("ncclSend",
                               api.send(staged_.data(), count, type, p2p.peer, context.communicator->get(), stream));
  } else {
    context.communicator->call("ncclRecv",
                               api.recv(staged_.result(), count, type, p2p.peer, context.communicator->get(), stream));
  }
}

void NcclMessage::after_launch(const LaunchContext& context) {
  if (!p2p.is_send) staged_.copy_out(context);
}

bool NcclMessage::is_after(int rank, const Goodbye& goodbye) const {
  return rank == p2p.peer && number > (p2p.is_send ? goodbye.messages.received : goodbye.messages.sent);
}

}  // namespace lockstep::nccl
