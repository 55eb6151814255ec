// The backends of this build. Here and not in comm, which knows no backend.
#include "runtime/comm/backend.h"
#include "runtime/comm/shm/process_group_shm.h"
#include "runtime/comm/single.h"

namespace lockstep {

const std::vector<Backend>& backends() {
  static const std::vector<Backend> all = {single_backend(), shm::backend()};
  return all;
}

}  // namespace lockstep
