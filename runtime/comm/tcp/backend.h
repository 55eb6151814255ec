// SPDX-License-Identifier: Apache-2.0
// The backend 'tcp': CPU tensors, on one host and across hosts.
#pragma once

#include "runtime/comm/backend.h"

namespace lockstep::tcp {

Backend backend();

}  // namespace lockstep::tcp
