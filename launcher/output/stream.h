// SPDX-License-Identifier: Apache-2.0
// The two streams that a rank writes.
#pragma once

namespace lockstep::launcher {

enum class Stream { out, err };

}  // namespace lockstep::launcher
