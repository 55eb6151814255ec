// SPDX-License-Identifier: Apache-2.0
// Memory on its way over Gloo, which can be asked whether it is through: Gloo's own buffers can only be waited for.
#pragma once

#include <gloo/transport/tcp/unbound_buffer.h>

#include <mutex>

namespace lockstep::gloo_backend {

// For one send or one receive. Any thread.
class PolledBuffer final : public ::gloo::transport::tcp::UnboundBuffer {
 public:
  using UnboundBuffer::UnboundBuffer;

  // True once it is through, or never will be.
  bool is_over() {
    const std::lock_guard<std::mutex> lock(m_);
    return ex_ != nullptr || recvCompletions_ > 0 || sendCompletions_ > 0;
  }
  // Throws what keeps it from ever being through: std::exceptions of Gloo's.
  void check() {
    const std::lock_guard<std::mutex> lock(m_);
    throwIfException();
  }
};

}  // namespace lockstep::gloo_backend
