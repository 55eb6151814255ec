// SPDX-License-Identifier: Apache-2.0
// The backends of this build. Here and not in comm, which knows no backend.
#include "runtime/comm/backend.h"
#include "runtime/comm/init/plugins.h"
#include "runtime/comm/shm/process_group_shm.h"
#include "runtime/comm/single.h"
#include "runtime/comm/tcp/backend.h"

namespace lockstep {

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = [] {
    std::vector<Backend> list = {single_backend(), shm::backend()};
    for (Backend& plugin : plugin_backends()) list.push_back(std::move(plugin));
    list.push_back(tcp::backend());  // under mpirun Open MPI comes first, which may know a faster network
    return list;
  }();
  return all;
}

}  // namespace lockstep
