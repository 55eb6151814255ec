// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/nccl/message.h"

#include <fmt/format.h>

#include "runtime/comm/nccl/collective.h"
#include "runtime/comm/nccl/goodbye.h"

namespace lockstep::nccl {

std::string NcclMessage::describe() const {
  return fmt::format("{} of {} x {} {} rank {} with tag 0", is_send ? "send" : "recv", buffer.count,
                     name_of(buffer.dtype), is_send ? "to" : "from", peer);
}

void NcclMessage::launch(const LaunchContext& context) {
  if (ready) context.runtime.block(context.stream, ready.get());
  if (is_send) staged_.copy_in(context);
  if (buffer.count == 0) return;
  const Api& api = context.communicator->api();
  const auto stream = static_cast<cudaStream_t>(context.stream.handle);
  const auto count = static_cast<std::size_t>(buffer.count);
  const ncclDataType_t type = data_type_of(buffer.dtype);
  if (is_send) {
    context.communicator->call("ncclSend",
                               api.send(staged_.data(), count, type, peer, context.communicator->get(), stream));
  } else {
    context.communicator->call("ncclRecv",
                               api.recv(staged_.data(), count, type, peer, context.communicator->get(), stream));
  }
}

void NcclMessage::after_launch(const LaunchContext& context) {
  if (!is_send) staged_.copy_out(context);
}

bool NcclMessage::is_after(int rank, const Goodbye& goodbye) const {
  return rank == peer && number > (is_send ? goodbye.messages.received : goodbye.messages.sent);
}

}  // namespace lockstep::nccl
